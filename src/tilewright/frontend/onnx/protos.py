"""Walking ONNX messages: every node and tensor, and how messages name them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from onnx import AttributeProto, ModelProto, NodeProto, TensorProto

from tilewright.errors import ModelRejected, TilewrightError
from tilewright.frontend.onnx.limits import MAX_NESTING
from tilewright.ir.bodies import body_graphs


def one_line(text: object, limit: int = 300) -> str:
    """A library's message as one line of bounded length."""
    # Ten times the limit holds the line however its blanks are spread, without splitting megabytes.
    line = " ".join(str(text)[: 10 * limit].split())
    return line if len(line) <= limit else f"{line[: limit - 3]}..."


def quoted(name: str, limit: int = 80) -> str:
    """A name in quotes, its middle left out if it is long."""
    half = limit // 2
    return repr(name if len(name) <= limit else f"{name[:half]}...{name[-half:]}")


@contextmanager
def bounded_messages(limit: int = 600) -> Iterator[None]:
    """Make errors that pass typed, printable and short: their names come from a file that may be hostile."""
    try:
        yield
    except TilewrightError as error:
        line = one_line(error, limit)
        error.args = ("".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line),)
        raise
    except UnicodeDecodeError as error:
        # The parser takes any bytes as text; they are decoded where they are looked at.
        raise ModelRejected(
            f"a name in the model is not UTF-8: {error.object[:40]!r}; export it again."
        ) from error


def node_label(node: NodeProto) -> str:
    """How messages call a node, e.g. `Conv 'conv1'`; a node without a name goes by its first output."""
    name = node.name or next((o for o in node.output if o), "")
    return f"{node.op_type[:80]} {quoted(name)}"


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
