"""What holds for every plan of GraphTurbo's kind, on random networks: regions, peaks, edges, orders."""

# mypy: disable-error-code="arg-type"

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, ClassVar

import numpy as np
import pytest
from tests.support.integer_networks import integer_feed, integer_network

from tilewright.ir.derive import macs
from tilewright.ir.graph import Graph, Value
from tilewright.ir.graph_regions import RegionMaps
from tilewright.ir.interpret import run_graph, run_node
from tilewright.ir.region import Region, full_region, volume
from tilewright.partition import PARTITIONERS, Partition, PartitionProblem, check_partition
from tilewright.partition.axes import IndependentAxes
from tilewright.partition.check_splits import check_splits
from tilewright.partition.footprint import Footprints, joined, single
from tilewright.partition.graphturbo import GraphTurbo, planner
from tilewright.partition.graphturbo.merge import Grouping, Member
from tilewright.partition.graphturbo.split import SplitRules, Splitter, best_of, instance_regions
from tilewright.partition.layers import LayerRegions, cut_layers
from tilewright.partition.split import WHOLE, Split, instance_region, split_of
from tilewright.planning import Budget
from tilewright.schedule import SCHEDULERS, ScheduleProblem, check_schedule
from tilewright.schedule.binding import Scope, bind, transfers
from tilewright.schedule.check_instances import check_bindings, check_instances, check_order
from tilewright.schedule.exact_order import exact_order
from tilewright.schedule.instance_orders import BreadthFirst, DepthFirst, ExactOrder, MinDelta, demand_of
from tilewright.schedule.instances import InstanceGraph, Kind, instance_graph
from tilewright.schedule.orders import Demand, breadth_first, depth_first, level_order, min_delta

pytestmark = pytest.mark.sampled(40)

Array = np.ndarray[Any, Any]
SEEDS = range(24)


@cache
def network(seed: int) -> Graph:
    return integer_network(seed)


def largest(graph: Graph) -> int:
    return max(v.size_bytes for v in graph.values())


def plan(seed: int, share: float = 1.0, **options: Any) -> Partition:
    """A partition for buffers of this share of the network's largest value."""
    graph = network(seed)
    problem = PartitionProblem(graph)
    capacity = int(largest(graph) * share)
    planner = GraphTurbo(capacity_bytes=capacity, element_bytes=4, **options)
    partition = planner.solve(problem, Budget())
    assert check_partition(problem, partition) == ()
    assert check_splits(partition, recompute_limit=planner.recompute_limit) == ()
    return partition


@cache
def wild(seed: int) -> InstanceGraph:
    """A random partition with random splits that no planner would choose: any axes, any factors."""
    rng = random.Random(seed)
    graph = network(seed)
    partition = PARTITIONERS.get("layerwise").solve(PartitionProblem(graph), Budget())
    assert isinstance(partition, Partition)
    splits = []
    for subgraph in partition.subgraphs:
        cuts = []
        for axis in rng.sample(range(4), rng.choice((1, 1, 2))):
            extents = {v.shape[axis] if axis < len(v.shape) else 1 for v in subgraph.outputs}
            cuts.append((axis, rng.randint(1, min(extents)) if len(extents) == 1 else 1))
        splits.append(split_of(cuts))
    return instance_graph(partition, splits)


def masked(array: Array, region: Region | None) -> Array:
    """The array with nothing but a region of it."""
    result = np.full_like(array, np.nan)
    if region is not None:
        box = tuple(slice(*interval) for interval in region)
        result[box] = array[box]
    return result


