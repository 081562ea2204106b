"""Layers with constant weights, and how factors and shifts of their output channels go into them."""

from __future__ import annotations

import numpy as np

from tilewright.arrays import Array
from tilewright.errors import InternalError
from tilewright.ir.graph import Node, Value
from tilewright.passes.edit import Editor
from tilewright.passes.patterns import made_by
from tilewright.passes.rules import Kept
from tilewright.records import dataclass

_FOLDED = "_folded"
# Weights that other nodes read too are copied when one of the readers changes them, up to this size.
_MAX_COPIED_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class WeightedLayer:
    """A Conv, ConvTranspose, Gemm or MatMul whose result one node reads."""

    node: Node
    weight: Array
    weight_axes: tuple[int, ...]  # the axes of the weight that, flattened, count output channels
    num_channels: int
    channel_axis: int  # of the result

    @property
    def bias(self) -> Value | None:
        """The bias input, if there is one."""
        return None if self.node.op_type == "MatMul" else self.node.input(2)


def layer_before(
    editor: Editor, value: Value, *, channel_axis: int | None = None
) -> WeightedLayer | Kept | None:
    """The layer that computes `value`, if its weights may change; `channel_axis` is the one it must have."""
    node = made_by(value, "Conv", "ConvTranspose", "Gemm", "MatMul")
    if node is None:
        return None
    if editor.sole_user(value) is None:
        return Kept(f"the result of {node.name} is read elsewhere too")
    weight = node.input(1)
    data = editor.data(weight)
    if data is None or weight is None or not value.dtype.is_float:
        return Kept(f"the weights of {node.name} are not constant")
    if len(weight.users) > 1 and weight.size_bytes > _MAX_COPIED_BYTES:
        return Kept(f"the weights of {node.name} are shared and large")
    axes = _channel_axes(node, data)
    own_axis = 1 if node.op_type in ("Conv", "ConvTranspose") else len(value.shape) - 1
    if axes is None or (channel_axis is not None and own_axis != channel_axis % max(len(value.shape), 1)):
        return None
    layer = WeightedLayer(node, data, axes, value.shape[own_axis], own_axis)
    bias = layer.bias
    if bias is not None and (editor.data(bias) is None or bias.num_elements not in (1, layer.num_channels)):
        return Kept(f"the bias of {node.name} is not one constant per channel")
    if bias is not None and bias.shape and bias.shape[-1] != bias.num_elements:
        return Kept(f"the bias of {node.name} is not one constant per channel")
    return layer


def _channel_axes(node: Node, weight: Array) -> tuple[int, ...] | None:
    match node.op_type:
        case "Conv":
            return (0,)
        case "ConvTranspose":
            # Group g maps its own input channels to its own output channels: [groups * c, m/groups, ...].
            return (1,) if node.int_attr("group", 1) == 1 else None
        case "Gemm":
            return (0,) if node.int_attr("transB", 0) else (1,)
        case _:
            return (1,) if weight.ndim == 2 and len(node.output.shape) >= 2 else None


def scale_layer(editor: Editor, layer: WeightedLayer, root: Node, factor: Array, shift: Array) -> None:
    """Make `root`, which computes `layer * factor + shift` per channel, the layer itself.

    Factor and shift are float64 of one element, or one per channel. Weights are multiplied in float64 and
    rounded once, piece by piece, so that no float64 copy of them exists. A MatMul has no bias: its shift
    must be zero.
    """
    node, dtype = layer.node, layer.node.output.dtype
    if node.op_type == "MatMul" and np.any(shift != 0):
        raise InternalError(f"MatMul {node.name!r} has no bias that could take a shift; please report this.")
    inputs: list[Value | None] = list(node.inputs)
    attributes = dict(node.attributes)
    if np.any(factor != 1):
        inputs[1] = editor.constant(_scaled(layer, factor), dtype, _folded(node.require(1)))
    bias = layer.bias
    if node.op_type != "MatMul" and (bias is not None or np.any(shift != 0)):
        beta = node.float_attr("beta", 1.0) if node.op_type == "Gemm" else 1.0
        is_read = bias is not None and beta != 0.0
        old = np.asarray(editor.data(bias), np.float64).reshape(-1) if is_read else np.zeros(1)
        total = np.broadcast_to(old * beta * factor.reshape(-1) + shift.reshape(-1), (layer.num_channels,))
        stem = f"{node.name}_bias" if bias is None else _folded(bias)
        inputs = [*inputs[:2], editor.constant(total, dtype, stem)]
        attributes.pop("beta", None)
    editor.become(root, node.op_type, inputs, attributes, since=node.opset, name=node.name)


def _scaled(layer: WeightedLayer, factor: Array) -> Array:
    weight = layer.weight
    (axis,) = layer.weight_axes
    shape = [1] * weight.ndim
    shape[axis] = -1
    aligned = factor.reshape(shape)
    if weight.dtype.kind != "f":
        wide: Array = weight.astype(np.float64) * aligned
        return wide.astype(weight.dtype)
    result = np.empty_like(weight)
    np.multiply(weight, aligned, out=result, dtype=np.float64, casting="same_kind")
    return result


def per_channel(editor: Editor, value: Value, layer: WeightedLayer, result: Value) -> Array | None:
    """A constant in float64, one element or one per channel of the layer, if that is how it broadcasts.

    `result` is what it is combined into, which must have the layer's shape.
    """
    data = editor.data(value)
    shape = layer.node.output.shape
    if data is None or result.shape != shape or result.dtype is not layer.node.output.dtype:
        return None
    if data.ndim > len(shape):
        return None
    aligned = (1,) * (len(shape) - data.ndim) + data.shape
    wanted = tuple(layer.num_channels if a == layer.channel_axis else 1 for a in range(len(shape)))
    if data.size != 1 and aligned != wanted:
        return None
    return data.astype(np.float64).reshape(-1)


def _folded(value: Value) -> str:
    """The name of what a constant becomes, however often it does."""
    return f"{value.name.removesuffix(_FOLDED)}{_FOLDED}"
