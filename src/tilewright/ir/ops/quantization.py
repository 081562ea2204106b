"""Linear quantisation: QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.arrays import Array
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Acc, Const, Expr, Read, call, cast, select
from tilewright.ir.graph import Node
from tilewright.ir.nest import Access, Description, Dim, Index, Lookup, Nest, Opaque, affine
from tilewright.ir.ops.build import (
    axis_of,
    broadcast,
    broadcast_shape,
    dims_of,
    identity,
    input_operand,
    local,
    output_operand,
    read,
    require,
    require_result,
    require_scalar,
    require_shape,
)
from tilewright.ir.ops.operands import optional, present
from tilewright.ir.ops.registry import MICROSOFT_DOMAIN, operator
from tilewright.records import dataclass

HALVES = (DType.FLOAT16, DType.BFLOAT16)


def limits(dtype: DType) -> tuple[int, int]:
    """Smallest and largest value of an integer type."""
    bits = dtype.size_bytes * 8
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if dtype.is_signed else (0, (1 << bits) - 1)


def saturated_array(rounded: Array, dtype: DType) -> Array:
    """Whole floating-point numbers as an integer type, those beyond it as its limits.

    The largest 64-bit integers are no floating-point numbers: clipping in floating point would overflow.
    """
    low, high = limits(dtype)
    with np.errstate(invalid="ignore"):
        inside = np.where((rounded > low) & (rounded < high), rounded, 0).astype(dtype.numpy)
    ends = np.where(rounded >= high, np.array(high, dtype.numpy), np.array(low, dtype.numpy))
    # NaN, which is on neither side, becomes 0.
    return np.where((rounded >= high) | (rounded <= low), ends, inside)


def _spread(node: Node, parameter: Array, shape: Sequence[int]) -> Array:
    """A scale or zero point as an array that broadcasts against `shape`: per tensor, axis or block."""
    if parameter.size == 1 and parameter.ndim <= 1:
        return parameter.reshape(())
    axis = node.int_attr("axis", 1) % len(shape)
    block = node.int_attr("block_size", 0)
    if block:
        spread = np.repeat(parameter, min(block, shape[axis]), axis=axis)
        return spread.take(range(shape[axis]), axis=axis)
    return parameter.reshape([-1 if a == axis else 1 for a in range(len(shape))])


def _quantize_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    x, scale, zero = present(inputs), present(inputs, 1), optional(inputs, 2)
    low, high = limits(node.output.dtype)
    wide = np.result_type(scale.dtype, np.float32)
    divisor = _spread(node, scale, x.shape).astype(wide)
    quotient = x.astype(wide) / divisor
    rounded = _division_type(node)
    if rounded is not None:
        half = rounded.numpy
        quotient = (x.astype(half).astype(wide) / divisor.astype(half).astype(wide)).astype(half).astype(wide)
    value = np.rint(quotient)
    if zero is not None:
        value = value + _spread(node, zero, x.shape).astype(wide)
    return (np.clip(value, low, high).astype(node.output.dtype.numpy),)


def _division_type(node: Node) -> DType | None:
    """The half type that a QuantizeLinear rounds its quotient to; None if it divides in a wider one.

    From opset 23 on the division is in the type that `precision` names, else in that of the scale.
    """
    scale = node.input(1)
    named = node.int_attr("precision", 0)
    if named:
        return next((half for half in HALVES if half.value == named), None)
    return scale.dtype if node.opset >= 23 and scale is not None and scale.dtype in HALVES else None


def _parameter_access(node: Node, position: int, dims: Sequence[Dim]) -> Access:
    """How each output element reads its scale or zero point: one number, one per axis, or one per block."""
    operand = input_operand(node, position)
    if operand.num_elements == 1 and len(operand.shape) <= 1:
        return Access(operand, tuple(affine() for _ in operand.shape))
    axis = axis_of(node, len(dims), 1)
    block = node.int_attr("block_size", 0)
    require(node, block >= 0, f"block_size is {block}, which is negative")
    if block == 0:
        require_shape(
            node, position, (dims[axis].extent,), f"one number, or one for each place of axis {axis}"
        )
        return Access(operand, (affine(dims[axis].name),))
    blocks = tuple(-(-d.extent // block) if a == axis else d.extent for a, d in enumerate(dims))
    require_shape(node, position, blocks, f"one for each block of {block} along axis {axis}")
    index: list[Index] = list(identity(dims))
    index[axis] = Lookup(tuple(i // block for i in range(dims[axis].extent)), dims[axis].name)
    return Access(operand, tuple(index))


def _parameter_accesses(node: Node, dims: Sequence[Dim]) -> list[Access]:
    require_result(node, node.require(0).shape)
    return [_parameter_access(node, i, dims) for i in (1, 2) if node.input(i) is not None]


def _parameters(node: Node, accesses: Sequence[Access], reads: list[Access]) -> tuple[Expr, Expr | None]:
    """Scale and zero point: literals where they are one known number, else reads that are added."""
    values: list[Expr] = []
    given = [position for position in (1, 2) if node.input(position) is not None]
    for position, access in zip(given, accesses, strict=True):
        data, dtype = node.constant(position), access.operand.dtype.compute
        if data is not None and data.size == 1:
            values.append(Const(data.reshape(()).item(), dtype))
        else:
            reads.append(access)
            values.append(read(len(reads) - 1, access))
    return values[0], values[1] if len(values) > 1 else None


def saturated(value: Expr, dtype: DType) -> Expr:
    """A rounded floating-point value clipped into an integer type."""
    low, high = limits(dtype)
    return cast(call("min", call("max", value, low), high), dtype)


@operator("QuantizeLinear", reference=_quantize_reference)
def quantize_linear(node: Node) -> Description:
    """`saturate(round(x / scale) + zero_point)`, ties to even, per tensor, axis or block."""
    out = output_operand(node)
    dims = dims_of(out.shape)
    parameters = _parameter_accesses(node, dims)
    if not out.dtype.is_integer or out.dtype.size_bytes > 2:
        return Opaque(f"QuantizeLinear to {out.dtype} is not known")
    reads = [Access(input_operand(node, 0), identity(dims))]
    scale, zero = _parameters(node, parameters, reads)
    quotient = cast(read(0, reads[0]), scale.result) / scale
    half = _division_type(node)
    nests: list[Nest] = []
    if half is not None:
        if any(operand.dtype is not half for operand in (reads[0].operand, input_operand(node, 1))):
            return Opaque("QuantizeLinear divides in another type than its operands have")
        # Stored in the half type and read again: that is what rounds it.
        stored = Access(local(0, half, out.shape), identity(dims))
        divided = 1 if isinstance(scale, Const) else 2
        nests.append(Nest(dims, tuple(reads[:divided]), stored, quotient))
        reads = [stored, *reads[divided:]]
        quotient = read(0, stored)
        if zero is not None and not isinstance(zero, Const):
            zero = read(1, reads[1])
    value = call("round", quotient)
    if zero is not None:
        value = value + cast(zero, scale.result)
    nests.append(Nest(dims, tuple(reads), Access(out, identity(dims)), saturated(value, out.dtype)))
    return tuple(nests)


def _dequantize_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    x, scale, zero = present(inputs), present(inputs, 1), optional(inputs, 2)
    # int64 holds the difference of any two quantised values.
    value = x.astype(np.int64)
    if zero is not None:
        value = value - _spread(node, zero, x.shape).astype(np.int64)
    wide = np.result_type(scale.dtype, np.float32)
    return (value.astype(wide) * _spread(node, scale, x.shape).astype(wide),)


@operator("DequantizeLinear", reference=_dequantize_reference)
def dequantize_linear(node: Node) -> Description:
    """`(x - zero_point) * scale`, per tensor, axis or block."""
    out, source = output_operand(node), input_operand(node, 0)
    dims = dims_of(out.shape)
    parameters = _parameter_accesses(node, dims)
    reads = [Access(source, identity(dims))]
    value = cast(read(0, reads[0]), DType.INT32)
    scale, zero = _parameters(node, parameters, reads)
    if zero is not None:
        value = value - cast(zero, DType.INT32)
    body = cast(cast(value, scale.result) * scale, out.dtype.compute)
    return (Nest(dims, tuple(reads), Access(out, identity(dims)), body),)


def _qlinear_add_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (np.asarray(x) for x in inputs[:8])

    def real(x: Array, scale: Array, zero: Array) -> Array:
        return np.asarray((x.astype(np.int32) - zero.astype(np.int32)).astype(scale.dtype) * scale)

    total = real(a, a_scale, a_zero) + real(b, b_scale, b_zero)
    value = np.rint(total / y_scale) + y_zero.astype(y_scale.dtype)
    return (np.clip(value, *limits(node.output.dtype)).astype(node.output.dtype.numpy),)


@operator("QLinearAdd", reference=_qlinear_add_reference, domain=MICROSOFT_DOMAIN)
def qlinear_add(node: Node) -> Description:
    """The sum of two dequantised tensors, quantised; every scale and zero point is one number."""
    require_result(node, broadcast_shape(node, node.require(0).shape, node.require(3).shape))
    for scalar in (1, 2, 4, 5, 6, 7):
        require_scalar(node, scalar)
    out = output_operand(node)
    dims = dims_of(out.shape)
    reads: list[Access] = []

    def parameter(position: int) -> Expr:
        operand, data = input_operand(node, position), node.constant(position)
        if data is not None and data.size == 1:
            return Const(data.reshape(()).item(), operand.dtype.compute)
        reads.append(Access(operand, tuple(affine() for _ in operand.shape)))
        return read(len(reads) - 1, reads[-1])

    def real(position: int) -> Expr:
        reads.append(broadcast(input_operand(node, position), dims))
        value = cast(read(len(reads) - 1, reads[-1]), DType.INT32)
        scale = parameter(position + 1)
        return cast(value - cast(parameter(position + 2), DType.INT32), scale.result) * scale

    total = real(0) + real(3)
    scale = parameter(6)
    value = call("round", total / scale) + cast(parameter(7), scale.result)
    return (Nest(dims, tuple(reads), Access(out, identity(dims)), saturated(value, out.dtype)),)


def dynamically_quantized(x: Array) -> tuple[Array, Array, Array]:
    """A tensor as bytes by its own range, which always includes 0; their scale and zero point."""
    low, high = np.minimum(x.min(initial=0), 0), np.maximum(x.max(initial=0), 0)
    # All zeros: any scale is right, but a zero one would divide by zero.
    scale = np.where(high > low, (high - low) / np.asarray(255, x.dtype), np.ones((), x.dtype))
    zero = np.clip(np.rint(-low / scale), 0, 255)
    y = np.clip(np.rint(x / scale) + zero, 0, 255)
    return y.astype(np.uint8), np.asarray(scale), np.asarray(zero).astype(np.uint8)


def _dynamic_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    return dynamically_quantized(present(inputs))


@dataclass(frozen=True, slots=True)
class DynamicBytes:
    """Nests that make the scale and the zero point of what is quantised by its own range, and bytes of it.

    `value`, over `reads`, is what is quantised, at the place that `dims` say. Temporaries are numbered from
    `first_local` on: smallest and largest value, scale, zero point.
    """

    dims: tuple[Dim, ...]
    reads: tuple[Access, ...]
    value: Expr
    first_local: int = 0

    def _scalar(self, number: int, dtype: DType) -> Access:
        return Access(local(self.first_local + number, dtype, ()), ())

    @property
    def scale(self) -> Access:
        """The scale, a temporary."""
        return self._scalar(2, self.value.result)

    @property
    def zero(self) -> Access:
        """The zero point, a temporary."""
        return self._scalar(3, DType.UINT8)

    def nests(self, target: Access) -> list[Nest]:
        """The range, then scale and zero point, then the bytes in `target`."""
        dtype = self.value.result
        reduce_dims = tuple(Dim(d.name, d.extent, "reduce") for d in self.dims)
        low, high = (self._scalar(number, dtype) for number in (0, 1))
        nought, acc, bottom, top = Const(0.0, dtype), Acc(dtype), Read(0, dtype), Read(1, dtype)
        width = select(call("gt", top, bottom), (top - bottom) / 255.0, 1.0)
        zero = saturated(call("round", -bottom / top), DType.UINT8)
        count = len(self.reads)
        quotient = call("round", self.value / Read(count, dtype)) + cast(Read(count + 1, DType.UINT8), dtype)
        body = saturated(quotient, DType.UINT8)
        return [
            Nest(reduce_dims, self.reads, low, self.value, "min", nought, acc),
            Nest(reduce_dims, self.reads, high, self.value, "max", nought, acc),
            Nest((), (low, high), self.scale, width),
            Nest((), (low, self.scale), self.zero, zero),
            Nest(self.dims, (*self.reads, self.scale, self.zero), target, body),
        ]


@operator("DynamicQuantizeLinear", reference=_dynamic_reference)
def dynamic_quantize_linear(node: Node) -> Description:
    """Range, then scale and zero point, then the quantised tensor; the range always includes 0."""
    for position, shape in enumerate((node.require(0).shape, (), ())):
        require_result(node, shape, position)
    out = output_operand(node)
    dims = dims_of(out.shape)
    x = Access(input_operand(node, 0), identity(dims))
    made = DynamicBytes(dims, (x,), read(0, x))
    nests = made.nests(Access(out, identity(dims)))
    for position, parameter in ((1, made.scale), (2, made.zero)):
        if position < len(node.outputs) and node.outputs[position] is not None:
            target = Access(output_operand(node, position), ())
            nests.append(Nest((), (parameter,), target, read(0, parameter)))
    return tuple(nests)
