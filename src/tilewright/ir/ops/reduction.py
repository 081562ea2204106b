"""Reductions along axes, arg-reductions, softmax and its relatives.

Dims are `d0, d1, ...`, one per axis of the input; reduced axes are reduce dims.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.arrays import Array
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Acc, Const, Expr, Iter, call, cast, select
from tilewright.ir.graph import Node
from tilewright.ir.nest import Access, Combine, Description, Dim, Nest, Opaque, Operand, affine
from tilewright.ir.ops.build import (
    axis_of,
    dims_of,
    identity,
    input_operand,
    local,
    output_operand,
    read,
    require,
    require_result,
    scalar_like,
)
from tilewright.ir.ops.operands import axis_within
from tilewright.ir.ops.registry import operator
from tilewright.records import dataclass

# The first opset of each operator that takes its axes as an input instead of an attribute.
_AXES_INPUT_SINCE = {"ReduceSum": 13}
_AXES_INPUT_DEFAULT = 18


def normalized_axes(axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Axes counted from the front, sorted, each once."""
    return tuple(sorted({int(a) % rank for a in axes})) if rank else ()


def reduced_axes(node: Node, rank: int, given: Array | None) -> tuple[int, ...]:
    """The axes a Reduce* node reduces; `given` is the data of its axes input, if it has one.

    An empty tuple means that nothing is reduced, which only happens with noop_with_empty_axes.
    """
    if node.opset >= _AXES_INPUT_SINCE.get(node.op_type, _AXES_INPUT_DEFAULT):
        axes = () if given is None else tuple(axis_within(int(a), rank) for a in np.asarray(given).ravel())
    else:
        axes = tuple(axis_within(a, rank) for a in node.ints_attr("axes", ()) or ())
    if axes:
        return normalized_axes(axes, rank)
    return () if node.int_attr("noop_with_empty_axes", 0) else tuple(range(rank))


def split_dims(shape: Sequence[int], axes: Sequence[int]) -> tuple[Dim, ...]:
    """One dim per axis, those of `axes` as reduce dims."""
    return tuple(Dim(f"d{i}", e, "reduce" if i in axes else "parallel") for i, e in enumerate(shape))


def kept(dims: Sequence[Dim], operand: Operand) -> Access:
    """Access an operand that has the dims' axes with every reduced axis of extent 1, or without them."""
    if len(operand.shape) == len(dims):
        return Access(operand, tuple(affine() if d.role == "reduce" else affine(d.name) for d in dims))
    return Access(operand, tuple(affine(d.name) for d in dims if d.role == "parallel"))


def as_parallel(dims: Sequence[Dim]) -> tuple[Dim, ...]:
    """The same loops with nothing reduced."""
    return tuple(Dim(d.name, d.extent) for d in dims)


@dataclass(frozen=True, slots=True)
class _Reduction:
    """How one Reduce* operator works: on whole arrays, and per element."""

    array: Callable[[Array, tuple[int, ...], bool], Array]
    combine: Combine
    body: Callable[[Expr], Expr] | None = None
    finish: Callable[[Expr, int], Expr] | None = None


def _extreme(function: Any, empty: Callable[[np.dtype[Any]], Any]) -> Callable[..., Array]:
    def reduce(x: Array, axes: tuple[int, ...], keep: bool) -> Array:
        if x.size == 0:
            return np.asarray(function(x, axis=axes, keepdims=keep, initial=empty(x.dtype)))
        return np.asarray(function(x, axis=axes, keepdims=keep))

    return reduce


def _smallest(dtype: np.dtype[Any]) -> Any:
    if dtype.kind == "b":
        return False
    return np.iinfo(dtype).min if dtype.kind in "iu" else -np.inf


def _largest(dtype: np.dtype[Any]) -> Any:
    if dtype.kind == "b":
        return True
    return np.iinfo(dtype).max if dtype.kind in "iu" else np.inf


def _sum(x: Array, axes: tuple[int, ...], keep: bool) -> Array:
    return np.asarray(np.sum(x, axis=axes, keepdims=keep, dtype=x.dtype))


def _mean(x: Array, axes: tuple[int, ...], keep: bool) -> Array:
    total = _sum(x, axes, keep)
    count = int(np.prod([x.shape[a] for a in axes], dtype=np.int64))
    if x.dtype.kind in "iu":
        return np.asarray(np.trunc(total / count)).astype(x.dtype)
    with np.errstate(all="ignore"):
        return np.asarray(total / np.asarray(count, x.dtype))


