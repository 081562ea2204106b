"""What holds for scopes and offsets of any order on any capacity: nothing overlaps, nothing is lost."""

# mypy: disable-error-code="arg-type"

import random
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from tests.support.graphs import random_graph
from tests.support.integer_networks import integer_feed, integer_network
from tests.support.scopes import levels, placed_in

from tilewright.ir.graph import Graph, Value
from tilewright.ir.interpret import run_graph, run_node
from tilewright.ir.region import Region
from tilewright.memory.check_scopes import check_scopes
from tilewright.memory.instances import Timeline, expand
from tilewright.memory.scopes import ScopePlan
from tilewright.memory.spill import Policy, Residence, largest_size, longest_liveness
from tilewright.partition import PARTITIONERS, Partition, PartitionProblem
from tilewright.partition.graphturbo import GraphTurbo
from tilewright.partition.layers import layer_of
from tilewright.partition.split import Split
from tilewright.planning import Budget
from tilewright.schedule.binding import Bindings, Scope, bind
from tilewright.schedule.instance_orders import demand_of
from tilewright.schedule.instances import InstanceGraph, Kind, instance_graph
from tilewright.schedule.orders import depth_first

pytestmark = pytest.mark.sampled(16)

Array = np.ndarray[Any, Any]
SEEDS = range(24)
POLICIES: Mapping[str, Policy] = {"longest-liveness": longest_liveness, "largest-size": largest_size}


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
    return placed_in(levels(local, shared), graph, order, bindings, policy), bindings


@pytest.mark.sampled(5)
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


@pytest.mark.sampled(2)
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


@pytest.mark.sampled(3)
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
        assert {p.scope for p in none.buffers if p.size_bytes} <= {Scope.SHARED, Scope.MAIN}
        nowhere, _ = plan_of(graph, order, 0, 0, "longest-liveness")
        assert {p.scope for p in nowhere.buffers if p.size_bytes} == {Scope.MAIN}


def spill_literally(timeline: Timeline, homes: list[int], level: int, capacity: int, policy: str) -> None:
    """Section 3.10 of the specification, word by word."""
    key = {
        "longest-liveness": lambda b: (b.last_step - b.first_step, b.size_bytes),
        "largest-size": lambda b: (b.size_bytes, b.last_step - b.first_step),
    }[policy]
    buffers = timeline.problem.buffers

    def rounded(size: int) -> int:
        return -(-size // 64) * 64

    while True:
        for number, step in enumerate(timeline.steps):
            live = [
                i
                for i, b in enumerate(buffers)
                if homes[i] == level and b.first_step <= number <= b.last_step
            ]
            here = {buffers[i].name for i in live}
            alias = sum(
                rounded(buffers[i].size_bytes)
                for i in live
                if buffers[i].first_step == number and any(o in here for o in buffers[i].may_reuse)
            )
            if sum(rounded(buffers[i].size_bytes) for i in live) - alias > capacity:
                read = {r.buffer for r in step.reads}
                apart = [i for i in live if i not in read and buffers[i].first_step != number]
                unwritten = [i for i in live if buffers[i].first_step != number]
                victim = max(apart or unwritten or live, key=lambda i: (*key(buffers[i]), -i))
                homes[victim] += 1
                break
        else:
            return


@pytest.mark.sampled(5)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_one_pass_spills_what_the_specification_spills(seed: int, policy: str) -> None:
    for graph in (planned(seed), wild(seed)):
        order = random_order(graph, random.Random(seed))
        bindings = bind(graph, order, 8)
        for share in (0.4, 1.0, 1.7):
            capacity = int(share * largest(seed))
            timeline = expand(graph, order, bindings, levels(capacity, capacity))
            residence = Residence(timeline.problem)
            literal = list(residence.levels)
            for level in (0, 1):
                residence.spill(level, capacity, POLICIES[policy])
                spill_literally(timeline, literal, level, capacity, policy)
            assert residence.levels == literal


class Memory:
    """The bytes of each scope, as far as a plan uses them."""

    def __init__(self, plan: ScopePlan) -> None:
        self.plan = plan
        self.bytes = {scope: np.zeros(use.peak_bytes, np.uint8) for scope, use in plan.levels.items()}

    def at(self, number: int) -> Array:
        buffer = self.plan.buffers[number]
        raw = self.bytes[buffer.scope][buffer.offset_bytes : buffer.end_bytes]
        shape = [stop - start for start, stop in buffer.region]
        return raw.view(buffer.value.dtype.numpy).reshape(shape)


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
            if read.buffer is None:
                array[box(read.region)] = feed[read.value.name][box(read.region)]
            else:
                held = plan.buffers[read.buffer].region
                array[box(read.region)] = memory.at(read.buffer)[within(held, read.region)]
        for operator in step.operators:
            operands = []
            for value in operator.inputs:
                assert value is not None
                operands.append(value.data if value.is_constant else values.get(value, missing(value)))
            values.update(zip(operator.results(), run_node(operator, operands), strict=True))
        for number in step.writes:
            buffer = plan.buffers[number]
            memory.at(number)[...] = values[buffer.value][box(buffer.region)]
    results = {v.name: missing(v) for v in plan.graph.results}
    for buffer in plan.buffers:
        made_here = plan.graph.nodes[buffer.node].kind is Kind.INSTANCE
        if buffer.value in plan.graph.results and made_here:
            results[buffer.value.name][box(buffer.region)] = memory.at(buffer.id)
    return results


@pytest.mark.sampled(6)
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


def test_buffers_are_in_place_of_others_and_spilled_in_these_tests() -> None:
    taken = spilled = 0
    for seed in SEEDS:
        for graph in (planned(seed), wild(seed)):
            order = depth_first(demand_of(graph))
            plan, _ = plan_of(graph, order, int(largest(seed) * 0.8), largest(seed), "longest-liveness")
            taken += sum(p.in_place_of is not None for p in plan.buffers)
            spilled += sum(p.is_spilled for p in plan.buffers)
    assert taken > 100
    assert spilled > 100


@pytest.mark.sampled(6)
@pytest.mark.parametrize("seed", SEEDS)
def test_very_many_buffers_are_placed_in_order_of_time(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.memory.first_fitting.MAX_PAIRS", -1)
    for graph in (planned(seed), wild(seed)):
        order = random_order(graph, random.Random(seed))
        plan, bindings = plan_of(graph, order, largest(seed) * 2, largest(seed), "longest-liveness")
        assert check_scopes(plan, bindings) == ()


def test_where_no_offsets_are_found_one_more_buffer_leaves() -> None:
    """All that is live fits at every step, but gaps between places are too small."""
    unplaced = 0
    for seed, quarters in ((0, 3), (39, 11), (60, 5), (74, 5)):
        order = random_order(wild(seed), random.Random(seed + 1000))
        capacity = largest(seed) * quarters // 4
        plan, bindings = plan_of(wild(seed), order, capacity, None, "longest-liveness")
        assert check_scopes(plan, bindings) == ()
        residence = Residence(plan.timeline.problem)
        residence.spill(0, capacity, longest_liveness)
        fitting = len(residence.numbers_in(0))
        unplaced += fitting - plan.num_buffers[Scope.LOCAL]
    assert unplaced > 0
