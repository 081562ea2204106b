"""Integer products: convolution and matrix product of quantised operands, with int32 sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Acc, Const, Expr, Iter, call, cast, select
from tilewright.ir.graph import Node
from tilewright.ir.nest import Access, Affine, Description, Index, Nest, Operand, affine
from tilewright.ir.ops.build import input_operand, read
from tilewright.ir.ops.convolution import ConvLoops, convolve
from tilewright.ir.ops.matmul import MatMulLoops
from tilewright.ir.ops.registry import operator
from tilewright.ir.ops.window import window_of

Array = np.ndarray[Any, Any]


def limits(dtype: DType) -> tuple[int, int]:
    """Smallest and largest value of an integer type."""
    info: Any = np.iinfo(np.dtype(dtype.numpy).str)
    return int(info.min), int(info.max)


def centred(position: int, access: Access, zero_position: int | None, reads: Sequence[Access]) -> Expr:
    """`value - zero_point` as int32; without a zero point the value itself."""
    value = cast(read(position, access), DType.INT32)
    if zero_position is None:
        return value
    return value - cast(read(zero_position, reads[zero_position]), DType.INT32)


def parameter(operand: Operand, channel: Index | None = None, full: Sequence[Index] = ()) -> Access:
    """Read a scale or zero point: one number, one per `channel`, or a tensor that broadcasts to `full`."""
    if operand.num_elements == 1 or channel is None:
        return Access(operand, tuple(affine() for _ in operand.shape))
    if len(operand.shape) == 1:
        return Access(operand, (channel,))
    return Access(operand, tuple(affine() if e == 1 else i for e, i in zip(operand.shape, full, strict=True)))


def requantised(total: Expr, factor: Expr, zero_point: Expr | None, dtype: DType) -> Expr:
    """`saturate(round(total * factor) + zero_point)`, rounding halves to even."""
    low, high = limits(dtype)
    value = call("round", cast(total, factor.result) * factor)
    if zero_point is not None:
        value = value + cast(zero_point, factor.result)
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


def _optional(inputs: Sequence[Array | None], position: int) -> Array | None:
    return inputs[position] if len(inputs) > position else None


def _conv_integer_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    x, weight = inputs[0], inputs[1]
    assert x is not None
    assert weight is not None
    return (_integer_convolution(node, x, _optional(inputs, 2), weight, _optional(inputs, 3)),)


def _integer_loops(
    node: Node, x: int, weight: int, x_zero: int | None, weight_zero: int | None
) -> tuple[ConvLoops, list[Access], Expr]:
    """Loops, reads and body of an integer convolution. Padding reads as the zero point.

    Where the zero point is only known when the model runs, the body itself leaves padding out.
    """
    constant = None if x_zero is None else node.constant(x_zero)
    known = x_zero is None or constant is not None
    fill = 0 if constant is None else int(constant.ravel()[0])
    loops = ConvLoops.of(node, x, weight, fill)
    reads = [loops.x, loops.weight]
    positions: list[int | None] = []
    for position, channel in ((x_zero, None), (weight_zero, loops.out_channel)):
        positions.append(None if position is None else len(reads))
        if position is not None:
            reads.append(parameter(input_operand(node, position), channel))
    left = centred(0, loops.x, positions[0], reads)
    if not known and loops.x.fill is not None:
        left = select(_inside(loops.x), left, 0)
    return loops, reads, left * centred(1, loops.weight, positions[1], reads)


def _inside(access: Access) -> Expr:
    """Whether the current iteration's spatial index lies within the tensor."""
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


def _given(node: Node, position: int) -> int | None:
    return None if node.input(position) is None else position


@operator("ConvInteger", reference=_conv_integer_reference)
def conv_integer(node: Node) -> Description:
    """`sum (x - x_zero) * (w - w_zero)` in int32."""
    loops, reads, body = _integer_loops(node, 0, 1, _given(node, 2), _given(node, 3))
    return (Nest(loops.dims, tuple(reads), loops.write, body, "sum"),)


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


@operator("QLinearConv", reference=_qlinear_conv_reference)
def qlinear_conv(node: Node) -> Description:
    """An integer convolution from the bias, times `x_scale * w_scale / y_scale`, rounded and saturated."""
    loops, reads, body = _integer_loops(node, 0, 3, 2, 5)
    first = len(reads)
    for position, channel in ((1, None), (4, loops.out_channel), (6, None), (7, None)):
        reads.append(parameter(input_operand(node, position), channel))
    x_scale, w_scale, y_scale, y_zero = (read(first + i, a) for i, a in enumerate(reads[first:]))
    init: Expr | None = None
    if node.input(8) is not None:
        reads.append(Access(input_operand(node, 8), (loops.out_channel,)))
        init = read(len(reads) - 1, reads[-1])
    finish = requantised(Acc(DType.INT32), x_scale * w_scale / y_scale, y_zero, node.output.dtype)
    return (Nest(loops.dims, tuple(reads), loops.write, body, "sum", init, finish),)


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
    node: Node, a: int, b: int, a_zero: int | None, b_zero: int | None
) -> tuple[MatMulLoops, list[Access], Expr]:
    loops = MatMulLoops.of(node, a, b)
    reads = [loops.a, loops.b]
    positions: list[int | None] = []
    for position, of_operand in ((a_zero, _per_row), (b_zero, _per_column)):
        positions.append(None if position is None else len(reads))
        if position is not None:
            reads.append(of_operand(loops, input_operand(node, position)))
    return loops, reads, centred(0, loops.a, positions[0], reads) * centred(1, loops.b, positions[1], reads)


@operator("MatMulInteger", reference=_matmul_integer_reference)
def matmul_integer(node: Node) -> Description:
    """`sum_k (a - a_zero) * (b - b_zero)` in int32."""
    loops, reads, body = _integer_product(node, 0, 1, _given(node, 2), _given(node, 3))
    return (Nest(loops.dims, tuple(reads), loops.write, body, "sum"),)


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
    loops, reads, body = _integer_product(node, 0, 3, 2, 5)
    first = len(reads)
    reads.append(_per_row(loops, input_operand(node, 1)))
    reads.append(_per_column(loops, input_operand(node, 4)))
    reads += [parameter(input_operand(node, position)) for position in (6, 7)]
    scales = [cast(read(first + i, a), DType.FLOAT32) for i, a in enumerate(reads[first : first + 3])]
    zero = read(first + 3, reads[first + 3])
    factor = scales[0] * scales[1] / scales[2]
    finish = requantised(Acc(DType.INT32), factor, zero, node.output.dtype)
    return (Nest(loops.dims, tuple(reads), loops.write, body, "sum", None, finish),)
