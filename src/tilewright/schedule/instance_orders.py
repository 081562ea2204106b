"""The orders of `orders.py` and `exact_order.py` as schedulers: one stage per instance.

They order the instances that the partition splits its subgraphs into where the problem allows slices, else
whole subgraphs, which any target runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from tilewright.errors import Outclassed, UsageError
from tilewright.hardware.capacity import local_capacity_bytes
from tilewright.ir.graph import Value
from tilewright.partition.footprint import Footprints, joined, single
from tilewright.partition.layers import Layer, LayerRegions
from tilewright.partition.rows import RowChain
from tilewright.partition.split import Split
from tilewright.planning import UNLIMITED, Budget, Provenance, option
from tilewright.schedule.base import Group, Instance, Schedule, ScheduleProblem, Stage, build_schedule, whole
from tilewright.schedule.exact_order import MAX_STATES, exact_order
from tilewright.schedule.instances import InstanceGraph, InstanceNode, Kind, instance_graph
from tilewright.schedule.orders import Demand, Order, breadth_first, depth_first, min_delta


def peaks_of(graph: InstanceGraph) -> dict[int, int]:
    """The most that an instance of each subgraph holds, its inputs included.

    What a partition states is of the slices that it asks for. Of others it is worked out here: the most of
    all instances. O(instances * layers).
    """
    partition = graph.partition
    instances: dict[int, list[InstanceNode]] = {}
    for node in graph.nodes:
        if node.kind is Kind.INSTANCE:
            instances.setdefault(node.subgraph_id, []).append(node)
    found: dict[int, int] = {}
    for number, nodes in instances.items():
        if partition.weighed is not None and graph.splits[number] == partition.splits[number]:
            found[number] = partition.weighed.peak_bytes[number]
        else:
            found[number] = _peak_bytes(graph, nodes)
    return found


def _peak_bytes(graph: InstanceGraph, nodes: Sequence[InstanceNode]) -> int:
    """The peak of instances of one subgraph."""
    subgraph = graph.partition.subgraphs[nodes[0].subgraph_id]
    layers = graph.partition.layers_of(subgraph)
    length = graph.splits[subgraph.id].chain_length
    if length > 1:
        chains = [nodes[first : first + length] for first in range(0, len(nodes), length)]
        return max(_chain_peak_bytes(graph, layers, chain) for chain in chains)
    part = joined([single(layer, place) for place, layer in enumerate(layers)], tuple(nodes[0].outputs))

    def element_bytes(value: Value) -> int:
        return graph.bytes_of(value, ((0, 1),) * len(value.shape))

    footprints = Footprints(LayerRegions(graph.maps), element_bytes, in_place=graph.partition.in_place)
    return max(footprints.of(part, tuple(node.outputs.values())).peak_bytes for node in nodes)


def _chain_peak_bytes(graph: InstanceGraph, layers: Sequence[Layer], nodes: Sequence[InstanceNode]) -> int:
    """The peak of instances that keep rows for each other."""
    chain = RowChain(layers, [node.outputs for node in nodes], LayerRegions(graph.maps))
    rows = [node.rows for node in nodes if node.rows is not None]
    return max(chain.peaks_bytes(rows, graph.bytes_of, in_place=graph.partition.in_place))


def demand_of(graph: InstanceGraph) -> Demand:
    """What the nodes of an instance graph ask of the local buffers."""
    return Demand.of(graph, peaks_of(graph))


def schedule_of(
    problem: ScheduleProblem,
    graph: InstanceGraph,
    order: Order,
    provenance: Provenance,
    *,
    cut_off: bool = False,
) -> Schedule:
    """A schedule that runs the instances one after another; moving buffers between them is the target's."""
    stages: list[Stage] = []
    for place in order:
        node = graph.nodes[place]
        if node.kind is Kind.INSTANCE:
            stages.append(Stage((Group((Instance(node.subgraph_id, node.index),)),)))
    return build_schedule(problem, tuple(stages), provenance, graph.splits, cut_off=cut_off)


def _ordered(
    name: str, problem: ScheduleProblem, find: Callable[[Demand], Order], split: bool | None
) -> Schedule:
    graph = instance_graph(problem.partition, _splits(name, problem, split), problem.maps)
    order = find(demand_of(graph))
    return schedule_of(problem, graph, order, Provenance(name, num_evaluations=1))


def _splits(name: str, problem: ScheduleProblem, split: bool | None) -> tuple[Split, ...]:
    """How subgraphs run: split as the partition says where the problem allows it and nothing asks otherwise.

    Raises:
        UsageError: slices are wanted where the problem does not allow them.
    """
    if split and not problem.allows_slices:
        raise UsageError(f"{name}: split is set, but the target runs whole subgraphs only; leave it out.")
    is_split = problem.allows_slices if split is None else split
    return problem.partition.splits if is_split else whole(problem.partition)


