"""What holds for scopes and offsets of any order on any capacity: nothing overlaps, nothing is lost."""

import random
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from tests.support.graphs import random_graph
from tests.support.integer_networks import integer_feed, integer_network

from tilewright.hardware.presets import load_preset
from tilewright.ir.graph import Graph, Value
from tilewright.ir.interpret import run_graph, run_node
from tilewright.ir.region import Region
from tilewright.memory.scoped import POLICIES, ScopePlan, check_scopes, place
from tilewright.memory.scoped.expand import Timeline, expand
from tilewright.memory.scoped.spill import spill
from tilewright.partition import PARTITIONERS, Partition, PartitionProblem
from tilewright.partition.graphturbo import GraphTurbo
from tilewright.partition.layers import layer_of
from tilewright.partition.split import Split
from tilewright.planning import Budget
from tilewright.schedule.binding import Bindings, Scope, bind
from tilewright.schedule.instance_orders import demand_of
from tilewright.schedule.instances import InstanceGraph, Kind, instance_graph
from tilewright.schedule.orders import depth_first

Array = np.ndarray[Any, Any]
SEEDS = range(24)
MACHINE = load_preset("stcp920")
OUTWARDS = (Scope.LOCAL, Scope.SHARED, Scope.MAIN)


@cache
def network(seed: int) -> Graph:
    return integer_network(seed)


@cache
def largest(seed: int) -> int:
    return max(v.size_bytes for v in network(seed).values())


@cache
def planned(seed: int) -> InstanceGraph:
    planner = GraphTurbo(capacity_bytes=largest(seed), element_bytes=4, dims="any")
    return instance_graph(planner.solve(PartitionProblem(network(seed)), Budget()))


@cache
def wild(seed: int) -> InstanceGraph:
    """Subgraphs of several layers, a node each, split along any axis by any factor."""
    rng = random.Random(seed)
    partition = PARTITIONERS.get("layerwise").solve(PartitionProblem(network(seed)), Budget())
    assert isinstance(partition, Partition)
    splits = []
    for subgraph in partition.subgraphs:
        axis = rng.randrange(4)
        extents = {v.shape[axis] if axis < len(v.shape) else 1 for v in subgraph.outputs}
        splits.append(Split(axis, rng.randint(1, min(extents)) if len(extents) == 1 else 1))
    results = set(partition.graph.outputs)
    layers = tuple(tuple(layer_of([n], results) for n in s.nodes) for s in partition.subgraphs)
    return instance_graph(replace(partition, layers=layers), splits)


def random_order(graph: InstanceGraph, rng: random.Random) -> tuple[int, ...]:
    waiting = {n.id: len(graph.predecessors(n.id)) for n in graph.nodes}
    ready = [n for n, count in waiting.items() if count == 0]
    order: list[int] = []
    while ready:
        order.append(ready.pop(rng.randrange(len(ready))))
        for successor in graph.successors(order[-1]):
            waiting[successor] -= 1
            if waiting[successor] == 0:
                ready.append(successor)
    return tuple(order)


def plan_of(
    graph: InstanceGraph, order: tuple[int, ...], local: int | None, shared: int | None, policy: str
) -> tuple[ScopePlan, Bindings]:
    bindings = bind(graph, order, 8)
    capacities = {Scope.LOCAL: local, Scope.SHARED: shared}
    return place(graph, order, bindings, MACHINE, policy, capacities=capacities), bindings


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_order_on_every_capacity_has_a_valid_plan(seed: int, policy: str) -> None:
    rng = random.Random(seed)
    for graph in (planned(seed), wild(seed)):
        for share in (0.0, 0.3, 1.0, 2.5):
            order = random_order(graph, rng)
            shared = int(largest(seed) * rng.choice((0.0, 0.5, 2.0)))
            plan, bindings = plan_of(graph, order, int(largest(seed) * share), shared, policy)
            assert check_scopes(plan, bindings) == ()


