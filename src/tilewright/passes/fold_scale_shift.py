"""Products with constants per output channel go into the weights of the layer before them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tilewright.ir.graph import Graph, Node
from tilewright.passes.base import PassResult
from tilewright.passes.edit import Editor
from tilewright.passes.patterns import operand_orders
from tilewright.passes.rules import Kept, Rule, apply_rules
from tilewright.passes.weights import Layer, layer_before, per_channel, scale_layer

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class FoldScaleShift:
    """Mul and Div after Conv, ConvTranspose, Gemm or MatMul scale its weights and bias; a constant minus its
    result negates them. Products are computed in float64 and rounded once.
    """

    name: ClassVar[str] = "fold-scale-shift"

    def run(self, graph: Graph) -> PassResult:
        """Edit the graph in place."""
        rules = [
            Rule(("Mul", "Div"), _match_factor, _build),
            Rule(("Sub",), _match_negation, _build),
        ]
        return apply_rules(graph, rules)


@dataclass(frozen=True, slots=True)
class _Scaling:
    layer: Layer
    factor: Array
    shift: Array


def _match_factor(editor: Editor, node: Node) -> _Scaling | Kept | None:
    for x, c in operand_orders(node):
        if editor.data(c) is None or (node.op_type == "Div" and c is not node.inputs[1]):
            continue
        layer = layer_before(editor, x)
        if not isinstance(layer, Layer):
            return layer
        factor = per_channel(editor, c, layer, node.output)
        if factor is None:
            return None
        with np.errstate(all="ignore"):
            factor = 1 / factor if node.op_type == "Div" else factor
        if not np.all(np.isfinite(factor)):
            return Kept("its constant gives no finite factor")
        return _Scaling(layer, factor, np.zeros(1))
    return None


def _match_negation(editor: Editor, node: Node) -> _Scaling | Kept | None:
    c = node.require(0)
    if editor.data(c) is None:
        return None
    layer = layer_before(editor, node.require(1))
    if not isinstance(layer, Layer):
        return layer
    shift = per_channel(editor, c, layer, node.output)
    if shift is None or layer.node.op_type == "MatMul":
        return None
    return _Scaling(layer, -np.ones(1), shift)


def _build(editor: Editor, node: Node, found: _Scaling) -> str:
    scale_layer(editor, found.layer, node, found.factor, found.shift)
    return f"folded into the weights of {found.layer.node.op_type}"
