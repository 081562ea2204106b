"""Softmax, as exporters spell it out."""

from __future__ import annotations

from tilewright.ir.graph import Node, Value
from tilewright.passes.edit import Editor
from tilewright.passes.patterns import made_by, reduction_axes
from tilewright.passes.rules import Rule, RulePass
from tilewright.records import dataclass


@dataclass(frozen=True, slots=True)
class _Softmax:
    x: Value
    axis: int


def _match(editor: Editor, node: Node) -> _Softmax | None:
    powers, total = made_by(node.require(0), "Exp"), made_by(node.require(1), "ReduceSum")
    if powers is None or total is None or total.require(0) is not powers.output:
        return None
    shifted = made_by(powers.require(0), "Sub")
    top = None if shifted is None else made_by(shifted.require(1), "ReduceMax")
    if shifted is None or top is None or top.require(0) is not shifted.require(0):
        return None
    x = top.require(0)
    axes = reduction_axes(editor, total)
    if axes is None or len(axes) != 1 or axes != reduction_axes(editor, top):
        return None
    outside = [user for user in powers.output.users if user is not node and user is not total]
    if outside or editor.is_output(powers.output) or x.shape != node.output.shape:
        return None
    return _Softmax(x, axes[0])


def _build(editor: Editor, node: Node, found: _Softmax) -> str:
    editor.become(node, "Softmax", [found.x], {"axis": found.axis - len(found.x.shape)}, since=13)
    return "recognised as Softmax"


class RecogniseSoftmax(RulePass):
    """`exp(x - max) / sum(exp(x - max))` along one axis becomes one Softmax."""

    name = "recognise-softmax"
    rules = (Rule(("Div",), _match, _build),)
