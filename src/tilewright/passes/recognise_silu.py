"""The sigmoid linear unit (Swish), as exporters spell it out."""

from __future__ import annotations

from tilewright.ir.graph import Node, Value
from tilewright.passes.edit import Editor
from tilewright.passes.patterns import made_by, operand_orders, product_with_scalar
from tilewright.passes.rules import Kept, Rule, RulePass
from tilewright.records import dataclass


@dataclass(frozen=True, slots=True)
class _Swish:
    x: Value
    alpha: float


def _match(editor: Editor, node: Node) -> _Swish | Kept | None:
    for x, gate in operand_orders(node):
        sigmoid = made_by(gate, "Sigmoid")
        if sigmoid is None:
            continue
        scaled = product_with_scalar(editor, sigmoid.require(0))
        if sigmoid.require(0) is x:
            found = _Swish(x, 1.0)
        elif scaled is not None and scaled.value is x:
            found = _Swish(x, scaled.constant)
        else:
            continue
        return Kept("its sigmoid is read elsewhere too") if editor.sole_user(gate) is None else found
    return None


def _build(editor: Editor, node: Node, found: _Swish) -> str:
    attributes = {} if found.alpha == 1.0 else {"alpha": found.alpha}
    editor.become(node, "Swish", [found.x], attributes, since=24)
    return f"recognised as Swish with alpha {found.alpha:g}"


class RecogniseSilu(RulePass):
    """`x * sigmoid(alpha * x)` becomes one Swish."""

    name = "recognise-silu"
    rules = (Rule(("Mul",), _match, _build),)
