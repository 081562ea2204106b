"""Mish, as exporters spell it out."""

from __future__ import annotations

from tilewright.ir.graph import Node, Value
from tilewright.passes.edit import Editor
from tilewright.passes.patterns import made_by, operand_orders
from tilewright.passes.rules import Rule, RulePass


def _match(editor: Editor, node: Node) -> Value | None:
    for x, gate in operand_orders(node):
        tanh = made_by(gate, "Tanh")
        softplus = None if tanh is None else made_by(tanh.require(0), "Softplus")
        if softplus is not None and softplus.require(0) is x and editor.sole_user(gate) is not None:
            return x
    return None


def _build(editor: Editor, node: Node, x: Value) -> str:
    editor.become(node, "Mish", [x], since=18)
    return "recognised as Mish"


class RecogniseMish(RulePass):
    """`x * tanh(softplus(x))` becomes one Mish."""

    name = "recognise-mish"
    rules = (Rule(("Mul",), _match, _build),)
