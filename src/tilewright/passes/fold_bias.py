"""Constants per output channel that are added to a layer's result go into its bias."""

from __future__ import annotations

import numpy as np

from tilewright.arrays import Array
from tilewright.ir.graph import Node
from tilewright.passes.edit import Editor
from tilewright.passes.patterns import operand_orders
from tilewright.passes.rules import Kept, Rule, RulePass
from tilewright.passes.weights import WeightedLayer, layer_before, per_channel, scale_layer
from tilewright.records import dataclass


@dataclass(frozen=True, slots=True)
class _Shift:
    layer: WeightedLayer
    shift: Array


def _match(editor: Editor, node: Node) -> _Shift | Kept | None:
    for x, c in operand_orders(node):
        if editor.data(c) is None or (node.op_type == "Sub" and c is not node.inputs[1]):
            continue
        layer = layer_before(editor, x)
        if not isinstance(layer, WeightedLayer):
            return layer
        shift = per_channel(editor, c, layer, node.output)
        if shift is None or layer.node.op_type == "MatMul":
            return None
        return _Shift(layer, -shift if node.op_type == "Sub" else shift)
    return None


def _build(editor: Editor, node: Node, found: _Shift) -> str:
    scale_layer(editor, found.layer, node, np.ones(1), found.shift)
    return f"folded into the bias of {found.layer.node.op_type}"


class FoldBias(RulePass):
    """Add and Sub after Conv, ConvTranspose or Gemm. A MatMul has no bias: there the Add stays behind it."""

    name = "fold-bias"
    rules = (Rule(("Add", "Sub"), _match, _build),)
