"""Schedules: instances of subgraphs in groups, groups side by side in stages, stages one after another.

An instance is one slice of a subgraph's output (GraphTurbo); stages and groups are those of IOS. The
instances of a group run in order; the groups of a stage run at the same time and so must not depend on
each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Protocol, runtime_checkable

from tilewright.partition.base import Partition, Subgraph
from tilewright.planning import Budget, Infeasible, Provenance, Quality


@dataclass(frozen=True, slots=True)
class Slice:
    """Elements [start, end) of an axis of a subgraph's outputs; of these `inner`, cut along another one."""

    axis: int
    start: int
    end: int
    inner: Slice | None = None

    @property
    def cuts(self) -> tuple[tuple[int, int, int], ...]:
        """Axis, start and end of each cut, the outer first."""
        return ((self.axis, self.start, self.end), *(() if self.inner is None else self.inner.cuts))

    def __str__(self) -> str:
        own = f"axis {self.axis} [{self.start}, {self.end})"
        return own if self.inner is None else f"{own} {self.inner}"


def slice_of_cuts(cuts: Sequence[tuple[int, int, int]]) -> Slice | None:
    """The slice with these cuts, the outer first; None where there are none.

    >>> str(slice_of_cuts([(0, 1, 2), (2, 0, 4)]))
    'axis 0 [1, 2) axis 2 [0, 4)'
    """
    found: Slice | None = None
    for axis, start, end in reversed(cuts):
        found = Slice(axis, start, end, found)
    return found


@dataclass(frozen=True, slots=True)
class Instance:
    """One execution of a subgraph's code: all of its output, or one slice."""

    subgraph_id: int
    slice: Slice | None = None

    def __str__(self) -> str:
        return f"{self.subgraph_id}" if self.slice is None else f"{self.subgraph_id}[{self.slice}]"


@dataclass(frozen=True, slots=True)
class Group:
    """Instances that run one after another; `num_cores` None leaves their share to the target."""

    instances: tuple[Instance, ...]
    num_cores: int | None = None


@dataclass(frozen=True, slots=True)
class Stage:
    """Groups that run side by side. The next stage starts when all have finished."""

    groups: tuple[Group, ...]

    def instances(self) -> Iterator[Instance]:
        """All instances, group by group."""
        for group in self.groups:
            yield from group.instances


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """Stages in sequence."""

    partition: Partition
    stages: tuple[Stage, ...]
    quality: Quality
    provenance: Provenance

    def instances(self) -> Iterator[Instance]:
        """All instances in an order in which one worker may run them."""
        for stage in self.stages:
            yield from stage.instances()


Duration = Callable[[Subgraph], float]
StageCost = Callable[[Stage], float]


def one_step(subgraph: Subgraph) -> float:
    """The default duration: every subgraph takes one step."""
    return 1.0


@dataclass(frozen=True, slots=True)
class ScheduleProblem:
    """A partition to put in order.

    The cost of a schedule is the sum over its stages of `stage_cost`, in `unit`; without one, a stage takes
    as long as its longest group and a group the sum of `duration` of its subgraphs, slices in proportion.
    `max_groups` is how many groups the machine runs side by side. `bound` is a lower bound on the cost of any
    schedule; None derives one where `stage_cost` is not given.
    """

    partition: Partition
    duration: Duration = one_step
    unit: str = "steps"
    max_groups: int = 1
    stage_cost: StageCost | None = None
    bound: float | None = None
    _durations: dict[int, float] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        durations = {s.id: self.duration(s) for s in self.partition.subgraphs}
        object.__setattr__(self, "_durations", durations)

    def instance_duration(self, instance: Instance) -> float:
        """Duration of one instance: the subgraph's, times the share of its output that is made."""
        whole = self._durations[instance.subgraph_id]
        if instance.slice is None:
            return whole
        shape = self.partition.subgraphs[instance.subgraph_id].outputs[0].shape
        return whole * prod((end - start) / shape[axis] for axis, start, end in instance.slice.cuts)

    def cost_of(self, stage: Stage) -> float:
        """Cost of one stage."""
        if self.stage_cost is not None:
            return self.stage_cost(stage)
        sums = (sum(self.instance_duration(i) for i in group.instances) for group in stage.groups)
        return max(sums, default=0.0)

    def lower_bound(self, *, is_sliced: bool = False) -> float:
        """The stated bound, or the longest chain or the total work per group, whichever is longer.

        Slices of a subgraph may run side by side, so a chain of subgraphs bounds no schedule that has any.
        """
        if self.bound is not None:
            return self.bound
        if self.stage_cost is not None:
            return 0.0
        work = sum(self._durations.values()) / self.max_groups
        return work if is_sliced else max(critical_path(self.partition, self._durations.__getitem__), work)


def critical_path(partition: Partition, duration: Callable[[int], float]) -> float:
    """Longest sum of `duration(subgraph id)` along a chain of dependent subgraphs. O(subgraphs + edges)."""
    end: list[float] = []
    for subgraph in partition.subgraphs:
        start = max((end[p.id] for p in partition.predecessors(subgraph)), default=0.0)
        end.append(start + duration(subgraph.id))
    return max(end, default=0.0)


@runtime_checkable
class Scheduler(Protocol):
    """One way to order subgraphs. Implementations are frozen dataclasses; their fields are their options."""

    @property
    def name(self) -> str:
        """The name in the registry."""
        ...

    def solve(self, problem: ScheduleProblem, budget: Budget) -> Schedule | Infeasible:
        """Order the subgraphs, or say which capacity forbids it."""
        ...


def build_schedule(
    problem: ScheduleProblem, stages: tuple[Stage, ...], provenance: Provenance, *, cut_off: bool = False
) -> Schedule:
    """The schedule of these stages, with its quality."""
    cost = sum(problem.cost_of(stage) for stage in stages)
    is_sliced = any(i.slice is not None for stage in stages for i in stage.instances())
    bound = problem.lower_bound(is_sliced=is_sliced)
    quality = Quality.of(cost, bound=bound, unit=problem.unit, cut_off=cut_off)
    return Schedule(problem.partition, stages, quality, provenance)


def single(subgraph_id: int) -> Stage:
    """A stage that runs one whole subgraph alone."""
    return Stage((Group((Instance(subgraph_id),)),))
