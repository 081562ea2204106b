"""Schedules: instances of subgraphs in groups, groups side by side in stages, stages one after another.

An instance is one slice of a subgraph's output (GraphTurbo); stages and groups are those of IOS. The
instances of a group run in order; the groups of a stage run at the same time and so must not depend on
each other.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from tilewright.cost.base import UNITS, CostModel, Estimate, Objective
from tilewright.cost.roofline import NOMINAL
from tilewright.partition.base import Partition
from tilewright.planning import NO_LIMITS, Budget, Infeasible, Limits, Provenance, Quality

if TYPE_CHECKING:
    from tilewright.hardware.machine import Machine


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


PriceSchedule = Callable[[Partition, Sequence[Stage]], Estimate]
"""What a whole schedule costs, for machines on which stages overlap and so do not add up."""


@dataclass(frozen=True, slots=True)
class ScheduleProblem:
    """A partition to put in order, for a machine on which work costs what a model says.

    The cost of a schedule is that of its stages one after another, under an objective; `price` takes the
    place of that sum where a machine does more than one stage at a time.
    """

    partition: Partition
    machine: Machine | None = None
    cost: CostModel = NOMINAL
    objective: Objective = "latency"
    limits: Limits = NO_LIMITS
    seed: int = 0
    price: PriceSchedule | None = None
    _kernels: dict[int, Estimate] = field(init=False, repr=False, default_factory=dict)

    def kernel(self, subgraph_id: int) -> Estimate:
        """What a whole subgraph costs that has the machine to itself."""
        if subgraph_id not in self._kernels:
            self._kernels[subgraph_id] = self.cost.kernel(self.partition.subgraphs[subgraph_id])
        return self._kernels[subgraph_id]

    def estimate(self, stages: Sequence[Stage]) -> Estimate:
        """What these stages cost, one after another, and what any schedule does at least."""
        bound = self.cost.least(self.partition.subgraphs, self.limits.num_groups)
        if self.price is not None:
            total = self.price(self.partition, stages)
            return replace(
                total,
                bound_ns=max(total.bound_ns, bound.bound_ns),
                bound_pj=max(total.bound_pj, bound.bound_pj),
            )
        costs = [self._stage(stage) for stage in stages]
        total = functools.reduce(Estimate.then, costs) if costs else bound
        is_sliced = any(i.slice is not None for stage in stages for i in stage.instances())
        # Slices of a subgraph may run at the same time, so a chain of subgraphs bounds no schedule with any.
        chain_ns = 0.0 if is_sliced else critical_path(self.partition, lambda i: self.kernel(i).bound_ns)
        return replace(total, bound_ns=max(chain_ns, bound.bound_ns), bound_pj=bound.bound_pj)

    def quality_of(self, stages: Sequence[Stage], *, cut_off: bool = False) -> Quality:
        """Cost of a schedule of these stages, beside what any schedule costs at least."""
        total = self.estimate(stages)
        return Quality.of(
            total.cost(self.objective),
            bound=total.bound(self.objective),
            unit=UNITS[self.objective],
            cut_off=cut_off,
        )

    def _stage(self, stage: Stage) -> Estimate:
        """Of one stage: instances that are slices cost their share of the whole subgraph."""
        instances = list(stage.instances())
        if len(instances) == 1:
            return self._instance(instances[0])
        if all(i.slice is None for i in instances):
            subgraphs = self.partition.subgraphs
            return self.cost.stage([[subgraphs[i.subgraph_id] for i in g.instances] for g in stage.groups])
        groups = [functools.reduce(Estimate.then, map(self._instance, g.instances)) for g in stage.groups]
        return max(groups, key=lambda estimate: estimate.time_ns)

    def _instance(self, instance: Instance) -> Estimate:
        whole = self.kernel(instance.subgraph_id)
        if instance.slice is None:
            return whole
        shape = self.partition.subgraphs[instance.subgraph_id].outputs[0].shape
        share = prod((end - start) / shape[axis] for axis, start, end in instance.slice.cuts)
        return whole.scaled(share)


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
    quality = problem.quality_of(stages, cut_off=cut_off)
    return Schedule(problem.partition, stages, quality, provenance)


def single(subgraph_id: int) -> Stage:
    """A stage that runs one whole subgraph alone."""
    return Stage((Group((Instance(subgraph_id),)),))
