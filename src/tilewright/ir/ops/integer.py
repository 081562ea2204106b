"""Integer products: convolution and matrix product of quantised operands, with int32 sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.arrays import Array
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Acc, Const, Expr, Iter, call, cast, select
from tilewright.ir.graph import Node
from tilewright.ir.nest import Access, Affine, Description, Index, Nest, Operand, affine
from tilewright.ir.ops.build import input_operand, read, require_scalar, require_shape, table
from tilewright.ir.ops.convolution import ConvLoops, conv_shapes, convolve
from tilewright.ir.ops.matmul import MatMulLoops
from tilewright.ir.ops.registry import operator
from tilewright.ir.ops.window import window_of
from tilewright.records import dataclass


def limits(dtype: DType) -> tuple[int, int]:
    """Smallest and largest value of an integer type."""
    info: Any = np.iinfo(np.dtype(dtype.numpy).str)
    return int(info.min), int(info.max)


def known_number(node: Node, position: int) -> int | float | None:
    """The one number that a constant input holds in every element; None where it is data or several."""
    data = node.constant(position)
    if data is None or data.size == 0 or not np.all(data == data.flat[0]):
        return None
    number: int | float = data.flat[0].item()
    return number


def centred(value: Expr, zero_point: Expr | int | None) -> Expr:
    """`value - zero_point` as int32; without a zero point, or with 0, the value itself."""
    value = cast(value, DType.INT32)
    if isinstance(zero_point, Expr):
        return value - cast(zero_point, DType.INT32)
    return value - zero_point if zero_point else value


def _compute_type(data: Array) -> np.dtype[Any]:
    return DType.from_numpy(data.dtype).compute.numpy


@dataclass(slots=True)
class _Reads:
    """The accesses of a nest under construction; constants of one value become literals."""

    node: Node
    accesses: list[Access]

    def add(self, access: Access) -> Expr:
        """One more read."""
        self.accesses.append(access)
        return read(len(self.accesses) - 1, access)

    def zero_point(self, position: int, access: Callable[[Operand], Access]) -> Expr | int | None:
        """The zero point of an operand: a literal where it is known, else a read through `access`."""
        if self.node.input(position) is None:
            return None
        number = known_number(self.node, position)
        return int(number) if number is not None else self.add(access(input_operand(self.node, position)))

    def factor(self, scales: Sequence[tuple[int, Callable[[Operand], Access]]]) -> Expr:
        """`scales[0] * scales[1] / scales[2]`, computed now where all are constants and one at most varies.

        Each scale is an input position and how the nest reads it.
        """
        given = [self.node.constant(position) for position, _ in scales]
        known = [d.astype(_compute_type(d)) for d in given if d is not None and d.size]
        varying = [position for position, d in enumerate(known) if d.size > 1]
        if len(known) == len(scales) and len(varying) <= 1:
            x, w, y = (d if d.size > 1 else d.reshape(()) for d in known)
            factor = np.asarray(x * w / y)
            if not varying:
                return Const(factor.item(), DType.from_numpy(factor.dtype))
            return self.add(scales[varying[0]][1](table(0, factor)))
        (a, b, z) = (self._scale(position, access) for position, access in scales)
        return a * b / z

    def _scale(self, position: int, access: Callable[[Operand], Access]) -> Expr:
        number, operand = known_number(self.node, position), input_operand(self.node, position)
        return self.add(access(operand)) if number is None else Const(number, operand.dtype.compute)


def parameter(operand: Operand, channel: Index | None = None, full: Sequence[Index] = ()) -> Access:
    """Read a scale or zero point: one number, one per `channel`, or a tensor that broadcasts to `full`."""
    if operand.num_elements == 1 or channel is None:
        return Access(operand, tuple(affine() for _ in operand.shape))
    if len(operand.shape) == 1:
        return Access(operand, (channel,))
    return Access(operand, tuple(affine() if e == 1 else i for e, i in zip(operand.shape, full, strict=True)))


def requantised(total: Expr, factor: Expr, zero_point: Expr | int | None, dtype: DType) -> Expr:
    """`saturate(round(total * factor) + zero_point)`, rounding halves to even."""
    low, high = limits(dtype)
    value = call("round", cast(total, factor.result) * factor)
    if isinstance(zero_point, Expr):
        value = value + cast(zero_point, factor.result)
    elif zero_point:
        value = value + float(zero_point)
    value = call("max", call("min", value, Const(float(high), factor.result)), float(low))
    return cast(value, dtype)


def requantise(total: Array, factor: Array, zero_point: Array, dtype: np.dtype[Any]) -> Array:
    """The numpy counterpart of `requantised`."""
    info = np.iinfo(dtype)
    value = np.rint(total.astype(factor.dtype) * factor) + zero_point.astype(factor.dtype)
    return np.asarray(np.clip(value, info.min, info.max)).astype(dtype)


def exact_float(x: Array, zero_point: Array | None) -> Array:
    """A quantised tensor minus its zero point in float64, where products of bytes sum exactly and fast."""
    value = x.astype(np.float64)
    return value if zero_point is None else np.asarray(value - zero_point)


def to_int32(total: Array) -> Array:
    """Whole float64 numbers as int32, wrapping as int32 sums do."""
    return total.astype(np.int64).astype(np.int32)


def _integer_convolution(
    node: Node, x: Array, x_zero: Array | None, weight: Array, weight_zero: Array | None
) -> Array:
    """The int32 sums of an integer convolution; padding is a real zero, the zero point itself."""
    if weight_zero is not None and weight_zero.size > 1:
        weight_zero = weight_zero.reshape(-1, *(1,) * (weight.ndim - 1))
    window = window_of(node, x.shape[2:], weight.shape[2:])
    total = convolve(
        exact_float(x, x_zero), exact_float(weight, weight_zero), window, node.int_attr("group", 1)
    )
    return to_int32(total)


def _require_parameter(node: Node, position: int, channels: int | None, full: Sequence[int] = ()) -> None:
    """A scale or zero point is one number, one per channel, or a tensor that broadcasts to `full`."""
    value = node.input(position)
    if value is None or value.num_elements == 1:
        return
    if channels is None:
        require_scalar(node, position)
    elif len(value.shape) == 1 or not full:
        require_shape(node, position, (channels,), "one number, or one for each channel")
    else:
        require_shape(
            node, position, tuple(1 if e == 1 else f for e, f in zip(value.shape, full, strict=False))
        )


def _optional(inputs: Sequence[Array | None], position: int) -> Array | None:
    return inputs[position] if len(inputs) > position else None


def _conv_integer_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    x, weight = inputs[0], inputs[1]
    assert x is not None
    assert weight is not None
    return (_integer_convolution(node, x, _optional(inputs, 2), weight, _optional(inputs, 3)),)


def _integer_loops(
    node: Node, x: int, weight: int, x_zero: int, weight_zero: int
) -> tuple[ConvLoops, _Reads, Expr]:
    """Loops, reads and body of an integer convolution. Padding reads as the zero point.

    Where the zero point is only known when the model runs, the body itself leaves padding out.
    """
    require_scalar(node, x_zero)
    _require_parameter(node, weight_zero, node.require(weight).shape[0])
    number = known_number(node, x_zero)
    loops = ConvLoops.of(node, x, weight, 0 if number is None else int(number))
    reads = _Reads(node, [loops.x, loops.weight])
    zero = reads.zero_point(x_zero, parameter)
    left = centred(read(0, loops.x), zero)
    if isinstance(zero, Expr) and loops.x.fill is not None:
        left = select(inside(loops.x), left, 0)
    weight_point = reads.zero_point(weight_zero, lambda operand: parameter(operand, loops.out_channel))
    return loops, reads, left * centred(read(1, loops.weight), weight_point)


def inside(access: Access) -> Expr:
    """Whether the current iteration's spatial index (the axes from the third on) lies within the tensor."""
    conditions: list[Expr] = []
    for index, extent in zip(access.index[2:], access.shape[2:], strict=True):
        assert isinstance(index, Affine)
        position: Expr = Const(index.offset, DType.INT64)
        for name, coefficient in index.terms:
            position = position + Iter(name) * coefficient
        conditions += [call("ge", position, 0), call("lt", position, extent)]
    inside = conditions[0]
    for condition in conditions[1:]:
        inside = call("and", inside, condition)
    return inside


