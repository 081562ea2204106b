"""Pooling over windows and over the whole image.

Dims: `n`, `c`, then `od oh ow` and the reduced `kd kh kw`, as many as there are spatial axes; global
pools reduce `h0 h1 ...` directly.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from tilewright.arrays import Array
from tilewright.errors import ModelRejected
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Acc, Const, Expr, Scalar, call
from tilewright.ir.graph import Node, Shape
from tilewright.ir.nest import Access, Combine, Description, Dim, Nest, Opaque, affine
from tilewright.ir.ops.build import (
    input_operand,
    output_operand,
    read,
    require,
    require_rank,
    require_result,
    table,
)
from tilewright.ir.ops.registry import operator
from tilewright.ir.ops.window import Window, window_of
from tilewright.ir.work import check_steps


def lowest(dtype: DType | np.dtype[Any]) -> Scalar:
    """The value that no maximum ever takes over another: minus infinity, or the smallest integer."""
    kind = dtype if isinstance(dtype, np.dtype) else dtype.numpy
    return int(np.iinfo(kind).min) if kind.kind in "iu" else float("-inf")


def _window(node: Node, spatial: Sequence[int]) -> Window:
    kernel = node.ints_attr("kernel_shape")
    if kernel is None:
        raise ModelRejected(f"{node.op_type} {node.name!r} lacks kernel_shape; export the model again.")
    return window_of(node, spatial, kernel, pools=True)


def _pool_shapes(node: Node) -> tuple[Shape, ...]:
    shape = require_rank(node, 0, 3)
    result = (*shape[:2], *_window(node, shape[2:]).outputs)
    return (result,) * len(node.outputs)


def _pool_window(node: Node) -> Window:
    """The window of a node whose results are as large as it makes them."""
    for position, shape in enumerate(_pool_shapes(node)):
        require_result(node, shape, position)
    return _window(node, node.require(0).shape[2:])


def _pool_nest(
    node: Node, window: Window, combine: Combine, fill: Scalar, body: Expr | None, finish: Expr | None
) -> Nest:
    """The nest of a windowed pool; `finish` may read tables placed by the caller from read 1 on."""
    x, out = input_operand(node, 0), output_operand(node)
    names = window.names
    dims = (
        Dim("n", x.shape[0]),
        Dim("c", x.shape[1]),
        *(Dim(o, e) for (o, _), e in zip(names, window.outputs, strict=True)),
        *(Dim(k, e, "reduce") for (_, k), e in zip(names, window.kernel, strict=True)),
    )
    padding = None if window.stays_inside(x.shape[2:]) else fill
    source = Access(x, (affine("n"), affine("c"), *window.index()), padding)
    target = Access(out, (affine("n"), affine("c"), *(affine(o) for o, _ in names)))
    return Nest(dims, (source,), target, body or read(0, source), combine, None, finish)


def _max_pool_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    x = inputs[0]
    assert x is not None
    window = _window(node, x.shape[2:])
    taps = window.taps(x, lowest(x.dtype))
    if len(node.outputs) > 1 and node.outputs[1] is not None:
        return _max_pool_indices(node, x, window, taps)
    first: tuple[Any, ...] = (..., *(0,) * len(window.kernel))
    result = taps[first].copy()
    for tap in np.ndindex(*window.kernel):
        np.maximum(result, taps[(..., *tap)], out=result)
    return (result,)


def _max_pool_indices(node: Node, x: Array, window: Window, taps: Array) -> Sequence[Array]:
    rank = len(window.kernel)
    spatial = x.shape[2:]
    flat = taps.reshape(*taps.shape[:-rank], prod(window.kernel))
    best = flat.argmax(axis=-1)
    values = np.take_along_axis(flat, best[..., None], axis=-1)[..., 0]
    positions = []
    for axis, tap in enumerate(np.unravel_index(best, window.kernel)):
        start = np.arange(window.outputs[axis]) * window.strides[axis] - window.begin[axis]
        start = start.reshape(-1, *(1,) * (rank - 1 - axis))
        step = window.dilations[axis]
        # The first tap of each output that reads the input. No index names padding, first among equals
        # where a window holds nothing above the lowest value of its type.
        first = start + np.maximum(0, -(start // step)) * step
        positions.append((start + tap * step, first))
    inside = [(at >= 0) & (at < extent) for (at, _), extent in zip(positions, spatial, strict=True)]
    is_input = np.logical_and.reduce(inside)
    order = range(rank) if node.int_attr("storage_order", 0) == 0 else range(rank - 1, -1, -1)
    index = np.zeros(best.shape, np.int64)
    for axis in order:
        at, first = positions[axis]
        # A window all in padding has no such tap: its index is the nearest place of its own plane.
        index = index * spatial[axis] + np.where(is_input, at, np.minimum(first, spatial[axis] - 1))
    planes = np.arange(x.shape[0] * x.shape[1]).reshape(*x.shape[:2], *(1,) * rank)
    return values, index + planes * int(np.prod(spatial))


@operator("MaxPool", reference=_max_pool_reference, shapes=_pool_shapes)
def max_pool(node: Node) -> Description:
    """`out[n, c, o] = max_k x[n, c, stride*o + dilation*k - pad]`; padding never wins."""
    window = _pool_window(node)
    if len(node.outputs) > 1 and node.outputs[1] is not None:
        check_steps(node, prod(node.output.shape) * prod(window.kernel))
        return Opaque("MaxPool with its Indices output")
    return (_pool_nest(node, window, "max", lowest(node.output.dtype.compute), None, None),)


def _average_counts(node: Node, window: Window, spatial: Sequence[int]) -> list[tuple[int, ...]]:
    include = bool(node.int_attr("count_include_pad", 0))
    return [window.counts(axis, extent, include) for axis, extent in enumerate(spatial)]


def _average_pool_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    x = inputs[0]
    assert x is not None
    window = _window(node, x.shape[2:])
    total = _sum_taps(window.taps(x, 0), window)
    rank = len(window.kernel)
    divisor = np.ones((1,) * rank, x.dtype)
    for axis, counts in enumerate(_average_counts(node, window, x.shape[2:])):
        divisor = divisor * np.asarray(counts, x.dtype).reshape(-1, *(1,) * (rank - 1 - axis))
    return (total / divisor,)


def _sum_taps(taps: Array, window: Window) -> Array:
    result = np.zeros(taps.shape[: -len(window.kernel)], taps.dtype)
    for tap in np.ndindex(*window.kernel):
        result += taps[(..., *tap)]
    return result


@operator("AveragePool", reference=_average_pool_reference, shapes=_pool_shapes)
def average_pool(node: Node) -> Description:
    """`out[n, c, o] = sum_k x[n, c, ...] / (number of taps that count)`.

    The divisor is a product of one factor per axis: a constant where all windows of the axis count
    alike, else a table over the axis.
    """
    x = node.require(0)
    compute = node.output.dtype.compute
    window = _pool_window(node)
    constant = 1
    tables: list[Access] = []
    for (name, _), counts in zip(window.names, _average_counts(node, window, x.shape[2:]), strict=True):
        if len(set(counts)) == 1:
            constant *= counts[0]
        else:
            operand = table(len(tables), np.asarray(counts, compute.numpy))
            tables.append(Access(operand, (affine(name),)))
    divisor: Expr = Const(float(constant), compute)
    for position, access in enumerate(tables, 1):
        divisor = divisor * read(position, access)
    nest = _pool_nest(node, window, "sum", 0.0, None, Acc(compute) / divisor)
    return (Nest(nest.dims, (*nest.reads, *tables), nest.write, nest.body, "sum", None, nest.finish),)


def _lp_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    x = inputs[0]
    assert x is not None
    window = _window(node, x.shape[2:])
    p = node.int_attr("p", 2)
    total = _sum_taps(window.taps(np.abs(x) ** p, 0), window)
    return (total ** np.asarray(1.0 / p, x.dtype),)


def _exponent(node: Node) -> int:
    p = node.int_attr("p", 2)
    require(node, p >= 1, f"p is {p}, but at least 1 is taken")
    return p


def _power(value: Expr, p: int) -> Expr:
    magnitude = call("abs", value)
    if p == 1:
        return magnitude
    return value * value if p == 2 else call("pow", magnitude, float(p))


def _root(value: Expr, p: int) -> Expr:
    if p == 1:
        return value
    return call("sqrt", value) if p == 2 else call("pow", value, 1.0 / p)


@operator("LpPool", reference=_lp_reference, shapes=_pool_shapes)
def lp_pool(node: Node) -> Description:
    """`out = (sum_k |x|^p)^(1/p)` over each window."""
    p = _exponent(node)
    compute = node.output.dtype.compute
    window = _pool_window(node)
    nest = _pool_nest(node, window, "sum", 0.0, None, _root(Acc(compute), p))
    body = _power(read(0, nest.reads[0]), p)
    return (Nest(nest.dims, nest.reads, nest.write, body, "sum", None, nest.finish),)


def _global_nest(node: Node, combine: Combine, power: int | None, mean: bool) -> Nest:
    shape = require_rank(node, 0, 2)
    require_result(node, (*shape[:2], *(1,) * (len(shape) - 2)))
    x, out = input_operand(node, 0), output_operand(node)
    spatial = tuple(Dim(f"h{i}", e, "reduce") for i, e in enumerate(x.shape[2:]))
    dims = (Dim("n", x.shape[0]), Dim("c", x.shape[1]), *spatial)
    source = Access(x, tuple(affine(d.name) for d in dims))
    target = Access(out, (affine("n"), affine("c"), *(affine() for _ in spatial)))
    compute = out.dtype.compute
    body = read(0, source)
    finish: Expr | None = None
    if power is not None:
        body, finish = _power(body, power), _root(Acc(compute), power)
    if mean:
        finish = Acc(compute) / float(np.prod(x.shape[2:], dtype=np.int64))
    return Nest(dims, (source,), target, body, combine, None, finish)


def _spatial_axes(x: Array) -> tuple[int, ...]:
    return tuple(range(2, x.ndim))


def _global_average_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    x = inputs[0]
    assert x is not None
    return (x.mean(axis=_spatial_axes(x), keepdims=True, dtype=x.dtype),)


@operator("GlobalAveragePool", reference=_global_average_reference)
def global_average_pool(node: Node) -> Description:
    """Mean of each image plane."""
    return (_global_nest(node, "sum", None, mean=True),)


def _global_max_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    x = inputs[0]
    assert x is not None
    return (x.max(axis=_spatial_axes(x), keepdims=True),)


@operator("GlobalMaxPool", reference=_global_max_reference)
def global_max_pool(node: Node) -> Description:
    """Maximum of each image plane."""
    return (_global_nest(node, "max", None, mean=False),)


def _global_lp_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    x = inputs[0]
    assert x is not None
    p = node.int_attr("p", 2)
    total = (np.abs(x) ** p).sum(axis=_spatial_axes(x), keepdims=True)
    return (total ** np.asarray(1.0 / p, x.dtype),)


@operator("GlobalLpPool", reference=_global_lp_reference)
def global_lp_pool(node: Node) -> Description:
    """`(sum |x|^p)^(1/p)` of each image plane."""
    return (_global_nest(node, "sum", _exponent(node), mean=False),)