def _through_float(function: Callable[[Array], Array], x: Array) -> Array:
    """Apply a real function; integers go through float64 and back, as their nests do."""
    with np.errstate(all="ignore"):
        return function(x) if x.dtype.kind == "f" else function(x.astype(np.float64)).astype(x.dtype)


def _log_sum_exp(x: Array, axes: tuple[int, ...], keep: bool) -> Array:
    def of_floats(values: Array) -> Array:
        top = _extreme(np.max, _smallest)(values, axes, True)
        shift = np.where(np.isinf(top), 0, top).astype(values.dtype)
        logs: Array = np.log(np.sum(np.exp(values - shift), axis=axes, keepdims=True)) + shift
        return logs if keep else logs.reshape([e for i, e in enumerate(values.shape) if i not in axes])

    return _through_float(of_floats, x)


def _real(function: str) -> Callable[[Expr, int], Expr]:
    def finish(total: Expr, count: int) -> Expr:
        del count
        if total.result.is_float:
            return call(function, total)
        return cast(call(function, cast(total, DType.FLOAT64)), total.result)

    return finish


_REDUCTIONS = {
    "ReduceSum": _Reduction(_sum, "sum"),
    "ReduceMean": _Reduction(
        _mean, "sum", None, lambda total, n: total / Const(scalar_like(n, total.result), total.result)
    ),
    "ReduceMax": _Reduction(_extreme(np.max, _smallest), "max"),
    "ReduceMin": _Reduction(_extreme(np.min, _largest), "min"),
    "ReduceProd": _Reduction(
        lambda x, axes, keep: np.asarray(np.prod(x, axis=axes, keepdims=keep, dtype=x.dtype)), "prod"
    ),
    "ReduceL1": _Reduction(
        lambda x, axes, keep: _sum(np.abs(x), axes, keep), "sum", lambda v: call("abs", v)
    ),
    "ReduceL2": _Reduction(
        lambda x, axes, keep: _through_float(np.sqrt, _sum(x * x, axes, keep)),
        "sum",
        lambda v: v * v,
        _real("sqrt"),
    ),
    "ReduceSumSquare": _Reduction(lambda x, axes, keep: _sum(x * x, axes, keep), "sum", lambda v: v * v),
    "ReduceLogSum": _Reduction(
        lambda x, axes, keep: _through_float(np.log, _sum(x, axes, keep)), "sum", None, _real("log")
    ),
}


def _reduce_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    x = inputs[0]
    assert x is not None
    axes = reduced_axes(node, x.ndim, inputs[1] if len(inputs) > 1 else None)
    keep = _keeps_axes(node)
    if node.op_type == "ReduceLogSumExp":
        return (_log_sum_exp(x, axes, keep),)
    return (_REDUCTIONS[node.op_type].array(x, axes, keep),)


def _keeps_axes(node: Node) -> bool:
    """Whether reduced axes stay, of extent 1. As in ONNX, every value but 1 says that they go."""
    return node.int_attr("keepdims", 1) == 1


def _require_reduced(node: Node, shape: Sequence[int], axes: Sequence[int]) -> None:
    left = [(i in axes, e) for i, e in enumerate(shape)]
    if _keeps_axes(node):
        require_result(node, [1 if is_reduced else e for is_reduced, e in left])
    else:
        require_result(node, [e for is_reduced, e in left if not is_reduced])


def _plan(node: Node) -> tuple[Dim, ...] | Opaque:
    """The loops of a reduction over its input, or why they are not known before it runs."""
    if node.input(1) is not None and node.constant(1) is None:
        return Opaque(f"{node.op_type} whose axes are computed while the model runs")
    shape = node.require(0).shape
    axes = reduced_axes(node, len(shape), node.constant(1))
    _require_reduced(node, shape, axes)
    return split_dims(shape, axes)


def _count(dims: Sequence[Dim]) -> int:
    count = 1
    for d in dims:
        count *= d.extent if d.role == "reduce" else 1
    return count


