"""Mish, as exporters spell it out."""

from __future__ import annotations

from typing import ClassVar

from tilewright.ir.graph import Graph, Node, Value
from tilewright.passes.base import PassResult
from tilewright.passes.edit import Editor
from tilewright.passes.patterns import made_by, operand_orders
from tilewright.passes.rules import Rule, apply_rules
from tilewright.records import dataclass


@dataclass(frozen=True, slots=True)
class RecogniseMish:
    """`x * tanh(softplus(x))` becomes one Mish."""

    name: ClassVar[str] = "recognise-mish"

    def run(self, graph: Graph) -> PassResult:
        """Edit the graph in place."""
        return apply_rules(graph, [Rule(("Mul",), _match, _build)])


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
