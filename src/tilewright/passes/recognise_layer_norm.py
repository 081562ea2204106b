"""Layer normalisation, as exporters spell it out in up to nine nodes."""

from __future__ import annotations

import numpy as np

from tilewright.ir.graph import Node, Value
from tilewright.passes.edit import Editor
from tilewright.passes.patterns import (
    constant_operand,
    inverse_root,
    made_by,
    operand_orders,
    reduction_axes,
    square,
    sum_with_scalar,
    trailing_axis,
)
from tilewright.passes.rules import Rule, RulePass
from tilewright.records import dataclass


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
        total = sum_with_scalar(editor, inverse_root(editor, node, centred, inverse))
        mean_of_squares = None if total is None else made_by(total.value, "ReduceMean")
        if total is None or mean_of_squares is None:
            continue
        if square(editor, mean_of_squares.require(0)) is not centred:
            continue
        if editor.sole_user(mean_of_squares.output) is None:
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


def _scale_and_bias(
    editor: Editor, node: Node, shape: tuple[int, ...]
) -> tuple[Value | None, Value | None, Node]:
    """What scales and shifts the normalised value, and the last node of the pattern."""
    scaled = editor.sole_user(node.output)
    scale = constant_operand(editor, scaled, "Mul", node.output, shape)
    if scaled is None or scale is None:
        return None, None, node
    shifted = editor.sole_user(scaled.output)
    bias = constant_operand(editor, shifted, "Add", scaled.output, shape)
    if shifted is None or bias is None:
        return scale, None, scaled
    return scale, bias, shifted


class RecogniseLayerNorm(RulePass):
    """`(x - mean) / sqrt(variance + epsilon) [* scale [+ bias]]` over the last axes, with constant scale and
    bias of those axes' shape, becomes one LayerNormalization.
    """

    name = "recognise-layer-norm"
    rules = (Rule(("Div", "Mul"), _match, _build),)