@operator("ConvInteger", reference=_conv_integer_reference, shapes=conv_shapes)
def conv_integer(node: Node) -> Description:
    """`sum (x - x_zero) * (w - w_zero)` in int32."""
    loops, reads, body = _integer_loops(node, 0, 1, 2, 3)
    return (Nest(loops.dims, tuple(reads.accesses), loops.write, body, "sum"),)


def _qlinear_conv_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    x, x_scale, x_zero, weight, w_scale, w_zero, y_scale, y_zero = (np.asarray(a) for a in inputs[:8])
    total = _integer_convolution(node, x, x_zero, weight, w_zero)
    channel = (-1, *(1,) * (x.ndim - 2))
    bias = _optional(inputs, 8)
    if bias is not None:
        total = total + bias.reshape(channel)
    factor = x_scale * w_scale / y_scale
    factor = factor.reshape(channel) if factor.size > 1 else factor.reshape(())
    return (requantise(total, factor, y_zero.reshape(()), y_zero.dtype),)


@operator("QLinearConv", reference=_qlinear_conv_reference, shapes=lambda node: conv_shapes(node, 0, 3))
def qlinear_conv(node: Node) -> Description:
    """An integer convolution from the bias, times `x_scale * w_scale / y_scale`, rounded and saturated."""
    loops, reads, body = _integer_loops(node, 0, 3, 2, 5)
    num_out = node.output.shape[1]
    _require_parameter(node, 4, num_out)
    for position in (1, 6, 7):
        require_scalar(node, position)
    require_shape(node, 8, (num_out,), "one for each output channel")
    factor = reads.factor(
        ((1, parameter), (4, lambda operand: parameter(operand, loops.out_channel)), (6, parameter))
    )
    zero = reads.zero_point(7, parameter)
    init: Expr | None = None
    if node.input(8) is not None:
        init = reads.add(Access(input_operand(node, 8), (loops.out_channel,)))
    finish = requantised(Acc(DType.INT32), factor, zero, node.output.dtype)
    return (Nest(loops.dims, tuple(reads.accesses), loops.write, body, "sum", init, finish),)


