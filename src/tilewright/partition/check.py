"""Independent check of a partition. Shares no code with any partitioner."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.ir.graph import Graph, Node, Value
from tilewright.ir.graph_regions import RegionMaps
from tilewright.partition.base import Partition, PartitionProblem
from tilewright.partition.check_forms import check_forms
from tilewright.partition.check_fusions import check_fusions
from tilewright.partition.check_splits import check_splits
from tilewright.planning import Violation


def check_partition(problem: PartitionProblem, partition: Partition) -> tuple[Violation, ...]:
    """Everything wrong with a partition: nothing, if it is valid.

    Checked: all of `check_cut`, and the stated cost.
    """
    found = check_cut(problem.graph, partition, problem.analysis.maps)
    if any(violation.rule == "cover" for violation in found):
        return found  # whose cost is that of other work
    return (*found, *_check_quality(problem, partition))


def check_cut(graph: Graph, partition: Partition, maps: RegionMaps | None = None) -> tuple[Violation, ...]:
    """Everything wrong with how a partition cuts a graph, whatever that costs.

    Checked: every node in exactly one subgraph; subgraphs numbered in order and none reads from a later
    one (so that the quotient has no cycle); inputs, constants and outputs complete and without excess; one
    decision per data edge that says what really happened; forms; the records of rules; of a cut that is
    right so far, layers and splits, for which `maps` are regions through the graph that are known.
    """
    found = (
        *_check_cover(graph, partition),
        *_check_order(partition),
        *_check_externals(partition),
        *_check_decisions(partition),
        *check_forms(partition),
        *check_fusions(partition),
    )
    return found or check_splits(partition, maps)


def _homes(partition: Partition) -> dict[int, list[int]]:
    homes: dict[int, list[int]] = {}
    for place, subgraph in enumerate(partition.subgraphs):
        for node in subgraph.nodes:
            homes.setdefault(id(node), []).append(place)
    return homes


def _check_cover(graph: Graph, partition: Partition) -> Iterator[Violation]:
    if partition.graph is not graph:
        yield Violation("graph", "the partition is of another graph")
    homes = _homes(partition)
    for node in partition.graph.nodes:
        count = len(homes.pop(id(node), ()))
        if count != 1:
            yield Violation("cover", f"{node!r} is in {count} subgraphs")
    if homes:
        yield Violation("cover", f"{len(homes)} nodes are not of the graph")
    for place, subgraph in enumerate(partition.subgraphs):
        if subgraph.id != place:
            yield Violation("number", f"subgraph {subgraph.id} stands at place {place}")
        if not subgraph.nodes:
            yield Violation("empty", f"subgraph {subgraph.id} has no nodes")


def _check_order(partition: Partition) -> Iterator[Violation]:
    """Walking subgraph by subgraph and node by node, no operand may be made later."""
    produced: set[int] = set()
    for subgraph in partition.subgraphs:
        for node in subgraph.nodes:
            for value in node.operands():
                if value.producer is not None and id(value) not in produced:
                    yield Violation(
                        "order", f"{node!r} in subgraph {subgraph.id} reads {value.name!r} too early"
                    )
            produced.update(id(value) for value in node.results())


def _check_externals(partition: Partition) -> Iterator[Violation]:
    for subgraph in partition.subgraphs:
        inside = {id(n) for n in subgraph.nodes}
        inputs: set[int] = set()
        constants: set[int] = set()
        outputs: set[int] = set()
        for node in subgraph.nodes:
            for value in node.operands():
                if value.is_constant:
                    constants.add(id(value))
                elif id(value.producer) not in inside:
                    inputs.add(id(value))
            for value in node.results():
                leaves = any(id(user) not in inside for user in value.users)
                if leaves or any(value is output for output in partition.graph.outputs):
                    outputs.add(id(value))
        for what, stated, expected in (
            ("inputs", subgraph.inputs, inputs),
            ("constants", subgraph.constants, constants),
            ("outputs", subgraph.outputs, outputs),
        ):
            if len(stated) != len({id(v) for v in stated}) or {id(v) for v in stated} != expected:
                names = [v.name for v in stated]
                yield Violation(
                    "externals", f"subgraph {subgraph.id}: {what} {names} are not the values that cross"
                )


def _check_decisions(partition: Partition) -> Iterator[Violation]:
    homes = _homes(partition)
    stated: dict[tuple[int, int, int], bool] = {}
    for decision in partition.decisions:
        key = (id(decision.producer), id(decision.consumer), id(decision.value))
        if key in stated:
            yield Violation("decision", f"{decision} is stated twice")
        stated[key] = decision.reason.is_fused
    for consumer in partition.graph.nodes:
        for value in {id(v): v for v in consumer.operands()}.values():
            if value.producer is not None:
                yield from _check_edge(homes, stated, value.producer, consumer, value)
    if stated:
        yield Violation("decision", f"{len(stated)} decisions are about edges that the graph does not have")


def _check_edge(
    homes: dict[int, list[int]],
    stated: dict[tuple[int, int, int], bool],
    producer: Node,
    consumer: Node,
    value: Value,
) -> Iterator[Violation]:
    edge = f"{producer.name} -> {consumer.name}"
    said = stated.pop((id(producer), id(consumer), id(value)), None)
    fused = homes.get(id(producer)) == homes.get(id(consumer))
    if said is None:
        yield Violation("decision", f"{edge} has no reason")
    elif said != fused:
        yield Violation("decision", f"{edge} is {'fused' if fused else 'cut'}, the decision says otherwise")


def _check_quality(problem: PartitionProblem, partition: Partition) -> Iterator[Violation]:
    cost = problem.cost_of(partition.subgraphs)
    quality = partition.quality
    if abs(cost - quality.cost) > 1e-9 * max(1.0, abs(cost)):
        yield Violation("cost", f"stated {quality.cost:g} {quality.unit}, recomputed {cost:g}")
    for bound in quality.bounds:
        if bound.is_proven and bound.value > cost * (1 + 1e-9):
            yield Violation("bound", f"bound {bound.value:g} of {bound.space} lies above the cost {cost:g}")
