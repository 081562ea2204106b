"""The checker of instance graphs, orders and bindings: each fault alone, and its neighbour that is none."""

# mypy: disable-error-code="arg-type, assignment, attr-defined"

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from tests.support.graphs import GraphBuilder
from tests.support.planted import planted

from tilewright.ir.graph import Graph, Value
from tilewright.ir.region import Region
from tilewright.partition import PartitionProblem
from tilewright.partition.base import Reason, build_partition
from tilewright.partition.rows import ChainInstance, Kept, LayerRun
from tilewright.partition.split import WHOLE, Split
from tilewright.planning import Provenance
from tilewright.schedule.binding import Bindings, Scope
from tilewright.schedule.check_instances import check_bindings, check_instances, check_order
from tilewright.schedule.core_groups import CoreGroup, CoreGroups
from tilewright.schedule.instances import Edge, InstanceGraph, Kind, instance_graph
from tilewright.schedule.launches import Launch


def of(graph: Graph, *splits: Split, sizes: Sequence[int] = ()) -> InstanceGraph:
    """Instances of subgraphs of so many nodes each: of one, unless told."""
    nodes, groups = list(graph.nodes), []
    for size in sizes or (1,) * len(nodes):
        groups.append(nodes[:size])
        nodes = nodes[size:]
    partition = build_partition(
        PartitionProblem(graph), groups, lambda *_: Reason.CLUSTER, Provenance("test")
    )
    found = instance_graph(partition, splits)
    assert check_instances(found) == ()
    return found


@cache
def pair(first: Split = WHOLE, second: Split = WHOLE, shape: tuple[int, ...] = (8, 4)) -> InstanceGraph:
    """Two element-wise operators, one after the other."""
    b = GraphBuilder()
    return of(b.finish(b.op("Neg", b.op("Relu", b.input(*shape)))), first, second)


@cache
def windows(keeps_rows: bool = True) -> InstanceGraph:
    """Three windows as one subgraph in four slices: 0, 1 and 2 keep rows for the next ones."""
    b = GraphBuilder()
    x = b.input(1, 1, 12, 3)
    for height in (12, 12, 12):
        x = b.op("MaxPool", x, shape=(1, 1, height, 3), kernel_shape=(3, 1), pads=(1, 0, 1, 0))
    return of(b.finish(x), Split(2, 4, keeps_rows=keeps_rows), sizes=(3,))


