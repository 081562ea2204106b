"""Operators of no other family: generators of constants, running sums, turned sequences."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tilewright.arrays import Array
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Const, Iter, call, cast, select
from tilewright.ir.graph import Node
from tilewright.ir.nest import (
    Access,
    Combine,
    Description,
    Dim,
    Index,
    Indirect,
    Lookup,
    Nest,
    Nests,
    Opaque,
    Operand,
    affine,
)
from tilewright.ir.ops.build import (
    broadcast,
    copy_nest,
    dims_of,
    identity,
    input_operand,
    local,
    normalized_axis,
    output_operand,
    read,
    require,
    require_rank,
    require_result,
    require_scalar,
    require_shape,
    scalar_like,
    table,
)
from tilewright.ir.ops.operands import axis_within, extents_of, present
from tilewright.ir.ops.registry import Sizing, operator
from tilewright.ir.work import HostWork

# A running sum as one nest does the square of its work, in blocks a multiple of it; then the host is faster.
_LONGEST_SINGLE_NEST = 64
LONGEST_RUNNING_NEST = 1 << 14


# Generators ------------------------------------------------------------------------------------------


def _from_table(node: Node, data: Array) -> Nests:
    require_result(node, data.shape)
    out = output_operand(node)
    dims = dims_of(out.shape)
    return (copy_nest(dims, Access(table(0, data), identity(dims)), Access(out, identity(dims))),)


def _constant_data(node: Node) -> Array | None:
    """The tensor that a Constant holds, None for kinds of value that have no dense form here."""
    for name, value in node.attributes.items():
        match name, value:
            case "value", np.ndarray():
                return value
            case "value_float" | "value_floats", float() | int() | tuple():
                return np.asarray(value, dtype=np.float32)
            case "value_int" | "value_ints", int() | tuple():
                return np.asarray(value, dtype=np.int64)
            case "value_string" | "value_strings", str() | bytes() | tuple():
                return np.asarray(value, dtype=object)
    return None


def _constant_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    data = _constant_data(node)
    assert data is not None, "Constant without a dense value"
    return (data,)


@operator("Constant", reference=_constant_reference)
def constant(node: Node) -> Description:
    """A tensor that is an attribute."""
    data = _constant_data(node)
    return Opaque("Constant has no dense value") if data is None else _from_table(node, data)


def _shape_slice(node: Node, shape: Sequence[int]) -> Array:
    end = node.attributes.get("end")
    assert end is None or isinstance(end, int)
    return np.asarray(shape[node.int_attr("start", 0) : end], dtype=np.int64)


@operator("Shape", reference=lambda node, inputs: (_shape_slice(node, present(inputs).shape),))
def shape(node: Node) -> Description:
    """The extents of the input, from `start` to before `end`."""
    return _from_table(node, _shape_slice(node, node.require(0).shape))


@operator("Size", reference=lambda node, inputs: (np.asarray(present(inputs).size, dtype=np.int64),))
def size(node: Node) -> Description:
    """The number of elements of the input."""
    return _from_table(node, np.asarray(node.require(0).num_elements, dtype=np.int64))


def _fill_value(node: Node) -> Array:
    value = node.attributes.get("value")
    return value.reshape(()) if isinstance(value, np.ndarray) else np.zeros((), dtype=np.float32)


def _constant_of_shape_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    return (np.full(tuple(int(e) for e in present(inputs)), _fill_value(node)),)


@operator(
    "ConstantOfShape",
    reference=_constant_of_shape_reference,
    sizing=Sizing(0, "input", lambda _, x, data: extents_of(data), lambda _, x, out: out),
)
def constant_of_shape(node: Node) -> Description:
    """One value everywhere."""
    out = output_operand(node)
    dims = dims_of(out.shape)
    value = Const(scalar_like(_fill_value(node).item(), out.dtype), out.dtype.compute)
    return (Nest(dims, (), Access(out, identity(dims)), value),)


def _range_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    start, limit, delta = (present(inputs, i).reshape(()) for i in range(3))
    # Python and float64 numbers, so that a float16 span cannot overflow before the division.
    count = max(0, int(np.ceil((limit.item() - start.item()) / delta.item())))
    return (start + np.arange(count).astype(start.dtype) * delta,)


def _range_work(node: Node, data: Sequence[Array | None]) -> HostWork:
    if any(end is None for end in data[:3]):
        return HostWork()
    start, limit, delta = (present(data, i).reshape(-1)[0].item() for i in range(3))
    count = (limit - start) / delta if delta else 0
    return HostWork(elements=max(0, math.ceil(count)) if math.isfinite(count) else 0)


@operator("Range", reference=_range_reference, host_work=_range_work)
def range_operator(node: Node) -> Description:
    """`start + i * delta`."""
    for scalar in range(3):
        require_scalar(node, scalar)
    require_result(node, (None,))
    ends = [node.constant(i) for i in range(3)]
    if any(end is None for end in ends):
        return Opaque("how many elements a Range has is data")
    start_at, limit, step = (end.item() for end in ends if end is not None)
    require(node, step != 0, "it has a step of 0")
    require_result(node, (max(0, math.ceil((limit - start_at) / step)),))
    out = output_operand(node)
    dims = dims_of(out.shape)
    reads = tuple(broadcast(input_operand(node, i), dims) for i in (0, 2))
    start, delta = read(0, reads[0]), read(1, reads[1])
    value = start + cast(Iter(dims[0].name), start.result) * delta
    return (Nest(dims, reads, Access(out, identity(dims)), value),)


def _eye_like_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    rows, columns = present(inputs).shape
    return (np.eye(rows, columns, node.int_attr("k", 0), dtype=node.output.dtype.numpy),)


@operator("EyeLike", reference=_eye_like_reference)
def eye_like(node: Node) -> Description:
    """Ones on the `k`-th diagonal, zeros elsewhere."""
    require_result(node, require_rank(node, 0, 2, 2))
    out = output_operand(node)
    dims = dims_of(out.shape)
    dtype = out.dtype.compute
    on_diagonal = call("eq", Iter(dims[1].name), Iter(dims[0].name) + node.int_attr("k", 0))
    value = select(on_diagonal, Const(scalar_like(1, dtype), dtype), Const(scalar_like(0, dtype), dtype))
    return (Nest(dims, (), Access(out, identity(dims)), value),)


# Running sums ----------------------------------------------------------------------------------------


def _running_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    x = present(inputs)
    axis = axis_within(int(present(inputs, 1).reshape(())), x.ndim)
    product = node.op_type == "CumProd"
    x = np.flip(x, axis) if node.int_attr("reverse", 0) else x
    if node.int_attr("exclusive", 0) and x.shape[axis]:
        first = np.full([1 if a == axis else e for a, e in enumerate(x.shape)], int(product), x.dtype)
        x = np.concatenate([first, np.take(x, range(x.shape[axis] - 1), axis)], axis)
    total = (np.cumprod if product else np.cumsum)(x, axis, dtype=x.dtype)
    return (np.flip(total, axis) if node.int_attr("reverse", 0) else total,)


@operator("CumSum", "CumProd", reference=_running_reference)
def running(node: Node) -> Description:
    """`out[i]` accumulates `x[i - j]` over j; what lies before the start is the neutral element."""
    require_result(node, node.require(0).shape)
    require_scalar(node, 1)
    source, out, axis_data = input_operand(node, 0), output_operand(node), node.constant(1)
    if axis_data is None:
        return Opaque(f"the axis of {node.op_type} is data")
    axis = normalized_axis(node, int(axis_data.reshape(())), len(out.shape))
    extent = out.shape[axis]
    if extent > LONGEST_RUNNING_NEST:
        return Opaque(f"{node.op_type} over {extent} elements is a serial chain")
    combine: Combine = "prod" if node.op_type == "CumProd" else "sum"
    dims = dims_of(out.shape)
    direction = 1 if node.int_attr("reverse", 0) else -1
    offset = direction * bool(node.int_attr("exclusive", 0))
    neutral = scalar_like(combine == "prod", out.dtype.compute)
    if extent > _LONGEST_SINGLE_NEST:
        return _running_blocks(source, out, axis, direction, offset, combine)
    back = Dim("j", extent, "reduce")
    index = tuple(
        affine(d.name, (back.name, direction), offset) if position == axis else affine(d.name)
        for position, d in enumerate(dims)
    )
    access = Access(source, index, neutral)
    return (Nest((*dims, back), (access,), Access(out, identity(dims)), read(0, access), combine),)


def _running_blocks(
    source: Operand, out: Operand, axis: int, direction: int, offset: int, combine: Combine
) -> Nests:
    """Blocks one by one, then what lies before each block, then both together.

    The first nest lays the elements out in the order in which they are accumulated, in whole blocks.
    """
    extent, dtype = out.shape[axis], out.dtype.compute
    size = next((s for s in (16, 32, 64) if extent <= 64 * s), 128)
    count = -(-extent // size)
    neutral = scalar_like(combine == "prod", dtype)
    before, after = out.shape[:axis], out.shape[axis + 1 :]
    outer = tuple(Dim(f"d{i}", e) for i, e in enumerate(before))
    inner = tuple(Dim(f"e{i}", e) for i, e in enumerate(after))
    b, i, j = Dim("b", count), Dim("i", size), Dim("j", size, "reduce")

    def at(*middle: Index) -> tuple[Index, ...]:
        return (*identity(outer), *middle, *identity(inner))

    laid = local(0, dtype, (*before, count, size, *after))
    within = local(1, dtype, laid.shape)
    ahead = local(2, dtype, (*before, count, *after))
    first = extent - 1 if direction > 0 else 0
    element = affine((b.name, -direction * size), (i.name, -direction), first + offset)
    taken = Access(source, at(element), neutral)
    blocks = (*outer, b, i, *inner)
    lay = Nest(blocks, (taken,), Access(laid, at(affine("b"), affine("i"))), read(0, taken))
    earlier = Access(laid, at(affine("b"), affine("i", ("j", -1))), neutral)
    accumulate = Nest(
        (*blocks, j), (earlier,), Access(within, at(affine("b"), affine("i"))), read(0, earlier), combine
    )
    totals = Access(within, at(affine("b", ("k", -1), -1), affine(size - 1)), neutral)
    carry = Nest(
        (*outer, b, *inner, Dim("k", count, "reduce")),
        (totals,),
        Access(ahead, at(affine("b"))),
        read(0, totals),
        combine,
    )
    p = Dim("p", extent)
    flat = Access(within, at(affine("p")), view=(*before, count * size, *after))
    block = Access(ahead, at(Lookup(tuple(n // size for n in range(extent)), "p")))
    value = call("mul" if combine == "prod" else "add", read(0, flat), read(1, block))
    place = affine((p.name, -direction), first)
    join = Nest((*outer, p, *inner), (flat, block), Access(out, at(place)), value)
    return lay, accumulate, carry, join


# Turned sequences ------------------------------------------------------------------------------------


def _reverse_sequence_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    x, lengths = present(inputs), present(inputs, 1)
    time, batch = node.int_attr("time_axis", 0), node.int_attr("batch_axis", 1)
    by_time = np.moveaxis(x, (time, batch), (0, 1))
    times = np.arange(by_time.shape[0])[:, None]
    turned = np.where(times < lengths, lengths - 1 - times, times)
    result = by_time[turned, np.arange(by_time.shape[1])]
    return (np.moveaxis(result, (0, 1), (time, batch)),)


@operator("ReverseSequence", reference=_reverse_sequence_reference)
def reverse_sequence(node: Node) -> Description:
    """Where each step comes from, by the length of its sequence, and then the step itself."""
    time, batch = node.int_attr("time_axis", 0), node.int_attr("batch_axis", 1)
    require(
        node, {time, batch} == {0, 1}, f"time_axis is {time} and batch_axis {batch}, not 0 and 1 or 1 and 0"
    )
    shape = require_rank(node, 0, 2)
    require_shape(node, 1, (shape[batch],), "one length for each sequence")
    require_result(node, shape)
    x, lengths, out = input_operand(node, 0), input_operand(node, 1), output_operand(node)
    dims = dims_of(out.shape)
    pair = (dims[time], dims[batch])
    length = Access(lengths, (affine(dims[batch].name),))
    now, count = Iter(dims[time].name), read(0, length)
    turned = local(0, DType.INT64, (out.shape[time], out.shape[batch]))
    step = select(call("lt", now, count), count - 1 - now, now)
    where = Access(turned, identity(pair))
    index: list[Index] = list(identity(dims))
    index[time] = Indirect(0)
    source = Access(x, tuple(index))
    return (
        Nest(pair, (length,), where, step),
        Nest(dims, (where, source), Access(out, identity(dims)), read(1, source)),
    )
