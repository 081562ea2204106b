"""Layers between DequantizeLinear and QuantizeLinear, as integer operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.arrays import Array
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, Value
from tilewright.ir.ops.registry import MICROSOFT_DOMAIN
from tilewright.passes.edit import Editor
from tilewright.passes.patterns import clip_bounds, made_by
from tilewright.passes.rules import Kept, Rule, RulePass
from tilewright.records import dataclass

_BYTES = (DType.UINT8, DType.INT8)
# How far, relative, a bias may have been quantised from input scale times weight scale: rounding only.
_SCALE_TOLERANCE = 1e-6
# Rows, columns and sums of two activations below which packing the second takes longer than it saves: 16 rows
# by 64 sums by 16 columns take 0.84 of the time of float32.
_MIN_ACTIVATION_EXTENT = 8
# What lies between scores and their softmax.
_BEFORE_SOFTMAX = ("Mul", "Div", "Add", "Where", "Cast", "Reshape")


@dataclass(frozen=True, slots=True)
class Quantized:
    """A tensor of bytes, and the constants that say what it stands for."""

    value: Value
    scale: Array  # one element, or one per channel
    zero: Array  # of the bytes' type, one element or one per channel
    turned: Node | None = None  # the Transpose behind the DequantizeLinear, which the bytes can go through


@dataclass(frozen=True, slots=True)
class _Target:
    """Where a layer's result is quantised: the node, its parameters, and bounds left for the bytes."""

    node: Node
    scale: Array
    zero: Array
    low: int | None
    high: int | None


@dataclass(frozen=True, slots=True)
class _Layer:
    x: Quantized
    weight: Quantized
    integer_bias: Array | None
    float_bias: Array | None
    target: _Target | None


def dequantized(editor: Editor, value: Value | None) -> Quantized | None:
    """What a value was dequantised from, if its scale and zero point are constants."""
    node = made_by(value, "DequantizeLinear")
    if node is None or value is None or value.dtype is not DType.FLOAT32 or node.int_attr("block_size", 0):
        return None
    scale, zero = editor.data(node.input(1)), editor.data(node.input(2))
    source = node.require(0)
    if scale is None or scale.dtype != np.float32 or (node.input(2) is not None and zero is None):
        return None
    if zero is None:
        zero = np.zeros((), source.dtype.numpy)
    return Quantized(source, scale, zero)


def _activation(editor: Editor, value: Value | None) -> Quantized | None:
    """The same, also of a value that was transposed afterwards."""
    turn = made_by(value, "Transpose")
    if turn is None:
        return dequantized(editor, value)
    found = dequantized(editor, turn.require(0))
    return None if found is None or found.scale.size != 1 else replace(found, turned=turn)


def _bytes(editor: Editor, anchor: Node, which: Quantized) -> Value:
    """The bytes of a tensor, as the layer reads them."""
    turn, value = which.turned, which.value
    if turn is None:
        return value
    facts = (f"{turn.name}_bytes", value.dtype, turn.output.shape)
    return editor.insert(anchor, "Transpose", [value], facts, dict(turn.attributes), since=13)


def _match(editor: Editor, node: Node) -> _Layer | Kept | None:
    is_product = node.op_type == "MatMul"
    x, weight = (
        (_activation if is_product else dequantized)(editor, node.input(number)) for number in (0, 1)
    )
    if x is None or weight is None:
        return None
    is_constant = editor.data(weight.value) is not None
    if is_constant and (weight.turned is not None or x.turned is not None):
        return None
    if not is_constant and (
        editor.data(x.value) is not None or not _are_matrices(node, weight) or _are_scores(editor, node)
    ):
        return None
    if x.value.dtype not in _BYTES or weight.value.dtype not in _BYTES:
        return Kept(f"products of {x.value.dtype} and {weight.value.dtype} are not for bytes")
    if x.scale.size != 1 or x.zero.size != 1:
        return Kept("its input has a scale per channel")
    if not np.all(weight.zero == weight.zero.flat[0]):
        return Kept("its weights have a zero point per channel")
    channel_axis = _channel_axis(node, weight)
    if isinstance(channel_axis, Kept):
        return channel_axis
    if weight.scale.size != 1 and _scale_axis(node, weight) != channel_axis:
        return Kept("its weights have scales along an axis that is summed")
    integer_bias, float_bias = _bias(editor, node, x, weight)
    if node.input(2) is not None and integer_bias is None and float_bias is None:
        return Kept("its bias is not constant")
    return _Layer(x, weight, integer_bias, float_bias, _target(editor, node))