def run_instances(
    graph: InstanceGraph, order: tuple[int, ...], feed: Mapping[str, Array]
) -> dict[str, Array]:
    """Every instance on what edges bring it, everything else missing; the network's results."""
    sources = {v: feed[v.name] for v in graph.partition.graph.inputs}
    pieces: dict[tuple[Value, int], Array] = {}
    results: dict[str, Array] = {}
    for place in order:
        node = graph.nodes[place]
        values: dict[Value, Array] = {
            v: masked(sources[v], r) for v, r in node.inputs.items() if v in sources
        }
        for edge in graph.reads(place):
            part = masked(pieces[edge.value, edge.producer], edge.region)
            known = values.get(edge.value)
            values[edge.value] = part if known is None else np.where(np.isnan(known), part, known)
        if node.kind is Kind.INSTANCE:
            for operator in graph.partition.subgraphs[node.subgraph_id].nodes:
                arrays = []
                for value in operator.inputs:
                    assert value is not None
                    missing = np.full(value.shape, np.nan, np.float32)
                    arrays.append(value.data if value.is_constant else values.get(value, missing))
                made = run_node(operator, arrays)
                values.update(zip(operator.results(), made, strict=True))
        for value, region in node.outputs.items():
            pieces[value, place] = masked(values[value], region)
            if value in graph.results and node.kind is Kind.INSTANCE:
                known = results.get(value.name, np.full(value.shape, np.nan, np.float32))
                box = tuple(slice(*interval) for interval in region)
                assert np.isnan(known[box]).all()
                known[box] = values[value][box]
                results[value.name] = known
    return results


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", SEEDS)
def test_instances_on_their_own_inputs_make_the_network_bit_for_bit(seed: int) -> None:
    graph = network(seed)
    feed = integer_feed(graph)
    expected = run_graph(graph, feed)
    for instances in (wild(seed), instance_graph(plan(seed)), instance_graph(plan(seed, 0.4, dims="any"))):
        for find in (breadth_first, depth_first, level_order, min_delta):
            order = find(demand_of(instances))
            found = run_instances(instances, order, feed)
            assert found.keys() == expected.keys()
            for name, array in expected.items():
                assert np.array_equal(found[name], array), name


@pytest.mark.sampled(6)
@pytest.mark.parametrize("seed", SEEDS)
def test_instance_graphs_are_exact(seed: int) -> None:
    for instances in (wild(seed), instance_graph(plan(seed, 0.5)), instance_graph(plan(seed, 3.0))):
        assert check_instances(instances) == ()


def test_dropping_any_edge_is_noticed() -> None:
    for seed in range(6):
        instances = wild(seed)
        for dropped in instances.edges[:: max(1, len(instances.edges) // 10)]:
            edges = tuple(e for e in instances.edges if e is not dropped)
            damaged = replace(instances, edges=edges)
            assert check_instances(damaged)


@pytest.mark.sampled(30)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0, 2.5, 1e6])
def test_every_capacity_has_a_valid_partition(seed: int, share: float) -> None:
    partition = plan(seed, share)
    weighed = partition.weighed
    assert weighed is not None
    for options, peak_bytes in zip(weighed.options, weighed.peak_bytes, strict=True):
        assert not options or peak_bytes <= weighed.capacity_bytes
    if share == 0.0:
        assert not any(weighed.options)
    if share == 1e6:
        assert set(partition.splits) == {WHOLE}
        assert len(partition.subgraphs) == 1 or len(partition.graph.outputs) > 1


@pytest.mark.sampled(6)
@pytest.mark.parametrize("seed", SEEDS)
def test_the_numbering_of_nodes_does_not_matter(seed: int) -> None:
    partition = plan(seed)
    graph = network(seed)
    home = {n.name: s.id for s in partition.subgraphs for n in s.nodes}
    shuffled = renumbered(graph, seed)
    assert partition.weighed is not None
    again = GraphTurbo(capacity_bytes=partition.weighed.capacity_bytes, element_bytes=4).solve(
        PartitionProblem(shuffled), Budget()
    )
    other = {n.name: s.id for s in again.subgraphs for n in s.nodes}
    groups = {frozenset(n for n in home if home[n] == i) for i in set(home.values())}
    assert groups == {frozenset(n for n in other if other[n] == i) for i in set(other.values())}
    assert sorted(map(str, partition.splits)) == sorted(map(str, again.splits))


