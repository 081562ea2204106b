"""Layer normalisation, as exporters spell it out in up to nine nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tilewright.ir.graph import Graph, Node, Value
from tilewright.passes.base import PassResult
from tilewright.passes.edit import Editor
from tilewright.passes.patterns import (
    made_by,
    operand_orders,
    power,
    reduction_axes,
    square,
    sum_with_scalar,
    trailing_axis,
)
from tilewright.passes.rules import Rule, apply_rules


@dataclass(frozen=True, slots=True)
class RecogniseLayerNorm:
    """`(x - mean) / sqrt(variance + epsilon) [* scale [+ bias]]` over the last axes, with constant scale and
    bias of those axes' shape, becomes one LayerNormalization.
    """

    name: ClassVar[str] = "recognise-layer-norm"

    def run(self, graph: Graph) -> PassResult:
        """Edit the graph in place."""
        return apply_rules(graph, [Rule(("Div", "Mul"), _match, _build)])


@dataclass(frozen=True, slots=True)
class _LayerNorm:
    x: Value
    axis: int
    epsilon: float
    scale: Value | None
    bias: Value | None
    last: Node


def _match(editor: Editor, node: Node) -> _LayerNorm | None:
    for centred, inverse in operand_orders(node):
        variance = inverse_root(editor, node, centred, inverse)
        total = None if variance is None else sum_with_scalar(editor, variance)
        mean_of_squares = None if total is None else made_by(total.value, "ReduceMean")
        if total is None or mean_of_squares is None:
            continue
        if square(editor, mean_of_squares.require(0)) is not centred:
            continue
        difference = made_by(centred, "Sub")
        mean = None if difference is None else made_by(difference.require(1), "ReduceMean")
        if difference is None or mean is None or mean.require(0) is not difference.require(0):
            continue
        x = difference.require(0)
        axis = trailing_axis(reduction_axes(editor, mean), len(x.shape))
        again = trailing_axis(reduction_axes(editor, mean_of_squares), len(x.shape))
        if axis is None or axis != again or centred.shape != x.shape or node.output.shape != x.shape:
            continue
        scale, bias, last = _scale_and_bias(editor, node, x.shape[axis:])
        return _LayerNorm(x, axis, total.constant, scale, bias, last)
    return None


def _build(editor: Editor, node: Node, found: _LayerNorm) -> str:
    shape = found.x.shape[found.axis :]
    scale = found.scale or editor.constant(np.ones(shape), found.x.dtype, f"{node.name}_ones")
    inputs = [found.x, scale, *([] if found.bias is None else [found.bias])]
    attributes = {"axis": found.axis - len(found.x.shape), "epsilon": found.epsilon}
    editor.become(found.last, "LayerNormalization", inputs, attributes, since=17)
    return f"recognised as LayerNormalization with epsilon {found.epsilon:g}"


def inverse_root(editor: Editor, node: Node, x: Value, other: Value) -> Value | None:
    """The v of `x / sqrt(v)`, `x * (1 / sqrt(v))` or `x * v ** -0.5`, where `node` combines x and `other`."""
    if node.op_type == "Div":
        if x is not node.require(0):
            return None
        root = made_by(other, "Sqrt")
        return root.require(0) if root is not None else power(editor, other, 0.5)
    reciprocal = made_by(other, "Reciprocal")
    quotient = made_by(other, "Div")
    if quotient is not None and _is_one(editor, quotient.require(0)):
        under = quotient.require(1)
    elif reciprocal is not None:
        under = reciprocal.require(0)
    else:
        return power(editor, other, -0.5)
    root = made_by(under, "Sqrt")
    return root.require(0) if root is not None else power(editor, under, 0.5)


def _is_one(editor: Editor, value: Value) -> bool:
    data = editor.data(value)
    return data is not None and data.size == 1 and float(data.reshape(())) == 1.0


def _scale_and_bias(
    editor: Editor, node: Node, shape: tuple[int, ...]
) -> tuple[Value | None, Value | None, Node]:
    """What scales and shifts the normalised value, and the last node of the pattern."""
    scaled = editor.sole_user(node.output)
    scale = _other_operand(editor, scaled, "Mul", node.output, shape)
    if scaled is None or scale is None:
        return None, None, node
    shifted = editor.sole_user(scaled.output)
    bias = _other_operand(editor, shifted, "Add", scaled.output, shape)
    if shifted is None or bias is None:
        return scale, None, scaled
    return scale, bias, shifted


def _other_operand(
    editor: Editor, node: Node | None, op_type: str, value: Value, shape: tuple[int, ...]
) -> Value | None:
    """The constant of the normalised axes' shape that `node` combines with `value`."""
    if node is None or node.op_type != op_type or node.domain:
        return None
    for x, other in operand_orders(node):
        if x is value and other.shape == shape and editor.data(other) is not None:
            return other
    return None