@cache
def braided() -> InstanceGraph:
    """Collected slices that two layers read, and windows of which one needs rows for longer than another."""
    b = GraphBuilder()
    x = b.op("Relu", b.input(1, 1, 12, 3))
    y = x
    for height in (3, 7, 3):
        pads = (height // 2, 0, height // 2, 0)
        y = b.op("MaxPool", y, kernel_shape=(height, 1), pads=pads)
    y = b.op("Add", y, x)
    return of(b.finish(y), Split(2, 4), Split(2, 6, keeps_rows=True), sizes=(1, 4))


@cache
def halves() -> InstanceGraph:
    """Two slices of which the first keeps rows."""
    b = GraphBuilder()
    x = b.op("MaxPool", b.input(1, 1, 6, 2), kernel_shape=(3, 1), pads=(1, 0, 1, 0))
    x = b.op("MaxPool", x, kernel_shape=(3, 1), pads=(1, 0, 1, 0))
    return of(b.finish(x), Split(2, 2, keeps_rows=True), sizes=(2,))


def changed(graph: InstanceGraph, place: int, **changes: Any) -> InstanceGraph:
    """An instance graph with one node that is another."""
    nodes = [replace(n, **changes) if n.id == place else n for n in graph.nodes]  # type: ignore[arg-type]
    return replace(graph, nodes=tuple(nodes))


def rules(graph: InstanceGraph) -> list[str]:
    return [violation.rule for violation in check_instances(graph)]


def sole(regions: object) -> tuple[Value, Region]:
    ((value, region),) = dict(regions).items()  # type: ignore[call-overload]
    return value, region


WHOLE_SQUARE = ((0, 8), (0, 4))


@pytest.mark.parametrize(
    ("slices", "is_whole"),
    [
        ([((0, 8), (0, 4))], True),
        ([((0, 5), (0, 4)), ((5, 8), (0, 4))], True),
        ([((5, 8), (0, 4)), ((0, 5), (0, 4))], True),
        ([((0, 8), (0, 1)), ((0, 8), (1, 4))], True),
        ([((0, 5), (0, 4)), ((5, 8), (0, 1)), ((5, 8), (1, 4))], True),
        ([((0, 8), (0, 4)), ((3, 3), (0, 4))], True),
        ([((3, 3), (0, 4)), ((0, 5), (0, 4)), ((5, 8), (0, 4))], True),
        ([((0, 8), (0, 3))], False),
        ([((0, 5), (0, 4)), ((6, 8), (0, 4))], False),
        ([((0, 5), (0, 4)), ((4, 7), (0, 4))], False),
        ([((0, 4), (0, 4)), ((0, 4), (0, 4))], False),
        ([((0, 4), (0, 2)), ((4, 8), (2, 4)), ((0, 8), (1, 3))], False),
        ([((0, 4), (0, 4)), ((4, 6), (0, 4)), ((5, 7), (0, 4))], False),
        ([((0, 4), (0, 4)), ((5, 9), (0, 4))], False),
        ([((-1, 3), (0, 4)), ((4, 8), (0, 4))], False),
        ([((0, 8), (1, 5))], False),
        ([((0, 8), (0, 4)), ((5, 3), (0, 4)), ((3, 5), (0, 4))], False),
    ],
)
def test_slices_make_up_the_whole_once(slices: Sequence[Region], is_whole: bool) -> None:
    """Of a result in as many slices, and of what brings a value to its reader."""
    b = GraphBuilder()
    graph = of(b.finish(b.op("Relu", b.input(8, 4))), WHOLE)
    (node,) = graph.nodes
    value, _ = sole(node.outputs)
    ((operand, _),) = node.inputs.items()
    nodes = [
        replace(node, id=place, outputs={value: part}, inputs={operand: part})
        for place, part in enumerate(slices)
    ]
    found = rules(replace(graph, nodes=tuple(nodes)))
    assert ("cover" in found) is not is_whole

    reading = pair()
    (edge,) = reading.edges
    brought = tuple(replace(edge, region=part) for part in slices)
    found = rules(replace(reading, edges=brought))
    wrong = len(slices) > 1 or any(start >= end for part in slices for start, end in part)
    assert ("edge" in found) is (not is_whole or any(start == end for part in slices for start, end in part))
    assert ("concat" in found) is (len(slices) > 1)
    assert bool(found) is (wrong or not is_whole)


def test_nodes_stand_where_their_numbers_say() -> None:
    graph = pair(Split(0, 2), Split(0, 2))
    twice = replace(graph, nodes=(*graph.nodes[:3], replace(graph.nodes[3], id=2)))
    assert [str(v) for v in check_instances(twice)][:1] == ["number: node 2 stands at place 3"]
    missing = replace(graph, nodes=graph.nodes[:2], edges=())
    assert [str(v) for v in check_instances(missing)] == ["cover: neg: its 0 slices are not the whole, once"]


@pytest.mark.parametrize("place", [0, 2])
def test_an_instance_reads_what_its_slice_needs(place: int) -> None:
    graph = pair(Split(0, 2), Split(0, 2))
    value, region = sole(graph.nodes[place].inputs)
    for wrong in ({}, {value: (region[0], (0, 3))}, {value: ((0, 8), (0, 4))}):
        assert "reads" in rules(changed(graph, place, inputs=wrong))
    none = ((0, 0), (0, 4))
    other = graph.partition.graph.inputs[0] if place else graph.nodes[2].value
    assert rules(changed(graph, place, inputs={value: region, other: none})) == []


def test_what_no_result_needs_is_not_read_and_the_second_result_is_found() -> None:
    """A split of which the first half is not wanted, and the second is."""
    b = GraphBuilder()
    x = b.op("Relu", b.input(4, 6))
    _, used = b.ops("Split", [x], [(4, 3), (4, 3)], axis=1, num_outputs=2)
    graph = of(b.finish(b.op("Neg", used)), Split(0, 2), sizes=(3,))
    assert [sole(node.inputs)[1] for node in graph.nodes] == [((0, 2), (3, 6)), ((2, 4), (3, 6))]


def test_a_value_that_is_read_twice_is_read_as_far_as_either_reads() -> None:
    b = GraphBuilder()
    x = b.input(1, 1, 4, 2)
    for around_first in (False, True):
        b = GraphBuilder()
        x = b.input(1, 1, 4, 2)
        alone = b.op("Neg", x)
        around = b.op("MaxPool", x, shape=(1, 1, 4, 2), kernel_shape=(3, 1), pads=(1, 0, 1, 0))
        graph = b.finish(b.op("Add", *((around, alone) if around_first else (alone, around))))
        found = of(graph, Split(2, 4), sizes=(3,))
        assert [sole(node.inputs)[1][2] for node in found.nodes] == [(0, 2), (0, 3), (1, 4), (2, 4)]


def test_concatenations_pass_on_what_they_read() -> None:
    graph = pair(Split(0, 4), Split(0, 2))
    place = next(node.id for node in graph.nodes if node.kind is Kind.CONCAT)
    value, region = sole(graph.nodes[place].outputs)
    less = {value: ((0, 3), region[1])}
    assert rules(changed(graph, place, outputs=less)) == ["reads", "edge"]
    assert rules(changed(graph, place, inputs=less)) == ["reads", "edge"]
    few = tuple(e for e in graph.edges if (e.producer, e.consumer) != (0, place))
    assert rules(replace(graph, edges=few)) == ["edge", "concat"]
    assert "concat" in rules(changed(graph, place, kind=Kind.INSTANCE))


def test_edges_bring_what_their_producer_makes_and_their_reader_reads() -> None:
    graph = pair(Split(0, 2), Split(0, 2))
    first, second = graph.edges
    other = graph.nodes[2].value

    def with_edges(*edges: Edge) -> list[str]:
        return rules(replace(graph, edges=edges))

    assert with_edges(first) == ["edge"]
    assert with_edges(first, replace(second, producer=0)) == ["edge"]
    assert with_edges(first, replace(second, region=((2, 6), (0, 4)))) == ["edge", "edge"]
    assert with_edges(first, replace(second, region=((3, 8), (0, 4)))) == ["edge", "edge"]
    assert with_edges(first, second, replace(second, region=((4, 4), (0, 4)))) == ["edge", "concat"]
    assert with_edges(first, second, replace(first, producer=2, consumer=3, value=other)) == ["edge"]
    given = graph.partition.graph.inputs[0]
    assert with_edges(first, second, replace(first, producer=0, consumer=1, value=given)) == ["edge", "edge"]


def test_what_is_given_needs_no_edges_and_what_is_read_beside_it_does() -> None:
    b = GraphBuilder()
    x, y = b.input(8, 4), b.input(8, 4)
    graph = of(b.finish(b.op("Add", x, b.op("Relu", y))), WHOLE, WHOLE)
    assert next(iter(graph.nodes[1].inputs)) is x
    assert rules(replace(graph, edges=())) == ["edge"]


def test_results_without_elements_need_nothing() -> None:
    assert [dict(node.inputs) for node in pair(shape=(0, 4)).nodes][1] == {}


def test_what_is_brought_though_nothing_of_it_is_read_is_an_error() -> None:
    graph = pair(Split(0, 2), Split(0, 2))
    value, _ = sole(graph.nodes[2].inputs)
    nothing = changed(graph, 2, inputs={value: ((0, 0), (0, 4))})
    assert rules(nothing) == ["reads", "edge"]


def planted_in(instance: ChainInstance) -> list[tuple[str, ChainInstance]]:
    """Each part of what an instance makes, reads and keeps another, but for what it does not say."""
    skipped = frozenset({"position", "inputs", "layer", "needs", "is_all"})
    kinds = (ChainInstance, LayerRun, Kept)
    return [(what, make()) for what, make in planted(instance, into=kinds, skipped=skipped)]


@pytest.mark.parametrize(("graph", "place"), [(windows, 0), (windows, 2), (halves, 0)])
def test_each_change_of_what_is_made_and_kept_is_found(
    graph: Callable[[], InstanceGraph], place: int
) -> None:
    graph = graph()
    place = [node.id for node in graph.nodes if node.rows is not None][place]
    rows = graph.nodes[place].rows
    assert rows is not None
    changes = [(what, new) for what, new in planted_in(rows) if "twice" not in what and "swapped" not in what]
    assert len(changes) > 20
    for what, new in changes:
        try:
            found = rules(changed(graph, place, rows=new))
        except (IndexError, ValueError):
            continue  # a layer that the subgraph does not have, or of another number of results
        assert set(found) == {"rows"}, what
    for run in rows.runs:
        (read,) = run.needs.inputs
        assert read is not None
        for more in (None, (*read[:3], (read[3][0], read[3][1] + 1))):
            needs = replace(run.needs, inputs=(more,))
            runs = tuple(replace(r, needs=needs) if r is run else r for r in rows.runs)
            assert rules(changed(graph, place, rows=replace(rows, runs=runs))) == ["rows"]


def test_instances_keep_rows_where_their_split_says_so_and_wait_for_those_that_do() -> None:
    for graph in (halves(), braided()):
        assert graph.waits
        for wait in graph.waits:
            waits = tuple(other for other in graph.waits if other != wait)
            assert rules(replace(graph, waits=waits)) == ["rows"]
    graph = windows()
    assert {len(node.rows.kept) for node in graph.nodes[:3] if node.rows is not None} == {2}
    assert rules(changed(graph, 1, rows=None)) == ["reads", "rows"]
    value, region = sole(graph.nodes[1].inputs)
    more = (*region[:2], (0, 12), region[3])
    assert rules(changed(graph, 1, inputs={value: more})) == ["reads"]
    for wait in graph.waits:
        waits = tuple(other for other in graph.waits if other != wait)
        assert rules(replace(graph, waits=waits)) == ["rows"]
    # Of those that keep none a slice reads all that it needs.
    assert rules(windows(keeps_rows=False)) == []


def test_rows_are_kept_within_a_chain_alone() -> None:
    b = GraphBuilder()
    x = b.input(2, 1, 6, 3)
    for _ in range(2):
        x = b.op("MaxPool", x, kernel_shape=(3, 1), pads=(1, 0, 1, 0))
    graph = of(b.finish(x), Split(0, 2, Split(2, 3, keeps_rows=True)), sizes=(2,))
    assert len(graph.nodes) == 6
    assert all(first // 3 == second // 3 for first, second in graph.waits)
    for place in range(6):
        assert rules(changed(graph, place, index=(place + 3) % 6)) != []


def test_an_order_has_every_node_once_each_behind_what_it_waits_for() -> None:
    graph = windows()

    def found(*order: int) -> list[str]:
        return [violation.message for violation in check_order(graph, order)]

    assert found(0, 1, 2, 3) == []
    for wrong in ((0, 1, 2), (0, 1, 2, 2), (0, 1, 2, 4), (0, 1, 2, 3, 3), (1, 2, 3, 4)):
        assert found(*wrong) == [f"{len(wrong)} entries for 4 nodes, or not each once"]
    assert "0.1 runs before 0.0" in found(1, 0, 2, 3)
    joined = pair(Split(0, 2), Split(0, 2))
    assert [v.rule for v in check_order(joined, (0, 2, 1, 3))] == []
    assert [v.rule for v in check_order(joined, (0, 2, 1))] == ["order"]
    for_itself = replace(joined, waits=((1, 1),))
    assert [v.message for v in check_order(for_itself, (0, 1, 2, 3))] == ["0.1 runs before 0.1"]
    assert [str(v) for v in check_order(joined, (0, 3, 1, 2))] == ["order: 1.1 runs before 0.1"]


def bound(
    graph: InstanceGraph,
    *bindings: tuple[int, ...],
    scopes: Sequence[Scope] = (),
    wanted: dict[int, tuple[int, ...]] | None = None,
    num_cores: int = 8,
    **more: Any,
) -> list[str]:
    """Rules that bindings break; `wanted` by the number of the edge."""
    last = len(graph.nodes) - 1
    scopes = tuple(scopes or (*(Scope.LOCAL for _ in range(last)), Scope.MAIN))
    asked = {graph.edges[number]: binding for number, binding in (wanted or {}).items()}
    made = Bindings(num_cores, bindings, scopes, asked, **more)  # type: ignore[arg-type]
    return [violation.rule for violation in check_bindings(graph, made)]


@pytest.mark.parametrize(
    ("binding", "is_right"),
    [
        ((8, 1), True),
        ((2, 4), True),
        ((1, 1), True),
        ((4, 4), False),
        ((8, 2), False),
        ((3, 1), False),
        ((1, 3), False),
        ((0, 1), False),
        ((-1, -8), False),
        ((8,), False),
        ((8, 1, 1), False),
    ],
)
def test_a_binding_deals_a_result_out_evenly_to_as_many_cores_as_there_are(
    binding: tuple[int, ...], is_right: bool
) -> None:
    assert bound(pair(), binding, (1, 1)) == ["binding"] * (not is_right)
    assert bound(pair(), (1, 1), binding) == ["binding"] * (not is_right)
    assert bound(pair(), (1, 1), (1, 1), wanted={0: binding}) == ["wanted"] * (not is_right)


def test_a_slice_is_dealt_out_by_its_own_extent() -> None:
    graph = pair(Split(0, 4), WHOLE)
    assert [node.region[0] for node in graph.nodes[:2]] == [(0, 2), (2, 4)]
    flat = ((1, 1),) * 4
    assert bound(graph, (1, 1), (2, 1), *flat) == []
    assert bound(graph, (1, 1), (3, 1), *flat) == ["binding"]


def test_of_several_results_any_is_dealt_out() -> None:
    b = GraphBuilder()
    one, two = b.ops("Split", [b.input(4, 5)], [(4, 2), (4, 3)], axis=1, split=(2, 3))
    graph = of(b.finish(one, two), WHOLE)
    assert bound(graph, (1, 2)) == bound(graph, (1, 3)) == bound(graph, (4, 1)) == []
    assert bound(graph, (1, 5)) == ["binding"]


def test_results_and_what_separate_kernels_leave_lie_in_main_memory_and_nothing_else() -> None:
    flat = ((1, 1), (1, 1))
    launches = tuple(Launch(place, 0, (place,)) for place in range(2))
    for scope in (Scope.LOCAL, Scope.SHARED):
        assert bound(pair(), *flat, scopes=(scope, Scope.MAIN)) == []
        assert bound(pair(), *flat, scopes=(scope, scope)) == ["scope"]
        assert bound(pair(), *flat, scopes=(scope, Scope.MAIN), launches=launches) == ["scope"]
    assert bound(pair(), *flat, scopes=(Scope.MAIN, Scope.MAIN)) == ["scope"]
    assert bound(pair(), *flat, scopes=(Scope.MAIN, Scope.MAIN), launches=launches) == []
    # One result of several is enough; what is put together is none.
    b = GraphBuilder()
    one, two = b.ops("Split", [b.input(4, 6)], [(4, 3), (4, 3)], axis=1, num_outputs=2)
    graph = of(b.finish(one, b.op("Relu", two)), WHOLE, WHOLE)
    assert bound(graph, *flat, scopes=(Scope.MAIN, Scope.MAIN)) == []
    assert bound(graph, *flat, scopes=(Scope.LOCAL, Scope.MAIN)) == ["scope"]
    collected = pair(Split(0, 2), WHOLE)
    every = [(1, 1)] * 4
    assert [node.kind for node in collected.nodes][2] is Kind.CONCAT
    main = (Scope.MAIN, Scope.MAIN, Scope.LOCAL, Scope.MAIN)
    assert bound(collected, *every, scopes=main, launches=launches) == []
    assert bound(collected, *every, scopes=(Scope.MAIN,) * 4, launches=launches) == ["scope"]


def test_what_readers_want_differently_is_not_local() -> None:
    b = GraphBuilder()
    x = b.op("Relu", b.input(8, 4))
    graph = of(b.finish(b.op("Add", b.op("Neg", x), b.op("Abs", x))), WHOLE, WHOLE, WHOLE, WHOLE)
    flat = ((1, 1),) * 4
    local = (Scope.LOCAL,) * 3 + (Scope.MAIN,)
    shared = (Scope.SHARED, *local[1:])
    for wanted in ({}, {0: (8, 1)}, {0: (8, 1), 1: (8, 1)}):
        assert bound(graph, *flat, scopes=local, wanted=wanted) == []
    assert bound(graph, *flat, scopes=local, wanted={0: (8, 1), 1: (2, 4)}) == ["scope"]
    assert bound(graph, *flat, scopes=shared, wanted={0: (8, 1), 1: (2, 4)}) == []


def test_groups_of_cores_share_no_local_buffer_and_deal_out_to_their_own_cores() -> None:
    groups = (CoreGroup(0, 0, 2), CoreGroup(1, 2, 4))
    apart, together = (CoreGroups(groups, numbers) for numbers in ((0, 1), (1, 1)))
    assert bound(pair(), (1, 1), (1, 1), cores=together) == []
    assert bound(pair(), (1, 1), (1, 1), cores=apart) == ["scope"]
    assert bound(pair(), (1, 1), (1, 1), scopes=(Scope.SHARED, Scope.MAIN), cores=apart) == []
    assert bound(pair(), (4, 1), (4, 1), cores=together) == []
    b = GraphBuilder()
    x = b.op("Relu", b.input(8, 4))
    read_twice = of(b.finish(b.op("Add", b.op("Neg", x), b.op("Abs", x))), WHOLE, WHOLE, WHOLE, WHOLE)
    some = CoreGroups(groups, (0, 0, 1, 1))
    assert bound(read_twice, *(((1, 1),) * 4), cores=some) == ["scope", "scope"]
    assert bound(pair(), (4, 1), (8, 1), cores=together) == ["binding"]
    shared = (Scope.SHARED, Scope.MAIN)
    assert bound(pair(), (4, 1), (4, 1), scopes=shared, cores=apart) == ["binding"]
    for wanted, wrong in (((4, 1), []), ((8, 1), ["wanted"])):
        assert bound(pair(), (2, 1), (4, 1), scopes=shared, cores=apart, wanted={0: wanted}) == wrong
