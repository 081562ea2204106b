"""Walking ONNX messages: every node and tensor, and how messages name them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from onnx import AttributeProto, ModelProto, NodeProto, TensorProto

from tilewright.errors import ModelRejected, TilewrightError
from tilewright.frontend.onnx.limits import MAX_NESTING, MAX_PARTS
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


def require_few_parts(model: ModelProto, num_bytes: int, label: str) -> None:
    """Count messages and strings, without a look at the data of tensors; bodies and functions included.

    `num_bytes` is the size of the serialised model: each part takes two bytes at the least, so that files
    that cannot have too many are not looked at.

    Raises:
        ModelRejected: there are more than `MAX_PARTS`.
    """
    if num_bytes <= 2 * MAX_PARTS:
        return
    total = 0
    rest: list[Any] = [model]
    while rest:
        message = rest.pop()
        for name, is_repeated, holds_parts in _parts_of(message.__class__):
            if is_repeated:
                found = getattr(message, name)
                total += len(found)
            else:
                found = (getattr(message, name),) if message.HasField(name) else ()
                total += len(found)
            if total > MAX_PARTS:
                raise ModelRejected(
                    f"{label}: more than MAX_PARTS = {MAX_PARTS} nodes, attributes, names and other parts; "
                    "split the model."
                )
            if holds_parts:
                rest.extend(found)


@cache
def _parts_of(kind: Any) -> tuple[tuple[str, bool, bool], ...]:
    """The fields of a class of messages that hold parts: name, whether many, whether those hold parts too."""
    empty, found = kind(), []
    for field in kind.DESCRIPTOR.fields:
        # Releases of protobuf differ in how a descriptor says that a field is repeated.
        is_repeated = not isinstance(value := getattr(empty, field.name), str | bytes) and hasattr(
            value, "__len__"
        )
        if field.message_type is not None:
            found.append((field.name, is_repeated, True))
        elif is_repeated and field.type in (field.TYPE_STRING, field.TYPE_BYTES):
            found.append((field.name, True, False))
    return tuple(found)


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