def renumbered(graph: Graph, seed: int) -> Graph:
    """The same network with its nodes in another topological order."""
    rng = random.Random(seed)
    copy = graph.clone()
    nodes = list(copy.nodes)
    ready = [n for n in nodes if all(v.producer is None for v in n.operands())]
    order = []
    while ready:
        node = ready.pop(rng.randrange(len(ready)))
        order.append(node)
        done = set(order)
        for user in dict.fromkeys(u for v in node.results() for u in v.users):
            if user not in ready and all(v.producer is None or v.producer in done for v in user.operands()):
                ready.append(user)
    copy._nodes = order
    return copy


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", SEEDS)
def test_an_instance_holds_no_more_the_finer_the_split(seed: int) -> None:
    """Along chains of divisors; whole and by 1 are the same."""
    graph = network(seed)
    footprints = Footprints(LayerRegions(RegionMaps()), lambda v: 4, in_place=True)
    layers = [single(layer, i) for i, layer in enumerate(cut_layers(graph))]
    for part in (*layers, *whole_network(graph, layers)):
        for dim, extent in enumerate(part.outputs[0].shape):
            peaks = {
                f: max(
                    footprints.of(part, instance_regions(part, Split(dim, f), i)).peak_bytes for i in range(f)
                )
                for f in range(1, extent + 1)
                if extent % f == 0
            }
            assert peaks[1] == footprints.whole(part).peak_bytes
            for few, held in peaks.items():
                assert all(held >= other for many, other in peaks.items() if many % few == 0)


def whole_network(graph: Graph, layers: list[Any]) -> list[Any]:
    return [joined(layers, graph.outputs)] if len(graph.outputs) == 1 else []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_joined_part_holds_what_its_layers_hold_together(seed: int) -> None:
    """The footprint from remembered members is the one from walking over all layers."""
    rng = random.Random(seed)
    graph = network(seed)
    layers = cut_layers(graph)
    remembered = Footprints(LayerRegions(RegionMaps()), lambda v: 4, in_place=True)
    members = [single(layer, i) for i, layer in enumerate(layers)]
    whole = graph.outputs
    while len(members) > 1:
        at = rng.randrange(len(members) - 1)
        later = {v for m in members[at + 2 :] for v in m.inputs} | set(whole)
        pair = members[at : at + 2]
        outputs = [v for m in pair for v in m.outputs if v in later]
        members[at : at + 2] = [joined(pair, outputs)]
        part = members[at]
        for index in range(2):
            dims = [d for d in range(len(part.outputs[0].shape)) if part.outputs[0].shape[d] > 1]
            if len(part.outputs) != 1 or not dims:
                continue
            regions = instance_regions(part, Split(rng.choice(dims), 2), index)
            for member in part.members:
                if member.outputs == part.outputs:
                    remembered.of(member, regions)
            found = remembered.of(part, regions)
            flat = joined([single(layer, 0) for layer in part.layers], part.outputs)
            expected = Footprints(LayerRegions(RegionMaps()), lambda v: 4, in_place=True).of(flat, regions)
            assert found.inputs == expected.inputs
            assert found.peak_bytes == expected.peak_bytes
            assert (found.macs, found.elements) == (expected.macs, expected.elements)


@pytest.mark.parametrize("seed", SEEDS)
def test_splitting_an_independent_axis_computes_nothing_twice(seed: int) -> None:
    graph = network(seed)
    axes = IndependentAxes(graph, RegionMaps())
    footprints = Footprints(LayerRegions(RegionMaps()), lambda v: 4, in_place=True)
    for place, layer in enumerate(cut_layers(graph)):
        part = single(layer, place)
        for dim in range(len(part.outputs[0].shape)):
            units = axes.units_of(part.outputs[0], dim)
            slices = [footprints.of(part, instance_regions(part, Split(dim, units), i)) for i in range(units)]
            assert sum(s.macs for s in slices) <= sum(macs(n) for n in layer.nodes) + 1e-6
            assert len({s.peak_bytes for s in slices}) == 1
            for value in layer.inputs:
                read = [s.inputs[value] for s in slices if value in s.inputs]
                assert units == 1 or sum(volume(r) for r in read) <= value.num_elements


