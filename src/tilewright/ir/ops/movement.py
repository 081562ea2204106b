"""Operators that move elements without computing: transpose, concat, slice, pad and kin."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.arrays import Array
from tilewright.ir.expr import Scalar
from tilewright.ir.graph import Node, Shape
from tilewright.ir.nest import Access, Affine, Description, Dim, Index, Lookup, Nest, Opaque, affine
from tilewright.ir.ops.build import (
    axis_of,
    broadcast,
    choice_attr,
    copy_nest,
    dims_of,
    identity,
    input_operand,
    output_operand,
    require,
    require_broadcast,
    require_rank,
    require_result,
    require_scalar,
    require_shape,
    scalar_like,
)
from tilewright.ir.ops.operands import axis_within, extents_of, integers, optional, present
from tilewright.ir.ops.registry import Sizing, operator
from tilewright.ir.work import check_table, require_holdable

# Broadcasting and permutation ------------------------------------------------------------------------


def _expanded(node: Node, source: Shape, data: Array) -> Shape:
    return np.broadcast_shapes(source, extents_of(data))


def _expand_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    x = present(inputs)
    return (np.broadcast_to(x, _expanded(node, x.shape, present(inputs, 1))).copy(),)


@operator("Expand", reference=_expand_reference, sizing=Sizing(1, "shape", _expanded, lambda _, x, out: out))
def expand(node: Node) -> Description:
    """The input broadcast to a larger shape."""
    out = output_operand(node)
    require_broadcast(node, 0, out.shape)
    dims = dims_of(out.shape)
    return (copy_nest(dims, broadcast(input_operand(node, 0), dims), Access(out, identity(dims))),)


def _transpose_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    return (np.transpose(present(inputs), node.ints_attr("perm")),)


@operator("Transpose", reference=_transpose_reference)
def transpose(node: Node) -> Description:
    """Axes in the order of `perm`, reversed by default."""
    source, out = input_operand(node, 0), output_operand(node)
    rank = len(source.shape)
    perm = node.ints_attr("perm", tuple(reversed(range(rank))))
    assert perm is not None
    axes = sorted(a + rank if a < 0 else a for a in perm)
    require(node, axes == list(range(rank)), f"perm {list(perm)} does not order {rank} axes")
    require_result(node, tuple(source.shape[a] for a in perm))
    dims = dims_of(out.shape)
    index: list[Affine] = [affine()] * rank
    for axis, dim in zip(perm, dims, strict=True):
        index[axis] = affine(dim.name)
    return (copy_nest(dims, Access(source, tuple(index)), Access(out, identity(dims))),)


# Joining and cutting ---------------------------------------------------------------------------------


def _shifted(dims: Sequence[Dim], axis: int, offset: int, step: int = 1) -> tuple[Affine, ...]:
    return tuple(
        affine((d.name, step), offset) if position == axis else affine(d.name)
        for position, d in enumerate(dims)
    )


def _concat_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    return (np.concatenate([a for a in inputs if a is not None], axis=node.int_attr("axis", 0)),)


@operator("Concat", reference=_concat_reference)
def concat(node: Node) -> Description:
    """The inputs one after another along `axis`: one copy per input."""
    first = require_rank(node, 0, 1)
    axis = axis_of(node, len(first), 0)
    others = (*first[:axis], None, *first[axis + 1 :])
    for position in range(1, len(node.inputs)):
        require_rank(node, position, len(first), len(first))
        require_shape(node, position, others, f"joined along axis {axis} with {list(first)}")
    extent = sum(v.shape[axis] for v in node.inputs if v is not None)
    require_result(node, (*first[:axis], extent, *first[axis + 1 :]))
    out = output_operand(node)
    nests: list[Nest] = []
    offset = 0
    for position in range(len(node.inputs)):
        source = input_operand(node, position)
        dims = dims_of(source.shape)
        if source.num_elements or not nests:
            target = Access(out, _shifted(dims, axis, offset))
            nests.append(copy_nest(dims, Access(source, identity(dims)), target))
        offset += source.shape[axis]
    return tuple(nests)


def _split_sizes(node: Node, extent: int, given: Array | None) -> tuple[int, ...]:
    sizes = integers(given) if given is not None else node.ints_attr("split")
    if sizes is not None:
        return sizes
    count = node.int_attr("num_outputs", len(node.outputs))
    if count < 1:
        raise IndexError(f"an axis cannot be cut into {count} parts")
    size = -(-extent // count)
    return tuple(max(0, min(size, extent - size * i)) for i in range(count))


def _split_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    x = present(inputs)
    axis = node.int_attr("axis", 0)
    sizes = _split_sizes(node, x.shape[axis], optional(inputs, 1))
    if sum(sizes) != x.shape[axis] or min(sizes, default=0) < 0:
        raise IndexError(f"parts of {list(sizes)} elements do not make an axis of {x.shape[axis]}")
    return tuple(np.split(x, np.cumsum(sizes)[:-1], axis=axis))


@operator("Split", reference=_split_reference)
def split(node: Node) -> Description:
    """Consecutive parts along `axis`: one copy per output."""
    source = input_operand(node, 0)
    axis = axis_of(node, len(source.shape), 0)
    others = (*source.shape[:axis], None, *source.shape[axis + 1 :])
    for position in range(len(node.outputs)):
        require_result(node, others, position)
    if node.input(1) is not None and node.constant(1) is None:
        return Opaque("Split sizes are data")
    nests: list[Nest] = []
    offset = 0
    extent = source.shape[axis]
    sizes = _split_sizes(node, extent, node.constant(1))
    require(node, len(sizes) >= len(node.outputs), f"{len(sizes)} parts are not {len(node.outputs)} results")
    fits = sum(sizes) == extent and min(sizes, default=0) >= 0
    require(node, fits, f"parts of {list(sizes)[:16]} elements do not make an axis of {extent}")
    for position, size in enumerate(sizes):
        if position < len(node.outputs) and node.outputs[position] is not None:
            require_result(node, (*others[:axis], size, *others[axis + 1 :]), position)
            out = output_operand(node, position)
            dims = dims_of(out.shape)
            target = Access(out, identity(dims))
            nests.append(copy_nest(dims, Access(source, _shifted(dims, axis, offset)), target))
        offset += size
    return tuple(nests)


def slice_ranges(
    shape: Shape, starts: Sequence[int], ends: Sequence[int], axes: Sequence[int], steps: Sequence[int]
) -> list[range]:
    """The indices that a Slice keeps, per axis, with ONNX's clamping of starts and ends."""
    kept = [range(extent) for extent in shape]
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        extent = shape[axis]
        # Unlike Python's, a start before the first element is that element, also when stepping backward.
        low, high = (0, extent) if step > 0 else (-1, extent - 1)
        first = min(max(start + extent if start < 0 else start, 0), high)
        last = min(max(end + extent if end < 0 else end, low), high)
        kept[axis] = range(first, last, step) if extent else range(0)
    return kept


