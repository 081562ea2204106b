"""Schedules: instances of subgraphs in groups, groups side by side in stages, stages one after another.

An instance is one slice of a subgraph's output (GraphTurbo); stages and groups are those of IOS. The
instances of a group run in order; the groups of a stage run at the same time and so must not depend on
each other. A stage may also merge its groups: then one kernel computes all of them (`merge.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field, replace
from math import prod
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from tilewright.cost.base import UNITS, CostModel, Estimate, KernelWork, Objective
from tilewright.cost.roofline import NOMINAL
from tilewright.ir.graph_regions import RegionMaps
from tilewright.ir.region import volume
from tilewright.partition.base import Partition
from tilewright.partition.merge_siblings import MergedWork, merge_siblings, merged_work
from tilewright.partition.split import WHOLE, Split, instance_region
from tilewright.planning import NO_LIMITS, Bound, Budget, Infeasible, Limits, Provenance, Quality, Rule, Space
from tilewright.records import dataclass
from tilewright.schedule.lanes import LanedWork, Sections, laned_work
from tilewright.schedule.space import (
    CONNECTED,
    GROUP_SIZE,
    GROUPS,
    IN_ORDER,
    OF_PARTITION,
    SCHEDULES,
    SHARED_CORES,
    WHOLE_SUBGRAPHS,
    WITHOUT_LANES,
    WITHOUT_MERGES,
)

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
    """Instances that run one after another; `num_cores` None leaves their share to the target.

    With a `first_core` they run on that core and those behind it. In one program groups on other cores then
    work at the same time, whatever stage they are in, as far as what they read allows.

    `inside` says for each instance which of its layers run at the same time, on groups of these cores;
    without it none do.
    """

    instances: tuple[Instance, ...]
    num_cores: int | None = None
    first_core: int | None = None
    inside: tuple[Sections, ...] = ()

    def sections(self) -> Iterator[tuple[Instance, Sections]]:
        """The instances, each with its sections of lanes."""
        return zip(self.instances, self.inside or ((),) * len(self.instances), strict=True)

    @property
    def has_lanes(self) -> bool:
        """Whether layers of an instance run at the same time."""
        return any(self.inside)


Strategy = Literal["parallel", "merge"]
"""How a stage runs its groups: at the same time, or as one operator."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Groups that run side by side, or whole subgraphs, a group each, that become one kernel.

    The next stage starts when all have finished.
    """

    groups: tuple[Group, ...]
    strategy: Strategy = "parallel"

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
class MeasuredStages:
    """What the stages of a schedule took, and each subgraph alone in the same rounds.

    `whole_ns` and `sequential_ns` are the times of the whole schedule, and of that of the subgraphs alone.
    """

    stages_ns: tuple[float, ...]
    alone_ns: tuple[float, ...]
    whole_ns: float
    sequential_ns: float


@dataclass(frozen=True, slots=True)
class NotMeasured:
    """Why a schedule has no times: a word for it, and what was seen."""

    reason: str
    detail: str


class StageBench(Protocol):
    """Runs whole schedules of a partition where they will run, so that each of their stages has a time.

    A stage is compared with its subgraphs one after another in the same rounds, so that what it saves
    outlives the load of the machine. Every finished measurement is kept at once. What failed must not be
    chosen.
    """

    def remembered(self, stage: Stage) -> float | NotMeasured | None:
        """What a stage took in an earlier search, over its subgraphs alone, or how it failed; None where
        it was not measured."""
        ...

    def measure(self, stages: Sequence[Stage], most_s: float | None) -> MeasuredStages | NotMeasured:
        """Run a schedule beside the sequential one, for about so long at most."""
        ...

    def failed(self, stage: Stage, failure: NotMeasured) -> None:
        """Keep that a schedule has no times because of this stage."""
        ...

    def race(self, stages: Sequence[Stage], most_s: float | None) -> bool | None:
        """Whether a whole schedule is clearly faster than the sequential one; None where that is unknown."""
        ...

    def close(self) -> None:
        """Give back what it holds. It may be asked again."""
        ...


@dataclass(frozen=True, slots=True)
class ScheduleProblem:
    """A partition to put in order, for a machine on which work costs what a model says.

    The cost of a schedule is that of its stages one after another, under an objective; `price` takes the
    place of that sum where a machine does more than one stage at a time. `allows_slices`: subgraphs may run
    as the instances that the partition splits them into, which not every target can do; `allows_lanes`: the
    same of layers within a kernel at the same time. `maps` are regions through the graph that are known.
    `pads_kernels`: a stage may merge kernels of several extents, padded with zeros, which turn values that
    are not finite into NaN. `bench` measures what stages take.
    """

    partition: Partition
    machine: Machine | None = None
    cost: CostModel = NOMINAL
    objective: Objective = "latency"
    limits: Limits = NO_LIMITS
    seed: int = 0
    price: PriceSchedule | None = None
    allows_slices: bool = False
    allows_lanes: bool = False
    maps: RegionMaps | None = None
    pads_kernels: bool = True
    bench: StageBench | None = None
    _kernels: dict[int, Estimate] = field(init=False, repr=False, default_factory=dict)
    _merged: dict[tuple[int, ...], MergedWork] = field(init=False, repr=False, default_factory=dict)
    _laned: dict[tuple[int, Sections], LanedWork] = field(init=False, repr=False, default_factory=dict)

    def kernel(self, subgraph_id: int) -> Estimate:
        """What a whole subgraph costs that has the machine to itself."""
        if subgraph_id not in self._kernels:
            self._kernels[subgraph_id] = self.cost.kernel(self.partition.subgraphs[subgraph_id])
        return self._kernels[subgraph_id]

    def work(self, subgraph_id: int, sections: Sections = ()) -> KernelWork:
        """A whole subgraph as a kernel, with these sections of lanes inside."""
        subgraph = self.partition.subgraphs[subgraph_id]
        if not sections:
            return subgraph
        key = subgraph_id, sections
        if key not in self._laned:
            self._laned[key] = laned_work(self.partition, subgraph, sections)
        return self._laned[key]

    def merged(self, subgraph_ids: Sequence[int]) -> MergedWork:
        """The work of subgraphs that one kernel computes.

        Raises:
            ValueError: they may not merge.
        """
        key = tuple(sorted(subgraph_ids))
        if key not in self._merged:
            members = [self.partition.subgraphs[i] for i in key]
            work = merged_work(members, pads_kernels=self.pads_kernels)
            if work is None:
                raise ValueError(f"subgraphs {list(key)} do not merge")
            self._merged[key] = work
        return self._merged[key]

    def merged_kernel(self, subgraph_ids: Sequence[int]) -> Estimate:
        """What that kernel costs.

        Raises:
            ValueError: the subgraphs may not merge.
        """
        return self.cost.kernel(self.merged(subgraph_ids))

    def estimate(self, stages: Sequence[Stage], splits: Sequence[Split] = ()) -> Estimate:
        """What these stages of subgraphs split so cost, one after another.

        Where a machine overlaps stages its bound is of all schedules that merge the same subgraphs, whatever
        the partition; else it is the sum of those of stages, which are of these stages alone.

        Raises:
            ValueError: a stage merges subgraphs that may not.
        """
        splits = splits or whole(self.partition)
        if self.price is not None:
            return self.price(*without_merges(self, stages, splits))
        costs = [self._stage(stage, splits) for stage in stages]
        return functools.reduce(Estimate.then, costs) if costs else self.cost.least(())

    def quality_of(
        self, stages: Sequence[Stage], splits: Sequence[Split] = (), *, cut_off: bool = False
    ) -> Quality:
        """Cost of a schedule of these stages, beside lower bounds of spaces that hold it."""
        splits = splits or whole(self.partition)
        total = self.estimate(stages, splits)
        return Quality.of(
            total.cost(self.objective),
            *self._bounds(stages, splits, total),
            unit=UNITS[self.objective],
            cut_off=cut_off,
        )

    def _bounds(self, stages: Sequence[Stage], splits: Sequence[Split], total: Estimate) -> Iterator[Bound]:
        """Lower bounds, that of most schedules first, narrower ones where they are higher."""
        proven, merged = self.cost.proves_bounds, merging(stages)
        least = self.cost.least(self._kernels_of(stages), self.limits.num_groups)
        known = 0.0
        if self.price is not None:
            known = total.bound(self.objective)
            if known > 0:
                yield Bound(known, SCHEDULES.keeping(merged), "busiest unit", proven)
            bound_ns, bound_pj = max(total.bound_ns, least.bound_ns), max(total.bound_pj, least.bound_pj)
            least = replace(least, bound_ns=bound_ns, bound_pj=bound_pj)
        value = least.bound(self.objective)
        if value > known or known <= 0:
            known = value
            yield Bound(value, SCHEDULES.keeping(OF_PARTITION, merged), "work of kernels", proven)
        # Slices of a subgraph may run at the same time, and so may its layers, and a merged kernel may take
        # less than one of those that it computes, so a chain of subgraphs bounds no schedule with any.
        chained = SCHEDULES.keeping(OF_PARTITION, WITHOUT_MERGES, WHOLE_SUBGRAPHS, WITHOUT_LANES)
        if (
            self.price is None
            and self.objective != "energy"
            and chained.includes(space_of(self.partition, stages, splits))
        ):
            chain_ns = critical_path(self.partition, lambda i: self.kernel(i).bound_ns)
            value = replace(least, bound_ns=max(chain_ns, least.bound_ns)).bound(self.objective)
            if value > known:
                yield Bound(value, chained, "critical path", proven)

    def _kernels_of(self, stages: Sequence[Stage]) -> Sequence[KernelWork]:
        """All that runs, with merged subgraphs as one."""
        merged = [[i.subgraph_id for i in stage.instances()] for stage in stages if merges(stage)]
        gone = {i for ids in merged for i in ids}
        whole_ones = [s for s in self.partition.subgraphs if s.id not in gone]
        return (*whole_ones, *map(self.merged, merged))

    def stage(self, stage: Stage) -> Estimate:
        """What a stage of whole subgraphs costs."""
        return self._stage(stage, whole(self.partition))

    def _stage(self, stage: Stage, splits: Sequence[Split]) -> Estimate:
        """Of one stage: instances that are slices cost their share of the whole subgraph."""
        instances = list(stage.instances())
        if merges(stage):
            return self.merged_kernel([i.subgraph_id for i in instances])
        if len(instances) == 1 and stage.groups[0].num_cores is None and not stage.groups[0].has_lanes:
            return self._instance(instances[0], splits)
        if all(splits[i.subgraph_id].is_whole for i in instances):
            groups = [[self.work(i.subgraph_id, lanes) for i, lanes in g.sections()] for g in stage.groups]
            return self.cost.stage(groups, [g.num_cores for g in stage.groups])
        estimates = [
            functools.reduce(Estimate.then, [self._instance(i, splits) for i in g.instances])
            for g in stage.groups
        ]
        longest = max(estimates, key=lambda estimate: estimate.time_ns)
        together = functools.reduce(Estimate.then, estimates)
        return replace(longest, energy_pj=together.energy_pj, bound_pj=together.bound_pj)

    def _instance(self, instance: Instance, splits: Sequence[Split]) -> Estimate:
        kernel, split = self.kernel(instance.subgraph_id), splits[instance.subgraph_id]
        if split.is_whole:
            return kernel
        shape = self.partition.subgraphs[instance.subgraph_id].outputs[0].shape
        return kernel.scaled(volume(instance_region(shape, split, instance.index)) / prod(shape))


def merges(stage: Stage) -> bool:
    """Whether a stage computes its subgraphs as one operator."""
    return stage.strategy == "merge"


def merging(stages: Iterable[Stage]) -> Rule:
    """That the same subgraphs become one kernel as in these stages."""
    merged = sorted(sorted(i.subgraph_id for i in s.instances()) for s in stages if s.strategy == "merge")
    if not merged:
        return WITHOUT_MERGES
    return Rule(f"that merge {', '.join('+'.join(map(str, members)) for members in merged)}")


def space_of(partition: Partition, stages: Sequence[Stage], splits: Sequence[Split]) -> Space:
    """The space with all of the rules here that a schedule keeps."""
    groups = [group for stage in stages if stage.strategy != "merge" for group in stage.groups]
    return SCHEDULES.keeping(OF_PARTITION, *_kept(partition, stages, splits, groups))


def _kept(
    partition: Partition, stages: Sequence[Stage], splits: Sequence[Split], groups: Sequence[Group]
) -> Iterator[Rule]:
    yield merging(stages)
    if all(split.is_whole for split in splits):
        yield WHOLE_SUBGRAPHS
    if not any(group.has_lanes for group in groups):
        yield WITHOUT_LANES
    if all(group.num_cores is None and group.first_core is None for group in groups):
        yield SHARED_CORES
    if all(_is_connected(partition, group) for group in groups):
        yield CONNECTED
    orders = [
        [[i.subgraph_id for i in g.instances] for g in s.groups] for s in stages if s.strategy != "merge"
    ]
    if all(groups == sorted(map(sorted, groups)) for groups in orders):
        yield IN_ORDER
    sizes = [len({instance.subgraph_id for instance in group.instances}) for group in groups]
    yield Rule(GROUPS, max((len(s.groups) for s in stages if s.strategy != "merge"), default=0))
    yield Rule(GROUP_SIZE, max(sizes, default=0))


def _is_connected(partition: Partition, group: Group) -> bool:
    """Whether the subgraphs of a group hang together by what they read of each other."""
    left = {instance.subgraph_id for instance in group.instances}
    pending = [left.pop()] if left else []
    while pending:
        subgraph = partition.subgraphs[pending.pop()]
        near = {s.id for s in (*partition.predecessors(subgraph), *partition.successors(subgraph))} & left
        left -= near
        pending += near
    return not left


def without_merges(
    problem: ScheduleProblem, stages: Sequence[Stage], splits: Sequence[Split], *, is_priced_only: bool = True
) -> tuple[Partition, tuple[Stage, ...], tuple[Split, ...]]:
    """The partition in which subgraphs of stages that merge are one, and the same stages and splits of it.

    Where it `is_priced_only`, merged constants have no elements.

    Raises:
        ValueError: a stage merges subgraphs that may not.
    """
    sets = [[i.subgraph_id for i in stage.instances()] for stage in stages if merges(stage)]
    if not sets:
        return problem.partition, tuple(stages), tuple(splits)
    merged = merge_siblings(
        problem.partition, sets, pads_kernels=problem.pads_kernels, is_priced_only=is_priced_only
    )
    ids = merged.ids

    def renamed(group: Group) -> Group:
        return replace(
            group, instances=tuple(replace(i, subgraph_id=ids[i.subgraph_id]) for i in group.instances)
        )

    new_stages = (
        single(ids[next(stage.instances()).subgraph_id])
        if merges(stage)
        else Stage(tuple(map(renamed, stage.groups)))
        for stage in stages
    )
    new_splits = {ids[i]: split for i, split in enumerate(splits)}
    return merged.partition, tuple(new_stages), tuple(new_splits[i] for i in sorted(new_splits))


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
