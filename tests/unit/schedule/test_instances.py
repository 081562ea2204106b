"""Instance graphs, their orders and bindings, on graphs that fit on a page."""

import random
from dataclasses import replace
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.graphs import GraphBuilder

from tilewright.errors import UsageError
from tilewright.hardware.presets import load_preset
from tilewright.ir.graph import Graph, Node
from tilewright.ir.graph_regions import RegionMaps
from tilewright.partition import Partition, PartitionProblem, Reason
from tilewright.partition.base import build_partition
from tilewright.partition.split import WHOLE, Split
from tilewright.planning import Budget, Provenance
from tilewright.schedule import ScheduleProblem, check_schedule
from tilewright.schedule.binding import Scope, bind, plain_binding, transfers
from tilewright.schedule.check_instances import check_bindings, check_instances
from tilewright.schedule.exact_order import exact_order
from tilewright.schedule.instance_orders import (
    BreadthFirst,
    DepthFirst,
    ExactOrder,
    MinDelta,
    demand_of,
    schedule_of,
)
from tilewright.schedule.instances import InstanceGraph, Kind, instance_graph
from tilewright.schedule.orders import Demand, OrderCost, breadth_first, depth_first, level_order, min_delta


def alone(graph: Graph) -> Partition:
    """Every node a subgraph."""

    def reason(producer: Node, consumer: Node, value: object, fused: bool) -> Reason:
        return Reason.NO_FUSION

    clusters = [[n] for n in graph.nodes]
    return build_partition(PartitionProblem(graph), clusters, reason, Provenance("alone"))


def pair(first: Split, second: Split, shape: tuple[int, ...] = (8, 4)) -> InstanceGraph:
    """Two element-wise operators, one after the other, each split as told."""
    b = GraphBuilder()
    graph = b.finish(b.op("Neg", b.op("Relu", b.input(*shape))))
    found = instance_graph(alone(graph), (first, second))
    assert check_instances(found) == ()
    return found


def shown(graph: InstanceGraph) -> list[str]:
    return [str(n) for n in graph.nodes]


def test_equal_splits_need_no_concatenation() -> None:
    graph = pair(Split(0, 4), Split(0, 4))
    assert shown(graph) == ["0.0", "0.1", "0.2", "0.3", "1.0", "1.1", "1.2", "1.3"]
    assert [(e.producer, e.consumer) for e in graph.edges] == [(0, 4), (1, 5), (2, 6), (3, 7)]


def test_a_coarser_reader_collects_pieces_just_before_it_runs() -> None:
    graph = pair(Split(0, 4), Split(0, 2))
    assert shown(graph)[4:] == ["concat(relu)->1.0", "1.0", "concat(relu)->1.1", "1.1"]
    assert graph.predecessors(4) == (0, 1)
    assert graph.predecessors(6) == (2, 3)


def test_a_finer_reader_takes_a_part_of_a_piece_as_it_lies() -> None:
    graph = pair(Split(0, 2), Split(0, 4))
    assert all(n.kind is Kind.INSTANCE for n in graph.nodes)
    assert [(e.producer, e.region[0]) for e in graph.edges] == [
        (0, (0, 2)),
        (0, (2, 4)),
        (1, (4, 6)),
        (1, (6, 8)),
    ]


def test_splits_along_different_axes_meet_in_concatenations_of_everything() -> None:
    graph = pair(Split(0, 2), Split(1, 2))
    assert [graph.predecessors(n.id) for n in graph.nodes if n.kind is Kind.CONCAT] == [(0, 1), (0, 1)]


def test_uneven_slices_meet_where_they_overlap() -> None:
    graph = pair(Split(0, 3), Split(0, 2), (7, 2))
    collected = [graph.predecessors(n.id) for n in graph.nodes if n.kind is Kind.CONCAT]
    assert collected == [(0, 1), (1, 2)]


def test_what_a_slice_does_not_need_is_no_edge() -> None:
    b = GraphBuilder()
    x, y = b.op("Relu", b.input(4, 2)), b.op("Neg", b.input(4, 2))
    graph = b.finish(b.op("Concat", x, y, shape=(8, 2), axis=0))
    found = instance_graph(alone(graph), (Split(None, 1), Split(None, 1), Split(0, 2)))
    assert check_instances(found) == ()
    assert [found.predecessors(n.id) for n in found.nodes[2:]] == [(0,), (1,)]


def test_a_thousand_slices_have_a_thousand_edges() -> None:
    graph = pair(Split(0, 1000), Split(0, 1000), (1000, 2))
    assert len(graph.edges) == 1000


