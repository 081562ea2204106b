"""Nodes of a graph as a graph of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.ir.graph import Graph, Node, Value


def extract(nodes: Sequence[Node], outputs: Sequence[Value]) -> tuple[Graph, Mapping[Node, Node]]:
    """A copy of nodes given in topological order that makes `outputs`, and the copy of each node.

    What the nodes read from outside and is not constant becomes an input; constants are shared.
    """
    graph = Graph("extract")
    copies: dict[Value, Value] = {}
    made = {value for node in nodes for value in node.results()}

    def copied(value: Value) -> Value:
        if value not in copies:
            copies[value] = Value(value.name, value.dtype, value.shape, value.data)
            if value not in made and not value.is_constant:
                graph.add_input(copies[value])
        return copies[value]

    twins: dict[Node, Node] = {}
    for node in nodes:
        twins[node] = graph.append(
            Node(
                node.op_type,
                [None if v is None else copied(v) for v in node.inputs],
                [None if v is None else copied(v) for v in node.outputs],
                node.attributes,
                name=node.name,
                domain=node.domain,
                opset=node.opset,
                captures=tuple(map(copied, node.captures)),
            )
        )
        # It speaks of positions, shapes and constants, which are the same.
        twins[node]._description = node._description
    graph.outputs = [copied(value) for value in outputs]
    return graph, twins
