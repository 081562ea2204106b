"""The runs of a simulated plan, to look things up in: by step, by what they do, by engine, by tile."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from tilewright.hardware.machine import Machine
from tilewright.schedule.binding import Scope
from tilewright.schedule.core_groups import CoreGroup
from tilewright.schedule.launches import Launch
from tilewright.targets.npu.plan import SimulatedPlan
from tilewright.targets.npu.ports import CORE_DMA, DMA
from tilewright.targets.simulated import UnitRun


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """What one cluster did. `runs` are in the order of their starts, `tolerance_s` is what sums of times may
    be off by. `of_step` are the runs of each step, `sections` the kernel of each that runs in a lane, beside
    the numbers of the section and of the lane.
    """

    planned: SimulatedPlan
    machine: Machine
    runs: tuple[UnitRun, ...] = field(init=False)
    tolerance_s: float = field(init=False)
    sections: Sequence[tuple[Launch, int, int] | None] = field(init=False, repr=False)
    of_step: Sequence[list[UnitRun]] = field(init=False, repr=False)
    _known: Mapping[tuple[int, str], list[UnitRun]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        runs = tuple(sorted(self.planned.simulation.runs, key=lambda run: run.start_s))
        known: dict[tuple[int, str], list[UnitRun]] = {}
        of_step: list[list[UnitRun]] = [[] for _ in self.planned.scopes.steps]
        for run in runs:
            known.setdefault((run.step, run.what), []).append(run)
            of_step[run.step].append(run)
        object.__setattr__(self, "runs", runs)
        object.__setattr__(self, "tolerance_s", 1e-9 * last_end(runs))
        object.__setattr__(self, "of_step", of_step)
        object.__setattr__(self, "_known", known)
        places = {
            (launch.nodes[-1], layer): (launch, number, lane)
            for launch in self.planned.bindings.launches
            for number, section in enumerate(launch.sections)
            for lane, members in enumerate(section)
            for layer in members.layers
        }
        sections = [places.get((step.node, step.layer)) for step in self.planned.scopes.steps]
        object.__setattr__(self, "sections", sections)

    @property
    def core_engine(self) -> str:
        """What moves data between the cores' buffers and what is next to them."""
        return DMA if self.machine.shared is None else CORE_DMA

    def engine_of(self, scope: Scope) -> str:
        """What reads and writes buffers outside the cores: those of main memory, or of the shared buffer."""
        return DMA if scope is Scope.MAIN else CORE_DMA

    def group_of(self, step: int) -> CoreGroup | None:
        """The group of cores that runs a step; None where all cores do."""
        cores = self.planned.bindings.cores
        return None if cores is None else cores.groups[cores.of_nodes[self.planned.scopes.steps[step].node]]

    def cores_of(self, step: int) -> int | None:
        """The number of cores of the lane or of the group that runs a step; None where it has all that there
        are, or all of its kernel."""
        place, group = self.sections[step], self.group_of(step)
        if place is not None:
            launch, section, lane = place
            return launch.sections[section][lane].num_cores
        return None if group is None else group.num_cores

    def share_of(self, step: int) -> float:
        """What of the cores may run a step."""
        num_cores = self.cores_of(step)
        return 1.0 if num_cores is None else num_cores / self.machine.num_cores_per_cluster

    def on_cores(self, step: int) -> list[UnitRun]:
        """The runs of a step that use cores or their buffers: all but those of main memory's engine, where it
        feeds a shared buffer."""
        is_apart = self.machine.shared is not None
        return [run for run in self.of_step[step] if not (is_apart and run.unit == DMA)]

    def held(self) -> Mapping[tuple[int, str], int | None]:
        """The step that brought each weight which a group of cores holds, by the group and the weight's key:
        the first of the group that brings it. None: it was there before the first step."""
        residents = self.planned.simulation.residents
        steps: dict[tuple[int, str], int | None] = {}
        if residents.stay:
            steps |= {(group, key): None for group, keys in enumerate(residents.held) for key in keys}
        for number, step in enumerate(self.planned.simulation.steps if residents.held else ()):
            group = self.group_of(number)
            for key in (weight.key for weight in step.weights):
                if group is not None and key is not None and key in residents.held[group.number]:
                    steps.setdefault((group.number, key), number)
        return steps

    def of(
        self,
        step: int,
        what: str,
        unit: str | None = None,
        name: str | None = None,
        part: int | None = None,
    ) -> list[UnitRun]:
        """The runs of a step that do something, by start; of a unit, of a value or weight, of a load."""
        return [
            r
            for r in self._known.get((step, what), ())
            if (unit is None or r.unit == unit)
            and (name is None or r.name == name)
            and (part is None or r.part == part)
        ]

    def work(self, step: int) -> list[UnitRun]:
        """What makes the results of a step in the cores: computing; where operands are only put together,
        their moves too."""
        computing = self.of(step, "compute")
        if self.planned.scopes.steps[step].operators:
            return computing
        return self.of(step, "move") + self.of(step, "load", self.core_engine) + computing


def first_start(runs: Iterable[UnitRun]) -> float:
    """When the first of them starts; never, if there is none."""
    return min((run.start_s for run in runs), default=inf)


def last_end(runs: Iterable[UnitRun]) -> float:
    """When the last of them has ended; at the beginning, if there is none."""
    return max((run.end_s for run in runs), default=0.0)


def by_tile(runs: Iterable[UnitRun]) -> dict[int, list[UnitRun]]:
    """Runs by the tile that they are for."""
    found: dict[int, list[UnitRun]] = {}
    for run in runs:
        found.setdefault(run.tile, []).append(run)
    return found


def ends_until(runs: Iterable[UnitRun], num_tiles: int) -> Sequence[float]:
    """For each tile when all that runs bring for it and for those before it has been brought."""
    tiles = by_tile(runs)
    end = last_end(tiles.get(-1, ()))
    brought = []
    for tile in range(num_tiles):
        end = max(end, last_end(tiles.get(tile, ())))
        brought.append(end)
    return brought