@pytest.mark.parametrize("seed", range(12))
def test_square_matrices_and_unsplit_partitions_have_valid_plans(seed: int) -> None:
    rng = random.Random(seed)
    graph = random_graph(seed, 30)
    for name in ("none", "layerwise", "random"):
        partition = PARTITIONERS.get(name).solve(PartitionProblem(graph), Budget())
        assert isinstance(partition, Partition)
        instances = instance_graph(partition)
        for capacity in (0, 64, 256, 400, None):
            plan, bindings = plan_of(
                instances, random_order(instances, rng), capacity, 128, "longest-liveness"
            )
            assert check_scopes(plan, bindings) == ()


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_spilled_from_unlimited_buffers_and_nothing_stays_in_none(seed: int) -> None:
    for graph in (planned(seed), wild(seed)):
        order = random_order(graph, random.Random(seed))
        bindings = bind(graph, order, 8)
        plan, _ = plan_of(graph, order, None, None, "longest-liveness")
        assert plan.spilled_bytes == 0
        for node in graph.nodes:
            results = [v for v in node.outputs if v in graph.results and node.kind is Kind.INSTANCE]
            if not results:
                assert {p.scope for p in plan.outputs_of(node.id)} == {bindings.scopes[node.id]}
        none, _ = plan_of(graph, order, 0, None, "longest-liveness")
        assert {p.scope for p in none.pieces if p.size_bytes} <= {Scope.SHARED, Scope.MAIN}
        nowhere, _ = plan_of(graph, order, 0, 0, "longest-liveness")
        assert {p.scope for p in nowhere.pieces if p.size_bytes} == {Scope.MAIN}


