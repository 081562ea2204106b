"""From a graph to a simulated plan: GraphTurbo's flow, its baselines, and the portfolio that picks the best.

A recipe says how a network is cut into subgraphs and slices, in which order instances run, what may lie
where, and how steps are run. The baselines are those of the paper's evaluation (section 5): operators one by
one as TVM runs them, stitched kernels, and the variants of its figure 15, each of which adds a technique.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from tilewright.hardware.capacity import computing_dtype, local_capacity_bytes, shared_weight_bytes
from tilewright.hardware.machine import Machine
from tilewright.ir.graph import Graph
from tilewright.ir.graph_regions import RegionMaps
from tilewright.memory.base import MemoryPlanner
from tilewright.memory.longest_liveness import LongestLiveness
from tilewright.memory.scopes import ScopePlan, place
from tilewright.partition.analysis import Analysis
from tilewright.partition.base import Partition, PartitionProblem
from tilewright.partition.graphturbo import GraphTurbo
from tilewright.partition.split import WHOLE
from tilewright.planning import Budget
from tilewright.schedule.binding import Bindings, Scope, bind
from tilewright.schedule.exact_order import exact_order
from tilewright.schedule.instance_orders import demand_of
from tilewright.schedule.instances import InstanceGraph, instance_graph
from tilewright.schedule.orders import breadth_first, depth_first, min_delta
from tilewright.targets.npu.simulate import GRAPHTURBO, Policy, Simulation, simulate
from tilewright.targets.npu.steps import lower
from tilewright.targets.npu.work import Works

OrderName = Literal["breadth-first", "depth-first", "min-delta", "exact"]


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to plan and run a network.

    `splits`: whether subgraphs run as slices. `memory` says what leaves a level that is too small. The
    partitioner's `alpha` scales the local capacity that is planned with, not the one that is there.
    """

    name: str
    partitioner: GraphTurbo = field(default_factory=GraphTurbo)
    splits: bool = True
    order: OrderName = "depth-first"
    memory: MemoryPlanner = field(default_factory=LongestLiveness)
    policy: Policy = GRAPHTURBO


_MAX_STATES = 5_000  # sets of finished instances: the paper's networks have 3,200 at most

_RELAY = GraphTurbo(group=False, fuse_joins=True)
_SERIAL = Policy("none")

GRAPHTURBO_RECIPE = Recipe("graphturbo")
"""Algorithms 1 to 4 with the paper's choices."""

BASELINES: Mapping[str, Recipe] = {
    "tvm": Recipe(
        "tvm", _RELAY, False, "breadth-first", memory=LongestLiveness(without=("local", "shared")),
        policy=Policy("none", keeps_weights=False, launches="each step"),
    ),
    "astitch": Recipe(
        "astitch", _RELAY, False, "breadth-first", LongestLiveness(without=("shared",)), _SERIAL
    ),
    "variant-1": Recipe(
        "variant-1", _RELAY, False, "breadth-first", LongestLiveness(without=("local",)), _SERIAL
    ),
    "variant-2": Recipe("variant-2", _RELAY, False, "breadth-first", policy=_SERIAL),
    "variant-3": Recipe("variant-3", policy=_SERIAL),
    "variant-4": replace(GRAPHTURBO_RECIPE, name="variant-4"),
}  # fmt: skip
"""The paper's baselines: `tvm` runs a kernel for each fused operator with everything in main memory,
`astitch` one kernel with what fits in the cores; variants 1 to 4 use the shared buffer, the cores' buffers
too, then splitting and ordering, then overlap."""


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """A network planned by a recipe, and simulated."""

    recipe: Recipe
    partition: Partition
    instances: InstanceGraph
    order: tuple[int, ...]
    bindings: Bindings
    scopes: ScopePlan
    simulation: Simulation


def plan(graph: Graph, machine: Machine, recipe: Recipe = GRAPHTURBO_RECIPE) -> Planned:
    """Plan a network and simulate it on one cluster of a machine.

    Raises:
        InfeasibleMapping: it fits nowhere; names level and bytes.
    """
    return Planner(graph, machine).plan(recipe)


