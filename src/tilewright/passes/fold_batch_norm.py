"""Batch normalisation with constant statistics is one factor and one shift per channel."""

from __future__ import annotations

import numpy as np

from tilewright.arrays import Array
from tilewright.ir.graph import Node
from tilewright.passes.edit import Editor
from tilewright.passes.rules import Kept, Rule, RulePass
from tilewright.passes.weights import WeightedLayer, layer_before, scale_layer
from tilewright.records import dataclass


@dataclass(frozen=True, slots=True)
class _Affine:
    """`x * factor + shift` per channel, in float64; `layer` is where they can go."""

    factor: Array
    shift: Array
    layer: WeightedLayer | None = None


def _affine(editor: Editor, node: Node) -> _Affine | Kept | None:
    if node.int_attr("training_mode", 0) or len(list(node.results())) != 1:
        return Kept("it computes statistics")
    found = [editor.data(node.input(i)) for i in range(1, 5)]
    if any(a is None for a in found):
        return Kept("its statistics are not constant")
    scale, bias, mean, variance = (np.asarray(a, np.float64) for a in found)
    factor = scale / np.sqrt(variance + node.float_attr("epsilon", 1e-5))
    shift = bias - mean * factor
    if not (np.all(np.isfinite(factor)) and np.all(np.isfinite(shift))):
        return Kept("its statistics give no finite factor")
    return _Affine(factor, shift)


def _match_layer(editor: Editor, node: Node) -> _Affine | Kept | None:
    affine = _affine(editor, node)
    if not isinstance(affine, _Affine):
        return affine
    layer = layer_before(editor, node.require(0), channel_axis=1)
    if isinstance(layer, WeightedLayer) and layer.node.op_type == "MatMul" and np.any(affine.shift != 0):
        return Kept(f"{layer.node.name} is a MatMul, which has no bias for the shift")
    return layer if isinstance(layer, Kept) else _Affine(affine.factor, affine.shift, layer)


def _build_layer(editor: Editor, node: Node, found: _Affine) -> str | None:
    if found.layer is None:
        return None
    scale_layer(editor, found.layer, node, found.factor, found.shift)
    return f"folded into {found.layer.node.op_type}"


def _match_alone(editor: Editor, node: Node) -> _Affine | Kept | None:
    return _affine(editor, node)


def _build_alone(editor: Editor, node: Node, found: _Affine) -> str | None:
    x = node.require(0)
    shape = (-1, *(1,) * (len(x.shape) - 2))
    factor = editor.constant(found.factor.reshape(shape), x.dtype, f"{node.name}_factor")
    shift = editor.constant(found.shift.reshape(shape), x.dtype, f"{node.name}_shift")
    scaled = editor.insert(
        node, "Mul", [x, factor], (f"{node.output.name}_scaled", x.dtype, x.shape), since=14
    )
    editor.become(node, "Add", [scaled, shift], since=14)
    return "became one product and one sum"


class FoldBatchNorm(RulePass):
    """Into the weights and bias of the layer before it, else into a Mul and an Add.

    The factor `scale / sqrt(var + epsilon)` and the shift `bias - mean * factor` are computed in float64, as
    are their products with weights and bias; each result is rounded once. `x * factor + shift` loses digits
    that `(x - mean) * factor` keeps where a mean is many deviations away from zero: as many as its ratio has.
    """

    name = "fold-batch-norm"
    rules = (
        Rule(("BatchNormalization",), _match_layer, _build_layer),
        Rule(("BatchNormalization",), _match_alone, _build_alone),
    )
