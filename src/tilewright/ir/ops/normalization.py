"""Normalisation by given statistics (batch) and by computed ones (layer, instance, group, RMS, ...).

Computed statistics come in two steps, the mean and then the mean of squared differences: a sum of
squares minus a squared sum loses all digits where the mean is large.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.ir.expr import Acc, Expr, call, cast
from tilewright.ir.graph import Node
from tilewright.ir.nest import Access, Description, Dim, Nest, Opaque, Operand, affine
from tilewright.ir.ops.build import (
    broadcast,
    dims_of,
    identity,
    input_operand,
    local,
    output_operand,
    read,
)
from tilewright.ir.ops.reduction import as_parallel, kept, split_dims
from tilewright.ir.ops.registry import operator

Array = np.ndarray[Any, Any]


def _per_channel(values: Array, rank: int) -> Array:
    return values.reshape(-1, *(1,) * (rank - 2)) if rank > 1 else values


def _batch_norm_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    x, scale, bias, mean, var = (np.asarray(a) for a in inputs[:5])
    epsilon = np.asarray(node.float_attr("epsilon", 1e-5)).astype(var.dtype)
    outputs: list[Array] = []
    if node.int_attr("training_mode", 0):
        axes = (0, *range(2, x.ndim))
        momentum = node.float_attr("momentum", 0.9)
        now_mean, now_var = x.mean(axis=axes), x.var(axis=axes)
        outputs = [mean * momentum + now_mean * (1 - momentum), var * momentum + now_var * (1 - momentum)]
        mean, var = now_mean, now_var
    factor = scale / np.sqrt(var + epsilon)
    result = (x - _per_channel(mean, x.ndim)) * _per_channel(factor, x.ndim) + _per_channel(bias, x.ndim)
    return (result.astype(x.dtype, copy=False), *outputs)


@operator("BatchNormalization", reference=_batch_norm_reference)
def batch_normalization(node: Node) -> Description:
    """`(x - mean[c]) * (scale[c] / sqrt(var[c] + epsilon)) + bias[c]`."""
    if node.int_attr("training_mode", 0):
        return Opaque("BatchNormalization in training mode")
    x, out = input_operand(node, 0), output_operand(node)
    dims = dims_of(x.shape)
    compute = out.dtype.compute
    channel = affine("d1") if len(x.shape) > 1 else affine()
    reads = [Access(x, identity(dims))]
    reads += [Access(input_operand(node, i), (channel,)) for i in range(1, 5)]
    value, scale, bias, mean, var = (cast(read(i, a), compute) for i, a in enumerate(reads))
    factor = scale / call("sqrt", var + node.float_attr("epsilon", 1e-5))
    return (Nest(dims, tuple(reads), Access(out, identity(dims)), (value - mean) * factor + bias),)


def _standardize(x: Array, axes: tuple[int, ...], epsilon: float) -> tuple[Array, Array, Array]:
    """The differences from the mean times the inverse deviation, the mean, the inverse deviation."""
    mean = x.mean(axis=axes, keepdims=True, dtype=x.dtype)
    centred = x - mean
    variance = (centred * centred).mean(axis=axes, keepdims=True, dtype=x.dtype)
    inverse = 1 / np.sqrt(variance + np.asarray(epsilon).astype(x.dtype))
    return centred * inverse, mean, inverse


def _count(dims: Sequence[Dim]) -> float:
    count = 1
    for d in dims:
        count *= d.extent if d.role == "reduce" else 1
    return float(count)


def _statistics(
    dims: tuple[Dim, ...], source: Access, mean: Operand, inverse: Operand, epsilon: float
) -> tuple[Nest, Nest]:
    """Nests that write the mean over the reduce dims and then `1 / sqrt(variance + epsilon)`."""
    compute = source.operand.dtype.compute
    mean_access = kept(dims, mean)
    average = Acc(compute) / _count(dims)
    centred = read(0, source) - cast(read(1, mean_access), compute)
    deviation = call("reciprocal", call("sqrt", average + epsilon))
    return (
        Nest(dims, (source,), mean_access, read(0, source), "sum", None, cast(average, mean.dtype.compute)),
        Nest(
            dims,
            (source, mean_access),
            kept(dims, inverse),
            centred * centred,
            "sum",
            None,
            cast(deviation, inverse.dtype.compute),
        ),
    )


def _layer_norm_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    x, scale = inputs[0], inputs[1]
    assert x is not None
    assert scale is not None
    axes = tuple(range(node.int_attr("axis", -1) % x.ndim, x.ndim))
    normal, mean, inverse = _standardize(x, axes, node.float_attr("epsilon", 1e-5))
    result = normal * scale
    bias = inputs[2] if len(inputs) > 2 else None
    return (result if bias is None else result + bias, mean, inverse)


@operator("LayerNormalization", reference=_layer_norm_reference)
def layer_normalization(node: Node) -> Description:
    """Mean, inverse deviation, then `(x - mean) * inverse * scale + bias` over the last axes.

    The statistics go to the outputs Mean and InvStdDev where the model asks for them.
    """
    x, out = input_operand(node, 0), output_operand(node)
    first = node.int_attr("axis", -1) % len(x.shape)
    dims = split_dims(x.shape, tuple(range(first, len(x.shape))))
    compute = x.dtype.compute
    narrow = [1 if d.role == "reduce" else d.extent for d in dims]
    mean, inverse = (
        output_operand(node, i)
        if len(node.outputs) > i and node.outputs[i] is not None
        else local(i - 1, compute, narrow)
        for i in (1, 2)
    )
    source = Access(x, identity(dims))
    statistics = _statistics(dims, source, mean, inverse, node.float_attr("epsilon", 1e-5))
    reads = [source, kept(dims, mean), kept(dims, inverse), broadcast(input_operand(node, 1), dims)]
    value: Expr = (read(0, source) - cast(read(1, reads[1]), compute)) * cast(read(2, reads[2]), compute)
    value = value * cast(read(3, reads[3]), compute)
    if node.input(2) is not None:
        reads.append(broadcast(input_operand(node, 2), dims))
        value = value + cast(read(4, reads[4]), compute)
    final = Nest(as_parallel(dims), tuple(reads), Access(out, identity(dims)), cast(value, out.dtype.compute))
    return (*statistics, final)
