"""Products, convolutions, activations and normalisations that the optimiser puts into one operator."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.frontend.onnx.microsoft.definition import MAX_CONSTANT_ELEMENTS, Definition, Write
from tilewright.ir.dtype import DType

_CONVOLUTION = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
_PLAIN_ACTIVATIONS = frozenset(
    {"Elu", "HardSigmoid", "LeakyRelu", "Relu", "Selu", "Sigmoid", "Softplus", "Softsign", "Tanh"}
    | {"ThresholdedRelu"}
)
# What `activation_params` of a convolution are, in their order.
_PARAMETERS = {"LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta")}


def _fused_matmul(d: Definition) -> Sequence[str]:
    names = []
    for position, side in enumerate("AB"):
        rank = len(d.shape(position))
        order = list(range(rank))
        if d.whole(f"transBatch{side}", 0) and rank > 2:
            order = [*order[1:-1], order[0], order[-1]]
        if d.whole(f"trans{side}", 0) and rank > 1:
            order = [*order[:-2], order[-1], order[-2]]
        moves = order != sorted(order)
        names.append(d("Transpose", f"x{position}", perm=order) if moves else f"x{position}")
    return [_scaled(d, d("MatMul", *names), d.real("alpha", 1.0))]


def _scaled(d: Definition, name: str, factor: float) -> str:
    return name if factor == 1.0 else d("Mul", name, d.number(factor, d.value(0).dtype))


def _fused_conv(d: Definition) -> Sequence[str]:
    d.shape(0)
    result = d.like("Conv", "x0", "x1", *filter(None, [d.name(2)]), keep=_CONVOLUTION)
    if d.has(3):
        result = d("Add", result, "x3")
    activation, values = d.text("activation"), d.reals("activation_params")
    if activation == "Clip":
        d.require(len(values) == 2, "its activation Clip needs two numbers")
        return [d("Clip", result, *(d.number(value, d.value(0).dtype) for value in values))]
    parameters = _PARAMETERS.get(activation, ())
    d.require(len(values) <= len(parameters), f"its activation {activation} takes fewer numbers")
    return [_activated(d, result, activation, dict(zip(parameters, values, strict=False)))]


def _fused_gemm(d: Definition) -> Sequence[str]:
    d.shape(0)
    operands = ("x0", "x1", *filter(None, [d.name(2)]))
    result = d.like("Gemm", *operands, keep=("alpha", "beta", "transA", "transB"))
    given = {n: d.real(f"activation_{n}", float("nan")) for n in ("alpha", "beta", "gamma")}
    return [_activated(d, result, d.text("activation"), {n: v for n, v in given.items() if v == v})]


def _activated(d: Definition, name: str, activation: str, parameters: Mapping[str, float]) -> str:
    if not activation:
        return name
    d.support(activation in _PLAIN_ACTIVATIONS, f"its activation {activation!r} is not known")
    return d(activation, name, **parameters)


def _gelu(d: Definition) -> Sequence[str]:
    return [d("Gelu", "x0")]


def _bias_gelu(d: Definition) -> Sequence[str]:
    return [d("Gelu", d("Add", "x0", "x1"))]


def _fast_gelu(d: Definition) -> Sequence[str]:
    return [d("Gelu", d("Add", "x0", "x1") if d.has(1) else "x0", approximate="tanh")]


def _gemm_fast_gelu(d: Definition) -> Sequence[str]:
    product = d("MatMul", "x0", "x1")
    return [d("Gelu", d("Add", product, "x2") if d.has(2) else product, approximate="tanh")]


def _quick_gelu(d: Definition) -> Sequence[str]:
    return [d("Mul", "x0", d("Sigmoid", _scaled(d, "x0", d.real("alpha", 1.702))))]


def _bias_add(d: Definition) -> Sequence[str]:
    return [d("Add", d("Add", "x0", "x1"), "x2")]


def _bias_softmax(d: Definition) -> Sequence[str]:
    rank = len(d.shape(0))
    d.whole("is_inner_broadcast", 0)  # the bias has axes of one element where it is repeated
    axis = d.whole("axis", 1)
    d.support(rank > 0 and axis in (-1, rank - 1), f"its axis {axis} is not the last of {rank}")
    return [d("Softmax", d("Add", "x0", "x1"), axis=-1)]


def _layer_norm(d: Definition) -> Sequence[str]:
    d.whole("stash_type", 1)
    return _normalised(d, "x0", 1, d.real("epsilon", 1e-5), d.whole("axis", -1))


def _normalised(d: Definition, name: str, scale: int, epsilon: float, axis: int = -1) -> list[str]:
    """The three results of a layer normalisation, by the inputs at `scale` and, for the bias, behind it."""
    operands = (name, f"x{scale}", *filter(None, [d.name(scale + 1)]))
    count = 3 if d.wants(1) or d.wants(2) else 1
    names = d.several("LayerNormalization", *operands, count=count, axis=axis, epsilon=epsilon)
    return [*names, *[""] * (3 - count)]


def _simplified_layer_norm(d: Definition) -> Sequence[str]:
    return [d.like("RMSNormalization", "x0", "x1", keep=("axis", "epsilon", "stash_type"))]


def _skip_layer_norm(d: Definition) -> Sequence[str]:
    total = _skipped(d, bias=4)
    return [*_normalised(d, total, 2, d.real("epsilon", 1e-12)), total]


def _skip_simplified_layer_norm(d: Definition) -> Sequence[str]:
    total = _skipped(d, bias=3)
    epsilon = d.real("epsilon", 1e-12)
    return [d("RMSNormalization", total, "x2", axis=-1, epsilon=epsilon), "", "", total]


def _skipped(d: Definition, *, bias: int) -> str:
    d.shape(0, 2, 3)
    total = d("Add", "x0", "x1")
    return d("Add", total, f"x{bias}") if d.has(bias) else total


def _group_norm(d: Definition) -> Sequence[str]:
    return [_grouped(d, "x0")]


def _skip_group_norm(d: Definition) -> Sequence[str]:
    rank, skip = len(d.shape(0)), d.name(3)
    if len(d.shape(3)) == 2:  # a sequence of numbers for each sample, and each channel, which are last
        d.support(bool(d.whole("channels_last", 1)), "a skip of each channel beside channels first")
        skip = d("Unsqueeze", skip, d.whole_numbers(range(1, rank - 1)))
    total = d("Add", "x0", skip)
    total = d("Add", total, "x4") if d.has(4) else total
    return [_grouped(d, total), total]


def _grouped(d: Definition, name: str) -> str:
    """A group normalisation by the inputs 1 and 2, which may be of another type, and Swish behind it."""
    shape, dtype, groups = d.shape(0), d.value(0).dtype, d.whole("groups", 0)
    rank, is_last = len(shape), bool(d.whole("channels_last", 1))
    d.require(rank >= 3, f"its input {list(shape)} has no axes beside samples and channels")
    channels = shape[-1] if is_last else shape[1]
    d.require(groups >= 1 and channels % groups == 0, f"{groups} groups do not divide {channels} channels")
    d.support(groups <= MAX_CONSTANT_ELEMENTS, f"{groups} groups are too many")
    first = [shape[0], channels, *(shape[1:-1] if is_last else shape[2:])]
    x = d("Transpose", name, perm=[0, rank - 1, *range(1, rank - 1)]) if is_last else name
    parts = d("Reshape", x, d.whole_numbers([shape[0], groups, math.prod(first[1:]) // groups]))
    one, zero = (d.constant(np.full(groups, value, dtype.numpy)) for value in (1, 0))
    normal = d("InstanceNormalization", parts, one, zero, epsilon=d.real("epsilon", 1e-5))
    found = d("Reshape", normal, d.whole_numbers(first))
    each = d.whole_numbers([channels, *[1] * (rank - 2)])
    scale, bias = (d("Cast", d("Reshape", f"x{i}", each), to=dtype.value) for i in (1, 2))
    found = d("Add", d("Mul", found, scale), bias)
    activation = d.whole("activation", 0)
    d.support(activation in (0, 1), f"its activation {activation} is not known")
    found = d("Mul", found, d("Sigmoid", found)) if activation else found
    return d("Transpose", found, perm=[0, *range(2, rank), 1]) if is_last else found


def _bias_split_gelu(d: Definition) -> Sequence[str]:
    rank = len(d.shape(0))
    d.require(rank > 0, "its input is one number")
    value, gate = d.several("Split", d("Add", "x0", "x1"), count=2, axis=rank - 1, num_outputs=2)
    return [d("Mul", value, d("Gelu", gate))]


def _nhwc_conv(d: Definition) -> Sequence[str]:
    rank = len(d.shape(0))
    d.require(rank >= 3, f"its input {list(d.shape(0))} has no channels behind others")
    order = [0, rank - 1, *range(1, rank - 1)]
    x, weights = (d("Transpose", name, perm=order) for name in ("x0", "x1"))
    found = d.like("Conv", x, weights, *filter(None, [d.name(2)]), keep=_CONVOLUTION)
    return [d("Transpose", found, perm=[0, *range(2, rank), 1])]


def _embed_layer_norm(d: Definition) -> Sequence[str]:
    batch, length = d.shape(0, 2)
    d.whole("mask_index_type", 0)  # which kernels read the second result; it is the same
    positions = d.name(8)
    if not positions:
        d.require(length <= d.shape(3, 2)[0], f"{length} tokens need as many embeddings of positions")
        start, end = d.whole_numbers([0]), d.whole_numbers([length])
        embedded = d("Slice", "x3", start, end)
    else:
        embedded = d("Gather", "x3", positions)
    total = d("Add", d("Gather", "x2", "x0"), embedded)
    if d.has(1) and d.has(4):
        total = d("Add", total, d("Gather", "x4", "x1"))
    norm = d("LayerNormalization", total, "x5", "x6", axis=-1, epsilon=d.real("epsilon", 1e-12))
    return [norm, mask_index(d, batch), total]


def mask_index(d: Definition, batch: int) -> str:
    """How many tokens of each sequence its mask lets through."""
    if not d.wants(1):
        return ""
    if not d.has(7):
        return d("Expand", d.number(0, DType.INT32), d.whole_numbers([batch]))
    is_seen = d("Equal", "x7", d.number(1, d.value(7).dtype))
    return d("ReduceSum", d("Cast", is_seen, to=DType.INT32.value), d.whole_numbers([1]), keepdims=0)


FUSED: Mapping[str, Write] = {
    "BiasAdd": _bias_add,
    "BiasGelu": _bias_gelu,
    "BiasSoftmax": _bias_softmax,
    "BiasSplitGelu": _bias_split_gelu,
    "EmbedLayerNormalization": _embed_layer_norm,
    "FastGelu": _fast_gelu,
    "FusedConv": _fused_conv,
    "FusedGemm": _fused_gemm,
    "FusedMatMul": _fused_matmul,
    "Gelu": _gelu,
    "GemmFastGelu": _gemm_fast_gelu,
    "GroupNorm": _group_norm,
    "LayerNormalization": _layer_norm,
    "NhwcConv": _nhwc_conv,
    "QuickGelu": _quick_gelu,
    "SimplifiedLayerNormalization": _simplified_layer_norm,
    "SkipGroupNorm": _skip_group_norm,
    "SkipLayerNormalization": _skip_layer_norm,
    "SkipSimplifiedLayerNormalization": _skip_simplified_layer_norm,
    "TransposeMatMul": _fused_matmul,
}
