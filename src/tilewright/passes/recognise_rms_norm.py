"""Normalisation by the root of the mean square, as exporters spell it out."""

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
class _RmsNorm:
    x: Value
    axis: int
    epsilon: float
    scale: Value | None
    last: Node


def _match(editor: Editor, node: Node) -> _RmsNorm | None:
    for x, inverse in operand_orders(node):
        total = sum_with_scalar(editor, inverse_root(editor, node, x, inverse))
        mean = None if total is None else made_by(total.value, "ReduceMean")
        if total is None or mean is None or square(editor, mean.require(0)) is not x:
            continue
        axis = trailing_axis(reduction_axes(editor, mean), len(x.shape))
        if axis is None or node.output.shape != x.shape or editor.sole_user(mean.output) is None:
            continue
        scaled = editor.sole_user(node.output)
        scale = constant_operand(editor, scaled, "Mul", node.output, x.shape[axis:])
        last = node if scaled is None or scale is None else scaled
        return _RmsNorm(x, axis, total.constant, scale, last)
    return None


def _build(editor: Editor, node: Node, found: _RmsNorm) -> str:
    shape = found.x.shape[found.axis :]
    scale = found.scale or editor.constant(np.ones(shape), found.x.dtype, f"{node.name}_ones")
    attributes = {"axis": found.axis - len(found.x.shape), "epsilon": found.epsilon}
    editor.become(found.last, "RMSNormalization", [found.x, scale], attributes, since=23)
    return f"recognised as RMSNormalization with epsilon {found.epsilon:g}"


class RecogniseRmsNorm(RulePass):
    """`x / sqrt(mean(x^2) + epsilon) [* scale]` over the last axes becomes one RMSNormalization."""

    name = "recognise-rms-norm"
    rules = (Rule(("Div", "Mul"), _match, _build),)
