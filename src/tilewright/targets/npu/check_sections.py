"""Independent check of lanes in a finished run: whose a kernel's cores are, what lies in their buffers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tilewright.hardware.machine import Level
from tilewright.memory.scopes import PlacedBuffer
from tilewright.planning import Violation
from tilewright.schedule.binding import Scope
from tilewright.schedule.launches import Launch
from tilewright.targets.npu.trace import Trace, first_start, last_end


@dataclass(frozen=True, slots=True)
class Phase:
    """Steps of a kernel between which its cores do not change hands: those of a section, or between two."""

    section: int | None
    steps: tuple[int, ...]


def phases_of(trace: Trace, launch: Launch) -> tuple[Phase, ...]:
    """A kernel's steps in the order of the plan, cut where a section of lanes begins or ends."""
    phases: list[Phase] = []
    for number in (s for node in launch.nodes for s in trace.planned.scopes.steps_of(node)):
        place = trace.sections[number]
        section = None if place is None else place[1]
        if phases and phases[-1].section == section:
            phases[-1] = Phase(section, (*phases[-1].steps, number))
        else:
            phases.append(Phase(section, (number,)))
    return tuple(phases)


def check_sections(trace: Trace) -> Iterator[Violation]:
    """Lanes on more cores than their kernel holds; what uses cores of another section before that has ended;
    buffers that a lane reads from other cores' buffers, or leaves there for these."""
    for launch in trace.planned.bindings.launches:
        if not launch.sections:
            continue
        phases = phases_of(trace, launch)
        yield from _check_cores(trace, launch, phases)
        ended_s, before = 0.0, 0
        for phase in phases:
            runs = [run for step in phase.steps for run in trace.on_cores(step)]
            start_s = first_start(runs)
            if runs and start_s < ended_s - trace.tolerance_s:
                yield Violation(
                    "order",
                    f"step {phase.steps[0]} uses cores at {start_s * 1e6:.3f} us, which step {before} has in "
                    f"another section until {ended_s * 1e6:.3f} us",
                )
            if last_end(runs) > ended_s:
                ended_s, before = last_end(runs), phase.steps[-1]
    yield from _check_crossing(trace)


def _check_cores(trace: Trace, launch: Launch, phases: Sequence[Phase]) -> Iterator[Violation]:
    kernel = trace.planned.simulation.steps[phases[0].steps[0]].kernel
    held = 0 if kernel is None else kernel.num_cores
    most = held if launch.num_cores is None else min(held, launch.num_cores)
    for number, section in enumerate(launch.sections):
        num_cores = sum(lane.num_cores for lane in section)
        if num_cores > most:
            yield Violation("unit", f"section {number} of a kernel of {most} cores has lanes on {num_cores}")
    found = [phase.section for phase in phases if phase.section is not None]
    if len(set(found)) < len(found):
        yield Violation("order", f"sections {found} of a kernel do not follow each other")


def _check_crossing(trace: Trace) -> Iterator[Violation]:
    """What passes between a lane and other cores of its kernel lies in a level that both reach."""
    for number, step in enumerate(trace.planned.scopes.steps):
        for read in step.reads:
            if read.buffer is None:
                continue
            buffer = trace.planned.scopes.buffers[read.buffer]
            is_passed = trace.sections[number] != trace.sections[buffer.first_step]
            if buffer.scope is Scope.LOCAL and is_passed:
                yield Violation("order", f"step {number} reads {buffer} from buffers of other cores")


@dataclass(frozen=True, slots=True)
class LaneSpace:
    """The buffers of a lane's cores: its steps, what placed buffers take there, and what they hold."""

    name: str
    steps: tuple[int, ...]
    lying_bytes: int
    capacity_bytes: int


def lane_spaces(trace: Trace, level: Level) -> Iterator[LaneSpace]:
    """Of each lane of each kernel: of what lies in all of the kernel's cores the part of these cores, and all
    that the lane itself makes there."""
    assert level.capacity_bytes is not None
    for launch in trace.planned.bindings.launches:
        if not launch.sections:
            continue
        of_kernel = (s for node in launch.nodes for s in trace.planned.scopes.steps_of(node))
        common = _lying(trace, (step for step in of_kernel if trace.sections[step] is None))
        extent = max((b.end_bytes for b in common), default=0) - min(
            (b.offset_bytes for b in common), default=0
        )
        steps_of: dict[tuple[int, int], list[int]] = {}
        for step in trace.planned.scopes.steps_of(launch.nodes[-1]):
            place = trace.sections[step]
            if place is not None:
                steps_of.setdefault(place[1:], []).append(step)
        for (section, number), steps in steps_of.items():
            kernel = trace.planned.simulation.steps[steps[0]].kernel
            num_cores = launch.sections[section][number].num_cores
            own_bytes = sum(b.size_bytes for b in _lying(trace, steps))
            held = 1 if kernel is None else kernel.num_cores
            yield LaneSpace(
                f"{level.name} of lane {number} of section {section}, steps {steps[0]} to {steps[-1]}",
                tuple(steps),
                -(-extent * num_cores // held) + own_bytes,
                level.capacity_bytes * num_cores,
            )


def lane_buffers(trace: Trace) -> Iterator[tuple[PlacedBuffer, float, float]]:
    """What lanes make for themselves in their cores, and from when to when their sections run."""
    for launch in trace.planned.bindings.launches:
        for phase in phases_of(trace, launch) if launch.sections else ():
            if phase.section is None:
                continue
            runs = [run for step in phase.steps for run in trace.on_cores(step)]
            for buffer in _lying(trace, phase.steps) if runs else ():
                yield buffer, first_start(runs), last_end(runs)


def _lying(trace: Trace, steps: Iterable[int]) -> list[PlacedBuffer]:
    """The buffers that some steps make in their cores."""
    scopes = trace.planned.scopes
    made = (scopes.buffers[i] for step in steps for i in scopes.steps[step].writes)
    return [b for b in made if b.scope is Scope.LOCAL and b.size_bytes]
