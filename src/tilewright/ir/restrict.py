"""The part of a nest group that one region of its results needs, as nests on windows of the operands.

A window is the box of an operand that the part touches. Restricted nests address windows as if they were
whole tensors: where a window ends because the tensor does, the access's own padding applies. This is how
fused kernels work block by block, with the halos that `region` derives.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Call, Const, Expr, Iter, substitute
from tilewright.ir.nest import Access, Affine, Dim, Index, Indirect, Lookup, Nest, Operand
from tilewright.ir.region import (
    Interval,
    Region,
    access_region,
    dim_intervals,
    full_region,
    hull,
    nest_input_regions,
)
from tilewright.records import dataclass

OperandKey = tuple[str, int]
_NOTHING: Mapping[OperandKey, Region] = MappingProxyType({})


@dataclass(frozen=True, slots=True, eq=False)
class RestrictedNests:
    """Nests on windows. `windows` gives the box of each operand that the part touches, in its full tensor.

    Of temporaries whose windows were there in part, the nests make the rest.
    """

    nests: tuple[Nest, ...]
    windows: Mapping[OperandKey, Region]


def restrict(
    nests: Sequence[Nest],
    wanted: Mapping[OperandKey, Region],
    whole: Collection[OperandKey] = (),
    present: Mapping[OperandKey, Region] = _NOTHING,
) -> RestrictedNests | None:
    """What of a group of nests `wanted` regions of its results need; tables and `whole` operands stay whole.

    Regions of temporaries that are `present` are not made again: their elements are expected in the windows.
    None where that cannot be said as nests on windows: a part of a reshaped operand, results that come in
    strides, reads of nothing but padding.
    """
    windows = windows_of(nests, wanted, whole, present)
    restricted: list[Nest] = []
    for nest in nests:
        region = missing(windows, nest.write.operand.key, present)
        intervals = None if region is None else dim_intervals(nest, region)
        if intervals is None:
            continue
        found = _restrict_nest(nest, intervals, windows)
        if found is None:
            return None
        restricted.append(found)
    return RestrictedNests(tuple(restricted), windows)


def restrict_iterations(nest: Nest, intervals: Mapping[str, Interval]) -> RestrictedNests | None:
    """Some iterations of one nest, of a sum only those, as a nest on windows; `intervals` are of all dims.

    None as of `restrict`.
    """
    windows: dict[OperandKey, Region] = {}
    for access in (nest.write, *nest.reads):
        touched = access_region(access, intervals)
        if touched is not None:
            key = access.operand.key
            windows[key] = hull(windows[key], touched) if key in windows else touched
    found = _restrict_nest(nest, intervals, windows)
    return None if found is None else RestrictedNests((found,), windows)


def windows_of(
    nests: Sequence[Nest],
    wanted: Mapping[OperandKey, Region],
    whole: Collection[OperandKey] = (),
    present: Mapping[OperandKey, Region] = _NOTHING,
) -> dict[OperandKey, Region]:
    """The box of each operand that `wanted` regions of results need; all of `whole` operands and tables.

    What is `present` of a temporary needs nothing any more.
    """
    windows = dict(wanted)
    for nest in reversed(nests):
        region = missing(windows, nest.write.operand.key, present)
        if region is None:
            continue
        for access, needed in zip(nest.reads, nest_input_regions(nest, region), strict=True):
            operand = access.operand
            key = operand.key
            if operand.kind == "table" or key in whole:
                windows[key] = full_region(operand.shape)
            elif needed is not None:
                known = windows.get(key)
                windows[key] = needed if known is None or known == needed else hull(known, needed)
    return windows


def missing(
    windows: Mapping[OperandKey, Region], key: OperandKey, present: Mapping[OperandKey, Region]
) -> Region | None:
    """What of an operand's window is to be made: all, what lies behind the part that is there, or nothing."""
    window = windows.get(key)
    if window is None or key not in present:
        return window
    differing = [
        axis
        for axis, (new, old) in enumerate(zip(window, present[key], strict=True))
        if not _covers(old, new)
    ]
    if not differing:
        return None
    (axis, *others) = differing
    (start, stop), (_, end) = window[axis], present[key][axis]
    if others or not present[key][axis][0] <= start < end < stop:
        return window
    return (*window[:axis], (end, stop), *window[axis + 1 :])


def _covers(outer: Interval, inner: Interval) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def _restrict_nest(
    nest: Nest, intervals: Mapping[str, Interval], windows: Mapping[OperandKey, Region]
) -> Nest | None:
    lows = {d: low for d, (low, _) in intervals.items()}
    dims = tuple(Dim(d.name, intervals[d.name][1] - intervals[d.name][0], d.role) for d in nest.dims)
    extents = {d.name: d.extent for d in dims}
    reads = [_restrict_access(a, intervals, windows) for a in nest.reads]
    write = _restrict_access(nest.write, intervals, windows)
    if write is None or not _is_inside(write, extents):
        return None
    kept = [a for a in reads if a is not None]
    if len(kept) != len(reads):
        return None

    def moved(expr: Expr | None) -> Expr | None:
        return None if expr is None else substitute(expr, iters=lambda i: _later(i, lows[i.dim]))

    body = moved(nest.body)
    assert body is not None
    return replace(
        nest,
        dims=dims,
        reads=tuple(kept),
        write=write,
        body=body,
        init=moved(nest.init),
        finish=moved(nest.finish),
    )


def _later(index: Iter, low: int) -> Expr:
    return index if low == 0 else Call("add", (index, Const(low, DType.INT64)), DType.INT64)


def _restrict_access(
    access: Access, intervals: Mapping[str, Interval], windows: Mapping[OperandKey, Region]
) -> Access | None:
    """The access on the operand's window, by dims that start at 0; None where there is no such access."""
    operand = access.operand
    window = windows.get(operand.key)
    if window is None:
        return None  # it only ever reads padding
    is_whole = window == full_region(operand.shape)
    if access.view is not None and not is_whole:
        return None
    starts = [0] * len(access.shape) if access.view is not None else [start for start, _ in window]
    index = tuple(_moved_index(i, intervals, start) for i, start in zip(access.index, starts, strict=True))
    if not is_whole:
        if any(isinstance(i, Indirect) and start for i, start in zip(index, starts, strict=True)):
            return None
        operand = on_window(operand, window)
    return replace(access, operand=operand, index=index)


def _moved_index(index: Index, intervals: Mapping[str, Interval], start: int) -> Index:
    match index:
        case Affine(terms, offset):
            moved = sum(c * intervals[d][0] for d, c in terms)
            return Affine(terms, offset + moved - start)
        case Lookup(table, dim):
            low, high = intervals[dim]
            return Lookup(tuple(v - start for v in table[low:high]), dim)
        case Indirect():
            return index


def _is_inside(write: Access, extents: Mapping[str, int]) -> bool:
    """Whether every iteration writes into the window: intervals of merged axes are rounded outwards."""
    for index, extent in zip(write.index, write.shape, strict=True):
        match index:
            case Affine():
                low, high = index.bounds(extents)
                if low < 0 or high >= extent:
                    return False
            case Lookup(table, _):
                if min(table, default=0) < 0 or max(table, default=0) >= extent:
                    return False
            case Indirect():
                return False
    return True


def on_window(operand: Operand, window: Region) -> Operand:
    """The operand as restricted nests see it."""
    return replace(operand, shape=tuple(stop - start for start, stop in window))
