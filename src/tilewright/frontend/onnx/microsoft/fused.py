"""Products, convolutions, activations and normalisations that the optimiser puts into one operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.frontend.onnx.microsoft.definition import Definition, Write
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
    return [norm, _mask_index(d, batch), total]


def _mask_index(d: Definition, batch: int) -> str:
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
    "EmbedLayerNormalization": _embed_layer_norm,
    "FastGelu": _fast_gelu,
    "FusedConv": _fused_conv,
    "FusedGemm": _fused_gemm,
    "FusedMatMul": _fused_matmul,
    "Gelu": _gelu,
    "GemmFastGelu": _gemm_fast_gelu,
    "LayerNormalization": _layer_norm,
    "QuickGelu": _quick_gelu,
    "SimplifiedLayerNormalization": _simplified_layer_norm,
    "SkipLayerNormalization": _skip_layer_norm,
    "SkipSimplifiedLayerNormalization": _skip_simplified_layer_norm,
    "TransposeMatMul": _fused_matmul,
}