@pytest.mark.parametrize("seed", SEEDS)
def test_an_option_is_the_least_factor_and_the_best_their_maximum(seed: int) -> None:
    graph = network(seed)
    maps = RegionMaps()
    rules = SplitRules(largest(graph) * 3 // 2, dims="any", recompute_limit=float("inf"), all_factors=True)
    splitter = Splitter(
        Footprints(LayerRegions(maps), lambda v: 4, in_place=True), IndependentAxes(graph, maps), rules
    )
    for place, layer in enumerate(cut_layers(graph)):
        part = single(layer, place)
        for option in splitter.options(part):
            dim, factor = option.split.dim, option.split.factor
            assert option.num_ops >= 1
            assert option.peak_bytes <= rules.capacity_bytes
            if dim is None:
                continue
            for less in (f for f in range(1, factor) if part.outputs[0].shape[dim] % f == 0):
                held = [
                    splitter.footprints.of(part, instance_regions(part, Split(dim, less), i)).peak_bytes
                    for i in range(less)
                ]
                assert max(held) > rules.capacity_bytes


@pytest.mark.sampled(8)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("share", [0.1, 0.3, 0.6])
def test_every_subgraph_is_split_as_eq_1_says_of_all_its_axes(seed: int, share: float) -> None:
    """Not as the best axis of those with few enough instances to join: the paper refuses that."""
    graph = network(seed)
    planned = GraphTurbo(capacity_bytes=int(largest(graph) * share), element_bytes=4, dims="any")
    partition = plan(seed, share, dims="any")
    splitter = planned.splitter(PartitionProblem(graph))
    for subgraph, split in zip(partition.subgraphs, partition.splits, strict=True):
        layers = partition.layers_of(subgraph)
        part = joined([single(layer, i) for i, layer in enumerate(layers)], subgraph.outputs)
        best = best_of(splitter.options(part))
        assert split == (WHOLE if best is None else best.split)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", SEEDS)
def test_orders_are_linear_extensions_and_schedules_valid(seed: int) -> None:
    for instances in (wild(seed), instance_graph(plan(seed, 0.5))):
        demand = demand_of(instances)
        for find in (breadth_first, depth_first, level_order, min_delta):
            assert check_order(instances, find(demand)) == ()
        assert check_order(instances, exact_order(demand, 0, max_states=500).order) == ()
    problem = ScheduleProblem(plan(seed, 0.5), allows_slices=True)
    for scheduler in (BreadthFirst(True), DepthFirst(True), MinDelta(True), ExactOrder(True)):
        schedule = scheduler.solve(problem, Budget())
        assert check_schedule(problem, schedule) == ()
        assert len(list(schedule.instances())) == sum(s.num_instances for s in plan(seed, 0.5).splits)


def test_a_slice_before_what_it_reads_is_a_violation() -> None:
    for seed in SEEDS:
        problem = ScheduleProblem(plan(seed, 0.5), allows_slices=True)
        schedule = BreadthFirst(True).solve(problem, Budget())
        if len(schedule.partition.subgraphs) > 1:
            turned = replace(schedule, stages=schedule.stages[::-1])
            assert {v.rule for v in check_schedule(problem, turned)} == {"order"}


def random_order(demand: Demand, rng: random.Random) -> tuple[int, ...]:
    waiting = [len(p) for p in demand.predecessors]
    ready = [n for n, count in enumerate(waiting) if count == 0]
    order = []
    while ready:
        node = ready.pop(rng.randrange(len(ready)))
        order.append(node)
        for successor in demand.successors[node]:
            waiting[successor] -= 1
            if waiting[successor] == 0:
                ready.append(successor)
    return tuple(order)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(6))
def test_no_random_order_beats_the_exact_one(seed: int) -> None:
    rng = random.Random(seed)
    instances = instance_graph(plan(seed, 0.7))
    demand = demand_of(instances)
    for capacity in (0, largest(network(seed)), 10 * largest(network(seed))):
        found = exact_order(demand, capacity)
        assert found.cost == demand.cost_of(found.order, capacity)
        costs = [demand.cost_of(random_order(demand, rng), capacity) for _ in range(200)]
        assert not found.is_exact or found.cost <= min(costs)


def all_orders(demand: Demand) -> list[tuple[int, ...]]:
    """Every linear extension."""

    def extend(order: tuple[int, ...]) -> list[tuple[int, ...]]:
        free = [n for n, p in enumerate(demand.predecessors) if n not in order and all(q in order for q in p)]
        return [o for n in free for o in extend((*order, n))] if free else [order]

    return extend(())


