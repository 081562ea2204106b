"""Operators on bytes with scales and zero points: dequantise, compute, quantise.

The passes make integer arithmetic of it where they can, as of models that are written so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tilewright.frontend.onnx.microsoft.definition import Definition, Write
from tilewright.frontend.onnx.microsoft.fused import mask_index
from tilewright.ir.dtype import DType
from tilewright.ir.ops.block_floats import BLOCK_FLOATS
from tilewright.ir.ops.registry import INTERNAL_DOMAIN

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


def _sum_of_integers(d: Definition, a: str, a_zero: str, b_zero: str, scale: str) -> str:
    """The product of bytes `a`, whose scale is known in a run only, by input 1."""
    operands = [a, "x1", *([a_zero, b_zero] if b_zero else [a_zero] if a_zero else [])]
    return d("Mul", d("Cast", d("MatMulInteger", *operands), to=DType.FLOAT32.value), scale)


def _matmul_to_float(d: Definition) -> Sequence[str]:
    if not d.value(2).is_constant and d.value(2).dtype is DType.FLOAT32:
        scale = d("Mul", "x2", "x3")
        return [_biased(d, _sum_of_integers(d, "x0", d.name(4), d.name(5), scale), 6)]
    a = d("DequantizeLinear", *_operands(d, 0, 2, 4))
    return [_biased(d, d("MatMul", a, _weights(d, 1, 3, 5)), 6)]


def _dynamic_matmul(d: Definition) -> Sequence[str]:
    whole, scale, zero = d.several("DynamicQuantizeLinear", "x0", count=3)
    return [_biased(d, _sum_of_integers(d, whole, zero, d.name(3), d("Mul", scale, "x2")), 4)]


def _reduce_mean(d: Definition) -> Sequence[str]:
    axes = d.wholes("axes")
    operands = [_real(d, 0), *([d.whole_numbers(axes)] if axes else [])]
    mean = d("ReduceMean", *operands, keepdims=d.whole("keepdims", 1))
    return [_bytes(d, mean, 3, d.value(0).dtype)]


def _embed_layer_norm(d: Definition) -> Sequence[str]:
    """Tables of bytes, of which only the rows that are read are dequantised."""
    batch, length = d.shape(0, 2)
    has_segments = d.has(1) and d.has(4)

    def real(name: str, position: int) -> str:
        parameters = (f"x{position}", f"x{position + 5}")
        return d("DequantizeLinear", name, *parameters)

    d.require(length <= d.shape(3, 2)[0], f"{length} tokens need as many embeddings of positions")
    d.shape(2, 2)
    positions = d("Slice", "x3", d.whole_numbers([0]), d.whole_numbers([length]))
    total = d("Add", real(d("Gather", "x2", "x0"), 8), real(positions, 9))
    if has_segments:
        total = d("Add", total, real(d("Gather", "x4", "x1"), 10))
    for position in (1, 4, 10, 15):
        d.has(position)  # they come together, or are not read
    scale, bias = real("x5", 11), real("x6", 12)
    norm = d("LayerNormalization", total, scale, bias, axis=-1, epsilon=d.real("epsilon", 1e-12))
    return [norm, mask_index(d, batch)]


def _matmul_of_integers(d: Definition) -> Sequence[str]:
    a, b = (d("Cast", f"x{i}", to=DType.INT32.value) for i in (0, 1))
    d.support(not d.value(0).dtype.is_float, "its operands are no integers")
    return [d("MatMul", a, b)]


# What four bits stand for, by `quant_type`: a float of four bits, and quantiles of a normal distribution.
_FP4 = (0.0, 5.208333333e-03, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25)
_NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
    *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
    *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941),
    *(0.7229568362236023, 1.0),
)


def _matmul_of_four_bits(d: Definition) -> Sequence[str]:
    """Weights that are numbers of a table, in blocks each with its largest magnitude, row after row."""
    rows, columns, block, kind = (d.whole(name, 0) for name in ("K", "N", "block_size", "quant_type"))
    d.support(d.whole("transB", 1) == 1, "its weights are not transposed")
    d.support(not d.whole("training_mode", 0), "training is not supported")
    d.support(kind in (0, 1), f"its quant_type {kind} is not known")
    count = rows * columns
    fits = min(rows, columns) >= 1 and block >= 1 and math.prod(d.shape(1)) == -(-count // 2)
    d.require(fits, f"its bytes {list(d.shape(1))} do not hold {columns} x {rows} weights")
    block = min(block, count)
    num_blocks, dtype = -(-count // block), d.value(0).dtype
    d.require(math.prod(d.shape(2)) == num_blocks, f"input 2 is {list(d.shape(2))}, not {[num_blocks]}")
    table = np.array(_NF4 if kind else [*_FP4, *(-x for x in _FP4)], dtype.numpy)
    flat, low = d("Reshape", "x1", d.whole_numbers([-1, 1])), d.number(15, DType.UINT8)
    high = d("BitShift", flat, d.number(4, DType.UINT8), direction="RIGHT")
    places = d("Concat", high, d("BitwiseAnd", flat, low), axis=1)
    values = d("Gather", d.constant(table), d("Cast", places, to=DType.INT32.value))
    line = d("Reshape", values, d.whole_numbers([-1]))
    padded = num_blocks * block - 2 * math.prod(d.shape(1))
    if padded > 0:
        line = d("Pad", line, d.whole_numbers([0, padded]))
    elif padded < 0:
        line = d("Slice", line, d.whole_numbers([0]), d.whole_numbers([num_blocks * block]))
    each = d("Reshape", "x2", d.whole_numbers([num_blocks, 1]))
    real = d("Mul", d("Reshape", line, d.whole_numbers([num_blocks, block])), each)
    whole = d(
        "Slice", d("Reshape", real, d.whole_numbers([-1])), d.whole_numbers([0]), d.whole_numbers([count])
    )
    weights = d("Reshape", whole, d.whole_numbers([columns, rows]))
    return [d("MatMul", "x0", d("Transpose", weights, perm=[1, 0]))]


def _gather_of_blocks(d: Definition) -> Sequence[str]:
    """Rows of a table of packed numbers, dequantised by blocks once they are gathered."""
    bits, block = d.whole("bits", 4), d.whole("block_size", 128)
    rank, found = len(d.shape(0)), len(d.shape(1))
    axes = (d.whole("gather_axis", 0), d.whole("quantize_axis", 1))
    d.require(rank >= 1 and all(-rank <= axis < rank for axis in axes), f"its axes {axes} are none of {rank}")
    gathered, quantized = (axis % rank for axis in axes)
    d.support(gathered != quantized, "it gathers along the axis of its blocks")
    is_packed = d.value(0).dtype is DType.UINT8 and bits < 8
    d.support(bits in (2, 4, 8), f"its {bits} bits are not supported")
    d.support(
        not is_packed or quantized == rank - 1, "its packed numbers are not along the axis of its blocks"
    )
    axis = quantized + (found - 1 if gathered < quantized else 0)
    shape = [*d.shape(0)[:gathered], *d.shape(1), *d.shape(0)[gathered + 1 :]]

    def rows(name: str) -> str:
        return d("Gather", name, "x1", axis=gathered)

    extent = shape[axis] * (8 // bits if is_packed else 1)
    num_blocks = d.shape(2)[quantized]
    d.require(block >= 1 and num_blocks == -(-extent // block), f"{num_blocks} scales for {extent} numbers")
    data = rows("x0")
    zero = rows("x3") if d.has(3) else ""
    if is_packed:
        data = unpacked_bits(d, data, shape, bits)
        if zero:
            packed = [*shape[:-1], d.shape(3)[-1]]
            zero = unpacked_bits(d, zero, packed, bits)
            ends = (d.whole_numbers([bound]) for bound in (0, num_blocks, axis))
            zero = d("Slice", zero, *ends)
    if not zero and d.value(0).dtype is DType.UINT8:
        each = d.whole_numbers([*shape[:axis], num_blocks, *shape[axis + 1 :]])
        zero = d("Expand", d.number(1 << bits - 1, DType.UINT8), each)
    operands = [data, rows("x2"), *([zero] if zero else [])]
    return [d("DequantizeLinear", *operands, axis=axis, block_size=block)]


def _matmul_of_bits(d: Definition) -> Sequence[str]:
    """Weights of 2, 4 or 8 bits in blocks along the summed axis, each block with its scale and zero point."""
    rows, columns, bits, block = (d.whole(name, 0) for name in ("K", "N", "bits", "block_size"))
    d.whole("accuracy_level", 0)  # how ORT may compute, not what
    d.support(not d.whole("weight_prepacked", 0), "its weights are laid out for one processor")
    d.support(bits in (2, 4, 8), f"its {bits} bits are not supported")
    fits = min(rows, columns) >= 1 and block >= 8 // bits and block * bits % 8 == 0
    d.require(fits, f"its blocks of {block} do not cut {rows} x {columns} weights")
    dtype, num_blocks = d.value(0).dtype, -(-rows // block)
    shape = [columns, num_blocks, block * bits // 8]
    d.require(math.prod(d.shape(1)) == math.prod(shape), f"input 1 is {list(d.shape(1))}, not {shape}")
    numbers = d("Reshape", "x1", d.whole_numbers(shape))
    if _are_constant_blocks(d, rows, bits, block):
        scales = d("Reshape", "x2", d.whole_numbers([columns, num_blocks]))
        zeros = d.whole_numbers([columns, -(-num_blocks * bits // 8)])
        more = [d("Reshape", "x3", zeros)] if d.has(3) else []
        weights = d(BLOCK_FLOATS, scales, numbers, *more, domain=INTERNAL_DOMAIN, bits=bits)
        return [_biased(d, d("MatMul", "x0", weights), 5)]
    whole = unpacked_bits(d, numbers, shape, bits)
    each = d.whole_numbers([columns, num_blocks, 1])
    zeros = _zeros_of_bits(d, columns, num_blocks, bits, each)
    scales = d("Cast", d("Reshape", "x2", each), to=dtype.value)
    if d.has(4):
        whole, scales, zeros = _in_groups(d, whole, scales, zeros, [columns, num_blocks, block])
    real = d("Mul", d("Sub", d("Cast", whole, to=dtype.value), zeros), scales)
    flat = d("Reshape", real, d.whole_numbers([columns, num_blocks * block]))
    ends = (d.whole_numbers([bound]) for bound in (0, rows, 1))
    product = d("MatMul", "x0", d("Transpose", d("Slice", flat, *ends), perm=[1, 0]))
    return [_biased(d, product, 5)]


def _are_constant_blocks(d: Definition, rows: int, bits: int, block: int) -> bool:
    """Whether weights can be kept as whole numbers: constants, in whole blocks, that give float32."""
    floats = [d.value(position).dtype for position in (0, 2)]
    constants = [d.value(position) for position in (1, 2, 3) if d.has(position)]
    is_plain = all(value.is_constant for value in constants) and not d.has(4)
    has_whole_zeros = not d.has(3) or d.value(3).dtype is DType.UINT8
    fits = is_plain and has_whole_zeros and floats == [DType.FLOAT32] * 2
    return fits and bits in (4, 8) and rows % block == 0 and block % 8 == 0


def _in_groups(
    d: Definition, whole: str, scales: str, zeros: str, shape: Sequence[int]
) -> tuple[str, str, str]:
    """Weights and, for each row of them, scale and zero point of the group that it belongs to."""
    columns, num_blocks, block = shape
    rows = d.whole("K", 0)
    padded = num_blocks * block
    given = d.shape(4, 1)[0]
    d.require(given in (rows, padded), f"its g_idx has {given} groups for {rows} rows")
    groups = "x4" if given == padded else d("Pad", "x4", d.whole_numbers([0, padded - rows]))
    flat = d.whole_numbers([columns, num_blocks])
    spread = []
    for name in (scales, zeros):
        one = d("Expand", name, d.whole_numbers([columns, num_blocks, 1]))
        spread.append(d("Gather", d("Reshape", one, flat), groups, axis=1))
    return d("Reshape", whole, d.whole_numbers([columns, padded])), spread[0], spread[1]


def unpacked_bits(d: Definition, name: str, shape: Sequence[int], bits: int) -> str:
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
        name = d("Slice", unpacked_bits(d, packed, shape, bits), *ends)
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
    return axis if -rank <= axis < rank else 0  # with one scale it is not read


QUANTIZED: Mapping[str, Write] = {
    "DequantizeLinear": _dequantize,
    "GatherBlockQuantized": _gather_of_blocks,
    "MatMulBnb4": _matmul_of_four_bits,
    "MatMulInteger16": _matmul_of_integers,
    "QEmbedLayerNormalization": _embed_layer_norm,
    "QLinearReduceMean": _reduce_mean,
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
