"""Walking ONNX messages: all graphs, all tensors, names that a body takes from outside."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto

from tilewright.errors import ModelRejected

# Deeper than any exporter nests control flow; also bounds our own recursion.
MAX_NESTING = 24


def one_line(text: object, limit: int = 300) -> str:
    """A library's message as one line of bounded length."""
    line = " ".join(str(text).split())
    return line if len(line) <= limit else f"{line[: limit - 3]}..."


def node_label(node: NodeProto) -> str:
    """How messages call a node, e.g. `Conv 'conv1'`; a node without a name goes by its first output."""
    name = node.name or next((o for o in node.output if o), "")
    return f"{node.op_type} {name!r}"


def body_graphs(node: NodeProto) -> Iterator[GraphProto]:
    """Graphs held by a node's attributes."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == AttributeProto.GRAPHS:
            yield from attribute.graphs


def all_nodes(nodes: Iterable[NodeProto], depth: int = 0) -> Iterator[tuple[NodeProto, int]]:
    """Every node with its nesting depth, bodies included.

    Raises:
        ModelRejected: nested deeper than `MAX_NESTING`.
    """
    for node in nodes:
        yield node, depth
        for graph in body_graphs(node):
            if depth >= MAX_NESTING:
                raise ModelRejected(
                    f"node {node_label(node)} nests graphs deeper than {MAX_NESTING} levels; "
                    "flatten the control flow."
                )
            yield from all_nodes(graph.node, depth + 1)


def model_nodes(model: ModelProto) -> Iterator[NodeProto]:
    """Every node of the graph, its bodies and the local functions."""
    yield from (node for node, _ in all_nodes(model.graph.node))
    for function in model.functions:
        yield from (node for node, _ in all_nodes(function.node))


def nested_tensors(model: ModelProto) -> Iterator[TensorProto]:
    """Every dense tensor that is not an initializer of the main graph: attributes, initializers of bodies."""
    for node in model_nodes(model):
        for attribute in node.attribute:
            if attribute.type == AttributeProto.TENSOR:
                yield attribute.t
            elif attribute.type == AttributeProto.TENSORS:
                yield from attribute.tensors
        for graph in body_graphs(node):
            yield from graph.initializer


def free_names(graph: GraphProto) -> dict[str, None]:
    """Names a body reads from outside, in order of first use (a dict as an ordered set)."""
    inner = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    inner |= {tensor.values.name for tensor in graph.sparse_initializer}
    free: dict[str, None] = {}
    for node in graph.node:
        names = [*node.input, *(name for body in body_graphs(node) for name in free_names(body))]
        free.update(dict.fromkeys(name for name in names if name and name not in inner))
        inner.update(node.output)
    free.update(dict.fromkeys(value.name for value in graph.output if value.name not in inner))
    return free


def rename_free(graph: GraphProto, renames: dict[str, str]) -> None:
    """Rename, in place, what a body reads from outside."""
    inner = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    inner.update(name for node in graph.node for name in node.output)
    outer = {old: new for old, new in renames.items() if old not in inner}
    if not outer:
        return
    for node in graph.node:
        for index, name in enumerate(node.input):
            if name in outer:
                node.input[index] = outer[name]
        for body in body_graphs(node):
            rename_free(body, outer)
    for value in graph.output:
        if value.name in outer:
            value.name = outer[value.name]
