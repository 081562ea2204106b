"""A plan as the overlapped search changes it: kernels with slices, in nests, and how values are placed.

A nest is a run of kernels whose slices are interleaved by a rule; nests follow each other. So the orders that
published schedulers give are one nest, and a plan may be depth-first here and breadth-first there. An order
that no rule gives is kept as it is, until a move changes the nest.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Literal

from tilewright.joint.launched.content import Kernel, Numbered
from tilewright.partition.base import Partition, PartitionProblem, Reason, build_partition
from tilewright.planning import Provenance
from tilewright.records import dataclass
from tilewright.schedule.base import Group, Instance, Schedule, Stage
from tilewright.schedule.instances import InstanceGraph, Kind
from tilewright.schedule.orders import Demand, Order, breadth_first, depth_first, level_order, min_delta

Rule = Literal["depth-first", "breadth-first", "min-delta", "level-order"]
NAME = "joint"
_ORDERS: dict[Rule, Callable[[Demand], Order]] = {
    "depth-first": depth_first, "breadth-first": breadth_first, "min-delta": min_delta,
    "level-order": level_order,
}  # fmt: skip
RULES = tuple(_ORDERS)


@dataclass(frozen=True, slots=True)
class Nest:
    """Kernels whose slices are interleaved by a rule, or in an `order` that is given: each slice by the place
    of its kernel in the nest and its number."""

    kernels: tuple[Kernel, ...]
    rule: Rule
    order: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class NestPlan:
    """Nests one after another, the memory planner that places values, and options of how the target runs it.

    `num_groups` equal groups of cores run every kernel, each for its share of the slices; 0: all cores do.
    With `homes`, a number for each node of the graph, a group runs whole kernels: that of their first nodes.
    """

    nests: tuple[Nest, ...]
    memory: str
    execution: str = ""
    num_groups: int = 0
    homes: tuple[int, ...] = ()

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """All kernels, nest by nest."""
        return tuple(kernel for nest in self.nests for kernel in nest.kernels)


@dataclass(frozen=True, slots=True, eq=False)
class Arranged:
    """A plan as a partition: its nests in the order in which they run, kernels in that of their subgraphs.

    `homes[i]` is the place of the nest that holds subgraph i, `places[i]` that of its kernel in the plan.
    """

    plan: NestPlan
    partition: Partition
    homes: tuple[int, ...]
    places: tuple[int, ...]

    def instances(self, graph: InstanceGraph) -> Iterator[Instance]:
        """The slices of all kernels in the order in which they run. O(n log n)."""
        places: list[list[int]] = [[] for _ in self.plan.nests]
        for node in graph.nodes:
            places[self.homes[node.subgraph_id]].append(node.id)
        subgraph_ids: list[list[int]] = [[] for _ in self.plan.nests]
        for number, home in enumerate(self.homes):
            subgraph_ids[home].append(number)
        for nest, inside, ids in zip(self.plan.nests, places, subgraph_ids, strict=True):
            if nest.order:
                yield from (Instance(ids[place], index) for place, index in nest.order)
                continue
            order = _ORDERS[nest.rule](_demand(graph, inside))
            for number in order:
                node = graph.nodes[inside[number]]
                if node.kind is Kind.INSTANCE:
                    yield Instance(node.subgraph_id, node.index)

    def stages(self, graph: InstanceGraph, num_cores: int) -> tuple[Stage, ...]:
        """The same as stages of one slice each, on a cluster of so many cores."""
        number = min(self.plan.num_groups, num_cores)
        if not number:
            return tuple(Stage((Group((instance,)),)) for instance in self.instances(graph))
        kernels, ranges = self.plan.kernels, core_ranges(number, num_cores)

        def group(instance: Instance) -> Group:
            kernel = kernels[self.places[instance.subgraph_id]]
            home = (
                self.plan.homes[next(kernel.nodes)] if self.plan.homes else _share(kernel, instance, number)
            )
            first, stop = ranges[min(home, number - 1)]
            return Group((instance,), num_cores=stop - first, first_core=first)

        return tuple(Stage((group(instance),)) for instance in self.instances(graph))


def core_ranges(number: int, num_cores: int) -> tuple[tuple[int, int], ...]:
    """The first core of each of so many groups, as equal as they can be, and the one behind its last."""
    return tuple((num_cores * g // number, num_cores * (g + 1) // number) for g in range(number))


def _share(kernel: Kernel, instance: Instance, number: int) -> int:
    """The group of a slice where each runs its share: neighbours together, those that keep rows always."""
    num_chains = kernel.split.num_instances // kernel.split.chain_length
    return instance.index // kernel.split.chain_length * number // num_chains


def _demand(graph: InstanceGraph, inside: Sequence[int]) -> Demand:
    """What some nodes of an instance graph leave for each other, and wait for; not what they hold then."""
    number = {place: i for i, place in enumerate(inside)}
    pieces = []
    for place in inside:
        node = graph.nodes[place]
        made = sum(graph.bytes_of(v, r) for v, r in node.outputs.items() if v not in graph.results)
        pieces.append((made if graph.readers(place) else 0) + graph.kept_bytes(node))
    return Demand(
        tuple(pieces),
        (0,) * len(inside),
        tuple(tuple(number[p] for p in graph.predecessors(i) if p in number) for i in inside),
        tuple(tuple(number[s] for s in graph.successors(i) if s in number) for i in inside),
    )


def kernels_of(numbered: Numbered, partition: Partition) -> tuple[Kernel, ...]:
    """The kernels of a partition with their slices."""
    splits = partition.splits
    return tuple(Kernel(_numbers(numbered, partition, s.id), splits[s.id]) for s in partition.subgraphs)


def plan_of(
    numbered: Numbered,
    schedule: Schedule,
    num_cores: int,
    ordered: Callable[[NestPlan], Iterable[Instance]],
) -> NestPlan | None:
    """A schedule's kernels, order and groups of cores as a plan that runs as it does, placed by nothing yet;
    None where slices run on other groups than plans know. `ordered` says in which order a plan runs its
    slices, with subgraphs numbered as the schedule's.

    Where no rule orders the slices so, in runs that end all kernels that they begin or as a whole, their
    order is given.
    """
    groups = _groups_of(numbered, schedule, num_cores)
    if groups is None:
        return None
    number, homes = groups
    whole = kernels_of(numbered, replace(schedule.partition, splits=schedule.splits))
    actual = tuple(schedule.instances())
    for rule in RULES:
        for nests in (nests_of(numbered, schedule, rule), (Nest(whole, rule),)):
            plan = NestPlan(nests, "", "", number, homes)
            if tuple(ordered(plan)) == actual:
                return plan
    order = tuple((i.subgraph_id, i.index) for i in actual)
    return NestPlan((Nest(whole, RULES[0], order),), "", "", number, homes)


def _groups_of(numbered: Numbered, schedule: Schedule, num_cores: int) -> tuple[int, tuple[int, ...]] | None:
    """How many equal groups of cores a schedule runs on, and which of them runs each node's kernel where one
    runs it whole; None of groups that are not equal, or have other shares."""
    ranges = {
        instance: None if g.first_core is None else (g.first_core, g.first_core + (g.num_cores or 1))
        for stage in schedule.stages
        for g in stage.groups
        for instance in g.instances
    }
    named = set(ranges.values())
    if named <= {None}:
        return 0, ()
    number = next((n for n in range(1, num_cores + 1) if named <= set(core_ranges(n, num_cores))), None)
    if number is None:
        return None
    places = {cores: place for place, cores in enumerate(core_ranges(number, num_cores))}
    of = {instance: places[cores] for instance, cores in ranges.items() if cores is not None}
    partition = schedule.partition
    whole = kernels_of(numbered, replace(partition, splits=schedule.splits))
    if all(_share(whole[i.subgraph_id], i, number) == place for i, place in of.items()):
        return number, ()
    if any(of[i] != of[Instance(i.subgraph_id, 0)] for i in of):
        return None
    homes = {n: of[Instance(s.id, 0)] for s in partition.subgraphs for n in whole[s.id].nodes}
    return number, tuple(homes[n] for n in range(len(numbered.nodes)))


def nests_of(numbered: Numbered, schedule: Schedule, rule: Rule) -> tuple[Nest, ...]:
    """The kernels of a schedule in nests: runs of instances that end all subgraphs that they begin."""
    partition, splits = schedule.partition, schedule.splits
    found: list[Nest] = []
    left: dict[int, int] = {}
    for instance in schedule.instances():
        i = instance.subgraph_id
        left[i] = left.get(i, splits[i].num_instances) - 1
        if not any(left.values()):
            kernels = (Kernel(_numbers(numbered, partition, s), splits[s]) for s in sorted(left))
            found.append(Nest(tuple(kernels), rule))
            left = {}
    return tuple(found)


def _numbers(numbered: Numbered, partition: Partition, number: int) -> tuple[tuple[int, ...], ...]:
    """The layers of a subgraph by the numbers of their nodes."""
    layers = partition.layers_of(partition.subgraphs[number])
    return tuple(tuple(numbered.numbers[node] for node in layer.nodes) for layer in layers)


def arranged(problem: PartitionProblem, numbered: Numbered, plan: NestPlan) -> Arranged:
    """A plan as a partition of the graph.

    Raises:
        ValueError: kernels, or nests, wait for each other.
    """
    nodes, kernels = numbered.nodes, plan.kernels
    partition = build_partition(
        problem,
        [[nodes[i] for i in kernel.nodes] for kernel in kernels],
        lambda producer, consumer, value, fused: Reason.CLUSTER if fused else Reason.COST,
        Provenance(NAME),
    )
    by_id = {partition.subgraph_of(nodes[next(k.nodes)]).id: k for k in kernels}
    home = {kernel: place for place, nest in enumerate(plan.nests) for kernel in nest.kernels}
    layers = tuple(tuple(map(numbered.layer, by_id[s.id].layers)) for s in partition.subgraphs)
    splits = tuple(by_id[s.id].split for s in partition.subgraphs)
    partition = replace(partition, splits=splits, layers=layers)
    homes = tuple(home[by_id[s.id]] for s in partition.subgraphs)
    order = _ordered_nests(partition, homes, len(plan.nests))
    inside: list[list[int]] = [[] for _ in order]
    for number, own in enumerate(homes):
        inside[own].append(number)
    nests = tuple(_renumbered(plan.nests[nest], tuple(by_id[i] for i in inside[nest])) for nest in order)
    new_home = {nest: place for place, nest in enumerate(order)}
    place_of = {i: place for place, i in enumerate(i for nest in order for i in inside[nest])}
    return Arranged(
        replace(plan, nests=nests),
        partition,
        tuple(new_home[own] for own in homes),
        tuple(place_of[i] for i in range(len(homes))),
    )


def _renumbered(nest: Nest, kernels: tuple[Kernel, ...]) -> Nest:
    """A nest with its kernels in another order; slices run as before."""
    if kernels == nest.kernels or not nest.order:
        return Nest(kernels, nest.rule, nest.order)
    place = {kernel: number for number, kernel in enumerate(kernels)}
    return Nest(kernels, nest.rule, tuple((place[nest.kernels[old]], i) for old, i in nest.order))


def _ordered_nests(partition: Partition, homes: Sequence[int], num_nests: int) -> tuple[int, ...]:
    """The nests in a topological order, of those that are ready the first in the graph first."""
    successors: list[dict[int, None]] = [{} for _ in range(num_nests)]
    waiting, first = [0] * num_nests, [len(homes)] * num_nests
    for subgraph in partition.subgraphs:
        own = homes[subgraph.id]
        first[own] = min(first[own], subgraph.id)
        for value in subgraph.inputs:
            producer = partition.producer_of(value)
            if producer is None or homes[producer.id] == own or own in successors[homes[producer.id]]:
                continue
            successors[homes[producer.id]][own] = None
            waiting[own] += 1
    ready = [(first[nest], nest) for nest in range(num_nests) if not waiting[nest]]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        _, nest = heapq.heappop(ready)
        order.append(nest)
        for after in successors[nest]:
            waiting[after] -= 1
            if not waiting[after]:
                heapq.heappush(ready, (first[after], after))
    if len(order) < num_nests:
        raise ValueError("nests wait for each other")
    return tuple(order)