@pytest.mark.parametrize("seed", range(12))
def test_the_exact_order_is_the_best_of_all(seed: int) -> None:
    """On small random graphs, trees among them, all of whose orders can be listed."""
    rng = random.Random(seed)
    size = 7
    if seed % 2:
        edges = {(i, rng.randrange(i + 1, size)) for i in range(size - 1)}
    else:
        edges = {(i, j) for i in range(size) for j in range(i + 1, size) if rng.random() < 0.35}
    pieces = tuple(rng.choice((3, 3, 8)) for _ in range(size))
    demand = Demand(
        tuple(p if any(a == i for a, _ in edges) else 0 for i, p in enumerate(pieces)),
        tuple(rng.choice((4, 4, 9)) for _ in range(size)),
        tuple(tuple(sorted(a for a, b in edges if b == i)) for i in range(size)),
        tuple(tuple(sorted(b for a, b in edges if a == i)) for i in range(size)),
    )
    orders = all_orders(demand)
    assert len(set(orders)) == len(orders) > 0
    for capacity in (0, 9, 15, 1000):
        found = exact_order(demand, capacity)
        assert found.is_exact
        assert found.cost == min(demand.cost_of(o, capacity) for o in orders)


@pytest.mark.parametrize(
    "name", ["breadth-first", "depth-first", "depth-or-breadth-first", "min-delta", "exact-order"]
)
def test_registered_orders_run_whole_subgraphs(name: str) -> None:
    problem = ScheduleProblem(plan(0, 0.5))
    schedule = SCHEDULERS.get(name).solve(problem, Budget())
    assert check_schedule(problem, schedule) == ()  # type: ignore[arg-type]
    assert [i.index for i in schedule.instances()] == [0] * len(problem.partition.subgraphs)  # type: ignore[union-attr]


def test_slices_cover_an_axis_whatever_the_factor() -> None:
    cover: Callable[[int, int], list[Region]] = lambda extent, factor: [  # noqa: E731
        instance_region((extent,), Split(0, factor), i) for i in range(factor)
    ]
    for extent in range(1, 12):
        for factor in range(1, extent + 1):
            pieces = cover(extent, factor)
            assert [p[0][0] for p in pieces[1:]] == [p[0][1] for p in pieces[:-1]]
            assert (pieces[0][0][0], pieces[-1][0][1]) == full_region((extent,))[0]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("num_cores", [1, 6, 8])
def test_bindings_deal_out_pieces_and_transfers_are_where_sides_differ(seed: int, num_cores: int) -> None:
    for instances in (wild(seed), instance_graph(plan(seed, 0.5))):
        bindings = bind(instances, depth_first(demand_of(instances)), num_cores)
        assert check_bindings(instances, bindings) == ()
        moved = transfers(instances, bindings)
        for edge in instances.edges:
            kinds = [t.kind for t in moved.get(edge, ())]
            own = bindings.bindings[edge.producer]
            assert (Kind.REDISTRIBUTE in kinds) == (bindings.wanted.get(edge, own) != own)
            assert (Kind.COPY in kinds) == (bindings.scopes[edge.producer] is not Scope.LOCAL)


class Recorded(Grouping):
    """Writes down what was joined."""

    joins: ClassVar[list[tuple[list[int], int, int]]] = []

    def _try(self, members: Sequence[Member], limit: int) -> Member | None:
        merged = super()._try(members, limit)
        if merged is not None:
            factors = [m.factor for m in members]
            self.joins.append((factors, merged.factor, len(merged.part.outputs)))
        return merged


def test_no_join_breaks_its_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pair: the first has no more instances than the second, the whole no more than that; one output."""
    monkeypatch.setattr(planner, "Grouping", Recorded)
    Recorded.joins.clear()
    for seed in SEEDS:
        for share in (0.5, 1.0, 2.0):
            plan(seed, share)
    assert len(Recorded.joins) > 100
    for factors, whole, num_outputs in Recorded.joins:
        assert num_outputs == 1
        assert whole <= max(factors)
        assert len(factors) > 2 or factors[0] <= factors[1]


class Twice(Grouping):
    """Groups, forgets what it tried in vain, and groups again."""

    def run(self) -> tuple[Member, ...]:
        found = super().run()
        self._refused.clear()
        assert super().run() == found
        return found


@pytest.mark.sampled(1)
@pytest.mark.parametrize("share", [0.3, 1.0, 2.5])
def test_grouping_again_changes_nothing(monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    monkeypatch.setattr(planner, "Grouping", Twice)
    for seed in SEEDS:
        plan(seed, share)
