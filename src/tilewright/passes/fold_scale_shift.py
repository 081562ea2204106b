"""Products with constants per output channel go into the weights of the layer before them."""

from __future__ import annotations

import numpy as np

from tilewright.arrays import Array
from tilewright.ir.graph import Node
from tilewright.passes.edit import Editor
from tilewright.passes.patterns import made_by, operand_orders
from tilewright.passes.rules import Kept, Rule, RulePass
from tilewright.passes.weights import WeightedLayer, layer_before, per_channel, scale_layer
from tilewright.records import dataclass


@dataclass(frozen=True, slots=True)
class _Scaling:
    layer: WeightedLayer
    factor: Array
    shift: Array


def _match_factor(editor: Editor, node: Node) -> _Scaling | Kept | None:
    for x, c in operand_orders(node):
        if editor.data(c) is None or (node.op_type == "Div" and c is not node.inputs[1]):
            continue
        layer = layer_before(editor, x)
        if not isinstance(layer, WeightedLayer):
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


@dataclass(frozen=True, slots=True)
class _ScaledSum:
    """`(product + bias) * factor`, where the product is a MatMul, which has no bias of its own."""

    layer: WeightedLayer
    bias: Array
    factor: Array


def _match_behind_sum(editor: Editor, node: Node) -> _ScaledSum | None:
    for total, c in operand_orders(node):
        add = made_by(total, "Add")
        if add is None or editor.data(c) is None or (node.op_type == "Div" and c is not node.inputs[1]):
            continue
        for product, addend in operand_orders(add):
            if made_by(product, "MatMul") is None or editor.sole_user(total) is None:
                continue
            layer = layer_before(editor, product)
            if not isinstance(layer, WeightedLayer):
                continue
            bias = per_channel(editor, addend, layer, total)
            factor = per_channel(editor, c, layer, node.output)
            if bias is None or factor is None:
                continue
            with np.errstate(all="ignore"):
                factor = 1 / factor if node.op_type == "Div" else factor
            return _ScaledSum(layer, bias, factor) if np.all(np.isfinite(factor)) else None
    return None


def _build_behind_sum(editor: Editor, node: Node, found: _ScaledSum) -> str:
    product = found.layer.node
    # Only the sum reads the product, and only this node the sum: the product may change its meaning.
    scale_layer(editor, found.layer, product, found.factor, np.zeros(1))
    bias = editor.constant(found.bias * found.factor, node.output.dtype, f"{node.name}_bias")
    editor.become(node, "Add", [product.output, bias], since=14)
    return "folded into the weights of MatMul and into what is added to it"


def _match_negation(editor: Editor, node: Node) -> _Scaling | Kept | None:
    c = node.require(0)
    if editor.data(c) is None:
        return None
    layer = layer_before(editor, node.require(1))
    if not isinstance(layer, WeightedLayer):
        return layer
    shift = per_channel(editor, c, layer, node.output)
    if shift is None or layer.node.op_type == "MatMul":
        return None
    return _Scaling(layer, -np.ones(1), shift)


def _build(editor: Editor, node: Node, found: _Scaling) -> str:
    scale_layer(editor, found.layer, node, found.factor, found.shift)
    return f"folded into the weights of {found.layer.node.op_type}"


class FoldScaleShift(RulePass):
    """Mul and Div after Conv, ConvTranspose, Gemm, MatMul, or MatMul and Add, scale weights and bias; a
    constant minus a layer's result negates them. Products are computed in float64 and rounded once.
    """

    name = "fold-scale-shift"
    rules = (
        Rule(("Mul", "Div"), _match_factor, _build),
        Rule(("Mul", "Div"), _match_behind_sum, _build_behind_sum),
        Rule(("Sub",), _match_negation, _build),
    )
