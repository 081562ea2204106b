"""Normalisation by given statistics (batch) and by computed ones (layer, instance, group, RMS, ...).

Computed statistics come in two steps, the mean and then the mean of squared differences: a sum of
squares minus a squared sum loses all digits where the mean is large.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.arrays import Array
from tilewright.ir.expr import Acc, Expr, call, cast, select
from tilewright.ir.graph import Node
from tilewright.ir.nest import Access, Description, Dim, Index, Nest, Opaque, Operand, affine
from tilewright.ir.ops.build import (
    axis_of,
    broadcast,
    dims_of,
    identity,
    input_operand,
    local,
    normalized_axis,
    output_operand,
    read,
    require,
    require_broadcast,
    require_rank,
    require_result,
    require_shape,
)
from tilewright.ir.ops.reduction import as_parallel, kept, normalized_axes, split_dims
from tilewright.ir.ops.registry import operator


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
    shape = require_rank(node, 0, 1)
    channels = shape[1] if len(shape) > 1 else 1
    for position in range(1, 5):
        require_shape(node, position, (channels,), "one for each channel")
    require_result(node, shape)
    for position in range(1, len(node.outputs)):
        require_result(node, (channels,), position)
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
    first = axis_of(node, len(x.shape), -1)
    for position in (1, 2):
        require_broadcast(node, position, x.shape)
    require_result(node, x.shape)
    dims = split_dims(x.shape, tuple(range(first, len(x.shape))))
    compute = x.dtype.compute
    for position in (1, 2):
        require_result(node, [1 if d.role == "reduce" else d.extent for d in dims], position)
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


def _instance_norm_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    x, scale, bias = (np.asarray(a) for a in inputs[:3])
    normal, _, _ = _standardize(x, tuple(range(2, x.ndim)), node.float_attr("epsilon", 1e-5))
    return (normal * _per_channel(scale, x.ndim) + _per_channel(bias, x.ndim),)


def _scaled_nests(
    node: Node, dims: tuple[Dim, ...], view: tuple[int, ...] | None, channel: Index, epsilon: float
) -> tuple[Nest, ...]:
    """Standardise over the reduce dims (of a view of the input), then scale and shift per channel."""
    require_result(node, node.require(0).shape)
    x, out = input_operand(node, 0), output_operand(node)
    compute = out.dtype.compute
    narrow = [1 if d.role == "reduce" else d.extent for d in dims]
    mean, inverse = local(0, compute, narrow), local(1, compute, narrow)
    source = Access(x, identity(dims), view=view)
    scale, bias = (Access(input_operand(node, i), (channel,)) for i in (1, 2))
    reads = (source, kept(dims, mean), kept(dims, inverse), scale, bias)
    value = (read(0, source) - read(1, reads[1])) * read(2, reads[2])
    value = value * cast(read(3, scale), compute) + cast(read(4, bias), compute)
    final = Nest(as_parallel(dims), reads, Access(out, identity(dims), view=view), value)
    return (*_statistics(dims, source, mean, inverse, epsilon), final)


@operator("InstanceNormalization", reference=_instance_norm_reference)
def instance_normalization(node: Node) -> Description:
    """Every image plane standardised by its own statistics, then scaled and shifted per channel."""
    shape = require_rank(node, 0, 2)
    for position in (1, 2):
        require_shape(node, position, (shape[1],), "one for each channel")
    dims = split_dims(shape, tuple(range(2, len(shape))))
    return _scaled_nests(node, dims, None, affine("d1"), node.float_attr("epsilon", 1e-5))


# From this opset on scale and bias have one element per channel, before it one per group.
_GROUP_NORM_PER_CHANNEL = 21


def _group_norm_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    x, scale, bias = (np.asarray(a) for a in inputs[:3])
    groups = node.int_attr("num_groups", 1)
    grouped = x.reshape(x.shape[0], groups, -1)
    normal, _, _ = _standardize(grouped, (2,), node.float_attr("epsilon", 1e-5))
    if node.opset < _GROUP_NORM_PER_CHANNEL:
        return ((normal * scale[:, None] + bias[:, None]).reshape(x.shape),)
    return (normal.reshape(x.shape) * _per_channel(scale, x.ndim) + _per_channel(bias, x.ndim),)


@operator("GroupNormalization", reference=_group_norm_reference)
def group_normalization(node: Node) -> Description:
    """Groups of channels standardised together: the input is viewed as `[N, groups, C/groups, ...]`."""
    shape = require_rank(node, 0, 2)
    groups = node.int_attr("num_groups", 1)
    fits = groups >= 1 and shape[1] % groups == 0
    require(node, fits, f"num_groups={groups} does not divide {shape[1]} channels")
    per_channel = node.opset >= _GROUP_NORM_PER_CHANNEL
    for position in (1, 2):
        require_shape(node, position, (shape[1] if per_channel else groups,))
    inside = shape[1] // groups
    view = (shape[0], groups, inside, *shape[2:])
    dims = split_dims(view, tuple(range(2, len(view))))
    channel = affine(("d1", inside), "d2") if per_channel else affine("d1")
    return _scaled_nests(node, dims, view, channel, node.float_attr("epsilon", 1e-5))


def _rms_norm_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    x, scale = (np.asarray(a) for a in inputs[:2])
    axes = tuple(range(node.int_attr("axis", -1) % x.ndim, x.ndim))
    square = (x * x).mean(axis=axes, keepdims=True, dtype=x.dtype)
    epsilon = np.asarray(node.float_attr("epsilon", 1e-5)).astype(x.dtype)
    return ((x / np.sqrt(square + epsilon)) * scale,)


@operator("RMSNormalization", reference=_rms_norm_reference)
def rms_normalization(node: Node) -> Description:
    """`x / sqrt(mean(x^2) + epsilon) * scale` over the last axes, as two nests."""
    x, out = input_operand(node, 0), output_operand(node)
    first = axis_of(node, len(x.shape), -1)
    require_broadcast(node, 1, x.shape)
    require_result(node, x.shape)
    dims = split_dims(x.shape, tuple(range(first, len(x.shape))))
    compute = x.dtype.compute
    inverse = local(0, compute, [1 if d.role == "reduce" else d.extent for d in dims])
    source = Access(x, identity(dims))
    value = read(0, source)
    mean = Acc(compute) / _count(dims)
    deviation = call("reciprocal", call("sqrt", mean + node.float_attr("epsilon", 1e-5)))
    reads = (source, kept(dims, inverse), broadcast(input_operand(node, 1), dims))
    result = value * read(1, reads[1]) * cast(read(2, reads[2]), compute)
    return (
        Nest(dims, (source,), kept(dims, inverse), value * value, "sum", None, deviation),
        Nest(as_parallel(dims), reads, Access(out, identity(dims)), cast(result, out.dtype.compute)),
    )


def _lp_norm_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    x = np.asarray(inputs[0])
    axis = node.int_attr("axis", -1)
    if node.int_attr("p", 2) == 1:
        norm = np.abs(x).sum(axis=axis, keepdims=True)
    else:
        norm = np.sqrt((x * x).sum(axis=axis, keepdims=True))
    return ((x / np.where(norm == 0, 1, norm)).astype(x.dtype, copy=False),)


@operator("LpNormalization", reference=_lp_norm_reference)
def lp_normalization(node: Node) -> Description:
    """`x / norm(x)` along one axis, `p` 1 or 2; a row of zeros stays zero."""
    x, out = input_operand(node, 0), output_operand(node)
    axis = axis_of(node, len(x.shape), -1)
    require(node, node.int_attr("p", 2) in (1, 2), f"p is {node.int_attr('p', 2)}, not 1 or 2")
    require_result(node, x.shape)
    dims = split_dims(x.shape, (axis,))
    compute = out.dtype.compute
    total = kept(dims, local(0, compute, [1 if i == axis else e for i, e in enumerate(x.shape)]))
    source = Access(x, identity(dims))
    value, norm = read(0, source), read(1, total)
    if node.int_attr("p", 2) == 1:
        measure = Nest(dims, (source,), total, call("abs", value), "sum")
    else:
        measure = Nest(dims, (source,), total, value * value, "sum", None, call("sqrt", Acc(compute)))
    divisor = select(call("eq", norm, 0.0), 1.0, norm)
    return (measure, Nest(as_parallel(dims), (source, total), Access(out, identity(dims)), value / divisor))


# What ONNX adds to the deviation in MeanVarianceNormalization.
_MVN_EPSILON = 1e-9


def _mvn_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    x = np.asarray(inputs[0])
    axes = node.ints_attr("axes", (0, 2, 3))
    centred = x - x.mean(axis=axes, keepdims=True, dtype=x.dtype)
    deviation = np.sqrt((centred * centred).mean(axis=axes, keepdims=True, dtype=x.dtype))
    return (centred / (deviation + np.asarray(_MVN_EPSILON).astype(x.dtype)),)


@operator("MeanVarianceNormalization", reference=_mvn_reference)
def mean_variance_normalization(node: Node) -> Description:
    """Mean, deviation plus a tiny constant, then the quotient, over the given axes."""
    x, out = input_operand(node, 0), output_operand(node)
    rank = len(x.shape)
    given = node.ints_attr("axes", (0, 2, 3)) or ()
    axes = normalized_axes([normalized_axis(node, a, rank, "an axis") for a in given], rank)
    require_result(node, x.shape)
    dims = split_dims(x.shape, axes)
    compute = out.dtype.compute
    narrow = [1 if d.role == "reduce" else d.extent for d in dims]
    mean, deviation = kept(dims, local(0, compute, narrow)), kept(dims, local(1, compute, narrow))
    source = Access(x, identity(dims))
    average = Acc(compute) / _count(dims)
    centred = read(0, source) - read(1, mean)
    spread = call("sqrt", average) + _MVN_EPSILON
    return (
        Nest(dims, (source,), mean, read(0, source), "sum", None, average),
        Nest(dims, (source, mean), deviation, centred * centred, "sum", None, spread),
        Nest(
            as_parallel(dims),
            (source, mean, deviation),
            Access(out, identity(dims)),
            centred / read(2, deviation),
        ),
    )


def _lrn_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    x = np.asarray(inputs[0])
    size = node.int_attr("size", 1)
    before = (size - 1) // 2
    widths = [(0, 0), (before, size - 1 - before), *((0, 0) for _ in x.shape[2:])]
    padded = np.pad(x * x, widths)
    total = np.zeros_like(x)
    for k in range(size):
        total += padded[:, k : k + x.shape[1]]
    alpha, beta, bias = _lrn_constants(node)
    return (
        x
        / (total * np.asarray(alpha / size, x.dtype) + np.asarray(bias, x.dtype))
        ** np.asarray(beta, x.dtype),
    )


def _lrn_constants(node: Node) -> tuple[float, float, float]:
    return node.float_attr("alpha", 1e-4), node.float_attr("beta", 0.75), node.float_attr("bias", 1.0)


@operator("LRN", reference=_lrn_reference)
def local_response_normalization(node: Node) -> Description:
    """`x / (bias + alpha/size * sum of x^2 over size neighbouring channels)^beta`, as one nest."""
    require_result(node, require_rank(node, 0, 2))
    x, out = input_operand(node, 0), output_operand(node)
    size = node.int_attr("size", 1)
    require(node, size >= 1, f"size is {size}, but at least 1 is taken")
    alpha, beta, bias = _lrn_constants(node)
    dims = dims_of(x.shape)
    index = identity(dims)
    neighbour = affine("d1", "k", -((size - 1) // 2))
    reads = (Access(x, (index[0], neighbour, *index[2:]), 0.0), Access(x, index))
    compute = out.dtype.compute
    value = read(0, reads[0])
    scale = call("pow", Acc(compute) * (alpha / size) + bias, beta)
    finish = read(1, reads[1]) / scale
    loops = (*dims, Dim("k", size, "reduce"))
    return (Nest(loops, reads, Access(out, index), value * value, "sum", None, finish),)
