"""AGO: weights, what may join, and what is said of the edges; MobileViT's numbers beside the paper's."""

# mypy: disable-error-code="arg-type"

from collections.abc import Sequence
from dataclasses import dataclass
from math import log2

import pytest
from tests.support.graphs import GraphBuilder

from tilewright import zoo
from tilewright.compiler import optimise
from tilewright.cost.base import Estimate, KernelWork
from tilewright.cost.roofline import NOMINAL, Roofline
from tilewright.errors import InfeasibleMapping, UsageError
from tilewright.families import PASSES
from tilewright.frontend.onnx import load_onnx
from tilewright.ir.graph import Graph
from tilewright.options import Options
from tilewright.partition import PARTITIONERS, Partition, PartitionProblem, Reason, check_partition
from tilewright.partition.ago import Ago, join, split
from tilewright.partition.ago.clusters import Accept, Clustering
from tilewright.partition.ago.limits import WeightLimit
from tilewright.partition.ago.stages import Stages
from tilewright.partition.ago.weights import Weight, WeightRule
from tilewright.partition.layerwise import Layerwise
from tilewright.partition.quotient import QuotientGraph
from tilewright.planning import Budget
from tilewright.planning.spec import Spec

ONE = Weight(1.0)


def solve(graph: Graph, ago: Ago, cost: Roofline = NOMINAL, budget: Budget | None = None) -> Partition:
    problem = PartitionProblem(graph, cost=cost)
    partition = ago.solve(problem, budget or Budget())
    assert check_partition(problem, partition) == ()
    return partition


def two_convolutions() -> Graph:
    b = GraphBuilder()
    y = b.op("Relu", b.conv(b.input(1, 4, 8, 8), 8))
    return b.finish(b.op("Relu", b.conv(y, 8)))


# Weights


def test_a_convolution_weighs_the_product_of_its_loops() -> None:
    b = GraphBuilder()
    node = b.node(b.conv(b.input(1, 4, 8, 8), 16))
    product = log2(2) * log2(17) * log2(9) * log2(9) * log2(5)  # n, channels, rows, columns, summed
    weight = WeightRule().of(node)
    assert weight.num_complex == 1
    assert weight.total == pytest.approx(0.37 * product + 2.5)


def test_rows_of_a_product_weigh_the_same_as_one_axis_and_as_several() -> None:
    b = GraphBuilder()
    weight = b.constant(16, 32)
    flat = b.op("MatMul", b.input(24, 16), weight, shape=(24, 32))
    batched = b.op("MatMul", b.input(2, 3, 4, 16), weight, shape=(2, 3, 4, 32))
    rule = WeightRule()
    assert rule.of(b.node(batched)) == rule.of(b.node(flat))
    product = log2(25) * log2(33) * log2(17)
    assert rule.of(b.node(flat)).total == pytest.approx(0.37 * product + 2.5)


def test_batches_of_products_are_one_loop_and_not_joined_with_rows() -> None:
    b = GraphBuilder()
    y = b.op("MatMul", b.input(2, 3, 4, 16), b.input(2, 3, 16, 8), shape=(2, 3, 4, 8))
    product = log2(1 + 2 * 3) * log2(1 + 4) * log2(1 + 8) * log2(1 + 16)
    assert WeightRule().of(b.node(y)).total == pytest.approx(0.37 * product + 2.5)


def test_an_operator_that_sums_no_products_counts_a_share() -> None:
    b = GraphBuilder()
    weight = WeightRule(scale=2.0, bias=1.0, simple_share=0.5).of(b.node(b.op("Relu", b.input(3, 7))))
    assert weight == Weight(0.5 * 2.0 * log2(4) * log2(8) + 1.0)


def test_reductions_are_simple_and_each_nest_counts() -> None:
    b = GraphBuilder()
    softmax = WeightRule().of(b.node(b.op("Softmax", b.input(4, 4))))
    relu = WeightRule().of(b.node(b.op("Relu", b.input(4, 4))))
    assert softmax.num_complex == 0
    assert softmax.total > 2 * relu.total


def test_an_operator_without_nests_weighs_the_bias() -> None:
    b = GraphBuilder()
    assert WeightRule(bias=3.0).of(b.node(b.op("NobodyKnowsThis", b.input(4, 4)))) == Weight(3.0)


def test_nodes_together_weigh_their_sum() -> None:
    graph = two_convolutions()
    rule = WeightRule()
    total = rule.of_all(graph.nodes)
    assert total.num_complex == 2
    assert total.total == pytest.approx(sum(rule.of(node).total for node in graph.nodes))


# What may join

STALE = [
    # The first pair may join; then the second may not, though its stages were neighbours before.
    ([(0, 2), (0, 3), (1, 2), (1, 3)], (1, 3), (0, 2)),
    ([(0, 1), (0, 2), (0, 3), (1, 2)], (0, 3), (0, 2)),
]


