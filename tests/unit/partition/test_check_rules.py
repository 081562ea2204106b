"""Each rule of the checkers of partitions alone: what breaks it, once, and a neighbour that does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.support.graphs import GraphBuilder

from tilewright.ir.graph import Graph
from tilewright.partition.base import Partition, PartitionProblem, Reason, build_partition, priced_at
from tilewright.partition.check import check_cut, check_partition
from tilewright.partition.check_forms import form_violations
from tilewright.partition.check_fusions import check_fusions
from tilewright.partition.form import MAX_BLOCKS, Blocking, Form, KernelForm
from tilewright.partition.fusion_records import FusionRecord, Verdict
from tilewright.partition.split import WHOLE, Split
from tilewright.planning import Provenance


def branches() -> Graph:
    """x -> a; a -> b -> d and a, a -> c -> sum -> d; `sum` adds a constant, a is a result, too."""
    builder = GraphBuilder()
    a = builder.op("Relu", builder.input(4, 4), name="a")
    b = builder.op("Softmax", a, name="b")
    c = builder.op("Mul", a, a, name="c")
    total = builder.op("Add", c, builder.constant(4, 4), name="sum")
    return builder.finish(builder.op("MatMul", b, total, name="d"), a)


GRAPH = branches()
PROBLEM = PartitionProblem(GRAPH)
A, B, C, TOTAL, D = GRAPH.nodes


def cut(*clusters: str) -> Partition:
    """Clusters written as `ab`: the first letters of their nodes."""
    known = {node.name[0]: node for node in GRAPH.nodes}
    listed = [[known[letter] for letter in cluster] for cluster in clusters]
    partition = build_partition(PROBLEM, listed, _reason, Provenance("test"))
    home = {node: place for place, cluster in enumerate(listed) for node in cluster}
    decisions = tuple(
        replace(d, reason=Reason.CLUSTER if home[d.producer] == home[d.consumer] else Reason.LIMIT)
        for d in partition.decisions
    )
    return replace(partition, decisions=decisions)


def _reason(*edge: Any) -> Reason:
    return Reason.CLUSTER


GOOD = cut("ab", "c", "sd")


def rules(partition: Partition) -> list[str]:
    return sorted(violation.rule for violation in check_partition(PROBLEM, partition))


def with_subgraph(place: int, **changes: Any) -> Partition:
    subgraphs = list(GOOD.subgraphs)
    subgraphs[place] = replace(subgraphs[place], **changes)
    return replace(GOOD, subgraphs=tuple(subgraphs))


def test_cuts_without_a_fault_are_silent() -> None:
    for clusters in (("abcsd",), ("a", "b", "c", "s", "d"), ("ab", "c", "sd"), ("acs", "bd"), ("ab", "csd")):
        assert rules(cut(*clusters)) == []


def test_nodes_are_each_in_one_subgraph_in_an_order_that_runs() -> None:
    first, second, third = GOOD.subgraphs
    assert rules(replace(GOOD, subgraphs=(first, second), splits=())).count("cover") == 2
    assert rules(replace(GOOD, subgraphs=(first, second, third, third), splits=())).count("cover") == 2
    swapped = replace(GOOD, subgraphs=(second, first, third))
    assert rules(swapped).count("number") == 2
    assert rules(swapped).count("order") == 2  # `c` reads `a` twice
    assert rules(with_subgraph(2, nodes=(D, TOTAL))).count("order") == 1
    assert rules(with_subgraph(0, id=7)) == ["number"]
    nothing = replace(third, id=3, nodes=(), inputs=(), constants=(), outputs=())
    assert rules(replace(GOOD, subgraphs=(*GOOD.subgraphs, nothing), splits=())) == ["cost", "empty"]
    other = branches()
    assert [v.rule for v in check_cut(other, GOOD)] == ["graph"]
    foreign = replace(first, nodes=(*first.nodes, other.nodes[0]))
    assert rules(replace(GOOD, subgraphs=(foreign, second, third))).count("cover") == 1


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("what", ["inputs", "constants", "outputs"])
def test_what_crosses_a_subgraphs_border_is_stated_once(place: int, what: str) -> None:
    stated = getattr(GOOD.subgraphs[place], what)
    stranger = GOOD.subgraphs[1].nodes[0].output if place != 1 else B.output
    for wrong in (stated[1:], stated[:-1], (*stated, stranger), (*stated, *stated)):
        if wrong != stated:
            found = rules(with_subgraph(place, **{what: wrong}))
            assert [rule for rule in found if rule != "cost"] == ["externals"], (what, wrong)


def test_splits_are_looked_at_where_the_cut_is_right() -> None:
    assert rules(replace(GOOD, splits=(WHOLE, Split(0, 4), WHOLE))) == []
    assert rules(replace(GOOD, splits=(WHOLE, Split(0, 5), WHOLE))) == ["split"]


def test_what_is_read_inside_and_outside_crosses() -> None:
    builder = GraphBuilder()
    a = builder.op("Relu", builder.input(4, 4), name="a")
    graph = builder.finish(builder.op("Neg", a, name="b"), builder.op("Sigmoid", a, name="c"))
    problem = PartitionProblem(graph)
    nodes = graph.nodes
    partition = build_partition(problem, [nodes[:2], nodes[2:]], _reason, Provenance("test"))
    assert a in partition.subgraphs[0].outputs
    assert "externals" not in {violation.rule for violation in check_partition(problem, partition)}


def test_every_edge_has_one_true_reason() -> None:
    decisions = GOOD.decisions
    assert len(decisions) == 5  # a-b, a-c, c-sum, b-d, sum-d: c reads a twice
    for place, decision in enumerate(decisions):
        rest = (*decisions[:place], *decisions[place + 1 :])
        assert rules(replace(GOOD, decisions=rest)) == ["decision"]
        assert "has no reason" in str(check_partition(PROBLEM, replace(GOOD, decisions=rest)))
        turned = Reason.LIMIT if decision.reason.is_fused else Reason.CLUSTER
        assert rules(replace(GOOD, decisions=(replace(decision, reason=turned), *rest))) == ["decision"]
        assert rules(replace(GOOD, decisions=(*decisions, decision))) == ["decision"]
        backwards = replace(decision, producer=decision.consumer, consumer=decision.producer)
        assert rules(replace(GOOD, decisions=(*decisions, backwards))) == ["decision"]


def test_costs_and_bounds_are_right_to_a_billionth() -> None:
    quality = GOOD.quality
    for factor, wrong in ((1 + 1e-10, []), (1 - 1e-10, []), (1 + 1e-8, ["cost"]), (1 - 1e-8, ["cost"])):
        stated = replace(quality, cost=quality.cost * factor, bounds=())
        assert rules(replace(GOOD, price=priced_at(stated))) == wrong
    bound = quality.widest
    for value, is_proven, wrong in (
        (quality.cost, True, []),
        (quality.cost * (1 + 1e-9), True, []),
        (quality.cost * (1 + 1e-8), True, ["bound"]),
        (quality.cost * 2, False, []),
    ):
        bounds = (replace(bound, value=value, is_proven=is_proven),)
        assert rules(replace(GOOD, price=priced_at(replace(quality, bounds=bounds)))) == wrong
    free = priced_at(replace(quality, cost=0.0, bounds=()))
    left_out = replace(GOOD, subgraphs=GOOD.subgraphs[:2], price=free)
    assert "cost" not in rules(left_out)  # whose cost is that of other work


@pytest.mark.parametrize(
    ("kernels", "wrong"),
    [
        (((0, 1),), 0),
        (((0,), (1,)), 0),
        (((1,), (0,)), 1),
        (((0,),), 1),
        (((1,),), 2),
        ((), 1),
        (((0,), (0, 1)), 1),
        (((0, 1), (1,)), 1),
        (((1, 0),), 1),
        (((0, 0, 1),), 1),
        (((0, 2),), 1),
        (((-1, 0),), 1),
        (((), (0, 1)), 1),
        (((0, 1), (2,)), 1),
    ],
)
def test_a_form_has_each_node_in_one_kernel_that_can_run(
    kernels: Sequence[tuple[int, ...]], wrong: int
) -> None:
    form = Form(tuple(KernelForm(nodes) for nodes in kernels))
    assert rules(with_subgraph(2, form=form)) == ["form"] * wrong


@pytest.mark.parametrize(
    ("block", "strip", "is_right"),
    [
        ((4, 4), 1, True),
        ((1, 4), 3, True),
        ((4, 4), 0, False),
        ((4, 5), 1, False),
        ((5, 4), 1, False),
        ((0, 4), 1, False),
        ((4,), 1, False),
        ((4, 4, 1), 1, False),
    ],
)
def test_blocks_fit_the_last_result_of_their_kernel(
    block: tuple[int, ...], strip: int, is_right: bool
) -> None:
    form = Form.whole(2, Blocking(block, strip))
    assert rules(with_subgraph(2, form=form)) == ["form"] * (not is_right)


def test_there_are_no_more_blocks_than_may_be_and_a_result_that_they_cut() -> None:
    for rows, is_right in ((MAX_BLOCKS, True), (MAX_BLOCKS + 1, False)):
        builder = GraphBuilder()
        graph = builder.finish(builder.op("Relu", builder.input(rows, 1)))
        problem = PartitionProblem(graph)
        partition = build_partition(problem, [graph.nodes], _reason, Provenance("test"))
        subgraph = replace(partition.subgraphs[0], form=Form.whole(1, Blocking((1, 1))))
        found = check_partition(problem, replace(partition, subgraphs=(subgraph,)))
        assert [violation.rule for violation in found] == ["form"] * (not is_right)
    # The results of a kernel are those that others read, in or outside of its subgraph, or the user.
    first = KernelForm((0,), Blocking((4, 4)))
    assert rules(with_subgraph(2, form=Form((first, KernelForm((1,)))))) == []
    wide = KernelForm((0,), Blocking((4, 8)))
    assert rules(with_subgraph(2, form=Form((wide, KernelForm((1,)))))) == ["form"]


def test_blocks_are_of_the_last_result_that_is_read_elsewhere() -> None:
    builder = GraphBuilder()
    a = builder.op("Relu", builder.input(4, 4), name="a")
    wide = builder.op("MatMul", a, builder.constant(4, 6), shape=(4, 6), name="wide")
    builder.op("Neg", wide, name="dead")
    graph = builder.finish(a, builder.op("Sigmoid", wide, name="end"))
    subgraph = build_partition(PartitionProblem(graph), [graph.nodes], _reason, Provenance("test")).subgraphs[
        0
    ]
    assert [node.name for node in subgraph.nodes] == ["a", "wide", "dead", "end"]

    def is_right(block: tuple[int, int], *kernels: tuple[int, ...]) -> bool:
        """With blocks of the first kernel."""
        first, *others = kernels
        form = Form((KernelForm(first, Blocking(block)), *(KernelForm(nodes) for nodes in others)))
        return not list(form_violations(graph, replace(subgraph, form=form)))

    assert is_right((4, 6), (0, 1), (2,), (3,))  # `wide`, not `a`, which is a result, too
    assert is_right((4, 6), (0, 1, 2), (3,))  # nothing reads `dead`, and `wide` is read elsewhere, too
    assert is_right((4, 4), (0,), (1, 2, 3))
    assert not is_right((4, 6), (0,), (1, 2, 3))
    only_dead = Form((KernelForm((0, 1, 3)), KernelForm((2,), Blocking((4, 6)))))
    assert len(list(form_violations(graph, replace(subgraph, form=only_dead)))) == 1


def record(verdict: Verdict = Verdict.STABLE, **changes: Any) -> FusionRecord:
    return replace(FusionRecord(A, B, A.output, verdict), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("records", "reason", "wrong"),
    [
        ((), Reason.CLUSTER, 0),
        ((record(),), Reason.CLUSTER, 0),
        ((record(),), Reason.STABLE, 0),
        ((record(Verdict.EVALUATE),), Reason.EVALUATED, 0),
        ((record(),), Reason.EVALUATED, 1),
        ((record(Verdict.EVALUATE),), Reason.STABLE, 1),
        ((), Reason.STABLE, 1),
        ((), Reason.EVALUATED, 1),
        ((record(), record()), Reason.STABLE, 1),
        ((record(Verdict.PROHIBITED),), Reason.CLUSTER, 1),
        ((record(producer=B, consumer=A),), Reason.CLUSTER, 1),
        ((record(consumer=D),), Reason.CLUSTER, 1),
        ((record(value=B.output),), Reason.CLUSTER, 1),
        ((record(producer=C),), Reason.CLUSTER, 1),
        ((record(producer=TOTAL, consumer=D, value=TOTAL.output),), Reason.CLUSTER, 0),
        ((record(unit="ns"),), Reason.CLUSTER, 1),
        ((record(unit="ns", fused_cost=1.0),), Reason.CLUSTER, 1),
        ((record(unit="ns", apart_cost=1.0),), Reason.CLUSTER, 1),
        ((record(fused_cost=1.0, apart_cost=1.0),), Reason.CLUSTER, 1),
        ((record(unit="ns", fused_cost=1.0, apart_cost=1.0),), Reason.CLUSTER, 0),
    ],
)
def test_records_of_rules_are_of_edges_that_the_rules_allow(
    records: tuple[FusionRecord, ...], reason: Reason, wrong: int
) -> None:
    decisions = tuple(
        replace(d, reason=reason) if (d.producer, d.consumer) == (A, B) else d for d in GOOD.decisions
    )
    assert rules(replace(GOOD, decisions=decisions, fusions=records)) == ["record"] * wrong


def test_a_record_is_of_nodes_that_the_partition_has() -> None:
    other = branches()
    a, b, *_ = other.nodes
    assert rules(replace(GOOD, fusions=(FusionRecord(a, b, a.output, Verdict.STABLE),))) == ["record"]
    left_out = replace(GOOD, subgraphs=GOOD.subgraphs[:2], splits=(), decisions=())
    edge = FusionRecord(C, TOTAL, C.output, Verdict.STABLE)
    assert len(list(check_fusions(replace(left_out, fusions=(edge,))))) == 1
    assert list(check_fusions(replace(GOOD, fusions=(edge,)))) == []
