"""The checker sees every way to break a partition."""

# mypy: disable-error-code="arg-type"

from dataclasses import replace

import pytest
from tests.support.graphs import GraphBuilder

from tilewright.partition.base import (
    EdgeDecision,
    Partition,
    PartitionProblem,
    Reason,
    Subgraph,
    build_partition,
    make_subgraph,
    priced_at,
)
from tilewright.partition.check import check_partition
from tilewright.partition.none import NonePartitioner
from tilewright.planning import Budget, Provenance


@pytest.fixture
def problem() -> PartitionProblem:
    """x -> a -> b -> d, a -> c -> d."""
    builder = GraphBuilder()
    a = builder.op("Relu", builder.input(4, 4), name="a")
    b = builder.op("Softmax", a, name="b")
    c = builder.op("Sigmoid", a, name="c")
    d = builder.op("MatMul", b, builder.op("Add", c, builder.constant(4, 4), name="sum"), name="d")
    return PartitionProblem(builder.finish(d))


def solve(problem: PartitionProblem) -> Partition:
    partition = NonePartitioner().solve(problem, Budget())
    assert check_partition(problem, partition) == ()
    return partition


def rules(problem: PartitionProblem, partition: Partition) -> set[str]:
    return {v.rule for v in check_partition(problem, partition)}


def with_subgraph(partition: Partition, place: int, subgraph: Subgraph) -> Partition:
    subgraphs = (*partition.subgraphs[:place], subgraph, *partition.subgraphs[place + 1 :])
    return replace(partition, subgraphs=subgraphs)


def test_a_missing_node_is_seen(problem: PartitionProblem) -> None:
    partition = solve(problem)
    assert "cover" in rules(problem, replace(partition, subgraphs=partition.subgraphs[:-1]))


def test_a_node_in_two_subgraphs_is_seen(problem: PartitionProblem) -> None:
    partition = solve(problem)
    first, second = partition.subgraphs[:2]
    both = make_subgraph(1, (*first.nodes, *second.nodes), problem.graph)
    assert "cover" in rules(problem, with_subgraph(partition, 1, both))


def test_subgraphs_that_wait_for_each_other_are_seen(problem: PartitionProblem) -> None:
    a, b, c, total, d = problem.graph.nodes
    looped = make_subgraph(0, (a, d), problem.graph)
    rest = [make_subgraph(i, (n,), problem.graph) for i, n in enumerate((b, c, total), start=1)]
    partition = replace(solve(problem), subgraphs=(looped, *rest))
    assert "order" in rules(problem, partition)
    with pytest.raises(ValueError, match="cycle"):
        build_partition(problem, [[a, d], [b], [c], [total]], lambda *_: Reason.CLUSTER, Provenance("test"))


def test_a_cluster_left_out_is_refused(problem: PartitionProblem) -> None:
    with pytest.raises(ValueError, match="exactly once"):
        build_partition(problem, [[problem.graph.nodes[0]]], lambda *_: Reason.CLUSTER, Provenance("test"))


@pytest.mark.parametrize("what", ["inputs", "constants", "outputs"])
def test_wrong_externals_are_seen(problem: PartitionProblem, what: str) -> None:
    partition = solve(problem)
    place = next(i for i, s in enumerate(partition.subgraphs) if getattr(s, what))
    subgraph = replace(partition.subgraphs[place], **{what: ()})
    assert "externals" in rules(problem, with_subgraph(partition, place, subgraph))


def test_a_wrong_number_is_seen(problem: PartitionProblem) -> None:
    partition = solve(problem)
    renumbered = replace(partition.subgraphs[0], id=7)
    assert "number" in rules(problem, with_subgraph(partition, 0, renumbered))


def test_a_decision_that_lies_is_seen(problem: PartitionProblem) -> None:
    partition = solve(problem)
    first = partition.decisions[0]
    lie = EdgeDecision(first.producer, first.consumer, first.value, Reason.EPILOGUE)
    assert rules(problem, replace(partition, decisions=(lie, *partition.decisions[1:]))) == {"decision"}


def test_an_edge_without_a_reason_is_seen(problem: PartitionProblem) -> None:
    partition = solve(problem)
    assert rules(problem, replace(partition, decisions=partition.decisions[1:])) == {"decision"}
    doubled = (*partition.decisions, partition.decisions[0])
    assert rules(problem, replace(partition, decisions=doubled)) == {"decision"}


def test_a_wrong_cost_or_bound_is_seen(problem: PartitionProblem) -> None:
    partition = solve(problem)
    cheap = replace(partition.quality, cost=partition.quality.cost - 1)
    assert "cost" in rules(problem, replace(partition, price=priced_at(cheap)))
    bound = replace(partition.quality.widest, value=partition.quality.cost + 1)
    high = replace(partition.quality, bounds=(bound,))
    assert "bound" in rules(problem, replace(partition, price=priced_at(high)))


def test_every_reason_explains_itself() -> None:
    texts = [reason.text for reason in Reason]
    assert all(texts)
    assert len(set(texts)) == len(texts)


def test_neighbours_of_a_subgraph(problem: PartitionProblem) -> None:
    partition = solve(problem)
    a, b, c, total, d = (partition.subgraph_of(n) for n in problem.graph.nodes)
    assert partition.successors(a) == (b, c)
    assert partition.predecessors(d) == (b, total)
    assert partition.producer_of(d.inputs[0]) is b
    assert partition.producer_of(a.inputs[0]) is None
