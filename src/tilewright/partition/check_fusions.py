"""Independent check of what a partition says about the rules by which it was fused."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.partition.base import Partition, Reason
from tilewright.partition.fusion_records import Verdict
from tilewright.planning import Violation


def check_fusions(partition: Partition) -> Iterator[Violation]:
    """Everything wrong with the records: each is of an edge of the graph, once, and of a rule that allows it;
    an edge that is said to be fused by a rule has one; costs have a unit."""
    members = {id(n) for subgraph in partition.subgraphs for n in subgraph.nodes}
    stated: dict[tuple[int, int, int], Verdict] = {}
    for record in partition.fusions:
        edge = f"{record.producer.name} -> {record.consumer.name}"
        key = (id(record.producer), id(record.consumer), id(record.value))
        if key in stated:
            yield Violation("record", f"{edge} has two records")
        stated[key] = record.verdict
        is_edge = record.value.producer is record.producer and any(
            value is record.value for value in record.consumer.operands()
        )
        if not is_edge or not members.issuperset(key[:2]):
            yield Violation("record", f"{edge} is no edge of the graph, but has a record")
        if record.verdict is Verdict.PROHIBITED:
            yield Violation("record", f"{edge} is prohibited, but has a record of being fused")
        if (record.fused_cost is None or record.apart_cost is None) != (record.unit == ""):
            yield Violation("record", f"{edge} has a cost without a unit, or a unit without both costs")
    for decision in partition.decisions:
        verdict = stated.get((id(decision.producer), id(decision.consumer), id(decision.value)))
        expected = {Reason.STABLE: Verdict.STABLE, Reason.EVALUATED: Verdict.EVALUATE}.get(decision.reason)
        if expected is not None and verdict is not expected:
            yield Violation("record", f"{decision} has no record of the rule {expected}")
