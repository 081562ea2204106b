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
from tilewright.ir.graph_regions import RegionMaps
from tilewright.ir.region import volume
from tilewright.partition.base import Partition
from tilewright.partition.split import WHOLE, Split, instance_region
from tilewright.planning import NO_LIMITS, Budget, Infeasible, Limits, Provenance, Quality

if TYPE_CHECKING:
    from tilewright.hardware.machine import Machine


@dataclass(frozen=True, slots=True)
class Instance:
    """One execution of a subgraph's code: the `index`-th part of its outputs, as the schedule splits them."""

    subgraph_id: int
    index: int = 0

    def __str__(self) -> str:
        return f"{self.subgraph_id}.{self.index}"


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
    """Stages in sequence. `splits[i]` says in which instances subgraph `i` runs: whole by default."""

    partition: Partition
    stages: tuple[Stage, ...]
    quality: Quality
    provenance: Provenance
    splits: tuple[Split, ...] = ()

    def __post_init__(self) -> None:
        if not self.splits:
            object.__setattr__(self, "splits", whole(self.partition))

    def instances(self) -> Iterator[Instance]:
        """All instances in an order in which one worker may run them."""
        for stage in self.stages:
            yield from stage.instances()


def whole(partition: Partition) -> tuple[Split, ...]:
    """The splits with which every subgraph runs once."""
    return (WHOLE,) * len(partition.subgraphs)


PriceSchedule = Callable[[Partition, Sequence[Stage], Sequence[Split]], Estimate]
"""What a whole schedule costs, for machines on which stages overlap and so do not add up."""


@dataclass(frozen=True, slots=True)
class ScheduleProblem:
    """A partition to put in order, for a machine on which work costs what a model says.

    The cost of a schedule is that of its stages one after another, under an objective; `price` takes the
    place of that sum where a machine does more than one stage at a time. `allows_slices`: subgraphs may run
    as the instances that the partition splits them into, which not every target can do. `maps` are regions
    through the graph that are known.
    """

    partition: Partition
    machine: Machine | None = None
    cost: CostModel = NOMINAL
    objective: Objective = "latency"
    limits: Limits = NO_LIMITS
    seed: int = 0
    price: PriceSchedule | None = None
    allows_slices: bool = False
    maps: RegionMaps | None = None
    _kernels: dict[int, Estimate] = field(init=False, repr=False, default_factory=dict)

    def kernel(self, subgraph_id: int) -> Estimate:
        """What a whole subgraph costs that has the machine to itself."""
        if subgraph_id not in self._kernels:
            self._kernels[subgraph_id] = self.cost.kernel(self.partition.subgraphs[subgraph_id])
        return self._kernels[subgraph_id]

    def estimate(self, stages: Sequence[Stage], splits: Sequence[Split] = ()) -> Estimate:
        """What these stages of subgraphs split so cost, one after another, and what any schedule does."""
        splits = splits or whole(self.partition)
        bound = self.cost.least(self.partition.subgraphs, self.limits.num_groups)
        if self.price is not None:
            total = self.price(self.partition, stages, splits)
            return replace(
                total,
                bound_ns=max(total.bound_ns, bound.bound_ns),
                bound_pj=max(total.bound_pj, bound.bound_pj),
            )
        costs = [self._stage(stage, splits) for stage in stages]
        total = functools.reduce(Estimate.then, costs) if costs else bound
        is_sliced = any(split.num_instances > 1 for split in splits)
        # Slices of a subgraph may run at the same time, so a chain of subgraphs bounds no schedule with any.
        chain_ns = 0.0 if is_sliced else critical_path(self.partition, lambda i: self.kernel(i).bound_ns)
        return replace(total, bound_ns=max(chain_ns, bound.bound_ns), bound_pj=bound.bound_pj)

    def quality_of(
        self, stages: Sequence[Stage], splits: Sequence[Split] = (), *, cut_off: bool = False
    ) -> Quality:
        """Cost of a schedule of these stages, beside what any schedule costs at least."""
        total = self.estimate(stages, splits)
        return Quality.of(
            total.cost(self.objective),
            bound=total.bound(self.objective),
            unit=UNITS[self.objective],
            cut_off=cut_off,
            is_proven=self.cost.proves_bounds,
        )

    def _stage(self, stage: Stage, splits: Sequence[Split]) -> Estimate:
        """Of one stage: instances that are slices cost their share of the whole subgraph."""
        instances = list(stage.instances())
        if len(instances) == 1:
            return self._instance(instances[0], splits)
        if all(splits[i.subgraph_id].num_instances == 1 for i in instances):
            subgraphs = self.partition.subgraphs
            return self.cost.stage([[subgraphs[i.subgraph_id] for i in g.instances] for g in stage.groups])
        groups = [
            functools.reduce(Estimate.then, [self._instance(i, splits) for i in g.instances])
            for g in stage.groups
        ]
        return max(groups, key=lambda estimate: estimate.time_ns)

    def _instance(self, instance: Instance, splits: Sequence[Split]) -> Estimate:
        kernel, split = self.kernel(instance.subgraph_id), splits[instance.subgraph_id]
        if split.num_instances == 1:
            return kernel
        shape = self.partition.subgraphs[instance.subgraph_id].outputs[0].shape
        return kernel.scaled(volume(instance_region(shape, split, instance.index)) / prod(shape))


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
    problem: ScheduleProblem,
    stages: tuple[Stage, ...],
    provenance: Provenance,
    splits: tuple[Split, ...] = (),
    *,
    cut_off: bool = False,
) -> Schedule:
    """The schedule of these stages of subgraphs split so, with its quality."""
    quality = problem.quality_of(stages, splits, cut_off=cut_off)
    return Schedule(problem.partition, stages, quality, provenance, splits)


def single(subgraph_id: int) -> Stage:
    """A stage that runs one whole subgraph alone."""
    return Stage((Group((Instance(subgraph_id),)),))
