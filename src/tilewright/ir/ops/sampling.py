"""Sampling at places that are data: GridSample and RoiAlign.

Both take, along each spatial axis, a few taps per output element: an index and a weight each, which the first
nests compute into temporaries. The last nest sums what the taps of all axes select.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np

from tilewright.arrays import Array
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Acc, Const, Expr, Iter, call, cast, select
from tilewright.ir.graph import Node
from tilewright.ir.nest import (
    Access,
    Affine,
    Combine,
    Description,
    Dim,
    Index,
    Indirect,
    Nest,
    Opaque,
    Operand,
    affine,
)
from tilewright.ir.ops.build import (
    choice_attr,
    copy_nest,
    dims_of,
    identity,
    input_operand,
    local,
    output_operand,
    read,
    require,
    require_rank,
    require_result,
    require_shape,
    scalar_like,
)
from tilewright.ir.ops.operands import present
from tilewright.ir.ops.quantization import saturated_array
from tilewright.ir.ops.registry import operator
from tilewright.ir.work import MAX_BOX_SAMPLES
from tilewright.records import dataclass

# Taps of all axes together: a cubic sample of three axes would read 64 elements.
_MAX_TAPS = 16
# From this many channels on, two transposes cost less than gathering each element by itself.
_MIN_CHANNELS_LAST = 16
_CUBIC = -0.75
_PADDINGS = ("zeros", "border", "reflection")
# Names of the modes before opset 20.
_MODES = {"bilinear": "linear", "bicubic": "cubic"}
_NUM_TAPS = {"nearest": 1, "linear": 2, "cubic": 4}
_LEAD = {"nearest": 0, "linear": 0, "cubic": 1}  # taps before the one below the coordinate


# GridSample: reference -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Grid:
    """How a GridSample maps its coordinates."""

    mode: str
    padding: str
    align_corners: bool

    @classmethod
    def of(cls, node: Node) -> _Grid:
        mode = choice_attr(node, "mode", (*_NUM_TAPS, *_MODES), "linear")
        return cls(
            _MODES.get(mode, mode),
            choice_attr(node, "padding_mode", _PADDINGS, "zeros"),
            bool(node.int_attr("align_corners", 0)),
        )

    def borders(self, extent: int) -> tuple[float, float]:
        """Between which coordinates nothing is reflected."""
        return (0.0, extent - 1.0) if self.align_corners else (-0.5, extent - 0.5)


def _reflected(x: Array, low: float, high: float) -> Array:
    """Coordinates folded at the borders until they lie between them."""
    span = high - low
    if span == 0:
        return np.where((x < low) | (x > high), np.asarray(low, x.dtype), x)
    beyond = np.where(x < low, low - x, x - high)
    times = np.floor(beyond / span)
    rest = beyond - times * span
    from_low = (x < low) == (times % 2 == 0)
    folded = np.where(from_low, low + rest, high - rest)
    return np.where((x < low) | (x > high), folded, x).astype(x.dtype)


def _cubic_weights(f: Array) -> list[Array]:
    a = _CUBIC

    def near(d: Array) -> Array:
        return ((a + 2) * d - (a + 3)) * d * d + 1

    def far(d: Array) -> Array:
        return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a

    return [far(f + 1), near(f), near(1 - f), far(2 - f)]


def _axis_taps(grid: _Grid, given: Array, extent: int) -> list[tuple[Array, Array]]:
    """Index and weight of each tap along one axis, for normalised coordinates."""
    x = (given + 1) / 2 * (extent - 1) if grid.align_corners else ((given + 1) * extent - 1) / 2
    x = np.rint(x) if grid.mode == "nearest" else x
    low, high = grid.borders(extent)
    # Cubic samples as PyTorch and ONNX Runtime do: only the places of taps are brought inside.
    if grid.mode != "cubic" and grid.padding == "border":
        x = np.where((x < low) | (x > high), np.clip(x, 0, extent - 1), x)
    elif grid.mode != "cubic" and grid.padding == "reflection":
        x = _reflected(x, low, high)
    below = np.floor(x)
    fraction = x - below
    match grid.mode:
        case "nearest":
            weights = [np.ones_like(x)]
        case "linear":
            weights = [1 - fraction, fraction]
        case _:
            weights = _cubic_weights(fraction)
    taps = []
    for number, weight in enumerate(weights):
        place = below + (number - _LEAD[grid.mode])
        inside = (place >= 0) & (place < extent)
        if grid.padding == "reflection":
            place = np.trunc(_reflected(place, low, high))
        index = np.clip(place, 0, extent - 1).astype(np.int64)
        taps.append((index, np.where(inside, weight, 0) if grid.padding == "zeros" else weight))
    return taps


def _grid_sample_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    x, places = present(inputs), present(inputs, 1)
    grid, rank = _Grid.of(node), x.ndim - 2
    axes = [_axis_taps(grid, places[..., rank - 1 - axis], x.shape[2 + axis]) for axis in range(rank)]
    batch = np.arange(x.shape[0]).reshape(-1, *[1] * rank)
    # Integers are sampled between, and rounded once all taps are summed.
    is_integer = x.dtype.kind in "iu" and grid.mode != "nearest"
    total = np.zeros((*places.shape[:-1], x.shape[1]), np.float64 if is_integer else x.dtype)
    for taps in product(*axes):
        where: tuple[Any, ...] = (batch, slice(None), *(index for index, _ in taps))
        picked = x[where]
        weight = np.ones(places.shape[:-1], places.dtype)
        for _, factor in taps:
            weight = weight * factor
        weight = weight[..., None]
        total += np.where(weight == 0, 0, picked * weight).astype(total.dtype)
    if is_integer:
        total = saturated_array(np.rint(total), node.output.dtype)
    return (np.moveaxis(total, -1, 1),)


# GridSample: nests -----------------------------------------------------------------------------------


def _clamped(x: Expr, extent: int) -> Expr:
    return call("max", call("min", x, float(extent - 1)), 0.0)


def _reflected_expr(x: Expr, low: float, high: float) -> Expr:
    is_low, is_high = call("lt", x, low), call("gt", x, high)
    span = high - low
    if span == 0:
        return select(call("or", is_low, is_high), low, x)
    beyond = select(is_low, low - x, x - high)
    times = call("floor", beyond / span)
    rest = beyond - times * span
    is_even = call("eq", times, call("floor", times * 0.5) * 2.0)
    folded = select(call("eq", is_low, is_even), low + rest, high - rest)
    return select(call("or", is_low, is_high), folded, x)


def _coordinate(grid: _Grid, given: Expr, extent: int) -> Expr:
    """A normalised coordinate as one of the axis, folded or clamped where the padding says so."""
    if grid.align_corners:
        x = (given + 1.0) / 2.0 * float(extent - 1)
    else:
        x = ((given + 1.0) * float(extent) - 1.0) / 2.0
    if grid.mode == "cubic":
        return x
    x = call("round", x) if grid.mode == "nearest" else x
    low, high = grid.borders(extent)
    if grid.padding == "border":
        outside = call("or", call("lt", x, low), call("gt", x, high))
        return select(outside, _clamped(x, extent), x)
    return _reflected_expr(x, low, high) if grid.padding == "reflection" else x


def _weight(grid: _Grid, distance: Expr) -> Expr:
    """Of a tap at this distance from the coordinate."""
    a, d = _CUBIC, distance
    if grid.mode == "linear":
        return 1.0 - d
    near = (d * (a + 2) - (a + 3)) * d * d + 1.0
    far = ((d * a - 5 * a) * d + 8 * a) * d - 4 * a
    return select(call("le", d, 1.0), near, far)


@operator("GridSample", reference=_grid_sample_reference)
def grid_sample(node: Node) -> Description:
    """`out[n, c, o] = sum over taps of weight * x[n, c, index]`: what each axis takes, then the sum."""
    grid = _Grid.of(node)
    shape = require_rank(node, 0, 3)
    where = require_rank(node, 1, len(shape), len(shape))
    require_shape(node, 1, (shape[0], *where[1:-1], len(shape) - 2), "a coordinate for each spatial axis")
    require_result(node, (*shape[:2], *where[1:-1]))
    x, places, out = input_operand(node, 0), input_operand(node, 1), output_operand(node)
    rank, num_taps = len(x.shape) - 2, _NUM_TAPS[grid.mode]
    if num_taps**rank > _MAX_TAPS:
        return Opaque(f"GridSample of {num_taps**rank} taps")
    if 0 in x.shape or 0 in out.shape:
        return Opaque("GridSample of nothing")
    if not x.dtype.is_float and grid.mode != "nearest":
        return Opaque(f"GridSample between elements of {x.dtype}")
    lead = (Dim("n", out.shape[0]), *(Dim(f"o{i}", e) for i, e in enumerate(out.shape[2:])))
    shape = (*places.shape[:-1], num_taps)
    nests: list[Nest] = []
    taps: list[tuple[Operand, Operand]] = []
    for axis in range(rank):
        extent = x.shape[2 + axis]
        tap = Dim("t", num_taps)
        source = Access(places, (*identity(lead), affine(rank - 1 - axis)))
        coordinate = _coordinate(grid, read(0, source), extent)
        below = call("floor", coordinate)
        step = cast(Iter(tap.name), places.dtype.compute) - float(_LEAD[grid.mode])
        place = below + step
        inside = call("and", call("ge", place, 0.0), call("le", place, float(extent - 1)))
        folded = _reflected_expr(place, *grid.borders(extent)) if grid.padding == "reflection" else place
        index = cast(call("trunc", _clamped(folded, extent)), DType.INT32)
        weight: Expr = Const(1.0, places.dtype.compute)
        if grid.mode != "nearest":
            weight = _weight(grid, call("abs", step - (coordinate - below)))
        weight = select(inside, weight, 0.0) if grid.padding == "zeros" else weight
        indices, weights = (
            local(2 * axis, DType.INT32, shape),
            local(2 * axis + 1, places.dtype.compute, shape),
        )
        dims = (*lead, tap)
        nests.append(Nest(dims, (source,), Access(indices, identity(dims)), index))
        nests.append(Nest(dims, (source,), Access(weights, identity(dims)), weight))
        taps.append((indices, weights))
    dims = (lead[0], Dim("c", out.shape[1]), *lead[1:])

    def at(axis: int) -> tuple[Index, ...]:
        return (*identity(lead), affine(f"t{axis}"))

    nests.extend(_sum_of_taps(x, out, dims, taps, at, affine("n"), "sum", None))
    return tuple(nests)


def _sum_of_taps(
    x: Operand,
    out: Operand,
    dims: Sequence[Dim],
    taps: Sequence[tuple[Operand, Operand]],
    at: Callable[[int], tuple[Index, ...]],
    batch: Affine | Access,
    combine: Combine,
    finish: Expr | None,
) -> tuple[Nest, ...]:
    """Nests that combine weighted elements of `x[batch, c, ...]`; `at` is where an axis keeps its taps.

    A batch that is data is the first read. One tap per axis selects an element, of whatever type. Where there
    are many channels they are made the last axis first, so that one place gives whole vectors of them.
    """
    number, spatial = 2 * len(taps), range(2, len(x.shape))
    is_last = out.shape[1] >= _MIN_CHANNELS_LAST
    source, target, elements = x, out, tuple(dims)
    if is_last:
        elements = (dims[0], *dims[2:], dims[1])
        source = local(number, x.dtype, (x.shape[0], *(x.shape[i] for i in spatial), x.shape[1]))
        target = local(number + 1, out.dtype, tuple(d.extent for d in elements))
    reads: list[Access] = [batch] if isinstance(batch, Access) else []
    first = Indirect(0) if isinstance(batch, Access) else batch
    indices: list[Indirect] = []
    weights: list[Expr] = []
    for axis, (index, weight) in enumerate(taps):
        reads.append(Access(index, at(axis)))
        indices.append(Indirect(len(reads) - 1, None))
        reads.append(Access(weight, at(axis)))
        weights.append(read(len(reads) - 1, reads[-1]))
    channel = affine(dims[1].name)
    reads.append(Access(source, (first, *indices, channel) if is_last else (first, channel, *indices)))
    value, dtype = read(len(reads) - 1, reads[-1]), out.dtype.compute
    weight_of_all = weights[0]
    for factor in weights[1:]:
        weight_of_all = weight_of_all * factor
    is_nothing = call("eq", weight_of_all, 0.0)
    reduced = tuple(Dim(f"t{axis}", index.shape[-1], "reduce") for axis, (index, _) in enumerate(taps))
    zero = Const(scalar_like(0, dtype), dtype)
    write = Access(target, identity(elements))
    if all(d.extent == 1 for d in reduced):
        parallel = (*elements, *(Dim(d.name, 1) for d in reduced))
        nest = Nest(parallel, tuple(reads), write, select(is_nothing, zero, cast(value, dtype)))
    else:
        # What lies outside counts as zero even beside an infinity.
        body = select(is_nothing, zero, cast(value, dtype) * cast(weight_of_all, dtype))
        nest = Nest((*elements, *reduced), tuple(reads), write, body, combine, None, finish)
    if not is_last:
        return (nest,)
    return (_turned(x, source, to_last=True), nest, _turned(target, out, to_last=False))


def _turned(source: Operand, target: Operand, *, to_last: bool) -> Nest:
    """The copy that makes axis 1 the last, or the last axis 1.

    It sees its operands under shapes of its own, so that it stays a copy: elements stored one by one where
    another axis would put them take longer than two passes.
    """
    shape = (source if to_last else target).shape
    batch, channels, places = shape[0], shape[1], prod(shape[2:])
    first, last = (batch, channels, places, 1), (batch, places, channels, 1)
    n, c, p = Dim("n", batch), Dim("c", channels), Dim("p", places)
    one = affine()
    by_first, by_last = (*identity((n, c, p)), one), (*identity((n, p, c)), one)
    if to_last:
        return copy_nest((n, p, c), Access(source, by_first, view=first), Access(target, by_last, view=last))
    return copy_nest((n, c, p), Access(source, by_last, view=last), Access(target, by_first, view=first))


# RoiAlign --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Roi:
    """What the attributes of a RoiAlign say."""

    pooled: tuple[int, int]
    ratio: int
    scale: float
    offset: float
    is_max: bool

    @classmethod
    def of(cls, node: Node) -> _Roi:
        default = "half_pixel" if node.opset >= 16 else "output_half_pixel"
        places = ("half_pixel", "output_half_pixel")
        said = choice_attr(node, "coordinate_transformation_mode", places, default, any_case=True)
        return cls(
            (node.int_attr("output_height", 1), node.int_attr("output_width", 1)),
            node.int_attr("sampling_ratio", 0),
            node.float_attr("spatial_scale", 1.0),
            0.5 if said == "half_pixel" else 0.0,
            choice_attr(node, "mode", ("avg", "max"), "avg", any_case=True) == "max",
        )


def _box_span(roi: _Roi, box: Array, axis: int) -> tuple[float, float]:
    """Where a box starts along an axis, and how long it is."""
    start, end = (box[column] * roi.scale - roi.offset for column in (1 - axis, 3 - axis))
    return start, end - start if roi.offset else max(end - start, 1.0)


def _num_samples(roi: _Roi, box: Array, axis: int) -> int:
    length = _box_span(roi, box, axis)[1]
    return roi.ratio if roi.ratio > 0 else max(int(np.ceil(length / roi.pooled[axis])), 0)


def _roi_taps(roi: _Roi, box: Array, axis: int, extent: int) -> tuple[Array, Array]:
    """Indices and weights `[pooled, taps]` along one axis of one box."""
    start, length = _box_span(roi, box, axis)
    size = length / roi.pooled[axis]
    samples = _num_samples(roi, box, axis)
    places = start + np.arange(roi.pooled[axis])[:, None] * size
    places = places + (np.arange(samples) + 0.5) * size / max(samples, 1)
    inside = (places >= -1) & (places <= extent)
    places = np.maximum(places, 0)
    low = np.minimum(np.floor(places), extent - 1)
    fraction = np.where(low < extent - 1, places - low, 0)
    indices = np.stack([low, np.minimum(low + 1, extent - 1)], axis=-1).astype(np.int64)
    weights = np.stack([1 - fraction, fraction], axis=-1) * inside[..., None]
    flat = (roi.pooled[axis], 2 * samples)
    return indices.reshape(flat), weights.reshape(flat).astype(box.dtype)


def _roi_align_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    x, boxes, batches = present(inputs), present(inputs, 1), present(inputs, 2)
    roi = _Roi.of(node)
    out = np.zeros((len(boxes), x.shape[1], *roi.pooled), x.dtype)
    for number, (box, batch) in enumerate(zip(boxes, batches, strict=True)):
        samples = [_num_samples(roi, box, axis) for axis in (0, 1)]
        if 4 * prod(roi.pooled) * prod(samples) > MAX_BOX_SAMPLES:
            raise ValueError(
                f"box {number} {box.tolist()} takes {samples[0]}x{samples[1]} samples for each of "
                f"{roi.pooled[0]}x{roi.pooled[1]} bins, with weights more than {MAX_BOX_SAMPLES} elements"
            )
        (rows, row_weights), (columns, column_weights) = (
            _roi_taps(roi, box, axis, x.shape[2 + axis]) for axis in (0, 1)
        )
        if 0 in rows.shape or 0 in columns.shape:
            continue
        weights = row_weights[:, :, None, None] * column_weights[None, None]
        for channel, plane in enumerate(x[batch]):  # one by one: together they may take gigabytes
            weighted = plane[rows[:, :, None, None], columns[None, None]] * weights
            if roi.is_max:
                out[number, channel] = weighted.max(axis=(1, 3))
            else:
                out[number, channel] = weighted.sum(axis=(1, 3)) / (rows.shape[1] * columns.shape[1] / 4)
    return (out,)


@operator("RoiAlign", reference=_roi_align_reference)
def roi_align(node: Node) -> Description:
    """The mean or maximum of `sampling_ratio`² bilinear samples in each bin of each box."""
    roi = _Roi.of(node)
    require(node, min(roi.pooled) >= 1, f"bins of {roi.pooled[0]} by {roi.pooled[1]} hold nothing")
    shape, (count, _) = require_rank(node, 0, 4, 4), require_rank(node, 1, 2, 2)
    require_shape(node, 1, (count, 4), "four edges of each box")
    require_shape(node, 2, (count,), "an image for each box")
    require_result(node, (count, shape[1], *roi.pooled))
    if roi.ratio <= 0:
        return Opaque("RoiAlign takes as many samples as its boxes say")
    x, boxes, out = input_operand(node, 0), input_operand(node, 1), output_operand(node)
    if 0 in x.shape or 0 in out.shape:
        return Opaque("RoiAlign of nothing")
    dtype = boxes.dtype.compute
    nests: list[Nest] = []
    taps: list[tuple[Operand, Operand]] = []
    for axis in (0, 1):
        extent, pooled = x.shape[2 + axis], roi.pooled[axis]
        dims = (Dim("r", boxes.shape[0]), Dim("p", pooled), Dim("s", roi.ratio), Dim("t", 2))
        edges = tuple(Access(boxes, (affine("r"), affine(column))) for column in (1 - axis, 3 - axis))
        start, end = (read(i, edge) * roi.scale - roi.offset for i, edge in enumerate(edges))
        length = end - start if roi.offset else call("max", end - start, 1.0)
        size = length / float(pooled)
        bin_number, sample = (cast(Iter(name), dtype) for name in ("p", "s"))
        place = start + bin_number * size + (sample + 0.5) * size / float(roi.ratio)
        inside = call("and", call("ge", place, -1.0), call("le", place, float(extent)))
        place = call("max", place, 0.0)
        low = call("min", call("floor", place), float(extent - 1))
        fraction = select(call("lt", low, float(extent - 1)), place - low, 0.0)
        is_low = call("eq", Iter("t"), 0)
        index = select(is_low, low, call("min", low + 1.0, float(extent - 1)))
        weight = select(inside, select(is_low, 1.0 - fraction, fraction), 0.0)
        shape = (boxes.shape[0], pooled, roi.ratio * 2)
        parts = (*shape[:2], roi.ratio, 2)
        indices, weights = local(2 * axis, DType.INT32, shape), local(2 * axis + 1, dtype, shape)
        target = Access(indices, identity(dims), view=parts)
        nests.append(Nest(dims, edges, target, cast(index, DType.INT32)))
        nests.append(Nest(dims, edges, Access(weights, identity(dims), view=parts), weight))
        taps.append((indices, weights))

    def at(axis: int) -> tuple[Index, ...]:
        return affine("d0"), affine(f"d{2 + axis}"), affine(f"t{axis}")

    finish = None if roi.is_max else Acc(out.dtype.compute) / float(roi.ratio**2)
    d0, _, d2, d3 = dims_of(out.shape)
    elements = (d0, Dim("c", out.shape[1]), d2, d3)
    batch = Access(input_operand(node, 2), (affine("d0"),))
    nests.extend(_sum_of_taps(x, out, elements, taps, at, batch, "max" if roi.is_max else "sum", finish))
    return tuple(nests)