def _are_matrices(node: Node, second: Quantized) -> bool:
    """Whether two activations are stacks of matrices, whose products are worth packing the second for."""
    shapes = node.require(0).shape, node.require(1).shape
    is_large = all(len(shape) >= 2 and min(shape[-2:]) >= _MIN_ACTIVATION_EXTENT for shape in shapes)
    return node.op_type == "MatMul" and is_large and second.scale.size == 1 and second.zero.size == 1


def _are_scores(editor: Editor, node: Node) -> bool:
    """Whether a softmax of the result is multiplied in float: attention, which is one kernel then."""
    user = editor.sole_user(node.output)
    while user is not None and user.op_type in _BEFORE_SOFTMAX and not user.domain:
        user = editor.sole_user(user.output)
    if user is None or user.op_type != "Softmax":
        return False
    user = editor.sole_user(user.output)
    return user is not None and user.op_type == "MatMul"


@dataclass(frozen=True, slots=True)
class _Sum:
    a: Quantized
    b: Quantized
    target: _Target


def _match_sum(editor: Editor, node: Node) -> _Sum | None:
    a, b = dequantized(editor, node.input(0)), dequantized(editor, node.input(1))
    if a is None or b is None or editor.data(a.value) is not None or editor.data(b.value) is not None:
        return None
    for side in (a, b):
        if side.value.dtype not in _BYTES or side.scale.size != 1 or side.zero.size != 1:
            return None
    target = _target(editor, node)
    return None if target is None else _Sum(a, b, target)


def _build_sum_of_bytes(editor: Editor, node: Node, found: _Sum) -> str:
    inputs: list[Value | None] = []
    for side in (found.a, found.b):
        inputs += [side.value, *_constants(editor, node, side)]
    inputs += _target_constants(editor, node, found.target)
    return _quantised_as(editor, node, found.target, "QLinearAdd", inputs, {}, MICROSOFT_DOMAIN)


def weight_node(node: Node) -> Node:
    """The DequantizeLinear that makes a layer's weights."""
    producer = node.require(1).producer
    assert producer is not None
    return producer


def _scale_axis(node: Node, weight: Quantized) -> int:
    return weight_node(node).int_attr("axis", 1) % max(1, len(weight.value.shape))


def _channel_axis(node: Node, weight: Quantized) -> int | Kept:
    """The axis of the weights that counts output channels."""
    rank = len(weight.value.shape)
    if node.op_type == "Conv":
        return 0
    if node.op_type == "MatMul":
        if rank >= 2 and weight.scale.size == 1 and weight.zero.size == 1:
            return rank - 1
        return 1 if rank == 2 and len(node.require(0).shape) >= 2 else Kept("its weights are no matrix")
    if (
        node.int_attr("transA", 0)
        or node.float_attr("alpha", 1.0) != 1.0
        or (node.input(2) is not None and node.float_attr("beta", 1.0) != 1.0)
    ):
        return Kept("a Gemm with factors or a transposed input")
    return 0 if node.int_attr("transB", 0) else 1


def _bias(editor: Editor, node: Node, x: Quantized, weight: Quantized) -> tuple[Array | None, Array | None]:
    """The bias of each channel: int32 steps where it was quantised with the sums' scale, else float32."""
    if node.op_type == "MatMul" or node.input(2) is None:
        return None, None
    channels = node.output.shape[1]
    given = dequantized(editor, node.input(2))
    data = None if given is None else editor.data(given.value)
    if given is not None and data is not None:
        wanted = x.scale.reshape(-1) * weight.scale.reshape(-1)
        same = given.scale.size in (1, wanted.size) and np.allclose(
            given.scale.reshape(-1), wanted, rtol=_SCALE_TOLERANCE, atol=0.0
        )
        if same and given.value.dtype is DType.INT32 and not np.any(given.zero):
            return np.broadcast_to(data.reshape(-1), (channels,)), None
        steps = data.astype(np.int64) - given.zero.astype(np.int64)
        real = steps.astype(np.float32) * given.scale
        return (None, np.broadcast_to(real.reshape(-1), (channels,))) if data.ndim == 1 else (None, None)
    plain = editor.data(node.input(2))
    if plain is None or plain.size not in (1, channels) or plain.shape[-1:] not in ((), (plain.size,)):
        return None, None
    return None, np.broadcast_to(plain.reshape(-1), (channels,))