@pytest.mark.parametrize(("edges", "first", "second"), STALE)
def test_stages_follow_every_merge(
    edges: list[tuple[int, int]], first: tuple[int, int], second: tuple[int, int]
) -> None:
    quotient = QuotientGraph(4, edges)
    stages = Stages(quotient)
    assert stages.are_neighbours(*first)
    stages.merge(*first)
    a, b = (quotient.cluster_of(node) for node in second)
    assert not stages.are_neighbours(a, b)
    with pytest.raises(ValueError, match="do not differ by one"):
        stages.merge(a, b)


def test_stages_follow_merges_of_clusters_that_are_not_adjacent() -> None:
    quotient = QuotientGraph(4, [(0, 1), (0, 3), (1, 2)])
    stages = Stages(quotient)
    merged = stages.merge(2, 3) if stages.are_neighbours(2, 3) else None
    assert merged == 2
    assert not stages.are_neighbours(0, 2)


@pytest.mark.parametrize("accept", ["exact", "affix"])
def test_neighbours_of_both_sides_join_one_by_one(accept: Accept) -> None:
    """Of a diamond, the top, the bottom and one side at once would trap the other side."""
    quotient = QuotientGraph(4, [(0, 1), (0, 2), (1, 3), (2, 3)])
    Clustering(quotient, [ONE] * 4, WeightLimit(3.5), accept).run()
    assert quotient.clusters in ((0, 3), (0, 2), (0, 1))
    assert len(quotient.members(0)) == 3
    assert set(quotient.members(0)) != {0, 1, 3}
    assert set(quotient.members(0)) != {0, 2, 3}


def test_three_clusters_that_wait_for_each_other_are_not_made() -> None:
    """Definition 1 of the paper allows {a1, a2}, {b1, b2}, {c1, c2}: no two of them wait for each other."""
    a1, b1, b2, c1, c2, a2 = range(6)
    edges = [(a1, b1), (b2, c1), (c2, a2)]
    for accept in ("exact", "affix"):
        quotient = QuotientGraph(6, edges)
        Clustering(quotient, [ONE] * 6, WeightLimit(100.0), accept).run()
        # Neighbours only: what no edge joins stays apart, and so no circle can come about.
        assert [quotient.members(c) for c in sorted(quotient.clusters)] == [(a1, b1), (b2, c1), (c2, a2)]


def test_the_affix_rule_refuses_what_a_longer_path_leads_to() -> None:
    """0->3 is an edge and no other path joins both, but 1->2->3 puts 3 on the third stage."""
    edges = [(0, 3), (1, 2), (2, 3)]
    found = {}
    for accept in ("exact", "affix"):
        quotient = QuotientGraph(4, edges)
        clustering = Clustering(quotient, [ONE] * 4, WeightLimit(100.0), accept)
        found[accept] = clustering.may_join(0, 3), clustering.may_join(2, 3)
    assert found == {"exact": (True, True), "affix": (False, True)}


def test_the_heaviest_takes_its_lightest_neighbour() -> None:
    quotient = QuotientGraph(3, [(0, 1), (1, 2)])
    clustering = Clustering(quotient, [Weight(5.0), Weight(9.0), Weight(1.0)], WeightLimit(11.0))
    clustering.run()
    assert [quotient.members(c) for c in quotient.clusters] == [(0,), (1, 2)]
    assert clustering.weights == {0: Weight(5.0), 1: Weight(10.0)}


# Partitions


def test_all_that_is_light_enough_becomes_one_subgraph() -> None:
    partition = solve(two_convolutions(), Ago())
    assert len(partition.subgraphs) == 1
    assert {d.reason for d in partition.decisions} == {Reason.CLUSTER}


def test_what_weighs_more_than_the_threshold_stays_alone() -> None:
    partition = solve(two_convolutions(), Ago(threshold=10.0))
    assert [len(s.nodes) for s in partition.subgraphs] == [1, 1, 1, 1]
    assert {d.reason for d in partition.decisions} == {Reason.WEIGHT}


def test_an_opaque_operator_stays_alone() -> None:
    b = GraphBuilder()
    y = b.op("Relu", b.op("NobodyKnowsThis", b.op("Relu", b.input(4, 4))))
    partition = solve(b.finish(y), Ago())
    assert len(partition.subgraphs) == 3
    assert {d.reason for d in partition.decisions} == {Reason.OPAQUE}


def around_an_opaque_operator() -> Graph:
    b = GraphBuilder()
    x = b.op("Relu", b.input(4, 4))
    return b.finish(b.op("Add", x, b.op("NobodyKnowsThis", x)))


def test_an_edge_around_what_stays_alone_is_cut() -> None:
    for accept, reason in (("exact", Reason.CYCLE), ("affix", Reason.STAGE)):
        partition = solve(around_an_opaque_operator(), Ago(accept=accept))
        edges = {(d.producer.op_type, d.consumer.op_type): d.reason for d in partition.decisions}
        assert edges["Relu", "Add"] is reason


