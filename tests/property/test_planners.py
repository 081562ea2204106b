"""What holds for every problem: merges, partitions, schedules, live ranges and arenas."""

from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.graphs import feed_of, random_graph

from tilewright.ir.graph import Graph, Node, Value
from tilewright.ir.interpret import run_graph, run_node
from tilewright.memory import (
    MEMORY_PLANNERS,
    Buffer,
    MemoryPlan,
    MemoryProblem,
    check_memory,
    lower_bound_bytes,
    memory_problem,
)
from tilewright.partition import PartitionProblem, check_partition
from tilewright.partition.layerwise import Layerwise
from tilewright.partition.quotient import QuotientGraph
from tilewright.partition.random import RandomPartitioner
from tilewright.planning import Budget, Limits
from tilewright.schedule import Schedule, ScheduleProblem, check_schedule
from tilewright.schedule.random import RandomScheduler

Edges = list[tuple[int, int]]


@st.composite
def dags(draw: st.DrawFn, max_nodes: int = 9) -> tuple[int, Edges]:
    num_nodes = draw(st.integers(2, max_nodes))
    pairs = [(u, v) for v in range(num_nodes) for u in range(v)]
    return num_nodes, draw(st.lists(st.sampled_from(pairs), unique=True, max_size=2 * num_nodes))


def stays_acyclic(num_nodes: int, edges: Edges, cluster_of: Sequence[int]) -> bool:
    """By reachability among clusters, closed without any cleverness."""
    reach = {(cluster_of[u], cluster_of[v]) for u, v in edges if cluster_of[u] != cluster_of[v]}
    clusters = sorted(set(cluster_of))
    for middle in clusters:
        reach |= {(a, d) for a, b in reach if b == middle for c, d in reach if c == middle}
    return all(a != b for a, b in reach)


@given(dags(), st.data())
@settings(max_examples=150, deadline=None)
def test_merges_are_allowed_exactly_where_they_leave_no_cycle(
    dag: tuple[int, Edges], data: st.DataObject
) -> None:
    num_nodes, edges = dag
    quotient = QuotientGraph(num_nodes, edges)
    cluster_of = list(range(num_nodes))
    for _ in range(num_nodes):
        clusters = quotient.clusters
        if len(clusters) < 2:
            break
        size = data.draw(st.integers(2, min(3, len(clusters))))
        chosen = data.draw(st.permutations(clusters))[:size]
        merged = [min(chosen) if c in chosen else c for c in cluster_of]
        expected = stays_acyclic(num_nodes, edges, merged)
        assert quotient.can_contract_all(chosen) == expected
        if expected:
            cluster_of = merged
            assert quotient.contract_all(chosen) == min(chosen)
            assert [quotient.cluster_of(n) for n in range(num_nodes)] == cluster_of
            place = {c: i for i, c in enumerate(quotient.clusters)}
            assert all(place[cluster_of[u]] <= place[cluster_of[v]] for u, v in edges)


buffer_shapes = st.tuples(
    st.integers(0, 300), st.integers(0, 12), st.integers(0, 5), st.sampled_from((1, 16, 64, 128))
)


@st.composite
def memory_problems(draw: st.DrawFn) -> MemoryProblem:
    """Random intervals; each may reuse some of those that die where it begins, whatever their size."""
    shapes = draw(st.lists(buffer_shapes, max_size=14))
    spans = [
        (f"b{i}", size, first, first + length, align) for i, (size, first, length, align) in enumerate(shapes)
    ]
    buffers = []
    for name, size, first, last, align in spans:
        dying = [other for other, *_, end, _ in spans if end == first and other != name]
        reuse = draw(st.lists(st.sampled_from(dying), unique=True)) if dying else []
        buffers.append(Buffer(name, size, first, last, align, tuple(reuse)))
    return MemoryProblem(tuple(buffers))


@given(memory_problems(), st.integers(0, 3))
@settings(max_examples=150, deadline=None)
def test_every_plan_is_valid_and_no_better_than_the_bound(problem: MemoryProblem, seed: int) -> None:
    bound = lower_bound_bytes(problem.buffers)
    for name in MEMORY_PLANNERS.names():
        plan = MEMORY_PLANNERS.get(name).solve(problem, Budget(30))
        assert isinstance(plan, MemoryPlan)
        assert check_memory(problem, plan) == ()
        used = max((plan.offsets[b.name] + b.size_bytes for b in problem.buffers), default=0)
        assert bound <= used == plan.peak_bytes


