"""Subgraphs on virtual computing units: what depends on nothing of each other side by side where it pays.

As PCGC (section 3.4) has it, after Rammer (Ma et al., OSDI 2020): the machine is so many units of each kind,
one in each core that has one. What is ready runs at the same time, a branch in a group, as far as there are
units for it; each group then has fewer cores than it would have alone. Where that does not take less, one
subgraph after the other gets all of them. Inside of each kernel, on the cores that it then has, the same is
done with layers (`lane_search.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from tilewright.errors import InfeasibleMapping
from tilewright.planning import Budget, Meter, Provenance, option
from tilewright.progress import checkpoint
from tilewright.schedule.base import Group, Instance, Schedule, ScheduleProblem, Stage, build_schedule, single
from tilewright.schedule.lane_search import LaneSearch
from tilewright.schedule.moldable import allocation, core_counts, packing
from tilewright.schedule.sequential import Sequential
from tilewright.schedule.units import needed_unit, virtual_units


@dataclass(frozen=True, slots=True)
class VirtualUnits:
    """Branches side by side on the computing units that the machine has, where that takes less (PCGC)."""

    min_gain: float = option(0.0, "Share of the cost of one after another that a stage must save.")
    max_groups: int = option(8, "Most branches of a stage.")
    inside: bool = option(True, "Whether layers within a kernel run at the same time, too, where that pays.")
    name: ClassVar[str] = "virtual-units"

    def solve(self, problem: ScheduleProblem, budget: Budget) -> Schedule:
        """Stage by stage; the order of the graph where that costs no more, as where stages overlap."""
        work = _Work(problem, self, budget.start())
        stages = tuple(work.stages())
        laned = stages
        if self.inside and problem.allows_lanes:
            search = LaneSearch(problem, work.meter, self.min_gain)
            laned = tuple(map(search.improved, stages))
        try:
            schedule = self._built(problem, laned, work.meter)
        except InfeasibleMapping:
            # Beside what else lies there the cores of a lane hold less than alone.
            schedule = self._built(problem, stages, work.meter)
        plain = Sequential().solve(problem, Budget(1))
        if plain.quality.cost <= schedule.quality.cost:
            note = "one after another costs no more"
            return replace(plain, provenance=replace(schedule.provenance, note=note))
        return schedule

    def _built(self, problem: ScheduleProblem, stages: tuple[Stage, ...], meter: Meter) -> Schedule:
        return build_schedule(problem, stages, self._provenance(stages, meter), cut_off=meter.cut_off)

    def _provenance(self, stages: Sequence[Stage], meter: Meter) -> Provenance:
        num_parallel = sum(len(stage.groups) > 1 for stage in stages)
        num_laned = sum(bool(lanes) for stage in stages for g in stage.groups for lanes in g.inside)
        note = (
            f"{num_parallel} of {len(stages)} stages have several groups, {num_laned} kernels several lanes"
        )
        return Provenance(self.name, num_evaluations=meter.num_evaluations, note=note)


@dataclass(slots=True)
class _Work:
    """A schedule under construction. `waiting` counts, for each subgraph, those that it still waits for."""

    problem: ScheduleProblem
    options: VirtualUnits
    meter: Meter
    waiting: dict[int, int] = field(init=False)
    done: set[int] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        partition = self.problem.partition
        self.waiting = {s.id: len(partition.predecessors(s)) for s in partition.subgraphs}

    def stages(self) -> Iterator[Stage]:
        """All stages in order."""
        subgraphs = self.problem.partition.subgraphs
        while len(self.done) < len(subgraphs):
            checkpoint()
            ready = [i for i, count in self.waiting.items() if count == 0 and i not in self.done]
            stage = self._stage(ready)
            yield stage
            for instance in stage.instances():
                self.done.add(instance.subgraph_id)
                for successor in self.problem.partition.successors(subgraphs[instance.subgraph_id]):
                    self.waiting[successor.id] -= 1

    def _stage(self, ready: Sequence[int]) -> Stage:
        """The stage that saves most of what one after another would cost; one subgraph if none saves."""
        longest = sorted(ready, key=lambda i: (-self._cost(i), i))
        heads = sorted(longest[: self.options.max_groups])
        branches = [self._branch(head) for head in heads]
        best, most = single(ready[0]), 0.0
        for groups in dict.fromkeys((tuple(branches), tuple((head,) for head in heads))):
            if len(groups) < 2 or not self.meter.spend():
                continue
            alone = sum(self._cost(i) for group in groups for i in group)
            for stage in self._on_units(groups):
                saved = alone - self.problem.stage(stage).cost(self.problem.objective)
                if saved > most and saved >= self.options.min_gain * alone:
                    best, most = stage, saved
        return best

    def _branch(self, head: int) -> tuple[int, ...]:
        """A subgraph and those that then wait for nothing else."""
        partition = self.problem.partition
        branch = [head]
        inside = {head}
        for i in branch:
            for successor in partition.successors(partition.subgraphs[i]):
                before = {p.id for p in partition.predecessors(successor)}
                if successor.id not in inside and before <= inside | self.done:
                    branch.append(successor.id)
                    inside.add(successor.id)
        return tuple(sorted(branch))

    def _on_units(self, groups: Sequence[tuple[int, ...]]) -> Iterator[Stage]:
        """The groups on the units there are for them, several after each other on one where these are fewer.

        On cores as the target shares them, and on as many for each as let the last one finish first.
        """
        total = self.problem.limits.num_cores
        num_units = self._num_units(groups)
        if num_units < 2:
            return
        if len(groups) > num_units:
            times = [self._time_ns(group, max(1, total // num_units)) for group in groups]
            packed = packing(times, num_units)
            groups = [tuple(sorted(i for g in unit for i in groups[g])) for unit in packed.cores]
        yield _stage_of(groups, (None,) * len(groups))
        given = allocation(
            [{n: self._time_ns(group, n) for n in core_counts(total)} for group in groups], total
        )
        if total > 1 and given is not None:
            yield _stage_of(groups, given.num_cores)

    def _num_units(self, groups: Sequence[Sequence[int]]) -> int:
        """How many of the groups can run at the same time."""
        limits, subgraphs = self.problem.limits, self.problem.partition.subgraphs
        units = virtual_units(self.problem.machine, max(limits.num_cores, limits.num_groups))
        needed = {needed_unit(subgraphs[i].nodes) for group in groups for i in group}
        return min(limits.num_groups, *(units[unit] for unit in needed))

    def _time_ns(self, group: Sequence[int], num_cores: int) -> float:
        subgraphs = self.problem.partition.subgraphs
        return sum(self.problem.cost.kernel(subgraphs[i], num_cores).time_ns for i in group)

    def _cost(self, subgraph_id: int) -> float:
        return self.problem.kernel(subgraph_id).cost(self.problem.objective)


def _stage_of(groups: Sequence[Sequence[int]], num_cores: Sequence[int | None]) -> Stage:
    return Stage(
        tuple(
            Group(tuple(map(Instance, group)), count) for group, count in zip(groups, num_cores, strict=True)
        )
    )