def tree() -> Demand:
    """Two pairs of leaves, joined twice: pieces of 4 bytes, everything holds 4 beside what is live."""
    readers = ((4,), (4,), (5,), (5,), (6,), (6,), ())
    sources = tuple(tuple(a for a, r in enumerate(readers) if b in r) for b in range(7))
    return Demand((4, 4, 4, 4, 4, 4, 0), (4,) * 7, sources, readers)


def test_orders_of_a_tree() -> None:
    demand = tree()
    assert breadth_first(demand) == (0, 1, 2, 3, 4, 5, 6)
    assert depth_first(demand) == (3, 2, 5, 1, 0, 4, 6)
    assert min_delta(demand) == (0, 1, 4, 2, 3, 5, 6)
    assert level_order(demand) == (0, 1, 2, 3, 4, 5, 6)


def test_level_order_takes_branches_in_turns() -> None:
    """Two branches of two and one of one node, one after another in the graph, and what joins them."""
    readers = ((1,), (5,), (3,), (5,), (5,), ())
    sources = tuple(tuple(a for a, r in enumerate(readers) if b in r) for b in range(6))
    assert level_order(Demand((4,) * 6, (4,) * 6, sources, readers)) == (0, 2, 4, 1, 3, 5)


def test_depth_first_holds_less_than_breadth_first() -> None:
    demand = tree()
    assert demand.cost_of(breadth_first(demand), 1000) == OrderCost(0, 20)
    assert demand.cost_of(depth_first(demand), 1000) == OrderCost(0, 16)
    found = exact_order(demand, 1000)
    assert (found.cost, found.is_exact) == (OrderCost(0, 16), True)


def test_overflow_is_summed_over_the_order() -> None:
    demand = tree()
    live = [0, 4, 8, 12, 16, 12, 8]  # before each step in breadth-first order
    assert demand.cost_of(breadth_first(demand), 10).overflow_bytes == sum(max(0, x + 4 - 10) for x in live)


def test_a_search_that_is_cut_short_says_so_and_still_answers() -> None:
    rng = random.Random(0)
    sources = ((),) * 20 + tuple(tuple(sorted(rng.sample(range(20), 3))) for _ in range(20))
    readers = tuple(tuple(r for r in range(40) if i in sources[r]) for i in range(40))
    demand = Demand(tuple(rng.randint(1, 9) for _ in range(40)), (3,) * 40, sources, readers)
    found = exact_order(demand, 20, max_states=50)
    assert sorted(found.order) == list(range(40))
    assert not found.is_exact
    assert found.cost == demand.cost_of(found.order, 20)


def test_slices_of_a_schedule_are_those_of_the_instances() -> None:
    graph = pair(Split(0, 2), Split(1, 2))
    problem = ScheduleProblem(graph.partition, allows_slices=True)
    schedule = schedule_of(problem, graph, depth_first(demand_of(graph)), Provenance("test"))
    assert {str(i) for i in schedule.instances()} == {"0.0", "0.1", "1.0", "1.1"}
    assert schedule.splits == (Split(0, 2), Split(1, 2))
    assert check_schedule(problem, schedule) == ()


@pytest.mark.parametrize("scheduler", [BreadthFirst, DepthFirst, MinDelta, ExactOrder])
def test_orders_run_slices_where_the_problem_allows_them(scheduler: type[DepthFirst]) -> None:
    partition = replace(pair(WHOLE, WHOLE).partition, splits=(Split(0, 2), Split(1, 2)))
    whole_only, sliced = ScheduleProblem(partition), ScheduleProblem(partition, allows_slices=True)
    for problem, split, num_instances in (
        (whole_only, None, 2),
        (whole_only, False, 2),
        (sliced, None, 4),
        (sliced, False, 2),
        (sliced, True, 4),
    ):
        schedule = scheduler(split).solve(problem, Budget())
        assert len(list(schedule.instances())) == num_instances
        assert check_schedule(problem, schedule) == ()
    with pytest.raises(UsageError, match="the target runs whole subgraphs only"):
        scheduler(True).solve(whole_only, Budget())


@pytest.mark.parametrize(
    ("shape", "cores", "binding"),
    [
        *(((16, 3), 8, (8, 1)), ((4, 8), 8, (4, 2)), ((2, 6), 8, (2, 3)), ((6, 4), 8, (2, 4))),
        *(((5, 7), 8, (1, 7)), ((9, 4), 6, (3, 2)), ((11, 13), 8, (1, 1)), ((0, 4), 8, (1, 4)), ((), 8, ())),
    ],
)
def test_plain_bindings_deal_out_outer_axes_first(
    shape: tuple[int, ...], cores: int, binding: tuple[int, ...]
) -> None:
    assert plain_binding(shape, cores) == binding


