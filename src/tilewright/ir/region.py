"""Which part of each input an output region needs, by interval propagation through the nests.

This is the only place where halos, splits and slices are worked out (GraphTurbo's `in_region`): there
are no rules per operator. Regions are boxes, so the result is the smallest box per read where the index
is affine, and the hull of all reads of the same tensor.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from math import prod
from types import MappingProxyType

import numpy as np

from tilewright.errors import InternalError
from tilewright.ir.graph import Node, Shape
from tilewright.ir.nest import Access, Affine, Index, Indirect, Lookup, Nest, Opaque
from tilewright.ir.ops.registry import describe
from tilewright.ir.shapes import equal_product_groups

Interval = tuple[int, int]
Region = tuple[Interval, ...]
Terms = tuple[tuple[str, int], ...]

# Combinations tried to find the outermost element that a strided access with gaps really reads.
_MOST_COMBINATIONS = 1 << 16


def full_region(shape: Sequence[int]) -> Region:
    """The whole tensor.

    >>> full_region((2, 3))
    ((0, 2), (0, 3))
    """
    return tuple((0, extent) for extent in shape)


def volume(region: Region) -> int:
    """Number of elements; an empty interval makes it 0.

    >>> volume(((1, 3), (0, 4)))
    8
    """
    elements = 1
    for start, stop in region:
        if stop <= start:
            return 0
        elements *= stop - start
    return elements


def hull(first: Region, *others: Region) -> Region:
    """The smallest region that holds all of them.

    >>> hull(((0, 2),), ((5, 6),))
    ((0, 6),)
    """
    return tuple(
        (min(start for start, _ in axis), max(stop for _, stop in axis))
        for axis in zip(first, *others, strict=True)
    )


def intersect(a: Region, b: Region) -> Region | None:
    """What two regions share, None if that is nothing.

    >>> intersect(((0, 4),), ((2, 6),)), intersect(((0, 2),), ((2, 6),))
    (((2, 4),), None)
    """
    common = tuple((max(s, t), min(e, f)) for (s, e), (t, f) in zip(a, b, strict=True))
    return common if all(start < stop for start, stop in common) else None


def union_volume(regions: Collection[Region]) -> int:
    """Number of elements in at least one of several regions of one tensor.

    O(n^2) for n regions that differ along one axis, as slices do.

    >>> union_volume([((0, 4), (0, 2)), ((3, 6), (0, 2)), ((8, 9), (0, 2))])
    14
    """
    solid = {region for region in regions if volume(region)}
    if len(solid) < 2 or () in solid:
        return sum(map(volume, solid))
    cuts = sorted({end for region in solid for end in region[0]})
    total = 0
    for start, stop in pairwise(cuts):
        across = {region[1:] for region in solid if region[0][0] <= start and stop <= region[0][1]}
        total += (stop - start) * union_volume(across)
    return total


def input_regions(node: Node, output_region: Region, output_index: int = 0) -> tuple[Region | None, ...]:
    """The region of each input that a region of one output needs; None where it needs nothing of it.

    One entry per input position, omitted inputs included. Opaque operators need everything.

    Raises:
        InternalError: the region's rank is not the output's.
    """
    output = node.outputs[output_index]
    if output is None or len(output_region) != len(output.shape):
        raise InternalError(
            f"{node!r}: region {output_region} does not fit output {output_index} ({output!r})."
        )
    nests = describe(node)
    if isinstance(nests, Opaque):
        return tuple(None if v is None else full_region(v.shape) for v in node.inputs)
    needed: dict[tuple[str, int], Region] = {("output", output_index): output_region}
    # Backwards, so that everything that needs a temporary has been seen before the nest that fills it.
    for nest in reversed(nests):
        wanted = needed.get(nest.write.operand.key)
        if wanted is None:
            continue
        for access, region in zip(nest.reads, nest_input_regions(nest, wanted), strict=True):
            if region is not None:
                key = access.operand.key
                needed[key] = hull(needed[key], region) if key in needed else region
    return tuple(needed.get(("input", position)) for position in range(len(node.inputs)))


def nest_input_regions(nest: Nest, region: Region) -> tuple[Region | None, ...]:
    """The region of each read's operand that is needed to write `region` of the written operand."""
    intervals = dim_intervals(nest, region)
    if intervals is None:
        return (None,) * len(nest.reads)
    sums = _written_sums(nest.write, region)
    return tuple(access_region(access, intervals, sums) for access in nest.reads)