def spill_literally(timeline: Timeline, scope: Scope, capacity: int, policy: str) -> None:
    """Section 3.10 of the specification, word by word."""
    key = {
        "longest-liveness": lambda d: (d.last_step - d.first_step, d.size_bytes),
        "largest-size": lambda d: (d.size_bytes, d.last_step - d.first_step),
    }[policy]

    def rounded(size: int) -> int:
        return -(-size // 64) * 64

    while True:
        for number, step in enumerate(timeline.steps):
            live = [d for d in timeline.drafts if d.scope is scope and d.first_step <= number <= d.last_step]
            here = {d.id for d in live}
            alias = sum(
                rounded(d.size_bytes)
                for d in live
                if d.first_step == number and any(o in here for o in d.may_take_over)
            )
            if sum(rounded(d.size_bytes) for d in live) - alias > capacity:
                read = {r.piece for r in step.reads}
                apart = [d for d in live if d.id not in read and d.first_step != number]
                unwritten = [d for d in live if d.first_step != number]
                victim = max(apart or unwritten or live, key=lambda d: (*key(d), -d.id))
                victim.scope = OUTWARDS[OUTWARDS.index(scope) + 1]
                break
        else:
            return


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_one_pass_spills_what_the_specification_spills(seed: int, policy: str) -> None:
    for graph in (planned(seed), wild(seed)):
        order = random_order(graph, random.Random(seed))
        bindings = bind(graph, order, 8)
        for share in (0.4, 1.0, 1.7):
            capacity = int(share * largest(seed))
            fast, slow = expand(graph, order, bindings), expand(graph, order, bindings)
            for scope in (Scope.LOCAL, Scope.SHARED):
                spill(fast, scope, capacity, POLICIES[policy])
                spill_literally(slow, scope, capacity, policy)
            assert [d.scope for d in fast.drafts] == [d.scope for d in slow.drafts]


class Memory:
    """The bytes of each scope, as far as a plan uses them."""

    def __init__(self, plan: ScopePlan) -> None:
        self.plan = plan
        self.bytes = {scope: np.zeros(use.used_bytes, np.uint8) for scope, use in plan.levels.items()}

    def at(self, number: int) -> Array:
        piece = self.plan.pieces[number]
        raw = self.bytes[piece.scope][piece.offset_bytes : piece.end_bytes]
        shape = [stop - start for start, stop in piece.region]
        return raw.view(piece.value.dtype.numpy).reshape(shape)


def within(outer: Region, inner: Region) -> tuple[slice, ...]:
    return tuple(slice(i[0] - o[0], i[1] - o[0]) for o, i in zip(outer, inner, strict=True))


def box(region: Region) -> tuple[slice, ...]:
    return tuple(slice(*interval) for interval in region)


def missing(value: Value) -> Array:
    return np.full(value.shape, np.nan, np.float32)


def run_in_memory(plan: ScopePlan, feed: Mapping[str, Array]) -> dict[str, Array]:
    """Every step on what lies in memory at its places; at the end the results are read from there."""
    memory = Memory(plan)
    for step in plan.steps:
        values: dict[Value, Array] = {}
        for read in step.reads:
            array = values.setdefault(read.value, missing(read.value))
            if read.piece is None:
                array[box(read.region)] = feed[read.value.name][box(read.region)]
            else:
                held = plan.pieces[read.piece].region
                array[box(read.region)] = memory.at(read.piece)[within(held, read.region)]
        for operator in step.operators:
            operands = []
            for value in operator.inputs:
                assert value is not None
                operands.append(value.data if value.is_constant else values.get(value, missing(value)))
            values.update(zip(operator.results(), run_node(operator, operands), strict=True))
        for number in step.writes:
            piece = plan.pieces[number]
            memory.at(number)[...] = values[piece.value][box(piece.region)]
    results = {v.name: missing(v) for v in plan.graph.results}
    for piece in plan.pieces:
        made_here = plan.graph.nodes[piece.node].kind is Kind.INSTANCE
        if piece.value in plan.graph.results and made_here:
            results[piece.value.name][box(piece.region)] = memory.at(piece.id)
    return results


@pytest.mark.parametrize("seed", SEEDS)
def test_steps_on_the_planned_places_make_the_network_bit_for_bit(seed: int) -> None:
    feed = integer_feed(network(seed))
    expected = run_graph(network(seed), feed)
    for graph, share in ((planned(seed), 0.8), (wild(seed), 1.5)):
        order = random_order(graph, random.Random(seed))
        plan, _ = plan_of(graph, order, int(largest(seed) * share), largest(seed), "longest-liveness")
        found = run_in_memory(plan, feed)
        assert found.keys() == expected.keys()
        for name, array in expected.items():
            assert np.array_equal(found[name], array), name


def test_places_are_taken_over_and_pieces_spilled_in_these_tests() -> None:
    taken = spilled = 0
    for seed in SEEDS:
        for graph in (planned(seed), wild(seed)):
            order = depth_first(demand_of(graph))
            plan, _ = plan_of(graph, order, int(largest(seed) * 0.8), largest(seed), "longest-liveness")
            taken += sum(p.written_over is not None for p in plan.pieces)
            spilled += sum(p.is_spilled for p in plan.pieces)
    assert taken > 100
    assert spilled > 100


@pytest.mark.parametrize("seed", SEEDS)
def test_very_many_pieces_are_placed_in_order_of_time(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.memory.scoped.pack.MAX_PAIRS", -1)
    for graph in (planned(seed), wild(seed)):
        order = random_order(graph, random.Random(seed))
        plan, bindings = plan_of(graph, order, largest(seed) * 2, largest(seed), "longest-liveness")
        assert check_scopes(plan, bindings) == ()


def test_where_no_offsets_are_found_one_more_piece_leaves() -> None:
    """All that is live fits at every step, but gaps between places are too small."""
    unplaced = 0
    for seed, quarters in ((0, 3), (39, 11), (60, 5), (74, 5)):
        order = random_order(wild(seed), random.Random(seed + 1000))
        capacity = largest(seed) * quarters // 4
        plan, bindings = plan_of(wild(seed), order, capacity, None, "longest-liveness")
        assert check_scopes(plan, bindings) == ()
        timeline = expand(wild(seed), order, bindings)
        spill(timeline, Scope.LOCAL, capacity, POLICIES["longest-liveness"])
        fitting = sum(d.scope is Scope.LOCAL for d in timeline.drafts)
        unplaced += fitting - plan.num_buffers[Scope.LOCAL]
    assert unplaced > 0
