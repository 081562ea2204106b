"""Nodes that no output needs, and results that are never read."""

from __future__ import annotations

from typing import ClassVar

from tilewright.ir.graph import Graph, Node
from tilewright.ir.ops.registry import has_effect
from tilewright.passes.base import PassResult, Remark
from tilewright.records import dataclass

# Operators that compute an optional result, or do not, by whether it is there.
_OPTIONAL_RESULTS = frozenset({"MaxPool", "Dropout", "LayerNormalization", "BatchNormalization"})


@dataclass(frozen=True, slots=True)
class DeadCode:
    """Removes nodes without readers, last first, and optional results without readers."""

    name: ClassVar[str] = "dead-code"

    def run(self, graph: Graph) -> PassResult:
        """Edit the graph in place."""
        outputs = frozenset(graph.outputs)
        remarks: list[Remark] = []
        for node in reversed(graph.nodes):
            if not has_effect(node) and not any(v.users or v in outputs for v in node.results()):
                graph.remove(node)
                remarks.append(Remark(node.name, "removed: no output needs it"))
                continue
            dead = [
                i
                for i, v in enumerate(node.outputs)
                if i and v is not None and not v.users and v not in outputs and _may_lack(node)
            ]
            if dead:
                for i in dead:
                    _drop_result(graph, node, i)
                remarks.append(Remark(node.name, f"{len(dead)} results dropped: nobody reads them"))
        return PassResult(len(remarks), tuple(remarks))


def _may_lack(node: Node) -> bool:
    return not node.domain and node.op_type in _OPTIONAL_RESULTS and not node.int_attr("training_mode", 0)


def _drop_result(graph: Graph, node: Node, position: int) -> None:
    value = node.outputs[position]
    if value is not None:
        value.producer = None
    kept = [None if i == position else v for i, v in enumerate(node.outputs)]
    while kept[-1] is None:
        kept.pop()
    node.outputs = tuple(kept)
    # A node's nests are remembered until its inputs are set: they count its results.
    graph.set_inputs(node, node.inputs)
