"""Hard sigmoid and hard swish, as exporters spell them out."""

from __future__ import annotations

from tilewright.ir.graph import Node, Value
from tilewright.passes.edit import Editor
from tilewright.passes.patterns import (
    clip_bounds,
    is_about,
    made_by,
    operand_orders,
    product_with_scalar,
    sum_with_scalar,
)
from tilewright.passes.rules import Rule, RulePass


def _match_sigmoid(editor: Editor, node: Node) -> Value | None:
    sixth = product_with_scalar(editor, node.output)
    if sixth is None or not is_about(sixth.constant, 1 / 6, node.output.dtype):
        return None
    return _shifted_clip(editor, sixth.value) if editor.sole_user(sixth.value) is not None else None


def _build_sigmoid(editor: Editor, node: Node, x: Value) -> str:
    editor.become(node, "HardSigmoid", [x], {"alpha": 1 / 6, "beta": 0.5})
    return "recognised as HardSigmoid"


def _match_gated(editor: Editor, node: Node) -> Value | None:
    """The x of `x * HardSigmoid(x)` with hard swish's slope and offset."""
    for x, gate in operand_orders(node):
        sigmoid = made_by(gate, "HardSigmoid")
        if sigmoid is None or sigmoid.require(0) is not x or editor.sole_user(gate) is None:
            continue
        alpha, beta = sigmoid.float_attr("alpha", 0.2), sigmoid.float_attr("beta", 0.5)
        if is_about(alpha, 1 / 6, gate.dtype) and beta == 0.5:
            return x
    return None


def _match_product(editor: Editor, node: Node) -> Value | None:
    """The x of `(x * clip(x + 3, 0, 6)) / 6`."""
    sixth = product_with_scalar(editor, node.output)
    if sixth is None or not is_about(sixth.constant, 1 / 6, node.output.dtype):
        return None
    product = made_by(sixth.value, "Mul")
    if product is None or editor.sole_user(sixth.value) is None:
        return None
    for x, gate in operand_orders(product):
        if _shifted_clip(editor, gate) is x and editor.sole_user(gate) is not None:
            return x
    return None


def _build_swish(editor: Editor, node: Node, x: Value) -> str:
    editor.become(node, "HardSwish", [x], since=14)
    return "recognised as HardSwish"


def _shifted_clip(editor: Editor, value: Value) -> Value | None:
    """The x of `clip(x + 3, 0, 6)`."""
    clip = made_by(value, "Clip")
    if clip is None or clip_bounds(editor, clip) != (0.0, 6.0):
        return None
    total = sum_with_scalar(editor, clip.require(0))
    return total.value if total is not None and total.constant == 3.0 else None


class RecogniseHardSwish(RulePass):
    """`clip(x + 3, 0, 6) / 6` becomes HardSigmoid, and x times that, however the sixth goes in, HardSwish."""

    name = "recognise-hard-swish"
    rules = (
        Rule(("Mul", "Div"), _match_sigmoid, _build_sigmoid),
        Rule(("Mul",), _match_gated, _build_swish),
        Rule(("Mul", "Div"), _match_product, _build_swish),
    )
