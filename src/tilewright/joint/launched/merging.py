"""Which siblings become one operator where larger kernels hold them: priced part by part, with lanes.

A scheduler that merges compares a merged kernel with its operators as kernels of their own. Within a larger
kernel neither is launched, and what competes with a merge are lanes. A part lies between two places where a
single value passes; each is priced as one kernel under every choice of one of its sets of siblings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from math import inf

from tilewright.errors import InfeasibleMapping
from tilewright.ir.graph import Graph
from tilewright.joint.launched.content import Content, Kernel, Numbered
from tilewright.joint.launched.pricer import Machine
from tilewright.partition.base import Partition, PartitionProblem, Reason, Subgraph, build_partition
from tilewright.partition.merge_siblings import merge_sets, merge_siblings
from tilewright.planning import UNLIMITED, Budget, Meter, Provenance, Quality
from tilewright.progress import checkpoint
from tilewright.schedule.base import Stage, single
from tilewright.schedule.lane_search import LaneSearch
from tilewright.schedule.merge import merge_stage

_MOST_SIBLINGS = 4
"""Of a set whose subsets are all priced; of larger ones the whole set alone."""


def merges_within_kernels(partition: Partition, machine: Machine, meter: Meter) -> tuple[Stage, ...]:
    """Stages of a partition into layers, alone or merged where that makes the part around them cheaper."""
    chosen: list[tuple[int, ...]] = []
    numbered, parts = Numbered(partition.graph), list(_parts(partition))
    for siblings in merge_sets(partition, pads_kernels=machine.pads_kernels):
        part = next(part for part in parts if min(siblings) in part)
        if not siblings <= part or len(part) == len(partition.subgraphs):
            continue
        options = [(), *_subsets(sorted(siblings))]
        costs = []
        for option in options:
            checkpoint()
            if not meter.spend():
                return _stages(partition, chosen)
            members = [partition.subgraphs[i] for i in sorted(part)]
            costs.append(_cost(numbered, members, option, machine, meter))
        best = options[costs.index(min(costs))]
        if best:
            chosen.append(best)
    return _stages(partition, chosen)


def _parts(partition: Partition) -> Iterator[frozenset[int]]:
    """Subgraphs in a row between places that a single value passes."""
    last_reader: dict[int, int] = {}
    for subgraph in partition.subgraphs:
        for before in partition.predecessors(subgraph):
            last_reader[before.id] = subgraph.id
    start = 0
    live: set[int] = set()
    for subgraph in partition.subgraphs:
        live = {i for i in live if last_reader[i] > subgraph.id}
        if subgraph.id in last_reader:
            live.add(subgraph.id)
        if len(live) <= 1 and (not live or subgraph.id in live):
            yield frozenset(range(start, subgraph.id + 1))
            start = subgraph.id + 1
    if start < len(partition.subgraphs):
        yield frozenset(range(start, len(partition.subgraphs)))


def _subsets(siblings: Sequence[int]) -> Iterator[tuple[int, ...]]:
    if len(siblings) > _MOST_SIBLINGS:
        yield tuple(siblings)
        return
    for size in range(2, len(siblings) + 1):
        yield from combinations(siblings, size)


def _cost(
    numbered: Numbered, members: Sequence[Subgraph], option: Sequence[int], machine: Machine, meter: Meter
) -> float:
    """What a part costs as one kernel in which these subgraphs are one operator, in lanes where they pay."""
    kernels = (Kernel((tuple(numbered.numbers[n] for n in s.nodes),)) for s in members)
    part = numbered.part(Content(tuple(kernels), ()))
    graph = part.partition.graph
    if option:
        ids = [i for i, s in zip(part.ids, members, strict=True) if s.id in option]
        merged = merge_siblings(part.partition, [ids], pads_kernels=machine.pads_kernels, is_priced_only=True)
        graph = merged.partition.graph
    return cost_as_kernel(graph, part.partition.quality, machine, meter)


def cost_as_kernel(graph: Graph, unpriced: Quality, machine: Machine, meter: Meter | None = None) -> float:
    """What a network costs as one kernel; with a meter, in lanes where these pay."""
    whole = build_partition(
        PartitionProblem(graph),
        [list(graph.nodes)],
        lambda producer, consumer, value, fused: Reason.CLUSTER,
        Provenance("as one kernel"),
        quality=unpriced,
    )
    problem, stage = machine.problem(whole), single(0)
    try:
        if machine.allows_lanes and meter is not None:
            stage = LaneSearch(problem, lane_meter(meter)).improved(stage)
        return problem.estimate((stage,)).cost(machine.objective)
    except InfeasibleMapping:
        return inf


def lane_meter(meter: Meter) -> Meter:
    """The time of a budget alone: what the search for lanes of one kernel tries is no trial of it."""
    left_s = meter.left_s
    return Budget(UNLIMITED, None if left_s is None else max(left_s, 0.001)).start()


def _stages(partition: Partition, chosen: Sequence[Sequence[int]]) -> tuple[Stage, ...]:
    """All subgraphs in order, merged ones where the first of them stands."""
    first = {ids[0]: ids for ids in chosen}
    gone = {i for ids in chosen for i in ids[1:]}
    return tuple(
        merge_stage(first[s.id]) if s.id in first else single(s.id)
        for s in partition.subgraphs
        if s.id not in gone
    )