@operator(*_REDUCTIONS, reference=_reduce_reference)
def reduce(node: Node) -> Description:
    """`out = finish(combine over the reduced axes of body(x))`."""
    dims = _plan(node)
    if isinstance(dims, Opaque):
        return dims
    rule = _REDUCTIONS[node.op_type]
    x, out = input_operand(node, 0), output_operand(node)
    compute = out.dtype.compute
    source = Access(x, identity(dims))
    value = read(0, source)
    body = value if rule.body is None else rule.body(value)
    finish = None if rule.finish is None else rule.finish(Acc(compute), _count(dims))
    combine = rule.combine
    if compute is DType.BOOL:
        combine = "or" if combine == "max" else "and"
    return (Nest(dims, (source,), kept(dims, out), body, combine, None, finish),)


@operator("ReduceLogSumExp", reference=_reduce_reference)
def reduce_log_sum_exp(node: Node) -> Description:
    """The maximum, then `log(sum exp(x - maximum)) + maximum`; an infinite maximum is not subtracted."""
    dims = _plan(node)
    if isinstance(dims, Opaque):
        return dims
    x, out = input_operand(node, 0), output_operand(node)
    compute = out.dtype.compute
    real = compute if compute.is_float else DType.FLOAT64
    top = local(0, real, [1 if d.role == "reduce" else d.extent for d in dims])
    source, top_access = Access(x, identity(dims)), kept(dims, top)
    largest = Nest(dims, (source,), top_access, cast(read(0, source), real), "max")
    shift = select(call("is_inf", read(1, top_access)), 0.0, read(1, top_access))
    body = call("exp", cast(read(0, source), real) - shift)
    finish = cast(call("log", Acc(real)) + shift, compute)
    total = Nest(dims, (source, top_access), kept(dims, out), body, "sum", None, finish)
    return (largest, total)


def _arg_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    x = inputs[0]
    assert x is not None
    axis = node.int_attr("axis", 0) % x.ndim
    find = np.argmax if node.op_type == "ArgMax" else np.argmin
    if x.size == 0:  # numpy finds nothing along an axis without elements, not even for results without any
        index = np.zeros([1 if a == axis else extent for a, extent in enumerate(x.shape)], np.int64)
    elif node.int_attr("select_last_index", 0):
        index = x.shape[axis] - 1 - find(np.flip(x, axis), axis=axis, keepdims=True)
    else:
        index = find(x, axis=axis, keepdims=True)
    if not _keeps_axes(node):
        index = index.squeeze(axis)
    return (index.astype(np.int64),)


def _is_extreme(value: Expr, extreme: Expr) -> Expr:
    """Whether a value equals the extreme of its row; a NaN is the extreme wherever there is one."""
    equal = call("eq", value, extreme)
    return call("or", equal, call("is_nan", value)) if value.result.is_float else equal


def _extreme_nests(node: Node, axis: int, combine: Combine, last: bool, target: Operand) -> tuple[Nest, Nest]:
    """The extreme along an axis into local 0, then the first or last index that attains it."""
    x = input_operand(node, 0)
    dims = split_dims(x.shape, (axis,))
    extent = x.shape[axis]
    extreme = local(0, x.dtype.compute, [1 if i == axis else e for i, e in enumerate(x.shape)])
    source, extreme_access = Access(x, identity(dims)), kept(dims, extreme)
    find = Nest(dims, (source,), extreme_access, read(0, source), combine)
    hit = _is_extreme(read(0, source), read(1, extreme_access))
    index = select(hit, Iter(f"d{axis}"), Const(-1 if last else extent, DType.INT64))
    where = Nest(dims, (source, extreme_access), kept(dims, target), index, "max" if last else "min")
    return find, where


@operator("ArgMax", "ArgMin", reference=_arg_reference)
def arg_extreme(node: Node) -> Description:
    """Two nests: the extreme along the axis, then the index at which it stands."""
    shape = node.require(0).shape
    axis = axis_of(node, len(shape), 0)
    _require_reduced(node, shape, (axis,))
    is_there = shape[axis] > 0 or node.output.num_elements == 0
    require(
        node, is_there, f"axis {axis} of {list(shape)} has no elements, so none is the largest or smallest"
    )
    combine: Combine = "max" if node.op_type == "ArgMax" else "min"
    last = bool(node.int_attr("select_last_index", 0))
    return _extreme_nests(node, axis, combine, last, output_operand(node))


def _softmax_parts(x: Array, axis: int) -> tuple[Array, Array]:
    shifted = x - x.max(axis=axis, keepdims=True)
    return shifted, np.exp(shifted)