def dim_intervals(nest: Nest, region: Region) -> dict[str, Interval] | None:
    """The iterations that write into a region of the written operand, per dim; None if none does.

    Inverts the write index by tightening bounds until nothing moves. That is exact for one term per
    axis (strides and offsets included) and rounds outwards as a linear range for merged axes.
    """
    write = nest.write
    intervals: dict[str, Interval] = {}
    for d in nest.dims:
        if d.extent == 0 and d.role == "parallel":
            return None
        intervals[d.name] = (0, d.extent)
    for start, stop in region:
        if start >= stop:
            return None
    wanted = region if write.view is None else reshape_region(region, write.operand.shape, write.view)
    merged: list[tuple[Index, Interval]] = []
    for index, interval in zip(write.index, wanted, strict=True):
        if isinstance(index, Affine) and len(index.terms) == 1:
            # Such bounds depend on no other dim: they are final.
            ((dim, c),) = index.terms
            begin, end = intervals[dim]
            first, last = interval[0] - index.offset, interval[1] - 1 - index.offset
            if c < 0:
                first, last = -last, -first
            begin, end = max(begin, -(-first // abs(c))), min(end, last // abs(c) + 1)
            if begin >= end:
                return None
            intervals[dim] = (begin, end)
        else:
            merged.append((index, interval))
    settled = not merged
    while not settled:
        settled = True
        for index, interval in merged:
            for dim, tightened in _solve(index, interval, intervals):
                if tightened is None:
                    return None
                if tightened != intervals[dim]:
                    intervals[dim] = tightened
                    settled = False
    return intervals


def _solve(
    index: Index, interval: Interval, intervals: Mapping[str, Interval]
) -> list[tuple[str, Interval | None]]:
    """Tighter bounds of each dim of one write index, None where no iteration hits the interval."""
    start, stop = interval
    match index:
        case Affine((), offset):
            return [] if start <= offset < stop else [("", None)]
        case Affine(terms, _):
            low, high = _bounds(index, intervals)
            tightened: list[tuple[str, Interval | None]] = []
            for dim, c in terms:
                first, last = (c * intervals[dim][0], c * (intervals[dim][1] - 1))[:: 1 if c > 0 else -1]
                # The other terms can add between `low - first` and `high - last`.
                least, most = start - (high - last), stop - 1 - (low - first)
                bounds = (-(-least // c), most // c) if c > 0 else (-(-most // c), least // c)
                begin, end = max(intervals[dim][0], bounds[0]), min(intervals[dim][1], bounds[1] + 1)
                tightened.append((dim, (begin, end) if begin < end else None))
            return tightened
        case Lookup(table, dim):
            begin, end = intervals[dim]
            hits = [i for i in range(begin, end) if start <= table[i] < stop]
            return [(dim, (hits[0], hits[-1] + 1) if hits else None)]
        case Indirect():
            return []


def _bounds(index: Affine, intervals: Mapping[str, Interval]) -> Interval:
    """Smallest and largest value over the intervals, both inclusive."""
    low = high = index.offset
    for dim, c in index.terms:
        begin, end = intervals[dim]
        if c > 0:
            low, high = low + c * begin, high + c * (end - 1)
        else:
            low, high = low + c * (end - 1), high + c * begin
    return low, high


def _written_sums(write: Access, region: Region) -> dict[Terms, Interval]:
    """What the merged write indices, offsets left away, amount to within the region.

    A read by the same sum (the bias of a grouped convolution) then need not be rounded outwards.
    """
    wanted = region if write.view is None else reshape_region(region, write.operand.shape, write.view)
    return {
        index.terms: (start - index.offset, stop - index.offset)
        for index, (start, stop) in zip(write.index, wanted, strict=True)
        if isinstance(index, Affine) and len(index.terms) > 1
    }


def access_region(
    access: Access, intervals: Mapping[str, Interval], sums: Mapping[Terms, Interval] = MappingProxyType({})
) -> Region | None:
    """The box of the operand that an access touches over intervals of dims; None if it stays outside.

    `sums` bounds the values of whole sums of terms more tightly than the intervals of their dims do.
    """
    axes = []
    for index, extent in zip(access.index, access.shape, strict=True):
        axis = _axis_interval(index, extent, intervals, sums)
        if axis is None or axis[0] >= axis[1]:
            return None
        axes.append(axis)
    region = tuple(axes)
    return region if access.view is None else reshape_region(region, access.view, access.operand.shape)


def _axis_interval(
    index: Index, extent: int, intervals: Mapping[str, Interval], sums: Mapping[Terms, Interval]
) -> Interval | None:
    """What one index touches; None where that is nothing, as in a reduction over nothing, which still reads
    its initial value."""
    if isinstance(index, Affine):
        for dim, _ in index.terms:
            begin, end = intervals[dim]
            if begin >= end:
                return None
        if index.terms in sums:
            start, stop = sums[index.terms]
            return max(start + index.offset, 0), min(stop + index.offset, extent)
        low, high = _bounds(index, intervals)
        if low < 0 or high >= extent:
            return _clipped(index, extent, intervals)
        return low, high + 1
    if isinstance(index, Lookup):
        inside = [v for v in index.table[slice(*intervals[index.dim])] if 0 <= v < extent]
        return (min(inside), max(inside) + 1) if inside else None
    return 0, extent


def _clipped(index: Affine, extent: int, intervals: Mapping[str, Interval]) -> Interval | None:
    """What an access that leaves the axis reads inside it.

    Where the access has no gaps that is the clipped interval; otherwise (a stride wider than the
    window) the values are tried, so that the ends are elements really read.
    """
    low, high = _bounds(index, intervals)
    steps = sorted((abs(c), intervals[d][1] - intervals[d][0]) for d, c in index.terms)
    reach = 0
    for step, count in steps:
        if count > 1 and step > reach + 1:
            break
        reach += step * (count - 1)
    else:
        start, stop = max(low, 0), min(high + 1, extent)
        return (start, stop) if start < stop else None
    if prod(count for _, count in steps) > _MOST_COMBINATIONS:
        start, stop = max(low, 0), min(high + 1, extent)
        return (start, stop) if start < stop else None
    values = np.asarray([index.offset])
    for dim, c in index.terms:
        values = (values[:, None] + c * np.arange(*intervals[dim])).ravel()
    inside = values[(values >= 0) & (values < extent)]
    return (int(inside.min()), int(inside.max()) + 1) if inside.size else None


# Elements of a reshaped box that are followed one by one, which takes some ten microseconds.
_MAX_FOLLOWED = 1024


def reshape_region(region: Region, source: Shape, target: Shape) -> Region:
    """A box under `target` that holds all elements of a box under `source`, row-major.

    Axes are matched in minimal groups of equal products. One axis to one axis maps; elsewhere a small box is
    followed element by element, and of a large one the span of linear positions is rounded outwards.

    >>> reshape_region(((0, 1), (2, 4), (0, 6)), (2, 4, 6), (2, 24))
    ((0, 1), (12, 24))
    """
    if prod(source) == 0:
        return full_region(target)
    result: list[Interval] = []
    for group in equal_product_groups(source, target):
        left, right = slice(*group.left), slice(*group.right)
        if source[left] == target[right]:
            result += region[left]
        else:
            box, old, new = region[left], source[left], target[right]
            exact = bool(new) and 0 < volume(box) <= _MAX_FOLLOWED
            result += _followed(box, old, new) if exact else _box(_span(box, old), new)
    return tuple(result)


def _followed(region: Region, source: Shape, target: Shape) -> Region:
    """The smallest box under `target` that holds the elements of a box under `source`."""
    positions = np.zeros(1, np.int64)
    for (start, stop), extent in zip(region, source, strict=True):
        positions = (positions[:, None] * extent + np.arange(start, stop)).reshape(-1)
    axes = np.unravel_index(positions, target)
    return tuple((int(axis.min()), int(axis.max()) + 1) for axis in axes)


def _span(region: Region, shape: Shape) -> Interval:
    """The linear positions between which all elements of a box lie."""
    first = last = 0
    for (start, stop), extent in zip(region, shape, strict=True):
        first, last = first * extent + start, last * extent + stop - 1
    return first, last + 1


def _box(span: Interval, shape: Shape) -> Region:
    """The smallest box that holds a range of linear positions."""
    first, last = span[0], span[1] - 1
    axes: list[Interval] = []
    for axis in range(len(shape)):
        inner = prod(shape[axis + 1 :])
        start, stop = first // inner, last // inner + 1
        axes.append((start, stop))
        if stop - start > 1:
            return (*axes, *full_region(shape[axis + 1 :]))
        first, last = first % inner, last % inner
    return tuple(axes)
