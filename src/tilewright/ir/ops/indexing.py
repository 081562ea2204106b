"""Operators that select elements by index: gather, one-hot and kin.

An index that is data is an `Indirect` read, so embeddings are nests like any other. Operators whose output
sizes depend on data are opaque.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.arrays import Array
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Iter, call, cast, select
from tilewright.ir.graph import Node, Shape
from tilewright.ir.nest import Access, Affine, Description, Dim, Index, Lookup, Nest, Opaque, affine
from tilewright.ir.ops.build import (
    axis_of,
    copy_nest,
    data_index,
    dims_of,
    identity,
    input_operand,
    output_operand,
    read,
    require,
    require_indices,
    require_rank,
    require_result,
    require_scalar,
    require_shape,
)
from tilewright.ir.ops.operands import extents_of, present
from tilewright.ir.ops.registry import Sizing, operator


def _gather_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    return (np.take(present(inputs), present(inputs, 1), axis=node.int_attr("axis", 0)),)


def progression(indices: Array, dims: Sequence[Dim]) -> Affine | None:
    """The affine index over `dims` that gives these (non-negative) indices, if there is one.

    >>> progression(np.array([[1, 3], [2, 4]]), (Dim("i", 2), Dim("j", 2)))
    Affine(terms=(('i', 1), ('j', 2)), offset=1)
    """
    if indices.size == 0:
        return None
    origin = indices[(0,) * indices.ndim]
    expected = np.full(indices.shape, origin)
    terms = []
    for axis, dim in enumerate(dims):
        if dim.extent > 1:
            step = int(np.take(indices, 1, axis)[(0,) * (indices.ndim - 1)] - origin)
            terms.append((dim.name, step))
            along = np.arange(dim.extent).reshape([-1 if a == axis else 1 for a in range(indices.ndim)])
            expected = expected + along * step
    return affine(*terms, int(origin)) if np.array_equal(expected, indices) else None


@operator("Gather", reference=_gather_reference)
def gather(node: Node) -> Description:
    """`out[pre, i, post] = data[pre, indices[i], post]`."""
    shape = require_rank(node, 0, 1)
    axis = axis_of(node, len(shape), 0)
    require_result(node, (*shape[:axis], *node.require(1).shape, *shape[axis + 1 :]))
    data, indices, out = input_operand(node, 0), input_operand(node, 1), output_operand(node)
    dims = dims_of(out.shape)
    at = dims[axis : axis + len(indices.shape)]
    outer, inner = identity(dims[:axis]), identity(dims[axis + len(at) :])
    target = Access(out, identity(dims))
    constant = node.constant(1)
    if constant is not None:
        positions = np.where(constant < 0, constant + data.shape[axis], constant).astype(np.int64)
        require_indices(node, 1, constant, data.shape[axis])
        index: Index | None = progression(positions, at)
        if index is None and len(at) == 1:
            index = Lookup(tuple(int(v) for v in positions), at[0].name)
        if index is not None:
            return (copy_nest(dims, Access(data, (*outer, index, *inner)), target),)
    where = Access(indices, identity(at))
    source = Access(data, (*outer, data_index(node, 1, 0, data.shape[axis]), *inner))
    return (Nest(dims, (where, source), target, read(1, source)),)


def _gather_elements_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    data, indices = present(inputs), present(inputs, 1)
    axis = node.int_attr("axis", 0) % data.ndim
    grid: list[Array] = list(np.indices(indices.shape, sparse=True))
    grid[axis] = indices
    return (data[tuple(grid)],)


@operator("GatherElements", reference=_gather_elements_reference)
def gather_elements(node: Node) -> Description:
    """`out[i, j] = data[indices[i, j], j]` for axis 0, and so on."""
    shape = require_rank(node, 0, 1)
    axis = axis_of(node, len(shape), 0)
    places = require_rank(node, 1, len(shape), len(shape))
    for position, (few, many) in enumerate(zip(places, shape, strict=True)):
        fits = position == axis or few <= many
        require(node, fits, f"indices {list(places)} reach beyond axis {position} of the data {list(shape)}")
    require_result(node, places)
    data, indices, out = input_operand(node, 0), input_operand(node, 1), output_operand(node)
    dims = dims_of(out.shape)
    index: tuple[Index, ...] = tuple(
        data_index(node, 1, 0, data.shape[axis]) if position == axis else affine(d.name)
        for position, d in enumerate(dims)
    )
    reads = (Access(indices, identity(dims)), Access(data, index))
    return (Nest(dims, reads, Access(out, identity(dims)), read(1, reads[1])),)


def _gather_nd_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    data, indices = present(inputs), present(inputs, 1)
    batch = node.int_attr("batch_dims", 0)
    lead = indices.shape[:-1]
    grid = [
        np.arange(lead[axis]).reshape([-1 if a == axis else 1 for a in range(len(lead))])
        for axis in range(batch)
    ]
    columns = [indices[..., position] for position in range(indices.shape[-1])]
    return (data[(*grid, *columns)],)


@operator("GatherND", reference=_gather_nd_reference)
def gather_nd(node: Node) -> Description:
    """`out[b, i, rest] = data[b, indices[b, i, :], rest]`: one indirect index per column."""
    shape, places, batch = require_rank(node, 0, 1), require_rank(node, 1, 1), node.int_attr("batch_dims", 0)
    most = min(len(shape), len(places)) - 1
    require(node, 0 <= batch <= most, f"batch_dims is {batch}, but the operands share 0 to {most} axes")
    require_shape(node, 1, (*shape[:batch], *places[batch:]), f"batch_dims={batch}")
    behind = batch + places[-1]
    require(
        node, behind <= len(shape), f"indices {list(places)} name {places[-1]} of {len(shape) - batch} axes"
    )
    require_result(node, (*places[:-1], *shape[behind:]))
    data, indices, out = input_operand(node, 0), input_operand(node, 1), output_operand(node)
    dims = dims_of(out.shape)
    lead = dims[: len(indices.shape) - 1]
    columns = range(indices.shape[-1])
    wheres = tuple(Access(indices, (*identity(lead), affine(column))) for column in columns)
    index: tuple[Index, ...] = (
        *identity(dims[:batch]),
        *(data_index(node, 1, column, data.shape[batch + column], column) for column in columns),
        *identity(dims[len(lead) :]),
    )
    source = Access(data, index)
    value = read(len(wheres), source)
    return (Nest(dims, (*wheres, source), Access(out, identity(dims)), value),)


def _one_hot_axis(node: Node, out_rank: int) -> int:
    return node.int_attr("axis", -1) % out_rank


def _one_hot_shape(node: Node, source: Shape, data: Array) -> Shape:
    axis = _one_hot_axis(node, len(source) + 1)
    return (*source[:axis], *extents_of(data.reshape(-1)[:1]), *source[axis:])


def _one_hot_depth(node: Node, source: Shape, out: Shape) -> list[int]:
    return [out[_one_hot_axis(node, len(out))]]


def _one_hot_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    indices, depth, values = present(inputs), int(present(inputs, 1).reshape(())), present(inputs, 2)
    axis = _one_hot_axis(node, indices.ndim + 1)
    wanted = np.expand_dims(indices.astype(np.int64), axis)
    wanted = np.where(wanted < 0, wanted + depth, wanted)
    place = np.arange(depth).reshape([-1 if a == axis else 1 for a in range(indices.ndim + 1)])
    return (np.where(place == wanted, values[1], values[0]).astype(values.dtype),)


@operator("OneHot", reference=_one_hot_reference, sizing=Sizing(1, "depth", _one_hot_shape, _one_hot_depth))
def one_hot(node: Node) -> Description:
    """`values[1]` where the place along `axis` is the index (negative: from the end), else `values[0]`."""
    shape = node.require(0).shape
    axis = axis_of(node, len(shape) + 1, -1)
    require_scalar(node, 1)
    require_shape(node, 2, (2,), "the values off and on")
    require_result(node, (*shape[:axis], None, *shape[axis:]))
    indices, values, out = input_operand(node, 0), input_operand(node, 2), output_operand(node)
    dims = dims_of(out.shape)
    where = Access(indices, identity((*dims[:axis], *dims[axis + 1 :])))
    off, on = Access(values, (affine(0),)), Access(values, (affine(1),))
    wanted = cast(read(0, where), DType.INT64)
    wanted = select(call("lt", wanted, 0), wanted + dims[axis].extent, wanted)
    value = select(call("eq", Iter(dims[axis].name), wanted), read(2, on), read(1, off))
    return (Nest(dims, (where, off, on), Access(out, identity(dims)), value),)


def _places(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    x = present(inputs)
    if x.ndim == 0:
        return (np.empty((0, np.count_nonzero(x)), np.int64),)
    return (np.stack(np.nonzero(x)).astype(np.int64),)


@operator("NonZero", reference=_places)
def non_zero(node: Node) -> Description:
    """Places of all elements that are not zero: how many is data."""
    return Opaque("the output size of NonZero depends on data")


@operator("Unique", "Compress")
def data_sized(node: Node) -> Description:
    """Operators whose output's size is data."""
    return Opaque(f"the output size of {node.op_type} depends on data")
