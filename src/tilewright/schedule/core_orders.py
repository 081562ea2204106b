"""Schedules on groups of cores: instances distributed over them, or layers as a pipeline over them.

A layer that does not fill all cores of a cluster leaves some idle. With instances on groups, each group runs
the same layers for its share of the samples; in a pipeline each group runs its share of the layers for all
samples, and needs the weights of these layers alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import inf
from typing import ClassVar, Literal

from tilewright.partition.base import Partition
from tilewright.partition.split import Split, split_of
from tilewright.planning import Budget, Provenance, option
from tilewright.progress import checkpoint
from tilewright.schedule.base import Group, Instance, Schedule, ScheduleProblem, Stage, build_schedule, whole
from tilewright.schedule.instance_orders import demand_of
from tilewright.schedule.instances import InstanceGraph, Kind, instance_graph, outputs_of
from tilewright.schedule.orders import Order, breadth_first, depth_first
from tilewright.text.formatting import counted


@dataclass(frozen=True, slots=True)
class CoreGroupsOrder:
    """Equal groups of cores, each of which runs every layer for its share of the instances."""

    number: int = option(2, "Into how many groups the cores of a cluster are divided.")
    order: Literal["breadth-first", "depth-first"] = option("breadth-first", "The order within each group.")
    instances: int | None = option(
        None, "How many instances there are at least, if there are as many samples; none: one for each group."
    )
    name: ClassVar[str] = "core-groups"

    def solve(self, problem: ScheduleProblem, budget: Budget) -> Schedule:
        """Neighbouring instances on the same group; the budget is not needed.

        Where cores are too few for so many groups, or unknown, there are fewer.
        """
        ranges = _core_ranges(problem, self.number)
        splits = _splits(problem, max(len(ranges), self.instances or 1))
        graph = instance_graph(problem.partition, splits, problem.maps)
        groups = [_share(graph, node.subgraph_id, node.index, len(ranges)) for node in graph.nodes]
        find = depth_first if self.order == "depth-first" else breadth_first
        order = _merged(problem, graph, find(demand_of(graph)), groups, len(ranges))
        provenance = Provenance(
            self.name, num_evaluations=1, note=f"{counted(len(ranges), 'group')} of cores"
        )
        machine = problem.machine
        is_launched = machine is not None and machine.launches == "each subgraph"
        stages = (
            _stages_of_subgraphs(graph, order, groups, ranges)
            if is_launched
            else _stages_of_instances(graph, order, groups, ranges)
        )
        return build_schedule(problem, stages, provenance, splits)


@dataclass(frozen=True, slots=True)
class CorePipeline:
    """Groups of cores as the stages of a pipeline: each runs its share of the layers for all instances."""

    stages: int = option(2, "Into how many stages the layers are divided, a group of cores each.")
    instances: int | None = option(
        None, "How many instances pass at least, if there are as many samples; none: four for each stage."
    )
    name: ClassVar[str] = "core-pipeline"

    def solve(self, problem: ScheduleProblem, budget: Budget) -> Schedule:
        """The subgraphs in their order, in stages whose largest share of the work is the least possible; the
        budget is not needed.

        Where cores or subgraphs are too few for so many stages, there are fewer.
        """
        partition = problem.partition
        ranges = _core_ranges(problem, min(self.stages, max(1, len(partition.subgraphs))))
        splits = _splits(problem, len(ranges) * 4 if self.instances is None else self.instances)
        graph = instance_graph(partition, splits, problem.maps)
        stage_of = _stage_of_subgraphs(_work_ns(problem), len(ranges))
        groups = [stage_of[node.subgraph_id] for node in graph.nodes]
        order = _merged(problem, graph, breadth_first(demand_of(graph)), groups, len(ranges))
        provenance = Provenance(self.name, num_evaluations=1, note=counted(len(ranges), "stage"))
        return build_schedule(problem, _stages_of_instances(graph, order, groups, ranges), provenance, splits)


def balanced(work: Sequence[float], num_stages: int) -> tuple[int, ...]:
    """Where the stages of a chain end: contiguous pieces, none empty, whose largest sum is least.

    Exact, by dynamic programming over prefixes; of equals the one whose stages begin earliest.
    O(stages * len(work)²).

    >>> balanced([3, 1, 1, 1, 3], 3)
    (1, 4, 5)
    """
    if not 1 <= num_stages <= max(1, len(work)):
        raise ValueError(f"{num_stages} stages for {len(work)} pieces of work")
    sums = [0.0, *accumulate(work)]
    least: list[float] = sums  # of the first pieces in as many stages as so far, the largest sum
    choices: list[list[int]] = []
    for stage in range(1, num_stages):
        checkpoint()
        largest, begins = [inf] * len(sums), [0] * len(sums)
        for end in range(stage + 1, len(sums)):
            for begin in range(stage, end):
                most = max(least[begin], sums[end] - sums[begin])
                if most < largest[end]:
                    largest[end], begins[end] = most, begin
        least = largest
        choices.append(begins)
    ends = [len(work)]
    for begins in reversed(choices):
        ends.append(begins[ends[-1]])
    return tuple(reversed(ends))


def _stage_of_subgraphs(work: Sequence[float], num_stages: int) -> list[int]:
    """The stage of each subgraph."""
    ends = balanced(work, num_stages)
    return [
        stage
        for stage, (begin, end) in enumerate(zip((0, *ends), ends, strict=False))
        for _ in range(begin, end)
    ]


def _work_ns(problem: ScheduleProblem) -> list[float]:
    """What each subgraph takes at least, with full tiles on all cores; of all kinds of units the busiest."""
    return [problem.cost.least([subgraph]).bound_ns for subgraph in problem.partition.subgraphs]


def _core_ranges(problem: ScheduleProblem, number: int) -> list[tuple[int, int] | None]:
    """The first core and the number of cores of each group, as equal as they can be; None where no machine
    says how many cores there are."""
    if problem.machine is None:
        return [None]
    num_cores = problem.machine.num_cores_per_cluster
    number = max(1, min(number, num_cores))
    starts = [num_cores * group // number for group in range(number + 1)]
    return [(start, end - start) for start, end in pairwise(starts)]


def _splits(problem: ScheduleProblem, least: int) -> tuple[Split, ...]:
    """The partition's splits, the first axis of outputs cut further where there are fewer instances."""
    partition = problem.partition
    if not problem.allows_slices:
        return whole(partition)
    return tuple(_split(partition, number, split, least) for number, split in enumerate(partition.splits))