def _target(editor: Editor, node: Node) -> _Target | None:
    """The QuantizeLinear that alone reads the result, behind Relu or Clip at most."""
    low: float | None = None
    high: float | None = None
    user = editor.sole_user(node.output)
    if user is not None and not user.domain and user.op_type in ("Relu", "Clip"):
        bounds = (0.0, None) if user.op_type == "Relu" else clip_bounds(editor, user)
        if bounds is None:
            return None
        (low, high), user = bounds, editor.sole_user(user.output)
    if user is None or user.domain or user.op_type != "QuantizeLinear":
        return None
    scale, zero = editor.data(user.input(1)), editor.data(user.input(2))
    if scale is None or scale.size != 1 or scale.dtype != np.float32 or user.output.dtype not in _BYTES:
        return None
    if user.input(2) is not None and zero is None:
        return None
    if zero is None:
        zero = np.zeros((), user.output.dtype.numpy)
    scale, zero = scale.reshape(()), zero.reshape(())
    info = np.iinfo(zero.dtype)

    def quantized(bound: float) -> int:
        with np.errstate(all="ignore"):
            steps = np.rint(np.float32(bound) / scale) + zero.astype(np.float32)
        return int(np.clip(steps, info.min, info.max))

    if scale <= 0 or (low is not None and high is not None and low > high):
        return None
    lowest = None if low is None or np.isnan(low) else quantized(low)
    highest = None if high is None or np.isnan(high) else quantized(high)
    return _Target(
        user, scale, zero, None if lowest == info.min else lowest, None if highest == info.max else highest
    )


def _build(editor: Editor, node: Node, found: _Layer) -> str:
    target = found.target
    if target is None:
        _build_sum(editor, node, found)
        return "recognised as a sum of integer products"
    if found.float_bias is not None:
        # Not one of the integer operators: its bias lies between their steps.
        _build_sum(editor, node, found)
        return "recognised as a sum of integer products with a bias in float"
    anchor = target.node
    if node.op_type == "Gemm":
        op_type, inputs, attributes = _gemm(editor, anchor, node, found, target)
        what = "recognised as a sum of integer products, quantised"
    else:
        op_type, inputs, attributes = _linear(editor, node, found, target)
        what = f"recognised as {op_type}"
    return _quantised_as(editor, node, target, op_type, inputs, attributes, what=what)


def _quantised_as(
    editor: Editor,
    node: Node,
    target: _Target,
    op_type: str,
    inputs: Sequence[Value | None],
    attributes: dict[str, Any],
    domain: str = "",
    what: str = "",
) -> str:
    """Make the target's QuantizeLinear the operator, with a Clip behind it where bounds are left."""
    anchor = target.node
    what = what or f"recognised as {op_type}"
    if target.low is None and target.high is None:
        editor.become(anchor, op_type, inputs, attributes, since=10, name=node.name, domain=domain)
        return what
    output = anchor.output
    whole = editor.insert(
        anchor, op_type, inputs, (f"{node.name}_bytes", output.dtype, output.shape), attributes, since=10
    )
    assert whole.producer is not None
    whole.producer.domain = domain
    info = np.iinfo(target.zero.dtype)
    low = info.min if target.low is None else target.low
    high = info.max if target.high is None else target.high
    limits = [editor.constant(np.asarray(v), output.dtype, f"{node.name}_limit") for v in (low, high)]
    editor.become(anchor, "Clip", [whole, *limits], since=13)
    return f"{what}, with bounds"


def _constants(editor: Editor, node: Node, which: Quantized) -> list[Value]:
    """Scale and zero point of a tensor as operands."""
    return [
        editor.constant(_flat(which.scale), DType.FLOAT32, f"{node.name}_scale"),
        editor.constant(which.zero.reshape(-1)[:1].reshape(()), which.value.dtype, f"{node.name}_zero"),
    ]


def _target_constants(editor: Editor, node: Node, target: _Target) -> list[Value]:
    return [
        editor.constant(target.scale, DType.FLOAT32, f"{node.name}_scale"),
        editor.constant(target.zero, target.node.output.dtype, f"{node.name}_zero"),
    ]


_Operator = tuple[str, Sequence[Value | None], dict[str, Any]]


def _linear(editor: Editor, node: Node, found: _Layer, target: _Target) -> _Operator:
    """QLinearConv or QLinearMatMul with the layer's attributes."""
    inputs: list[Value | None] = []
    for which in (found.x, found.weight):
        inputs += [_bytes(editor, target.node, which), *_constants(editor, node, which)]
    inputs += _target_constants(editor, node, target)
    if found.integer_bias is not None:
        inputs.append(editor.constant(found.integer_bias, DType.INT32, f"{node.name}_bias"))
    op_type = "QLinearConv" if node.op_type == "Conv" else "QLinearMatMul"
    return op_type, inputs, dict(node.attributes)


