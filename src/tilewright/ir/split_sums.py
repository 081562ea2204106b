"""Sums of products cut into parts: each part sums over some of the channels, then the parts are added.

A product whose result is small fills few cores, however long its sums are. Where they are cut, the parts are
as many results to compute side by side: a convolution becomes one with as many groups, each of which reads
some of the channels and makes all of the result's, and a sum over the groups. Libraries of kernels call it
split-k. Products are the same, added in another order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from tilewright.ir.extract import twin_of, without_nodes
from tilewright.ir.graph import Graph, Node, Value
from tilewright.records import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class SplitSums:
    """A graph in which sums are cut, and the nodes there that take the place of each node before."""

    graph: Graph
    nodes: Mapping[Node, tuple[Node, ...]]


def summed_channels(node: Node) -> int:
    """How many channels a node sums over that may be cut into equal parts; 1 where none may.

    A convolution in floating point in one group, with constant kernels and bias.
    """
    if node.op_type != "Conv" or node.domain or node.int_attr("group", 1) != 1:
        return 1
    weight = node.input(1)
    constants = [v for v in node.inputs[1:] if v is not None]
    if weight is None or not node.output.dtype.is_float or any(v.data is None for v in constants):
        return 1
    return weight.shape[1]


def split_sums(graph: Graph, parts: Mapping[Node, int], *, is_priced_only: bool = False) -> SplitSums:
    """A copy of a graph in which each of these nodes sums in so many parts; results keep their names.

    Where it `is_priced_only`, constants that are laid out anew have no elements of their own.

    Raises:
        ValueError: a sum does not divide so.
    """
    copy, values = without_nodes(graph)

    def copied(value: Value) -> Value:
        if value not in values:
            values[value] = Value(value.name, value.dtype, value.shape, value.data)
        return values[value]

    nodes: dict[Node, tuple[Node, ...]] = {}
    for node in graph.nodes:
        count = parts.get(node, 1)
        if count == 1:
            nodes[node] = (copy.append(twin_of(node, copied)),)
        else:
            nodes[node] = _in_parts(copy, node, count, copied, is_priced_only=is_priced_only)
    copy.outputs = [copied(value) for value in graph.outputs]
    return SplitSums(copy, nodes)


def _in_parts(
    graph: Graph, node: Node, count: int, copied: Callable[[Value], Value], *, is_priced_only: bool
) -> tuple[Node, ...]:
    """The nodes that sum in parts: partial sums side by side as groups of channels, which are then added."""
    if summed_channels(node) % count:
        raise ValueError(f"node {node.name!r}: its sums do not divide by {count}.")
    weight, bias = node.constant(1), node.constant(2)
    image, result = node.input(0), node.output
    assert weight is not None, "only sums with constants are cut"
    assert image is not None, "a convolution has an input"
    channels, name = result.shape[1], f"{node.name}.parts"
    kernel = (count * channels, weight.shape[1] // count, *weight.shape[2:])
    if is_priced_only:
        laid_out = np.broadcast_to(np.zeros((), weight.dtype), kernel)
    else:
        by_part = weight.reshape(channels, count, *kernel[1:])
        laid_out = np.ascontiguousarray(by_part.swapaxes(0, 1)).reshape(kernel)
    inputs = [copied(image), graph.constant(laid_out, f"{name}.weight")]
    if bias is not None:
        once = np.concatenate([bias, np.zeros((count - 1) * channels, bias.dtype)])
        inputs.append(graph.constant(once, f"{name}.bias"))
    samples, _, *sizes = result.shape
    sums = graph.value(f"{result.name}.parts", result.dtype, (samples, count * channels, *sizes))
    apart = graph.value(f"{result.name}.apart", result.dtype, (samples, count, channels, *sizes))
    shape = graph.constant(np.array(apart.shape, np.int64), f"{node.name}.apart.shape")
    made = (
        Node("Conv", inputs, [sums], node.attributes | {"group": count}, name=name, opset=node.opset),
        Node("Reshape", [sums, shape], [apart], name=f"{node.name}.apart", opset=13),
        # Axes as an attribute, as before opset 13.
        Node("ReduceSum", [apart], [copied(result)], {"axes": (1,), "keepdims": 0}, name=node.name, opset=11),
    )
    return tuple(map(graph.append, made))