def _slice_arguments(
    shape: Shape, arrays: Sequence[Array | None]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    starts, ends, axes, steps = (integers(optional(arrays, i)) for i in range(4))
    assert starts is not None
    assert ends is not None
    axes = tuple(range(len(starts))) if axes is None else tuple(axis_within(a, len(shape)) for a in axes)
    if 0 in (steps or ()):
        raise ValueError(f"its steps are {list(steps or ())}, but 0 never ends")
    return starts, ends, axes, steps or (1,) * len(starts)


def kept_by_slice(node: Node) -> list[range]:
    """The indices that a Slice of known bounds keeps, per axis."""
    shape = node.require(0).shape
    return slice_ranges(shape, *_slice_arguments(shape, [node.constant(i) for i in range(1, 5)]))


def _slice_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    x = present(inputs)
    kept = slice_ranges(x.shape, *_slice_arguments(x.shape, inputs[1:]))
    return (x[np.ix_(*kept)],)


@operator("Slice", reference=_slice_reference)
def slice_operator(node: Node) -> Description:
    """Every `step`-th element of each axis from a start to before an end."""
    source, out = input_operand(node, 0), output_operand(node)
    require_result(node, (None,) * len(source.shape))
    arguments = [node.constant(i) for i in range(1, 5)]
    if any(a is None and node.input(i + 1) is not None for i, a in enumerate(arguments)):
        return Opaque("Slice bounds are data")
    kept = kept_by_slice(node)
    require_result(node, tuple(map(len, kept)))
    dims = dims_of(out.shape)
    index = tuple(affine((d.name, r.step), r.start) for d, r in zip(dims, kept, strict=True))
    return (copy_nest(dims, Access(source, index), Access(out, identity(dims))),)


# Padding and repetition ------------------------------------------------------------------------------


def _pads(shape: Shape, pads: Sequence[int], axes: Sequence[int] | None) -> list[tuple[int, int]]:
    """Elements to add (or, negative, to remove) before and after each axis.

    Raises:
        ValueError: more are removed than there are.
    """
    rank = len(shape)
    named = range(rank) if axes is None else [axis_within(a, rank) for a in axes]
    amounts = [(0, 0)] * rank
    for position, axis in enumerate(named):
        amounts[axis] = (pads[position], pads[position + len(pads) // 2])
    for extent, (before, after) in zip(shape, amounts, strict=True):
        if max(0, -before) + max(0, -after) > extent:
            raise ValueError(f"pads {before} and {after} remove more than the {extent} elements of an axis")
    return amounts


def _kept(extent: int, before: int, after: int) -> slice:
    return slice(max(0, -before), extent - max(0, -after))


def _padded(extent: int, before: int, after: int) -> int:
    return len(range(extent)[_kept(extent, before, after)]) + max(0, before) + max(0, after)


_PAD_MODES = ("constant", "reflect", "edge", "wrap")


def _source_positions(extent: int, before: int, after: int, mode: str) -> tuple[int, ...]:
    """Where each element of a padded axis comes from: negative pads cut first, then the rest grows."""
    check_table(max(extent, 0) + max(before, 0) + max(after, 0))
    kept = np.arange(extent)[_kept(extent, before, after)]
    widths = (max(0, before), max(0, after))
    # The callers pass one of numpy's own mode names.
    grown: Array = np.pad(kept, widths, mode=mode)  # type: ignore[call-overload]
    return tuple(int(v) for v in grown)


def _pad_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    x, pads = present(inputs), integers(present(inputs, 1))
    assert pads is not None
    value, axes = optional(inputs, 2), integers(optional(inputs, 3))
    amounts = _pads(x.shape, pads, axes)
    mode = node.str_attr("mode", "constant")
    kept = x[tuple(_kept(e, *p) for e, p in zip(x.shape, amounts, strict=True))]
    widths = [(max(0, before), max(0, after)) for before, after in amounts]
    padded = [e + before + after for e, (before, after) in zip(kept.shape, widths, strict=True)]
    require_holdable(node, padded)
    if mode != "constant":
        return (np.pad(kept, widths, mode=mode),)  # type: ignore[call-overload]
    fill = np.zeros((), x.dtype) if value is None or value.size == 0 else value.reshape(()).astype(x.dtype)
    out = np.full(padded, fill)
    out[tuple(slice(b, b + e) for e, (b, _) in zip(kept.shape, widths, strict=True))] = kept
    return (out,)


@operator("Pad", reference=_pad_reference)
def pad(node: Node) -> Description:
    """Axes grown by a constant, or by reflected, repeated or wrapped elements; negative pads cut."""
    source, out = input_operand(node, 0), output_operand(node)
    require_result(node, (None,) * len(source.shape))
    if node.constant(2) is None or node.require(2).num_elements:
        require_scalar(node, 2)
    mode = choice_attr(node, "mode", _PAD_MODES, "constant")
    pads, value = integers(node.constant(1)), node.constant(2)
    if pads is None or (node.input(3) is not None and node.constant(3) is None):
        return Opaque("Pad amounts are data")
    if node.input(2) is not None and value is None:
        return Opaque("the padding value is data")
    axes = integers(node.constant(3))
    count = len(source.shape if axes is None else axes)
    require(node, len(pads) == 2 * count, f"{len(pads)} pads are not two for each of {count} axes")
    amounts = _pads(source.shape, pads, axes)
    require_result(node, [_padded(e, *amount) for e, amount in zip(source.shape, amounts, strict=True)])
    dims = dims_of(out.shape)
    index: list[Index] = []
    fill: Scalar | None = None
    for dim, extent, (before, after) in zip(dims, source.shape, amounts, strict=True):
        if before <= 0 and after <= 0:
            index.append(affine(dim.name, -before))
        elif mode == "constant":
            index.append(affine(dim.name, -before))
            fill = scalar_like(0 if value is None or value.size == 0 else value.reshape(()).item(), out.dtype)
        else:
            index.append(Lookup(_source_positions(extent, before, after, mode), dim.name))
    return (copy_nest(dims, Access(source, tuple(index), fill), Access(out, identity(dims))),)


def _tiled(node: Node, source: Shape, data: Array) -> Shape:
    repeats = extents_of(data)
    if len(repeats) != len(source):
        raise ValueError(f"the input has {len(source)} axes")
    return tuple(extent * repeat for extent, repeat in zip(source, repeats, strict=True))


def _tile_repeats(node: Node, source: Shape, out: Shape) -> list[int]:
    return [total // extent if extent else 1 for extent, total in zip(source, out, strict=False)]


def _tile_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    repeats = integers(present(inputs, 1))
    assert repeats is not None
    return (np.tile(present(inputs), repeats),)


@operator("Tile", reference=_tile_reference, sizing=Sizing(1, "repeats", _tiled, _tile_repeats))
def tile(node: Node) -> Description:
    """The input repeated along each axis: one dim counts repetitions, one runs through the input."""
    source, out = input_operand(node, 0), output_operand(node)
    require_result(node, (None,) * len(source.shape))
    for extent, total in zip(source.shape, out.shape, strict=True):
        fits = total % extent == 0 if extent else total == 0
        require(node, fits, f"{list(source.shape)} is not repeated to {list(out.shape)}")
    dims: list[Dim] = []
    read: list[Affine] = []
    write: list[Affine] = []
    for axis, (extent, total) in enumerate(zip(source.shape, out.shape, strict=True)):
        repeat, inner = Dim(f"r{axis}", total // extent if extent else 0), Dim(f"d{axis}", extent)
        dims += [inner] if repeat.extent == 1 else [repeat, inner]
        read.append(affine(inner.name))
        write.append(affine(inner.name) if repeat.extent == 1 else affine((repeat.name, extent), inner.name))
    return (copy_nest(dims, Access(source, tuple(read)), Access(out, tuple(write))),)


# Blocks of channels ----------------------------------------------------------------------------------


_BLOCK_MODES = ("DCR", "CRD")


def _depth_to_space_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    x = present(inputs)
    size = node.int_attr("blocksize", 1)
    n, c, h, w = x.shape
    if node.str_attr("mode", "DCR") == "DCR":
        blocks = x.reshape(n, size, size, c // size**2, h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        blocks = x.reshape(n, c // size**2, size, size, h, w).transpose(0, 1, 4, 2, 5, 3)
    return (blocks.reshape(n, c // size**2, h * size, w * size),)


@operator("DepthToSpace", reference=_depth_to_space_reference)
def depth_to_space(node: Node) -> Description:
    """Channels moved into blocks of space; `mode` says which part of the channel index they are."""
    source, out = input_operand(node, 0), output_operand(node)
    size = node.int_attr("blocksize", 1)
    mode = choice_attr(node, "mode", _BLOCK_MODES, "DCR")
    n, channels, h, w = require_rank(node, 0, 4, 4)
    fits = size >= 1 and channels % size**2 == 0
    require(node, fits, f"blocksize={size} does not divide {channels} channels into blocks")
    c = channels // size**2
    require_result(node, (n, c, h * size, w * size))
    dims = tuple(Dim(*d) for d in (("n", n), ("c", c), ("h", h), ("i", size), ("w", w), ("j", size)))
    if mode == "DCR":
        channel = affine(("i", size * c), ("j", c), "c")
    else:
        channel = affine(("c", size**2), ("i", size), "j")
    read = Access(source, (affine("n"), channel, affine("h"), affine("w")))
    write = Access(out, (affine("n"), affine("c"), affine(("h", size), "i"), affine(("w", size), "j")))
    return (copy_nest(dims, read, write),)


def _space_to_depth_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    x = present(inputs)
    size = node.int_attr("blocksize", 1)
    n, c, h, w = x.shape
    blocks = x.reshape(n, c, h // size, size, w // size, size)
    order = (0, 3, 5, 1, 2, 4) if node.str_attr("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    return (blocks.transpose(order).reshape(n, c * size**2, h // size, w // size),)


@operator("SpaceToDepth", reference=_space_to_depth_reference)
def space_to_depth(node: Node) -> Description:
    """Blocks of space moved into channels: the inverse of DepthToSpace of the same mode."""
    source, out = input_operand(node, 0), output_operand(node)
    size = node.int_attr("blocksize", 1)
    mode = choice_attr(node, "mode", _BLOCK_MODES, "DCR")
    n, c, h, w = require_rank(node, 0, 4, 4)
    fits = size >= 1 and h % size == 0 and w % size == 0
    require(node, fits, f"blocksize={size} does not divide a plane of {h} by {w}")
    require_result(node, (n, c * size**2, h // size, w // size))
    sizes = (("n", n), ("i", size), ("j", size), ("c", c), ("h", h // size), ("w", w // size))
    dims = tuple(Dim(*d) for d in sizes)
    if mode == "DCR":
        channel = affine(("i", size * c), ("j", c), "c")
    else:
        channel = affine(("c", size**2), ("i", size), "j")
    read = Access(source, (affine("n"), affine("c"), affine(("h", size), "i"), affine(("w", size), "j")))
    write = Access(out, (affine("n"), channel, affine("h"), affine("w")))
    return (copy_nest(dims, read, write),)


def _cropped_axes(node: Node, rank: int) -> list[int]:
    return [axis_within(a, rank) for a in node.ints_attr("axes", range(rank)) or ()]


def _cropped(node: Node, source: Shape, data: Array) -> Shape:
    axes, sizes = _cropped_axes(node, len(source)), extents_of(data)
    if len(sizes) != len(axes):
        raise ValueError(f"{len(axes)} axes are cut or padded")
    given = dict(zip(axes, sizes, strict=True))
    return tuple(given.get(axis, extent) for axis, extent in enumerate(source))


def _crop_sizes(node: Node, source: Shape, out: Shape) -> list[int]:
    return [out[axis] for axis in _cropped_axes(node, len(source))]


def _center_crop_pad_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    x, sizes = present(inputs), integers(present(inputs, 1))
    assert sizes is not None
    axes = _cropped_axes(node, x.ndim)
    for axis, size in zip(axes, sizes, strict=True):
        cut = max(0, x.shape[axis] - size) // 2
        x = np.take(x, range(cut, cut + min(size, x.shape[axis])), axis=axis)
        missing = size - x.shape[axis]
        widths = [(0, 0)] * x.ndim
        widths[axis] = (missing // 2, missing - missing // 2)
        x = np.pad(x, widths)
    return (x,)


@operator(
    "CenterCropPad", reference=_center_crop_pad_reference, sizing=Sizing(1, "shape", _cropped, _crop_sizes)
)
def center_crop_pad(node: Node) -> Description:
    """Each axis cut or padded with zeros around its centre; the odd element is at the end."""
    source, out = input_operand(node, 0), output_operand(node)
    dims = dims_of(out.shape)
    index: list[Affine] = []
    for dim, extent in zip(dims, source.shape, strict=True):
        missing = dim.extent - extent
        index.append(affine(dim.name, -(missing // 2) if missing >= 0 else -missing // 2))
    grows = any(d.extent > e for d, e in zip(dims, source.shape, strict=True))
    fill = scalar_like(0, out.dtype) if grows else None
    return (copy_nest(dims, Access(source, tuple(index), fill), Access(out, identity(dims))),)