def _matrix_total(a: Array, a_zero: Array | None, b: Array, b_zero: Array | None) -> Array:
    """int32 sums of a quantised matrix product; one zero point per row of `a`, per column of `b`."""
    if a_zero is not None and a_zero.ndim == 1 and a_zero.size > 1:
        a_zero = a_zero[:, None]
    if b_zero is not None and b_zero.size == 1:
        b_zero = b_zero.reshape(())
    if a_zero is not None and a_zero.size == 1:
        a_zero = a_zero.reshape(())
    return to_int32(np.matmul(exact_float(a, a_zero), exact_float(b, b_zero)))


def _matmul_integer_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    a, b = inputs[0], inputs[1]
    assert a is not None
    assert b is not None
    return (_matrix_total(a, _optional(inputs, 2), b, _optional(inputs, 3)),)


def _per_row(loops: MatMulLoops, operand: Operand) -> Access:
    index = loops.a.index
    return parameter(operand, index[-2] if len(index) > 1 else None, (*index[:-1], affine()))


def _per_column(loops: MatMulLoops, operand: Operand) -> Access:
    index = loops.b.index
    if len(index) == 1:
        return parameter(operand)
    return parameter(operand, index[-1], (*index[:-2], affine(), index[-1]))


def _integer_product(
    node: Node, a: int, b: int, a_zero: int, b_zero: int
) -> tuple[MatMulLoops, _Reads, Expr]:
    loops = MatMulLoops.of(node, a, b)
    for position in (a_zero, *((a_zero - 1,) if node.op_type == "QLinearMatMul" else ())):
        shape = node.require(a).shape
        _require_parameter(node, position, shape[-2] if len(shape) > 1 else None, (*shape[:-1], 1))
    for position in (b_zero, *((b_zero - 1,) if node.op_type == "QLinearMatMul" else ())):
        shape = node.require(b).shape
        _require_parameter(node, position, shape[-1] if len(shape) > 1 else None, (*shape[:-2], 1, shape[-1]))
    reads = _Reads(node, [loops.a, loops.b])
    left = centred(read(0, loops.a), reads.zero_point(a_zero, lambda operand: _per_row(loops, operand)))
    right = centred(read(1, loops.b), reads.zero_point(b_zero, lambda operand: _per_column(loops, operand)))
    return loops, reads, left * right


@operator("MatMulInteger", reference=_matmul_integer_reference)
def matmul_integer(node: Node) -> Description:
    """`sum_k (a - a_zero) * (b - b_zero)` in int32."""
    loops, reads, body = _integer_product(node, 0, 1, 2, 3)
    return (Nest(loops.dims, tuple(reads.accesses), loops.write, body, "sum"),)


def _qlinear_matmul_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (np.asarray(v) for v in inputs[:8])
    rows = (-1, 1) if a_scale.ndim == 1 and a_scale.size > 1 else a_scale.shape
    a_scale = a_scale.reshape(()) if a_scale.size == 1 else a_scale.reshape(rows)
    b_scale, y_scale, y_zero = (v.reshape(()) if v.size == 1 else v for v in (b_scale, y_scale, y_zero))
    total = _matrix_total(a, a_zero, b, b_zero)
    return (requantise(total, a_scale * b_scale / y_scale, y_zero, y_zero.dtype),)


@operator("QLinearMatMul", reference=_qlinear_matmul_reference)
def qlinear_matmul(node: Node) -> Description:
    """An integer product, times `a_scale * b_scale / y_scale`, rounded and saturated."""
    for position in (6, 7):
        require_scalar(node, position)
    loops, reads, body = _integer_product(node, 0, 3, 2, 5)
    scales = (
        (1, lambda operand: _per_row(loops, operand)),
        (4, lambda operand: _per_column(loops, operand)),
        (6, parameter),
    )
    factor = reads.factor(scales)
    zero = reads.zero_point(7, parameter)
    finish = requantised(Acc(DType.INT32), cast(factor, DType.FLOAT32), zero, node.output.dtype)
    return (Nest(loops.dims, tuple(reads.accesses), loops.write, body, "sum", None, finish),)