def test_a_subgraph_may_have_several_results() -> None:
    b = GraphBuilder()
    x = b.op("Relu", b.input(4, 4))
    partition = solve(b.finish(b.op("Sigmoid", x), b.op("Neg", x)), Ago())
    assert [len(s.outputs) for s in partition.subgraphs] == [2]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ("threshold=0", "threshold 0 is not positive"),
        ("bias=-1", "bias -1 is no weight"),
        ("scale=inf", "scale inf is no weight"),
        ("threshold=many", "expected cost or a number"),
        ("accept=all", "expected exact or affix"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: str, error: str) -> None:
    with pytest.raises(UsageError, match=error):
        PARTITIONERS.get(f"ago{{{options}}}")


def test_options_are_written_as_they_are_read() -> None:
    assert PARTITIONERS.get("ago{threshold=cost}") == Ago(threshold="cost")
    assert PARTITIONERS.get("ago{threshold=300, accept=affix}") == Ago(threshold=300.0, accept="affix")
    assert Spec.parse("ago{bias=1.5}").name == "ago"


# The cost model in place of the threshold


@dataclass(frozen=True, slots=True)
class Sums(Roofline):
    """A kernel costs its operators, and `discount` less for each pair of convolutions; `limit` at most."""

    discount: float = 0.0
    limit: int = 100

    def kernel(self, work: KernelWork, num_cores: int | None = None) -> Estimate:
        if len(work.nodes) > self.limit:
            raise InfeasibleMapping("too many operators")
        pairs = sum(node.op_type == "Conv" for node in work.nodes) // 2
        time_ns = 10.0 * len(work.nodes) - self.discount * pairs
        return Estimate(time_ns, 0.0, "by hand")

    def least(self, kernels: Sequence[KernelWork], num_groups: int = 1) -> Estimate:
        return Estimate(0.0, 0.0, "by hand")


def sums(discount: float, limit: int = 100) -> Sums:
    return Sums(1.0, 1.0, 1.0, "by hand", proves_bounds=False, discount=discount, limit=limit)


def test_two_complex_operators_join_only_where_it_pays() -> None:
    plain = solve(two_convolutions(), Ago(threshold="cost"), sums(0.0))
    assert [sum(n.op_type == "Conv" for n in s.nodes) for s in plain.subgraphs] == [1, 1]
    assert [d.reason for d in plain.decisions].count(Reason.COST) == 1
    gaining = solve(two_convolutions(), Ago(threshold="cost"), sums(1.0))
    assert len(gaining.subgraphs) == 1
    assert gaining.quality.cost == 39.0


def test_what_does_not_fit_the_machine_is_not_joined() -> None:
    partition = solve(two_convolutions(), Ago(threshold="cost"), sums(1.0, limit=2))
    assert max(len(s.nodes) for s in partition.subgraphs) == 2


def test_nothing_is_joined_without_a_budget_to_price_it() -> None:
    partition = solve(two_convolutions(), Ago(threshold="cost"), sums(1.0), Budget(0))
    assert len(partition.subgraphs) == 4
    assert partition.provenance.num_evaluations == 0
    assert {d.reason for d in partition.decisions} == {Reason.COST}


# Mini-subgraphs


def test_mini_subgraphs_have_one_complex_operator_each() -> None:
    graph = two_convolutions()
    (whole,) = solve(graph, Ago()).subgraphs
    minis = split(graph, whole, 500.0)
    assert [sum(n.op_type == "Conv" for n in mini.nodes) for mini in minis] == [1, 1]
    assert join(graph, minis[::-1]).nodes == whole.nodes


# MobileViT-S, as in Figure 14

RECOGNITION = tuple(name for name in PASSES.names() if name.startswith("recognise-"))


@pytest.fixture(scope="module")
def mobilevit() -> Graph:
    return load_onnx(zoo.build("mobilevit_s", image=224))


def jain(weights: list[float]) -> float:
    return sum(weights) ** 2 / len(weights) / sum(w * w for w in weights)


@pytest.mark.parametrize("accept", ["exact", "affix"])
def test_mobilevit_has_about_as_many_and_as_even_subgraphs_as_the_paper(
    mobilevit: Graph, accept: Accept
) -> None:
    graph, _ = optimise(mobilevit, Options(disabled_passes=RECOGNITION))
    layers = Layerwise().solve(PartitionProblem(graph), Budget())
    assert len(layers.subgraphs) == pytest.approx(259, rel=0.05)
    ago = Ago(accept=accept)
    weights = [ago.weights.of_all(s.nodes).total for s in solve(graph, ago).subgraphs]
    assert len(weights) == pytest.approx(82, rel=0.05)
    assert sum(weights) == pytest.approx(82 * 437, rel=0.05)
    assert jain(weights) > 0.5
    assert jain([ago.weights.of_all(s.nodes).total for s in layers.subgraphs]) < 0.35
