"""Operators that write where an index says: ScatterElements, ScatterND, TensorScatter, MaxUnpool.

Indices that are known become tables of where each element of the result comes from, so that the operator is
one elementwise nest. Indices that are data are two nests: a copy, and one whose write is addressed by data.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.arrays import Array
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Const, Expr, Iter, call, cast, select
from tilewright.ir.graph import Node
from tilewright.ir.nest import Access, Description, Index, Indirect, Lookup, Nest, Opaque, affine
from tilewright.ir.ops.build import (
    axis_of,
    choice_attr,
    copy_nest,
    data_index,
    dims_of,
    identity,
    input_operand,
    local,
    output_operand,
    read,
    require,
    require_indices,
    require_rank,
    require_result,
    require_shape,
    scalar_like,
    table,
)
from tilewright.ir.ops.operands import extents_of, optional, present
from tilewright.ir.ops.registry import Sizing, operator

# Entries of a table, and tables of one operator, above which indices count as data.
MAX_TABLE = 1 << 16
_MAX_TABLES = 8

_REDUCTIONS = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _scatter_elements_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    out, indices, updates = present(inputs).copy(), present(inputs, 1), present(inputs, 2)
    grid: list[Array] = list(np.indices(indices.shape, sparse=True))
    grid[node.int_attr("axis", 0) % out.ndim] = indices
    return (_scattered(node, out, tuple(grid), updates),)


def _scatter_nd_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    out, indices, updates = present(inputs).copy(), present(inputs, 1), present(inputs, 2)
    where = tuple(indices[..., position] for position in range(indices.shape[-1]))
    return (_scattered(node, out, where, updates),)


def _scattered(node: Node, out: Array, where: tuple[Array, ...], updates: Array) -> Array:
    reduction = node.str_attr("reduction", "none")
    if reduction == "none":
        out[where] = updates
    else:
        _REDUCTIONS[reduction].at(out, where, updates)
    return out


@operator("ScatterElements", "Scatter", reference=_scatter_elements_reference)
def scatter_elements(node: Node) -> Description:
    """`out = data; out[indices[i, j], j] = updates[i, j]` for axis 0, and so on."""
    shape = node.require(0).shape
    axis = axis_of(node, len(shape), 0)
    places = require_rank(node, 1, len(shape), len(shape))
    for position, (few, many) in enumerate(zip(places, shape, strict=True)):
        fits = position == axis or few <= many
        require(node, fits, f"indices {list(places)} reach beyond axis {position} of the data {list(shape)}")
    require_shape(node, 2, places, "one for each index")
    _require_scatter(node)
    data, indices, updates = (input_operand(node, i) for i in range(3))
    constant = node.constant(1)
    if constant is not None:
        grid: list[Array] = list(np.indices(indices.shape))
        grid[axis] = constant
        known = _known(node, grid, data.shape, updates.num_elements)
        if known is not None:
            return known
    dims = dims_of(indices.shape)
    index: tuple[Index, ...] = tuple(
        data_index(node, 1, 0, data.shape[axis]) if position == axis else affine(d.name)
        for position, d in enumerate(dims)
    )
    reads = (Access(indices, identity(dims)), Access(updates, identity(dims)))
    return _unknown(node, Nest(dims, reads, Access(output_operand(node), index), read(1, reads[1])))


@operator("ScatterND", reference=_scatter_nd_reference)
def scatter_nd(node: Node) -> Description:
    """`out = data; out[indices[i, :], ...] = updates[i, ...]`: one indirect index per column."""
    places, shape = require_rank(node, 1, 1), node.require(0).shape
    depth = places[-1]
    require(node, depth <= len(shape), f"indices {list(places)} name {depth} of {len(shape)} axes")
    require_shape(node, 2, (*places[:-1], *shape[depth:]), "what lies behind each index")
    _require_scatter(node)
    data, indices, updates = (input_operand(node, i) for i in range(3))
    constant = node.constant(1)
    if constant is not None:
        columns = [constant[..., column] for column in range(depth)]
        known = _known(node, columns, data.shape[:depth], constant.size // max(depth, 1))
        if known is not None:
            return known
    dims = dims_of(updates.shape)
    lead = dims[: len(indices.shape) - 1]
    wheres = tuple(Access(indices, (*identity(lead), affine(column))) for column in range(depth))
    index: tuple[Index, ...] = (
        *(data_index(node, 1, column, data.shape[column], column) for column in range(depth)),
        *identity(dims[len(lead) :]),
    )
    source = Access(updates, identity(dims))
    value = read(depth, source)
    return _unknown(node, Nest(dims, (*wheres, source), Access(output_operand(node), index), value))


def _tensor_scatter_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    out, updates, starts = present(inputs).copy(), present(inputs, 1), optional(inputs, 2)
    axis = node.int_attr("axis", -2) % out.ndim
    places = np.arange(updates.shape[axis])[None]
    places = places if starts is None else places + starts[:, None]
    if node.str_attr("mode", "linear") == "circular":
        places = places % out.shape[axis]
    require_indices(node, 2, places, out.shape[axis])
    for batch, where in enumerate(np.broadcast_to(places, (len(out), places.shape[1]))):
        np.moveaxis(out[batch], axis - 1, 0)[where] = np.moveaxis(updates[batch], axis - 1, 0)
    return (out,)


@operator("TensorScatter", reference=_tensor_scatter_reference)
def tensor_scatter(node: Node) -> Description:
    """A cache with new elements along an axis, for each sequence from the place on that an operand says."""
    shape = require_rank(node, 0, 2)
    axis = axis_of(node, len(shape), -2)
    mode = choice_attr(node, "mode", ("linear", "circular"), "linear")
    require(node, axis > 0, "its axis is that of the sequences")
    count = require_rank(node, 1, len(shape), len(shape))[axis]
    require_shape(node, 1, [None if a == axis else e for a, e in enumerate(shape)], "the shape of the cache")
    require(node, count <= shape[axis], f"{count} new elements do not fit {shape[axis]} places")
    require_shape(node, 2, (shape[0],), "a place for each sequence")
    require_result(node, shape)
    data, updates, out = input_operand(node, 0), input_operand(node, 1), output_operand(node)
    if updates.num_elements == 0:
        return Opaque("TensorScatter of nothing")
    whole, dims = dims_of(shape), dims_of(updates.shape)
    nests = [copy_nest(whole, Access(data, identity(whole)), Access(out, identity(whole)))]
    index: list[Index] = list(identity(dims))
    source = Access(updates, identity(dims))
    if node.input(2) is None:
        rest = dims_of([shape[axis] - count if a == axis else e for a, e in enumerate(shape)])
        behind = tuple(affine(d.name, count if a == axis else 0) for a, d in enumerate(rest))
        last = copy_nest(rest, Access(data, behind), Access(out, behind))
        return (copy_nest(dims, source, Access(out, tuple(index))), *([last] if count < shape[axis] else []))
    pair = (dims[0], dims[axis])
    start = Access(input_operand(node, 2), (affine(dims[0].name),))
    place = cast(read(0, start), DType.INT64) + Iter(dims[axis].name)
    where = Access(local(0, DType.INT64, (shape[0], count)), identity(pair))
    nests.append(
        Nest(pair, (start,), where, call("mod", place, shape[axis]) if mode == "circular" else place)
    )
    given = node.constant(2)
    if given is not None and mode == "linear":
        require_indices(node, 2, given[:, None] + np.arange(count), shape[axis])
    index[axis] = Indirect(0) if given is None and mode == "linear" else Indirect(0, None)
    nests.append(Nest(dims, (where, source), Access(out, tuple(index)), read(1, source)))
    return tuple(nests)


def _require_scatter(node: Node) -> None:
    choice_attr(node, "reduction", ("none", *_REDUCTIONS), "none")
    require_result(node, node.require(0).shape)


def _unknown(node: Node, write: Nest) -> Description:
    """A copy of the data, then what is written over it."""
    if node.str_attr("reduction", "none") != "none":
        return Opaque(f"{node.op_type} accumulates where its data says")
    if write.num_iterations == 0 or node.output.num_elements == 0:
        return Opaque(f"{node.op_type} of nothing")
    data, out = input_operand(node, 0), output_operand(node)
    dims = dims_of(out.shape)
    return copy_nest(dims, Access(data, identity(dims)), Access(out, identity(dims))), write


def _known(node: Node, where: Sequence[Array], extents: Sequence[int], count: int) -> Description | None:
    """One nest, given the index of each of `count` updates along the axes of these extents.

    An update is what lies behind the axes of `extents`, which become one axis of the result; a table says for
    each of its places which update goes there, if any. Updates that meet in one place have a table each. None
    where the tables would be too many or too large.
    """
    data, updates, out = input_operand(node, 0), input_operand(node, 2), output_operand(node)
    places, rest = int(np.prod(extents, dtype=np.int64)), out.shape[len(extents) :]
    if count == 0 or places == 0 or 0 in rest or places > MAX_TABLE or not where:
        return None
    indices = [np.asarray(w, np.int64).ravel() for w in where]
    for i, e in zip(indices, extents, strict=True):
        require_indices(node, 1, i, e)
    wrapped = [np.where(i < 0, i + e, i) for i, e in zip(indices, extents, strict=True)]
    reduction = node.str_attr("reduction", "none")
    tables = _tables(np.ravel_multi_index(wrapped, tuple(extents)), places, reduction == "none")
    if len(tables) > _MAX_TABLES:
        return None
    shape = (places, *rest)
    view = None if shape == out.shape else shape
    updates_shape = (count, *rest)
    updates_view = None if updates_shape == updates.shape else updates_shape
    dims = dims_of(shape)
    inner = identity(dims[1:])
    reads = [Access(data, identity(dims), view=view)]
    value = read(0, reads[0])
    fill = scalar_like(0, updates.dtype.compute)
    for number, sources in enumerate(tables):
        place = Lookup(tuple(int(s) for s in sources), dims[0].name)
        reads.append(Access(table(number, sources >= 0), (affine(dims[0].name),)))
        hit = read(len(reads) - 1, reads[-1])
        reads.append(Access(updates, (place, *inner), fill, updates_view))
        update = read(len(reads) - 1, reads[-1])
        value = select(hit, _combined(reduction, value, update), value)
    return (Nest(dims, tuple(reads), Access(out, identity(dims), view=view), value),)


def _combined(reduction: str, value: Expr, update: Expr) -> Expr:
    return update if reduction == "none" else call(reduction, value, update)


def _tables(positions: Array, places: int, last_only: bool) -> list[Array]:
    """Which update goes to each place, -1 for none: the first of each place, then the second, ..."""
    order = np.argsort(positions, kind="stable")
    ordered = positions[order]
    starts = np.searchsorted(ordered, ordered, side="left")
    rank = np.arange(len(ordered)) - starts
    tables: list[Array] = []
    for turn in range(int(rank.max()) + 1):
        chosen = rank == turn
        table = tables[0] if tables and last_only else np.full(places, -1, np.int64)
        table[ordered[chosen]] = order[chosen]
        if not (tables and last_only):
            tables.append(table)
    return tables


def _max_unpool_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    x, indices = present(inputs), present(inputs, 1)
    # Indices count the elements of what was pooled, which an explicit output shape may enlarge.
    shape = _pooled_shape(node, x.shape)
    flat = np.zeros(int(np.prod(shape)), x.dtype)
    flat[indices.ravel()] = x.ravel()
    larger = optional(inputs, 2)
    out = np.zeros(shape if larger is None else extents_of(larger), x.dtype)
    out[tuple(slice(0, e) for e in shape)] = flat.reshape(shape)
    return (out,)


def _pooled_shape(node: Node, shape: Sequence[int]) -> tuple[int, ...]:
    kernel = node.ints_attr("kernel_shape") or ()
    strides = node.ints_attr("strides", (1,) * len(kernel)) or ()
    pads = node.ints_attr("pads", (0,) * 2 * len(kernel)) or ()
    spatial = [
        (extent - 1) * stride + size - before - after
        for extent, stride, size, before, after in zip(
            shape[2:], strides, kernel, pads[: len(kernel)], pads[len(kernel) :], strict=True
        )
    ]
    return (*shape[:2], *spatial)


@operator(
    "MaxUnpool",
    reference=_max_unpool_reference,
    sizing=Sizing(2, "output_shape", lambda _, x, data: extents_of(data), lambda _, x, out: out),
)
def max_unpool(node: Node) -> Description:
    """Zeros, and each value where its maximum was taken from: an index into the flat result."""
    kernel = node.ints_attr("kernel_shape") or ()
    shape = require_rank(node, 0, len(kernel) + 2, len(kernel) + 2)
    require_shape(node, 1, shape, "an index for each element")
    require_result(node, (*shape[:2], *(None,) * len(kernel)))
    x, indices, out = input_operand(node, 0), input_operand(node, 1), output_operand(node)
    if _pooled_shape(node, x.shape) != out.shape:
        return Opaque("MaxUnpool into a larger result than was pooled")
    dims = dims_of(x.shape)
    everywhere = dims_of(out.shape, "z")
    zero = Const(scalar_like(0, out.dtype.compute), out.dtype.compute)
    reads = (Access(indices, identity(dims)), Access(x, identity(dims)))
    target = Access(out, (data_index(node, 1, 0, out.num_elements),), view=(out.num_elements,))
    return (
        Nest(everywhere, (), Access(out, identity(everywhere)), zero),
        Nest(dims, reads, target, read(1, reads[1])),
    )