class Planner:
    """Plans of one network on one machine. What recipes have in common is done once.

    `num_simulated` counts the plans that were really placed and simulated.
    """

    def __init__(self, graph: Graph, machine: Machine) -> None:
        self.graph, self.machine = graph, machine
        self.analysis = Analysis(graph)
        self.num_simulated = 0
        self._solved: dict[GraphTurbo, Partition] = {}
        self._instances: dict[Hashable, InstanceGraph] = {}
        self._orders: dict[tuple[InstanceGraph, OrderName], tuple[int, ...]] = {}
        self._planned: dict[Hashable, Planned] = {}

    def plan(self, recipe: Recipe) -> Planned:
        """The plan of a recipe, simulated.

        Raises:
            InfeasibleMapping: it fits nowhere; names level and bytes.
        """
        instances = self.instances(recipe)
        order = self._order(instances, recipe.order)
        key = (instances, order, recipe.memory, recipe.policy)
        found = self._planned.get(key)
        if found is None:
            found = placed(self.machine, recipe, instances, order, self.least_seconds)
            self._planned[key] = found
            self.num_simulated += 1
        return found if found.recipe == recipe else replace(found, recipe=recipe)

    @cached_property
    def least_seconds(self) -> Mapping[str, float]:
        """Seconds that each unit takes at least, in any plan."""
        return _least_seconds(self.graph, self.machine, self.analysis.maps)

    def partition(self, partitioner: GraphTurbo) -> Partition:
        """What a partitioner makes of the network."""
        if partitioner not in self._solved:
            problem = PartitionProblem(self.graph, self.machine, known=self.analysis)
            self._solved[partitioner] = partitioner.solve(problem, Budget())
        return self._solved[partitioner]

    def instances(self, recipe: Recipe) -> InstanceGraph:
        """The instances of a recipe's subgraphs: the same object for the same cuts."""
        partition = self.partition(recipe.partitioner)
        splits = partition.splits if recipe.splits else (WHOLE,) * len(partition.subgraphs)
        # The same layers in the same slices are the same instances, whatever was planned for.
        layers = tuple(tuple(x.nodes for x in partition.layers_of(s)) for s in partition.subgraphs)
        key = (layers, splits, recipe.partitioner.in_place)
        if key not in self._instances:
            self._instances[key] = instance_graph(partition, splits, self.analysis.maps)
        return self._instances[key]

    def _order(self, instances: InstanceGraph, name: OrderName) -> tuple[int, ...]:
        key = (instances, name)
        if key not in self._orders:
            self._orders[key] = tuple(ordered(instances, name, self.machine))
        return self._orders[key]


def placed(
    machine: Machine,
    recipe: Recipe,
    instances: InstanceGraph,
    order: Sequence[int],
    least_seconds: Mapping[str, float] | None = None,
) -> Planned:
    """The plan of instances in an order: bound to cores, placed in memory, simulated.

    `least_seconds` is what `Planner.least_seconds` knows of the network.

    Raises:
        InfeasibleMapping: not even main memory is large enough.
    """
    bindings = bind(instances, order, machine.num_cores_per_cluster)
    scopes = place(instances, order, bindings, machine, recipe.memory)
    steps = lower(scopes, bindings, machine, computing_dtype(machine))
    if least_seconds is None:
        least_seconds = _least_seconds(instances.partition.graph, machine, instances.maps)
    simulation = simulate(
        steps,
        machine,
        recipe.policy,
        weight_capacity_bytes=weight_capacity_bytes(machine, scopes),
        least_seconds=least_seconds,
    )
    return Planned(recipe, instances.partition, instances, tuple(order), bindings, scopes, simulation)


def _least_seconds(graph: Graph, machine: Machine, maps: RegionMaps) -> Mapping[str, float]:
    return Works(machine, computing_dtype(machine)).least_seconds(graph.nodes, graph.outputs, maps)


def weight_capacity_bytes(machine: Machine, scopes: ScopePlan) -> int:
    """What values leave of the shared buffer: the vendor keeps a share for weights and sizes the rest by the
    network, so weights have that share and whatever no buffer ever lies on."""
    shared = machine.shared
    if shared is None:
        return 0
    own = int((shared.capacity_bytes or 0) * machine.num_instances_per_cluster(shared))
    return max(shared_weight_bytes(machine), own - scopes.levels[Scope.SHARED].peak_bytes)


def ordered(instances: InstanceGraph, name: OrderName, machine: Machine) -> Sequence[int]:
    """The nodes of an instance graph in one of the orders."""
    demand = demand_of(instances)
    capacity = local_capacity_bytes(machine)
    match name:
        case "breadth-first":
            return breadth_first(demand)
        case "depth-first":
            return depth_first(demand)
        case "min-delta":
            return min_delta(demand)
        case "exact":
            return exact_order(demand, capacity, max_states=_MAX_STATES).order