@given(memory_problems())
@settings(max_examples=60, deadline=None)
def test_the_arena_is_never_larger_than_the_baselines(problem: MemoryProblem) -> None:
    peaks = {}
    for name in ("arena", "greedy-by-size"):
        plan = MEMORY_PLANNERS.get(name).solve(problem, Budget(50))
        assert isinstance(plan, MemoryPlan)
        peaks[name] = plan.peak_bytes
    assert peaks["arena"] <= peaks["greedy-by-size"]


@given(memory_problems())
@settings(max_examples=30, deadline=None)
def test_the_same_problem_and_budget_give_the_same_arena(problem: MemoryProblem) -> None:
    first, second = (MEMORY_PLANNERS.get("arena").solve(problem, Budget(60)) for _ in range(2))
    assert first == second


@given(st.integers(0, 10**6), st.integers(1, 25), st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_partitions_of_random_graphs_are_valid(seed: int, num_nodes: int, merge: float) -> None:
    problem = PartitionProblem(random_graph(seed, num_nodes))
    for partitioner in (Layerwise(), RandomPartitioner(seed, merge)):
        partition = partitioner.solve(problem, Budget())
        assert check_partition(problem, partition) == ()
        assert partition.quality.cost >= partition.quality.bound


def random_schedule(seed: int, num_nodes: int, groups: int) -> Schedule:
    graph = random_graph(seed, num_nodes)
    partition = RandomPartitioner(seed, 0.4).solve(PartitionProblem(graph), Budget())
    problem = ScheduleProblem(partition, limits=Limits(groups))
    schedule = RandomScheduler(seed).solve(problem, Budget())
    assert check_schedule(problem, schedule) == ()
    return schedule


@given(st.integers(0, 10**6), st.integers(1, 25), st.integers(1, 3), st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_schedule_run_inside_its_arena_computes_the_reference(
    seed: int, num_nodes: int, groups: int, in_place: bool
) -> None:
    """Kernels read and write one byte array at the planned offsets, stage by stage.

    The groups of a stage may run in any order, so both directions must give the same.
    """
    schedule = random_schedule(seed, num_nodes, groups)
    problem = memory_problem(schedule, in_place=in_place)
    plan = MEMORY_PLANNERS.get("arena").solve(problem, Budget(30))
    assert isinstance(plan, MemoryPlan)
    graph = schedule.partition.graph
    feed = feed_of(graph, seed)
    expected = run_graph(graph, feed)
    for reverse in (False, True):
        results = run_in_arena(schedule, plan, feed, reverse=reverse)
        for value in graph.outputs:
            np.testing.assert_array_equal(results[value], expected[value.name])


def run_in_arena(
    schedule: Schedule, plan: MemoryPlan, feed: dict[str, np.ndarray], *, reverse: bool
) -> dict[Value, np.ndarray]:
    """Execute with every value that crosses kernels in the arena, which starts full of NaN."""
    graph: Graph = schedule.partition.graph
    arena = np.full(plan.peak_bytes // 4 + 1, np.nan, np.float32)
    outside: dict[Value, np.ndarray] = {v: feed[v.name] for v in graph.inputs}

    def place(value: Value) -> np.ndarray:
        start = plan.offsets[value.name] // 4
        return arena[start : start + value.num_elements].reshape(value.shape)

    def read(value: Value) -> np.ndarray:
        if value.data is not None:
            return value.data
        return outside[value] if value in outside else place(value)

    for stage in schedule.stages:
        for group in reversed(stage.groups) if reverse else stage.groups:
            for instance in group.instances:
                subgraph = schedule.partition.subgraphs[instance.subgraph_id]
                local = {v: read(v).copy() for v in (*subgraph.inputs, *subgraph.constants)}
                for node in subgraph.nodes:
                    local.update(computed(node, local))
                for value in subgraph.outputs:
                    if value in graph.outputs:
                        outside[value] = local[value]
                    else:
                        place(value)[...] = local[value]
    return outside


def computed(node: Node, values: dict[Value, np.ndarray]) -> dict[Value, np.ndarray]:
    results = run_node(node, [None if v is None else values[v] for v in node.inputs])
    return {v: r for v, r in zip(node.outputs, results, strict=True) if v is not None and r is not None}