def _softmax_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    x = inputs[0]
    assert x is not None
    if x.size == 0:
        return (x.copy(),)
    axis = node.int_attr("axis", -1)
    shifted, exponentials = _softmax_parts(x, axis)
    total = exponentials.sum(axis=axis, keepdims=True)
    return (exponentials / total if node.op_type == "Softmax" else shifted - np.log(total),)


def softmax_nests(
    source: Access, target: Access, dims: Sequence[Dim], first_local: int, *, may_be_empty: bool = False
) -> tuple[Nest, ...]:
    """Softmax over the reduce dims: maximum, exponentials, their sum, quotients.

    `source` and `target` are addressed by all dims; three locals are numbered from `first_local`. With
    `may_be_empty`, a row of nothing but minus infinity gives zeros instead of 0/0.
    """
    compute = target.operand.dtype.compute
    narrow = [1 if d.role == "reduce" else d.extent for d in dims]
    top = kept(dims, local(first_local, compute, narrow))
    powers = Access(local(first_local + 1, compute, [d.extent for d in dims]), identity(dims))
    total = kept(dims, local(first_local + 2, compute, narrow))
    parallel = as_parallel(dims)
    value = cast(read(0, source), compute)
    shift, divisor = read(1, top), read(1, total)
    if may_be_empty:
        shift = select(call("eq", shift, Const(-math.inf, compute)), 0.0, shift)
        divisor = select(call("eq", divisor, 0.0), 1.0, divisor)
    return (
        Nest(tuple(dims), (source,), top, value, "max"),
        Nest(parallel, (source, top), powers, call("exp_nonpositive", value - shift)),
        Nest(tuple(dims), (powers,), total, read(0, powers), "sum"),
        Nest(parallel, (powers, total), target, read(0, powers) / divisor),
    )


@operator("Softmax", reference=_softmax_reference)
def softmax(node: Node) -> Description:
    """`exp(x - max) / sum exp(x - max)` along one axis, as four nests."""
    x, out = input_operand(node, 0), output_operand(node)
    axis = axis_of(node, len(x.shape), -1)
    require_result(node, x.shape)
    dims = split_dims(x.shape, (axis,))
    return softmax_nests(Access(x, identity(dims)), Access(out, identity(dims)), dims, 0)


@operator("LogSoftmax", reference=_softmax_reference)
def log_softmax(node: Node) -> Description:
    """`(x - max) - log(sum exp(x - max))` along one axis, as three nests."""
    x, out = input_operand(node, 0), output_operand(node)
    axis = axis_of(node, len(x.shape), -1)
    require_result(node, x.shape)
    dims = split_dims(x.shape, (axis,))
    compute = out.dtype.compute
    narrow = [1 if i == axis else e for i, e in enumerate(x.shape)]
    source = Access(x, identity(dims))
    top, logs = kept(dims, local(0, compute, narrow)), kept(dims, local(1, compute, narrow))
    shifted = read(0, source) - read(1, top)
    return (
        Nest(dims, (source,), top, read(0, source), "max"),
        Nest(dims, (source, top), logs, call("exp", shifted), "sum", None, call("log", Acc(compute))),
        Nest(as_parallel(dims), (source, top, logs), Access(out, identity(dims)), shifted - read(2, logs)),
    )


def _hardmax_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    x = inputs[0]
    assert x is not None
    axis = node.int_attr("axis", -1)
    result = np.zeros_like(x)
    if x.size == 0:
        return (result,)
    np.put_along_axis(result, np.argmax(x, axis=axis, keepdims=True), 1, axis=axis)
    return (result,)


@operator("Hardmax", reference=_hardmax_reference)
def hardmax(node: Node) -> Description:
    """One where the first maximum along the axis stands, zero elsewhere."""
    out = output_operand(node)
    axis = axis_of(node, len(out.shape), -1)
    require_result(node, node.require(0).shape)
    narrow = [1 if i == axis else e for i, e in enumerate(out.shape)]
    position = local(1, DType.INT64, narrow)
    dims = dims_of(out.shape)
    position_there = kept(split_dims(out.shape, (axis,)), position)
    compute = out.dtype.compute
    one = select(
        call("eq", Iter(f"d{axis}"), read(0, position_there)), Const(1.0, compute), Const(0.0, compute)
    )
    mark = Nest(dims, (position_there,), Access(out, identity(dims)), one)
    return (*_extreme_nests(node, axis, "max", False, position), mark)
