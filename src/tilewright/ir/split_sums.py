"""Sums of products cut into parts: each part sums over some of the channels, then the parts are added.

A product whose result is small fills few cores, however long its sums are. Where they are cut, the parts are
as many results to compute side by side: a convolution becomes one with as many groups, each of which reads
some of the channels and makes all of the result's, and a sum over the groups. Libraries of kernels call it
split-k. Products are the same, added in another order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.arrays import Array
from tilewright.ir.extract import twin_of, without_nodes
from tilewright.ir.graph import Graph, Node, Value
from tilewright.records import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class SplitSums:
    """A graph in which sums are cut, and the nodes there that sum products in the place of each before."""

    graph: Graph
    sums: Mapping[Node, Node]


def summed_channels(node: Node) -> int:
    """How many channels a node sums over that may be cut into equal parts; 1 where none may.

    A convolution in floating point in one group, or a product of matrices, with constant kernels and bias.
    """
    if node.domain or node.op_type not in _SPLIT or not node.output.dtype.is_float:
        return 1
    image, weight = node.input(0), node.input(1)
    constants = [v for v in node.inputs[1:] if v is not None]
    if image is None or image.is_constant or weight is None or any(v.data is None for v in constants):
        return 1
    if node.op_type == "Conv":
        return weight.shape[1] if node.int_attr("group", 1) == 1 else 1
    is_plain = all(node.attributes.get(name, 1.0) == 1.0 for name in ("alpha", "beta"))
    if len(weight.shape) != 2 or len(image.shape) < 2 or node.int_attr("transA", 0) or not is_plain:
        return 1
    return image.shape[-1]


def split_sums(graph: Graph, parts: Mapping[Node, int], *, is_priced_only: bool = False) -> SplitSums:
    """A copy of a graph in which each of these nodes sums in so many parts; results keep their names.

    Where it `is_priced_only`, constants that are laid out anew have no elements of their own.

    Raises:
        ValueError: a sum does not divide so.
    """
    copy, values = without_nodes(graph)

    def copied(value: Value) -> Value:
        if value not in values:
            values[value] = Value(value.name, value.dtype, value.shape, value.stored)
        return values[value]

    sums: dict[Node, Node] = {}
    for node in graph.nodes:
        count = parts.get(node, 1)
        if summed_channels(node) % count:
            raise ValueError(f"node {node.name!r}: its sums do not divide by {count}.")
        if count == 1:
            copy.append(twin_of(node, copied))
        else:
            sums[node] = _SPLIT[node.op_type](_Splitting(copy, node, count, copied, is_priced_only))
    copy.outputs = [copied(value) for value in graph.outputs]
    return SplitSums(copy, sums)


@dataclass(frozen=True, slots=True, eq=False)
class _Splitting:
    """A node whose sums become so many, and the graph that has them; `copied` gives its values there."""

    graph: Graph
    node: Node
    count: int
    copied: Callable[[Value], Value]
    is_priced_only: bool

    @property
    def image(self) -> Value:
        """What is read that is no constant, in the graph."""
        image = self.node.input(0)
        assert image is not None, "a node that sums products reads it"
        return self.copied(image)

    def constant(self, data: Array, what: str) -> Value:
        """A constant of the parts."""
        return self.graph.constant(data, f"{self.node.name}.parts.{what}")

    def weight(self, lay_out: Callable[[Array], Array]) -> Value:
        """The node's weight, laid out anew."""
        data = self.node.constant(1)
        assert data is not None, "only sums with constants are cut"
        if self.is_priced_only:
            shape = lay_out(np.broadcast_to(np.zeros((), bool), data.shape)).shape
            return self.constant(np.broadcast_to(np.zeros((), data.dtype), shape), "weight")
        return self.constant(np.ascontiguousarray(lay_out(data)), "weight")

    def append(
        self, op_type: str, inputs: Sequence[Value], output: Value | Sequence[int], what: str, **said: Any
    ) -> Node:
        """Add a node that makes a value, or a new one of such a shape."""
        name = f"{self.node.name}.{what}" if what else self.node.name
        opset = said.pop("opset", self.node.opset)
        if not isinstance(output, Value):
            output = self.graph.value(name, self.node.output.dtype, output)
        return self.graph.append(Node(op_type, inputs, [output], said, name=name, opset=opset))

    def reshaped(self, value: Value, shape: Sequence[int], what: str) -> Value:
        """A value as another shape."""
        wanted = self.constant(np.array(shape, np.int64), f"{what}.shape")
        return self.append("Reshape", [value, wanted], shape, what, opset=13).output

    def added(self, apart: Value, axis: int, bias: Value | None = None) -> None:
        """The node's result from parts along an axis."""
        result = self.copied(self.node.output)
        # Axes as an attribute, as before opset 13.
        said = {"axes": (axis,), "keepdims": 0, "opset": 11}
        if bias is None:
            self.append("ReduceSum", [apart], result, "", **said)
        else:
            total = self.append("ReduceSum", [apart], result.shape, "sum", **said).output
            self.append("Add", [total, bias], result, "", opset=13)


def _convolution(split: _Splitting) -> Node:
    """Partial sums side by side as groups of channels, to the first of which the bias is added."""
    node, count = split.node, split.count
    samples, channels, *sizes = node.output.shape

    def by_parts(weight: Array) -> Array:
        taps = weight.shape[2:]
        parts = weight.reshape(channels, count, weight.shape[1] // count, *taps)
        return parts.swapaxes(0, 1).reshape(count * channels, weight.shape[1] // count, *taps)

    inputs, bias = [split.image, split.weight(by_parts)], node.constant(2)
    if bias is not None:
        once = np.concatenate([bias, np.zeros((count - 1) * channels, bias.dtype)])
        inputs.append(split.constant(once, "bias"))
    said = dict(node.attributes) | {"group": count}
    sums = split.append("Conv", inputs, (samples, count * channels, *sizes), "parts", **said)
    split.added(split.reshaped(sums.output, (samples, count, channels, *sizes), "apart"), 1)
    return sums


def _product(split: _Splitting) -> Node:
    """A product for each part of the columns of the left matrix and rows of the right one."""
    node, count = split.node, split.count
    *samples, rows, columns = node.output.shape
    depth = split.image.shape[-1] // count

    def by_parts(weight: Array) -> Array:
        matrix = weight.T if node.int_attr("transB", 0) else weight
        return matrix.reshape(count, depth, columns)

    left = split.reshaped(split.image, (*samples, rows, count, depth), "apart")
    axes = "".join(chr(ord("a") + axis) for axis in range(len(samples)))
    said = {"equation": f"{axes}xyz,yzw->{axes}yxw", "opset": 12}
    shape = (*samples, count, rows, columns)
    sums = split.append("Einsum", [left, split.weight(by_parts)], shape, "parts", **said)
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    split.added(sums.output, len(samples), None if bias is None else split.copied(bias))
    return sums


_SPLIT = {"Conv": _convolution, "Gemm": _product, "MatMul": _product}