def _split(partition: Partition, number: int, split: Split, least: int) -> Split:
    shapes = [value.shape for value in outputs_of(partition.subgraphs[number])]
    extent = min((shape[0] if shape else 1 for shape in shapes), default=1)
    cuts = dict(split.cuts)
    others = split.num_instances // cuts.get(0, 1)
    factor = max(cuts.get(0, 1), min(extent, -(-least // others)))
    if split.num_instances >= least or factor == cuts.get(0, 1):
        return split
    inner = [(dim, count) for dim, count in split.cuts if dim != 0]
    return split_of([(0, factor), *inner], keeps_rows=split.chain_length > 1 and bool(inner))


def _share(graph: InstanceGraph, subgraph_id: int, index: int, number: int) -> int:
    """The group of an instance: neighbours together, those that keep rows for each other always."""
    split = graph.splits[subgraph_id]
    chain, num_chains = index // split.chain_length, split.num_instances // split.chain_length
    return chain * number // num_chains


def _merged(
    problem: ScheduleProblem, graph: InstanceGraph, order: Order, groups: Sequence[int], number: int
) -> Order:
    """Each group's nodes in this order, all groups as they come to run side by side.

    Next is the node that can start first, by what layers take at least. O(nodes * groups).
    """
    work = _work_ns(problem)
    queues: list[list[int]] = [[] for _ in range(number)]
    for place in reversed(order):
        queues[groups[place]].append(place)
    end_ns: dict[int, float] = {}
    free_ns = [0.0] * number
    merged: list[int] = []
    while len(merged) < len(order):
        checkpoint()
        starts = []
        for group, queue in enumerate(queues):
            if queue and all(p in end_ns for p in graph.predecessors(queue[-1])):
                ready_ns = max((end_ns[p] for p in graph.predecessors(queue[-1])), default=0.0)
                starts.append((max(free_ns[group], ready_ns), group))
        start_ns, group = min(starts)
        place = queues[group].pop()
        node = graph.nodes[place]
        is_work = node.kind is Kind.INSTANCE
        share = number / graph.splits[node.subgraph_id].num_instances
        end_ns[place] = free_ns[group] = start_ns + (work[node.subgraph_id] * share if is_work else 0.0)
        merged.append(place)
    return tuple(merged)


def _group(instances: tuple[Instance, ...], cores: tuple[int, int] | None) -> Group:
    return Group(instances) if cores is None else Group(instances, num_cores=cores[1], first_core=cores[0])


def _stages_of_instances(
    graph: InstanceGraph, order: Order, groups: Sequence[int], ranges: Sequence[tuple[int, int] | None]
) -> tuple[Stage, ...]:
    """A stage for each instance, for one program in which groups wait for what they read alone."""
    nodes = (graph.nodes[place] for place in order)
    return tuple(
        Stage((_group((Instance(node.subgraph_id, node.index),), ranges[groups[node.id]]),))
        for node in nodes
        if node.kind is Kind.INSTANCE
    )


def _stages_of_subgraphs(
    graph: InstanceGraph, order: Order, groups: Sequence[int], ranges: Sequence[tuple[int, int] | None]
) -> tuple[Stage, ...]:
    """A stage for each subgraph, for kernels that are launched separately: one on each group of cores."""
    instances_of: dict[int, dict[int, list[Instance]]] = {s.id: {} for s in graph.partition.subgraphs}
    for node in (graph.nodes[place] for place in order):
        if node.kind is Kind.INSTANCE:
            of_group = instances_of[node.subgraph_id].setdefault(groups[node.id], [])
            of_group.append(Instance(node.subgraph_id, node.index))
    return tuple(
        Stage(tuple(_group(tuple(instances), ranges[group]) for group, instances in sorted(shares.items())))
        for shares in instances_of.values()
    )