def _local_capacity_bytes(problem: ScheduleProblem) -> int:
    """The machine's, else what the partition was planned for."""
    if problem.machine is not None:
        return local_capacity_bytes(problem.machine)
    weighed = problem.partition.weighed
    return 0 if weighed is None else weighed.capacity_bytes


@dataclass(frozen=True, slots=True)
class BreadthFirst:
    """Subgraph after subgraph, as the partition numbers them."""

    split: bool | None = option(
        None, "Order the slices of subgraphs, or whole ones; none: slices where the target runs them."
    )
    name: ClassVar[str] = "breadth-first"

    def solve(self, problem: ScheduleProblem, budget: Budget) -> Schedule:
        """One order; the budget is not needed."""
        return _ordered(self.name, problem, breadth_first, self.split)


@dataclass(frozen=True, slots=True)
class DepthFirst:
    """GraphTurbo's Algorithm 3: what became possible last runs first."""

    split: bool | None = option(
        None, "Order the slices of subgraphs, or whole ones; none: slices where the target runs them."
    )
    name: ClassVar[str] = "depth-first"

    def solve(self, problem: ScheduleProblem, budget: Budget) -> Schedule:
        """One order; the budget is not needed."""
        return _ordered(self.name, problem, depth_first, self.split)


@dataclass(frozen=True, slots=True)
class DepthOrBreadthFirst:
    """GraphTurbo's choice: the cheaper of both orders.

    The cost is the problem's. Equals are compared by what overflows the local buffers and by the peak, as the
    paper's "memory utilisation" is read; depth-first is taken where that is equal too. The note says which.
    """

    split: bool | None = option(
        None, "Order the slices of subgraphs, or whole ones; none: slices where the target runs them."
    )
    name: ClassVar[str] = "depth-or-breadth-first"

    def solve(self, problem: ScheduleProblem, budget: Budget) -> Schedule:
        """The cheaper of at most two; the budget is not needed."""
        graph = instance_graph(problem.partition, _splits(self.name, problem, self.split), problem.maps)
        demand = demand_of(graph)
        orders = {depth_first(demand): DepthFirst.name}
        orders.setdefault(breadth_first(demand), BreadthFirst.name)
        capacity = _local_capacity_bytes(problem)
        priced: list[tuple[Schedule, Order]] = []
        for number, (order, name) in enumerate(orders.items(), 1):
            provenance = Provenance(self.name, num_evaluations=len(orders), note=name)
            try:
                priced.append((schedule_of(problem, graph, order, provenance), order))
            except Outclassed:
                if number == len(orders) and not priced:
                    raise
        return min(priced, key=lambda s: (s[0].quality.cost, demand.cost_of(s[1], capacity)))[0]


@dataclass(frozen=True, slots=True)
class MinDelta:
    """What adds least to the memory that is in use runs first."""

    split: bool | None = option(
        None, "Order the slices of subgraphs, or whole ones; none: slices where the target runs them."
    )
    name: ClassVar[str] = "min-delta"

    def solve(self, problem: ScheduleProblem, budget: Budget) -> Schedule:
        """One order; the budget is not needed."""
        return _ordered(self.name, problem, min_delta, self.split)


@dataclass(frozen=True, slots=True)
class ExactOrder:
    """The order that overflows the local buffers least, then holds least at its peak."""

    split: bool | None = option(
        None, "Order the slices of subgraphs, or whole ones; none: slices where the target runs them."
    )
    capacity_bytes: int | None = option(
        None, "Capacity of the local buffers; none: the machine's, else what the partition was planned for."
    )
    max_states: int = option(MAX_STATES, "Sets of finished instances that are looked at, at most.")
    name: ClassVar[str] = "exact-order"

    def solve(self, problem: ScheduleProblem, budget: Budget) -> Schedule:
        """The best order if that takes no more states than allowed, else a good one."""
        graph = instance_graph(problem.partition, _splits(self.name, problem, self.split), problem.maps)
        capacity = _local_capacity_bytes(problem) if self.capacity_bytes is None else self.capacity_bytes
        meter = replace(budget, max_evaluations=UNLIMITED).start()
        found = exact_order(demand_of(graph), capacity, meter, max_states=self.max_states)
        note = f"{found.cost.overflow_bytes} bytes over, {'proven' if found.is_exact else 'not proven'}"
        provenance = Provenance(self.name, num_evaluations=found.num_states, note=note)
        return schedule_of(problem, graph, found.order, provenance, cut_off=found.cut_off)