def literal(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Algorithm 4 for 8 cores, as the specification prints it."""
    left, binding = 8, []
    for size in shape:
        binding.append(next(b for b in (8, 4, 2, 1) if b <= left and size % b == 0))
        left //= binding[-1]
    return tuple(binding)


@given(st.lists(st.integers(1, 200), max_size=4).map(tuple), st.integers(1, 1500))
def test_no_other_equal_parts_use_more_cores(shape: tuple[int, ...], num_cores: int) -> None:
    def most(extents: tuple[int, ...], left: int) -> int:
        if not extents:
            return 1
        factors = (b for b in range(1, min(left, extents[0]) + 1) if extents[0] % b == 0)
        return max(b * most(extents[1:], left // b) for b in factors)

    binding = plain_binding(shape, num_cores)
    assert all(size % b == 0 for size, b in zip(shape, binding, strict=True))
    assert prod(binding) == most(shape, num_cores)
    if prod(literal(shape)) == 8:
        assert plain_binding(shape, 8) == literal(shape)


def test_a_machine_of_many_cores_uses_most_of_them() -> None:
    """The 1216 tiles of an IPU: 64 times 19, which divides no extent of an image network."""
    machine = load_preset("ipu-mk1")
    b = GraphBuilder()
    x = b.conv(b.input(16, 64, 56, 56), 64)
    graph = instance_graph(alone(b.finish(b.op("Relu", x))))
    bindings = bind(graph, breadth_first(demand_of(graph)), machine.num_cores_per_cluster)
    assert check_bindings(graph, bindings) == ()
    assert [prod(binding) for binding in bindings.bindings] == [1024, 1024]


def test_readers_that_disagree_send_a_piece_to_the_shared_buffer() -> None:
    """A transpose wants the other axis dealt out than an element-wise reader does."""
    b = GraphBuilder()
    x = b.op("Relu", b.input(8, 16))
    turned = b.op("Transpose", x, shape=(16, 8), perm=(1, 0))
    graph = instance_graph(alone(b.finish(turned, b.op("Neg", x))))
    bindings = bind(graph, depth_first(demand_of(graph)), 8)
    assert check_bindings(graph, bindings) == ()
    assert bindings.scopes == (Scope.SHARED, Scope.MAIN, Scope.MAIN)
    moved = transfers(graph, bindings)
    kinds = {graph.nodes[e.consumer].subgraph_id: [t.kind for t in ts] for e, ts in moved.items()}
    assert kinds == {1: [Kind.COPY, Kind.REDISTRIBUTE], 2: [Kind.COPY]}


def test_damaged_bindings_are_found() -> None:
    graph = pair(Split(0, 2), Split(0, 2))
    bindings = bind(graph, breadth_first(demand_of(graph)), 4)
    assert check_bindings(graph, bindings) == ()
    too_many = type(bindings)(2, bindings.bindings, bindings.scopes, bindings.wanted)
    assert {v.rule for v in check_bindings(graph, too_many)} >= {"binding"}
    misplaced = type(bindings)(4, bindings.bindings, (Scope.LOCAL,) * 4, bindings.wanted)
    assert {v.rule for v in check_bindings(graph, misplaced)} == {"scope"}


def test_chains_of_rows_are_those_of_a_graph_of_which_nothing_is_known() -> None:
    b = GraphBuilder()
    x = b.input(1, 4, 24, 24)
    for _ in range(4):
        x = b.conv(x, 4)
    graph, maps = b.finish(x), RegionMaps()
    for factor in (3, 4, 3):  # what another plan asked before changes nothing
        partition = one_subgraph(graph)
        (split,) = splits = (Split(2, factor, keeps_rows=True),)
        known, alone = (instance_graph(partition, splits, m) for m in (maps, RegionMaps()))
        assert len(known.nodes) == split.num_instances
        for mine, expected in zip(known.nodes, alone.nodes, strict=True):
            assert mine.inputs == expected.inputs
            assert mine.rows is not None
            assert expected.rows is not None
            assert mine.rows.kept == expected.rows.kept
            assert [(r.made, r.read) for r in mine.rows.runs] == [
                (r.made, r.read) for r in expected.rows.runs
            ]
        assert known.waits == alone.waits
        assert check_instances(known) == ()


def one_subgraph(graph: Graph) -> Partition:
    """All nodes in one subgraph."""
    return build_partition(
        PartitionProblem(graph), [graph.nodes], lambda *_: Reason.CLUSTER, Provenance("whole")
    )