def _gemm(editor: Editor, anchor: Node, node: Node, found: _Layer, target: _Target) -> _Operator:
    """The sum times one factor, quantised with a scale of one: what QLinearMatMul does, with a bias."""
    factor = _flat(found.x.scale * found.weight.scale / target.scale)
    total = _integer_sum(editor, anchor, node, found)
    steps = _scaled(editor, anchor, node, total, factor)
    one = editor.constant(np.ones(()), DType.FLOAT32, f"{node.name}_one")
    zero = editor.constant(target.zero, target.node.output.dtype, f"{node.name}_zero")
    return "QuantizeLinear", [steps, one, zero], {}


def _build_sum(editor: Editor, node: Node, found: _Layer) -> None:
    """The layer's own result: the int32 sum times its scale, and a bias that is no whole number of steps."""
    factor = _flat(found.x.scale * found.weight.scale)
    total = _integer_sum(editor, node, node, found)
    real = _as_float(editor, node, node, total)
    factors = editor.constant(_per_channel(node, factor), DType.FLOAT32, f"{node.name}_scale")
    if found.float_bias is None:
        editor.become(node, "Mul", [real, factors], since=14)
        return
    scaled = editor.insert(
        node, "Mul", [real, factors], (f"{node.name}_scaled", DType.FLOAT32, node.output.shape), since=14
    )
    bias = editor.constant(_per_channel(node, found.float_bias), DType.FLOAT32, f"{node.name}_bias")
    editor.become(node, "Add", [scaled, bias], since=14)


def _integer_sum(editor: Editor, anchor: Node, node: Node, found: _Layer) -> Value:
    """ConvInteger or MatMulInteger, plus the bias that is a whole number of its steps."""
    x, weight = found.x, found.weight
    data = _bytes(editor, anchor, weight)
    if node.op_type == "Gemm" and node.int_attr("transB", 0):
        given = editor.data(weight.value)
        assert given is not None
        data = editor.constant(np.ascontiguousarray(given.T), weight.value.dtype, f"{weight.value.name}_t")
    inputs: list[Value | None] = [_bytes(editor, anchor, x), data]
    for which in (x, weight):
        zero = which.zero.reshape(-1)[:1].reshape(())
        inputs.append(editor.constant(zero, which.value.dtype, f"{node.name}_zero"))
    shape = node.output.shape
    is_conv = node.op_type == "Conv"
    total = editor.insert(
        anchor,
        "ConvInteger" if is_conv else "MatMulInteger",
        inputs,
        (f"{node.name}_sum", DType.INT32, shape),
        dict(node.attributes) if is_conv else {},
        since=10,
    )
    if found.integer_bias is None:
        return total
    bias = editor.constant(_per_channel(node, found.integer_bias), DType.INT32, f"{node.name}_bias")
    return editor.insert(anchor, "Add", [total, bias], (f"{node.name}_total", DType.INT32, shape), since=14)


def _as_float(editor: Editor, anchor: Node, node: Node, total: Value) -> Value:
    result = (f"{node.name}_real", DType.FLOAT32, total.shape)
    return editor.insert(anchor, "Cast", [total], result, {"to": DType.FLOAT32.value}, since=13)


def _scaled(editor: Editor, anchor: Node, node: Node, total: Value, factor: Array) -> Value:
    factors = editor.constant(_per_channel(node, factor), DType.FLOAT32, f"{node.name}_scale")
    result = (f"{node.name}_steps", DType.FLOAT32, total.shape)
    return editor.insert(anchor, "Mul", [_as_float(editor, anchor, node, total), factors], result, since=14)


def _per_channel(node: Node, values: Array) -> Array:
    """Values per output channel in the shape that broadcasts against the layer's result."""
    if values.size == 1:
        return values.reshape(())
    return values.reshape(-1, *(1,) * (len(node.output.shape) - 2)) if node.op_type == "Conv" else values


def _flat(values: Array) -> Array:
    """One number as a scalar, several as a vector."""
    return values.reshape(()) if values.size == 1 else values.reshape(-1)


class RecogniseQuantized(RulePass):
    """Conv, MatMul and Gemm of dequantised bytes and weights, and MatMul of two activations, become sums of
    integer products.

    Where their result is quantised again (perhaps behind Relu or Clip) it is `QLinearConv`, `QLinearMatMul`
    or, with a bias of its own, `MatMulInteger` and one product per element: the int32 sum times
    `x_scale * w_scale / y_scale` in float32, rounded with halves to even, plus the zero point, saturated.
    Elsewhere it is the int32 sum times `x_scale * w_scale`. Relu and Clip become bounds on the bytes, which
    is the same because rounding keeps order. A sum of two dequantised tensors that is quantised again becomes
    `QLinearAdd`, the same float operations without float tensors in memory.
    """

    name = "recognise-quantized"
    rules = (
        Rule(("Conv", "MatMul", "Gemm"), _match, _build),
        Rule(("Add",), _match_sum, _build_sum_of_bytes),
    )
