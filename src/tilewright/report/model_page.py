"""The report of a model as one page: its graph, what kernels take, memory over time, why edges were cut."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.explain import Explanation
from tilewright.program import Program
from tilewright.report.compilation import CompilationReport, in_words
from tilewright.report.figure import colour, facts, folded, heading, html_table, note, page
from tilewright.report.graph_view import graph_section
from tilewright.report.lanes import (
    STYLE,
    Lane,
    LaneBlock,
    Rectangle,
    Time,
    block_lanes,
    map_lane,
    picture,
    stack_lane,
)
from tilewright.report.limits import (
    TimedKernel,
    bound_colour,
    bound_key,
    bound_name,
    roofline_section,
    times_section,
)
from tilewright.report.workers import RecordedRun, worker_rows
from tilewright.results import Table
from tilewright.steps import BufferInfo, MemoryInfo, StepInfo
from tilewright.text.formatting import format_bytes
from tilewright.text.printable import html_text


@dataclass(frozen=True, slots=True)
class RunTimes:
    """What the kernels of a run take, measured or by estimate, beside what the machine allows.

    `kernels` has one for each step, with the id of its first kernel, or without those whose time is not
    known; `recorded` is one run of them as it went. `flop_per_s` and `bytes_per_s` are the machine's peaks by
    name; `explained` says where they are from.
    """

    kernels: tuple[TimedKernel, ...]
    is_measured: bool
    said: tuple[tuple[str, str], ...] = ()
    flop_per_s: Mapping[str, float] = field(default_factory=dict)
    bytes_per_s: Mapping[str, float] = field(default_factory=dict)
    explained: str = ""
    recorded: RecordedRun | None = None

    @classmethod
    def estimated(cls, steps: Sequence[StepInfo]) -> RunTimes:
        """What the cost model says of the steps, of those of which it says something."""
        kernels = []
        for step in steps:
            times = [k.estimate_ns for k in step.kernels if k.estimate_ns is not None]
            if len(times) == len(step.kernels):
                time_ns = sum(times)
                name = _name(step)
                kernels.append(
                    TimedKernel(step.kernels[0].id, name, time_ns, time_ns, time_ns, None, "estimate")
                )
        return cls(tuple(kernels), is_measured=False)

    def by_id(self) -> dict[str, float]:
        """The time of each step by the id of its first kernel."""
        return {kernel.id: kernel.time_ns for kernel in self.kernels}


def model_page(
    title: str,
    program: Program,
    report: CompilationReport,
    explanation: Explanation,
    steps: Sequence[StepInfo],
    memory: MemoryInfo | None,
    times: RunTimes,
) -> str:
    """One HTML page that needs no network."""
    kernels = [kernel for step in steps for kernel in step.kernels]
    measured_ns = times.by_id() if times.is_measured else None
    summary = report.tables[0].rows
    parts = [facts(times.said or [(str(name), str(value)) for name, value in summary])]
    parts += [heading("Graph"), graph_section(program, kernels, explanation.edges, measured_ns)]
    if not times.kernels:
        parts.append(note("The cost model of this target says nothing of single kernels."))
    parts += times_section(times.kernels)
    if times.flop_per_s and times.bytes_per_s:
        parts += roofline_section(times.kernels, times.flop_per_s, times.bytes_per_s, times.explained)
    recorded = times.recorded
    if recorded is not None and len(recorded.steps) != len(steps):
        recorded = None  # what was measured was made anew, and the model by a version that makes other steps
    parts += run_section(_timed_steps(steps, times), memory, recorded)
    parts += _edges_section(explanation)
    parts += [heading("Tables"), *(folded(table.title, [in_words(table)]) for table in report.tables)]
    return page(title, parts)


def shapes_page(
    title: str, said: str, table: Table, sections: Sequence[tuple[str, CompilationReport, RunTimes]]
) -> str:
    """One HTML page of a model that was compiled for several sets of shapes: `table` lists them, and each has
    a section with its name, times of kernels and tables."""
    parts = [note(f"{said}. {_OF_SHAPES}"), html_table(table.heads, table.rows)]
    for name, report, times in sections:
        tables = [folded(inner.title, [in_words(inner)]) for inner in report.tables]
        parts.append(folded(name, [*times_section(times.kernels), *tables]))
    return page(title, parts)


_OF_SHAPES = (
    "The graph, and memory over time, are on the page of a single set of shapes: compile with --shapes that "
    "gives one size to each dimension."
)


def _timed_steps(steps: Sequence[StepInfo], times: RunTimes) -> list[TimedStep]:
    by_id = {kernel.id: kernel for kernel in times.kernels}
    timed = []
    for step in steps:
        kernel = by_id.get(step.kernels[0].id)
        bound = "host" if kernel is None and step.kernels[0].is_host else "estimate"
        timed.append(
            TimedStep(_name(step), None, bound)
            if kernel is None
            else TimedStep(f"{kernel.id} {kernel.name}", kernel.time_ns, kernel.bound)
        )
    return timed


def _name(step: StepInfo) -> str:
    """Templates of its kernels, and the nodes they serve."""
    templates = " | ".join(dict.fromkeys(kernel.template for kernel in step.kernels))
    nodes = [name for kernel in step.kernels for name in kernel.nodes]
    return f"{templates} {', '.join(dict.fromkeys(nodes))}".strip()


def _edges_section(explanation: Explanation) -> list[str]:
    counts = explanation.edge_counts()
    if not counts:
        return []
    num_fused = sum(count for count, verdict, *_ in counts if verdict == "fused")
    num_cut = len(explanation.edges) - num_fused
    said = (
        f"{len(explanation.edges):,} edges between nodes: {num_fused:,} fused into one kernel, {num_cut:,} "
        "cut. The reason of each is in the graph, where a box is chosen, and in the table of edges below."
    )
    rows = [(f"{count:,}", verdict, code, why) for count, verdict, code, why in counts]
    heads = ("edges", "verdict", "reason", "why")
    return [heading("Edges: fused or cut"), note(said), html_table(heads, rows, is_words=True)]


_MAX_BUFFERS = 5_000


@dataclass(frozen=True, slots=True)
class TimedStep:
    """A step of a run: kernels that run side by side, as one."""

    name: str
    time_ns: float | None
    bound: str


class Clock:
    """When steps begin and end: as they were recorded, else one after another by their times, or all alike
    where some have none."""

    def __init__(self, steps: Sequence[TimedStep], recorded: RecordedRun | None = None) -> None:
        if recorded is not None:
            self.is_timed = True
            self._moments = [*(start_ns / 1e9 for start_ns, _ in recorded.steps), recorded.run_ns / 1e9]
        else:
            times_ns = [step.time_ns for step in steps]
            self.is_timed = bool(steps) and all(ns is not None for ns in times_ns) and any(times_ns)
            lengths = [(ns or 0.0) / 1e9 if self.is_timed else 1.0 for ns in times_ns]
            self._moments = list(itertools.accumulate(lengths, initial=0.0))
        end = self._moments[-1]
        self.axis = Time.of(end) if self.is_timed else Time(end, "step", 1.0)

    def start(self, step: int) -> float:
        """When a step begins; what is needed before the first step, from the beginning on."""
        return self._moments[min(max(step, 0), len(self._moments) - 1)]

    def end(self, step: int) -> float:
        """When a step ends."""
        return self.start(step + 1)


def run_section(
    steps: Sequence[TimedStep], memory: MemoryInfo | None, recorded: RecordedRun | None = None
) -> list[str]:
    """Lanes of steps by what holds them back, of threads and of each level of memory, over the same time.

    A `recorded` run of these very steps says what threads do.
    """
    if not steps:
        return []
    num_places = 0 if memory is None else max((b.last_step + 1 for b in memory.buffers), default=0)
    is_of_kernels = num_places <= len(steps)  # else of slices and transfers, which the plan counts
    drawn_steps: Sequence[TimedStep] = steps if is_of_kernels else ()
    clock = Clock(steps if is_of_kernels else [TimedStep("", None, "")] * num_places, recorded)
    said = "Steps one after another" if is_of_kernels else "What the plan runs, one after another"
    said += ", as long as they take" if clock.is_timed else ""
    lanes = [clock.axis.lane(), *_step_lanes(drawn_steps, clock)]
    if recorded is not None:
        said = "One run, of those that take about the median: its steps, the chunks of kernels on each thread"
        rows = worker_rows(recorded, [bound_colour(step.bound) for step in steps])
        lanes += block_lanes(clock.axis, rows)
    lanes += [*_memory_lanes(memory, clock), clock.axis.lane()]
    if memory is not None:
        said += f"; constants, {format_bytes(memory.constant_bytes)}, are there all the time and not drawn"
        if len(memory.buffers) > _MAX_BUFFERS:
            said += f"; of {len(memory.buffers):,} buffers the places of the largest {_MAX_BUFFERS:,}"
    return [
        heading("Steps and memory over time" if recorded is None else "Steps, workers and memory over time"),
        note(f"{said}. Point at a step, a chunk or a buffer for its name and size."),
        f"<style>{STYLE}</style>",
        bound_key([step.bound for step in drawn_steps]),
        picture(clock.axis, lanes),
    ]


def _step_lanes(steps: Sequence[TimedStep], clock: Clock) -> list[Lane]:
    """A row for each of what holds steps back."""
    rows: dict[str, list[LaneBlock]] = {}
    for number, step in enumerate(steps):
        label = f"step {number}: {step.name}\n{bound_name(step.bound)}"
        block = LaneBlock(clock.start(number), clock.end(number), bound_colour(step.bound), label)
        rows.setdefault(step.bound, []).append(block)
    return block_lanes(
        clock.axis, [(f"<b>{html_text(bound_name(bound))}</b>", row) for bound, row in rows.items()]
    )


def _memory_lanes(memory: MemoryInfo | None, clock: Clock) -> Iterator[Lane]:
    if memory is None:
        return
    for number, level in enumerate(memory.levels):
        buffers = [b for b in memory.buffers if b.level == number and b.size_bytes]
        if not buffers:
            continue
        points = [(moment, (size,)) for moment, size in _held_bytes(buffers, clock)]
        title = f"at least {format_bytes(level.lower_bound_bytes)}"
        yield stack_lane(level.name, title, clock.axis, (colour(0),), points, level.capacity_bytes)
        largest = sorted(buffers, key=lambda b: -b.size_bytes)[:_MAX_BUFFERS]
        title = f"places of buffers\nin {format_bytes(level.peak_bytes)}"
        yield map_lane(title, clock.axis, [_rectangle(b, clock) for b in largest], 140)


def _held_bytes(buffers: Sequence[BufferInfo], clock: Clock) -> list[tuple[float, int]]:
    """From when on how many bytes are needed."""
    changes: dict[float, int] = {0.0: 0}
    for b in buffers:
        for moment, change in (
            (clock.start(b.first_step), b.size_bytes),
            (clock.end(b.last_step), -b.size_bytes),
        ):
            changes[moment] = changes.get(moment, 0) + change
    moments = sorted(changes)
    return list(zip(moments, itertools.accumulate(changes[m] for m in moments), strict=True))


def _rectangle(buffer: BufferInfo, clock: Clock) -> Rectangle:
    start, end = clock.start(buffer.first_step), clock.end(buffer.last_step)
    label = (
        f"{buffer.name}: {format_bytes(buffer.size_bytes)} at {buffer.offset_bytes:,}\n"
        f"needed from step {buffer.first_step} to step {buffer.last_step}"
    )
    low = buffer.offset_bytes
    shade = colour(buffer.first_step % 7)
    return Rectangle(start, end, low, low + buffer.size_bytes, shade, label)
