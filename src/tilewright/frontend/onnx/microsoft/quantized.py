"""Operators on bytes with scales and zero points: dequantise, compute, quantise.

The passes make integer arithmetic of it where they can, as of models that are written so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from tilewright.frontend.onnx.microsoft.definition import Definition, Write
from tilewright.ir.dtype import DType

_POOL = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")
_MAX_POOL = ("auto_pad", "ceil_mode", "dilations", "kernel_shape", "pads", "strides")
_CONVOLUTION = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")

Unary = Callable[[str], str]


def _real(d: Definition, position: int, *, axis: int = 1) -> str:
    """The tensor of bytes at a position, with scale and zero point behind it, as numbers."""
    return d("DequantizeLinear", *_operands(d, position, position + 1, position + 2), axis=axis)


def _operands(d: Definition, *positions: int) -> list[str]:
    """Names of inputs, without those at the end that were left out."""
    names = [d.name(position) for position in positions]
    while names and not names[-1]:
        names.pop()
    return names


def _bytes(d: Definition, name: str, position: int, dtype: DType) -> str:
    """Numbers quantised by the scale and the zero point at a position."""
    parameters = _operands(d, position, position + 1)
    if len(parameters) == 2:
        return d("QuantizeLinear", name, *parameters)
    return d("QuantizeLinear", name, *parameters, output_dtype=dtype.value)


def _binary(op_type: str) -> Write:
    def write(d: Definition) -> Sequence[str]:
        return [_bytes(d, d(op_type, _real(d, 0), _real(d, 3)), 6, d.value(0).dtype)]

    return write


def _unary(op_type: str, *keep: str) -> Write:
    def write(d: Definition) -> Sequence[str]:
        return [_bytes(d, d.like(op_type, _real(d, 0), keep=keep), 3, d.value(0).dtype)]

    return write


def _softmax(d: Definition) -> Sequence[str]:
    rank, axis = len(d.shape(0)), d.whole("axis", -1)
    d.require(-rank <= axis < rank, f"its axis {axis} is none of {rank}")
    d.support(d.whole("opset", 13) >= 13 or axis in (-1, rank - 1), "Softmax of opset 12 is not supported")
    return [_bytes(d, d("Softmax", _real(d, 0), axis=axis), 3, d.value(0).dtype)]


def _pool(op_type: str, keep: Sequence[str]) -> Write:
    def write(d: Definition) -> Sequence[str]:
        pooled = _channels_first(d, _real(d, 0), lambda x: d.like(op_type, x, keep=keep))
        return [_bytes(d, pooled, 3, d.value(0).dtype)]

    return write


def _channels_first(d: Definition, name: str, compute: Unary) -> str:
    """What is computed of a tensor whose channels may come last, as `channels_last` says."""
    if not d.whole("channels_last", 0):
        return compute(name)
    rank = len(d.shape(0))
    d.require(rank >= 3, f"its input {list(d.shape(0))} has no channels behind others")
    first = d("Transpose", name, perm=[0, rank - 1, *range(1, rank - 1)])
    return d("Transpose", compute(first), perm=[0, *range(2, rank), 1])


def _conv(d: Definition) -> Sequence[str]:
    operands = _operands(d, *range(1, 9))
    return [_channels_first(d, "x0", lambda x: d.like("QLinearConv", x, *operands, keep=_CONVOLUTION))]


def _max_pool(d: Definition) -> Sequence[str]:
    rank = len(d.shape(0))
    d.require(rank >= 3, f"its input {list(d.shape(0))} has no channels behind others")
    first = d("Transpose", "x0", perm=[0, rank - 1, *range(1, rank - 1)])
    pooled = d.like("MaxPool", first, keep=_MAX_POOL)
    return [d("Transpose", pooled, perm=[0, *range(2, rank), 1])]


def _concat(d: Definition) -> Sequence[str]:
    count = 0
    while d.has(2 + 3 * count):
        count += 1
    d.require(count > 0, "it has nothing to put together")
    parts = [_real(d, 2 + 3 * i) for i in range(count)]
    return [_bytes(d, d("Concat", *parts, axis=d.whole("axis", 0)), 0, d.value(2).dtype)]


def _where(d: Definition) -> Sequence[str]:
    return [_bytes(d, d("Where", "x0", _real(d, 1), _real(d, 4)), 7, d.value(1).dtype)]


def _gemm(d: Definition) -> Sequence[str]:
    columns = d.whole("transB", 0)
    product = d.like(
        "Gemm", _real(d, 0), _real(d, 3, axis=0 if columns else 1), keep=("alpha", "transA", "transB")
    )
    if d.has(6):
        # The bias counts in units of what the sum of products counts in.
        unit = d("Mul", "x1", "x4")
        unit = d("Mul", unit, d.number(d.real("alpha", 1.0), d.value(1).dtype))
        bias = d("Mul", d("Cast", "x6", to=d.value(1).dtype.value), unit)
        product = d("Add", product, bias)
    return [_bytes(d, product, 7, d.value(0).dtype) if d.has(7) else product]


def _matmul_to_float(d: Definition) -> Sequence[str]:
    a = d("DequantizeLinear", *_operands(d, 0, 2, 4))
    return [_biased(d, d("MatMul", a, _weights(d, 1, 3, 5)), 6)]


def _dynamic_matmul(d: Definition) -> Sequence[str]:
    a = d("DequantizeLinear", *d.several("DynamicQuantizeLinear", "x0", count=3))
    return [_biased(d, d("MatMul", a, _weights(d, 1, 2, 3)), 4)]


def _matmul_of_bits(d: Definition) -> Sequence[str]:
    """Weights of 2, 4 or 8 bits in blocks along the summed axis, each block with its scale and zero point."""
    rows, columns, bits, block = (d.whole(name, 0) for name in ("K", "N", "bits", "block_size"))
    d.whole("accuracy_level", 0)  # how ORT may compute, not what
    d.refuse_inputs({4: "g_idx"})
    d.support(bits in (2, 4, 8), f"its {bits} bits are not supported")
    fits = min(rows, columns) >= 1 and block >= 8 // bits and block * bits % 8 == 0
    d.require(fits, f"its blocks of {block} do not cut {rows} x {columns} weights")
    dtype, num_blocks = d.value(0).dtype, -(-rows // block)
    shape = [columns, num_blocks, block * bits // 8]
    d.require(math.prod(d.shape(1)) == math.prod(shape), f"input 1 is {list(d.shape(1))}, not {shape}")
    whole = _unpacked_bits(d, d("Reshape", "x1", d.whole_numbers(shape)), shape, bits)
    each = d.whole_numbers([columns, num_blocks, 1])
    real = d("Sub", d("Cast", whole, to=dtype.value), _zeros_of_bits(d, columns, num_blocks, bits, each))
    real = d("Mul", real, d("Cast", d("Reshape", "x2", each), to=dtype.value))
    flat = d("Reshape", real, d.whole_numbers([columns, num_blocks * block]))
    ends = (d.whole_numbers([bound]) for bound in (0, rows, 1))
    product = d("MatMul", "x0", d("Transpose", d("Slice", flat, *ends), perm=[1, 0]))
    return [_biased(d, product, 5)]


def _unpacked_bits(d: Definition, name: str, shape: Sequence[int], bits: int) -> str:
    """Whole numbers that share bytes, the lowest bits first, side by side on the last axis."""
    if bits == 8:
        return name
    axis, mask = d.whole_numbers([len(shape)]), d.number((1 << bits) - 1, DType.UINT8)
    parts = []
    for start in range(0, 8, bits):
        shifted = d("BitShift", name, d.number(start, DType.UINT8), direction="RIGHT") if start else name
        parts.append(d("Unsqueeze", d("BitwiseAnd", shifted, mask), axis))
    return d("Reshape", d("Concat", *parts, axis=len(shape)), d.whole_numbers([*shape[:-1], -1]))


def _zeros_of_bits(d: Definition, columns: int, num_blocks: int, bits: int, each: str) -> str:
    """The zero point of each block: half of the range, numbers like the scales, or packed like weights."""
    dtype = d.value(0).dtype
    if not d.has(3):
        return d.number(1 << bits - 1, dtype)
    name = "x3"
    if d.value(3).dtype is DType.UINT8:
        shape = [columns, -(-num_blocks * bits // 8)]
        d.require(math.prod(d.shape(3)) == math.prod(shape), f"input 3 is {list(d.shape(3))}, not {shape}")
        packed = d("Reshape", name, d.whole_numbers(shape))
        ends = (d.whole_numbers([bound]) for bound in (0, num_blocks, 1))
        name = d("Slice", _unpacked_bits(d, packed, shape, bits), *ends)
    return d("Cast", d("Reshape", name, each), to=dtype.value)


def _weights(d: Definition, *positions: int) -> str:
    return d("DequantizeLinear", *_operands(d, *positions), axis=max(len(d.shape(positions[0])) - 1, 0))


def _biased(d: Definition, name: str, position: int) -> str:
    return d("Add", name, f"x{position}") if d.has(position) else name


def _dequantize(d: Definition) -> Sequence[str]:
    return [_real(d, 0, axis=_axis(d))]


def _quantize(d: Definition) -> Sequence[str]:
    return [d("QuantizeLinear", *_operands(d, 0, 1, 2), axis=_axis(d))]


def _axis(d: Definition) -> int:
    rank, axis = len(d.shape(0)), d.whole("axis", 1)
    return axis if -rank <= axis < rank else 0  # which nobody reads where there is one scale


QUANTIZED: Mapping[str, Write] = {
    "DequantizeLinear": _dequantize,
    "DynamicQuantizeMatMul": _dynamic_matmul,
    "MatMulIntegerToFloat": _matmul_to_float,
    "MatMulNBits": _matmul_of_bits,
    "NhwcMaxPool": _max_pool,
    "QGemm": _gemm,
    "QLinearAdd": _binary("Add"),
    "QLinearAveragePool": _pool("AveragePool", _POOL),
    "QLinearConcat": _concat,
    "QLinearConv": _conv,
    "QLinearGlobalAveragePool": _pool("GlobalAveragePool", ()),
    "QLinearLeakyRelu": _unary("LeakyRelu", "alpha"),
    "QLinearMul": _binary("Mul"),
    "QLinearSigmoid": _unary("Sigmoid"),
    "QLinearSoftmax": _softmax,
    "QLinearWhere": _where,
    "QuantizeLinear": _quantize,
}
