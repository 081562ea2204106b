"""Nodes of a graph as a graph of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

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
            copies[value] = Value(value.name, value.dtype, value.shape, value.stored)
            if value not in made and not value.is_constant:
                graph.add_input(copies[value])
        return copies[value]

    twins = {node: graph.append(twin_of(node, copied)) for node in nodes}
    graph.outputs = [copied(value) for value in outputs]
    return graph, twins


def part_of(nodes: Sequence[Node], outputs: Sequence[Value]) -> Graph:
    """Nodes given in topological order, which make `outputs`, as a graph that shares them: to be looked at,
    not to be changed.

    What they read from outside and is not constant is an input, whatever makes it. Values keep all of their
    users: what others read, too, has to be among the outputs.
    """
    graph = Graph("part")
    graph._nodes = list(nodes)
    made = {value for node in nodes for value in node.results()}
    read = dict.fromkeys(value for node in nodes for value in node.operands())
    graph.inputs = [value for value in read if value not in made and not value.is_constant]
    graph.outputs = list(outputs)
    graph._names = {value.name for value in (*read, *made)}
    return graph


def twin_of(node: Node, copied: Callable[[Value], Value]) -> Node:
    """A copy of a node on copies of its values."""
    twin = Node(
        node.op_type,
        [None if v is None else copied(v) for v in node.inputs],
        [None if v is None else copied(v) for v in node.outputs],
        node.attributes,
        name=node.name,
        domain=node.domain,
        opset=node.opset,
        captures=tuple(map(copied, node.captures)),
    )
    twin.describe_as(node)
    return twin


def without_nodes(graph: Graph) -> tuple[Graph, dict[Value, Value]]:
    """A graph of the same name and inputs, where all names of values are taken; and the inputs' copies."""
    copy = Graph(graph.name)
    copy._names.update(graph._names)
    twins = {value: Value(value.name, value.dtype, value.shape, value.stored) for value in graph.inputs}
    for twin in twins.values():
        copy.add_input(twin)
    return copy, twins
