"""Receptive fields: what of a source each element of a value needs at least, however the graph is cut.

A field is a product of sets, one for each axis of the source, each of which follows from the element's index
along one axis of the value, or is the same for all elements. A step that makes an element reads all that the
element needs (`region.py`), so by then its whole field has been made. Where a set would follow from more than
one index there is what all these elements need in common. A field holds for a part of a value: those elements
whose indices are in a set along each axis; a value has several where it was joined of others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import prod
from typing import Any, TypeVar

import numpy as np

from tilewright.arrays import distinct
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ir.nest import Access, Affine, Index, Lookup, Nest, Opaque
from tilewright.ir.ops.registry import describe
from tilewright.ir.region import Region
from tilewright.ir.shapes import equal_product_groups
from tilewright.progress import checkpoint

Sets = np.ndarray[Any, np.dtype[np.bool_]]
"""A set of indices along an axis, or one for each index along another axis, or one for all of these."""
Part = tuple[Sets, ...]
"""A set of indices along each axis, the product of which is meant."""
_Key = TypeVar("_Key")
_MOST_FIELDS = 6
"""Of a value; of more those of the largest parts and sets."""


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    """What the elements of a part of a value need of a source.

    An element with the indices i, all of which are in `part`, needs the product over all axes b of the source
    of `sets[b][i[axes[b]]]`, or of `sets[b][0]` where no index decides; the part as a whole needs the product
    of `all_of` at least.
    """

    part: tuple[Sets, ...]
    axes: tuple[int | None, ...]
    sets: tuple[Sets, ...]
    all_of: tuple[Sets, ...]

    @property
    def is_of_all(self) -> bool:
        """Whether it holds for each element."""
        return all(inside.all() for inside in self.part)

    @property
    def weight(self) -> tuple[float, float]:
        """How large the part is, and how much an element needs: shares of the value and of the source."""
        return prod(float(p.mean()) for p in self.part), prod(float(s.mean()) for s in self.sets)


def receptive_fields(
    graph: Graph, source: Value, *, in_parts: bool = False
) -> dict[Value, tuple[Field, ...]]:
    """Fields of all values that need a source, as far as they are known. O(nodes * extents^2).

    Where the source comes `in_parts`, what reads it may begin before all that it reads is there: a slice in
    tiles, of which the first t of n wait for t of n parts of what the slice reads. O(extents^3) then.
    """
    every = tuple(np.ones(extent, bool) for extent in source.shape)
    units = tuple(np.eye(extent, dtype=bool) for extent in source.shape)
    axes: tuple[int | None, ...] = tuple(range(len(every)))
    found: dict[Value, tuple[Field, ...]] = {source: (Field(every, axes, units, every),)}
    for node in graph.nodes:
        if any(v in found for v in node.operands()):
            begun = source if in_parts else None
            found.update((value, fields) for value, fields in _made(node, found, begun) if fields)
    return found


def _made(
    node: Node, known: Mapping[Value, tuple[Field, ...]], in_parts: Value | None
) -> Iterator[tuple[Value, tuple[Field, ...]]]:
    """The fields of a node's results, where one value comes in parts."""
    description = describe(node)
    if isinstance(description, Opaque):  # all of its operands are there before it begins
        fields = [of for v in node.operands() for of in known.get(v, ())]
        for value in node.results():
            yield value, _largest(_needing_all(of, value.shape) for of in fields)
        return
    operands: dict[tuple[str, int], tuple[Field, ...]] = {
        ("input", place): known[v] for place, v in enumerate(node.inputs) if v is not None and v in known
    }
    early = {("input", place) for place, v in enumerate(node.inputs) if v is in_parts and v is not None}
    for nest in description:
        made = (
            _through(nest, read, of, in_parts=read.operand.key in early)
            for read in nest.reads
            for of in operands.get(read.operand.key, ())
        )
        key = nest.write.operand.key
        operands[key] = _largest((*operands.get(key, ()), *(of for of in made if of is not None)))
    for place, output in enumerate(node.outputs):
        if output is not None:
            yield output, operands.get(("output", place), ())


def _largest(fields: Iterable[Field]) -> tuple[Field, ...]:
    """Fields without those of a part that another one says more of."""
    kept: dict[tuple[bytes, ...], Field] = {}
    for of in sorted(fields, key=lambda of: of.weight, reverse=True):
        key = tuple(inside.tobytes() for inside in of.part)
        if key not in kept or kept[key].weight < of.weight:
            kept[key] = of
    return tuple(kept.values())[:_MOST_FIELDS]


def _needing_all(of: Field, shape: Sequence[int]) -> Field:
    """The field of a value of which each element needs all of a part."""
    part = tuple(np.ones(extent, bool) for extent in shape)
    return Field(part, (None,) * len(of.axes), tuple(s[None] for s in of.all_of), of.all_of)


def _through(nest: Nest, read: Access, of: Field, *, in_parts: bool) -> Field | None:
    """What elements need that a nest writes, by way of one read of a part of an operand, which may come in
    parts; None if no element is known to read any of that."""
    checkpoint()
    if read.view is not None:
        reshaped = _reshaped(of, read.operand.shape, read.view)
        if reshaped is None:
            return None
        of = reshaped
    extents = [d.extent for d in nest.parallel_dims]
    part = [np.ones(extent, bool) for extent in extents]
    windows: list[_Window | None] = []
    for index, inside in zip(read.index, of.part, strict=True):
        deciding, values = _values(nest, index, len(inside))
        is_read = (inside[np.clip(values, 0, len(inside) - 1)] & (values >= 0) & (values < len(inside))).any(
            -1
        )
        along = _factors(is_read)
        if along is None or not is_read.any():
            return None
        for dim, own in zip(deciding, along, strict=True):
            part[dim] &= own
        if len(deciding) > 1:
            windows.append(None)
            continue
        rows = values.reshape(-1, values.shape[-1])
        window = _Window.of(rows, inside, deciding[0] if deciding else None)
        windows.append(window.there_in_time() if in_parts and deciding else window)
    if not all(inside.any() for inside in part):
        return None
    made = _composed(of, windows, part)
    if all(
        w is not None and w.axis is None and (w.union() == inside).all()
        for w, inside in zip(windows, of.part, strict=True)
    ):
        made = replace(_needing_all(of, extents), part=tuple(part))
    written = _stored(nest, made)
    return (
        written if nest.write.view is None else _reshaped(written, nest.write.view, nest.write.operand.shape)
    )


def _composed(of: Field, windows: Sequence[_Window | None], part: Sequence[Sets]) -> Field:
    """The field of iterations that read so much of a part along each axis."""
    axes: list[int | None] = []
    found: list[Sets] = []
    for own, sets in zip(of.axes, of.sets, strict=True):
        window = None if own is None else windows[own]
        if own is None:
            axes.append(None)
            found.append(sets)
        elif window is None or of.axes.count(own) > 1:
            axes.append(None)
            found.append(_in_common(sets, of.part[own]))
        else:
            axes.append(window.axis)
            found.append(window.unions(sets))
    deciding = [w.axis for w in windows if w is not None and w.axis is not None]
    reads_all = len(set(deciding)) == len(deciding) and all(
        w is not None and w.union(None if w.axis is None else part[w.axis])[inside].all()
        for w, inside in zip(windows, of.part, strict=True)
    )
    decided = [axis for axis in axes if axis is not None]
    if reads_all:
        all_of = of.all_of
    elif len(set(decided)) == len(decided):
        sides = zip(axes, found, strict=True)
        all_of = tuple(s[0] if axis is None else _union(s[part[axis]]) for axis, s in sides)
    else:
        all_of = tuple(np.zeros(s.shape[1], bool) for s in found)
    return Field(tuple(part), tuple(axes), tuple(found), all_of)


@dataclass(frozen=True, slots=True, eq=False)
class _Window:
    """Which indices along an axis each iteration of a dim, by its number, reads; None: all the same.

    Iteration `rows[i]` reads `places[i]`, rows ascending: a matrix of both would take gigabytes where
    samples, heads and positions are one axis of tens of thousands.
    """

    axis: int | None
    shape: tuple[int, int]
    rows: np.ndarray[Any, Any]
    places: np.ndarray[Any, Any]

    @classmethod
    def of(cls, values: np.ndarray[Any, Any], inside: Sets, axis: int | None) -> _Window:
        """Rows of indices, of which those outside the axis are padding, as far as they are `inside`."""
        extent = len(inside)
        is_read = (values >= 0) & (values < extent) & inside[np.clip(values, 0, extent - 1)]
        return cls(axis, (len(values), extent), np.nonzero(is_read)[0], values[is_read])

    def there_in_time(self) -> _Window:
        """What of it is there when iterations are begun."""
        sets = np.zeros(self.shape, bool)
        sets[self.rows, self.places] = True
        rows, places = np.nonzero(_there_in_time(sets))
        return replace(self, rows=rows, places=places)

    def unions(self, sets: Sets) -> Sets:
        """For each iteration the union of the sets of all that it reads, eight indices at once."""
        counts = np.bincount(self.rows, minlength=self.shape[0])
        own = np.flatnonzero(counts)
        found = np.zeros((self.shape[0], sets.shape[1]), bool)
        if len(own):
            packed = np.packbits(sets, axis=1)[self.places]
            joined = np.bitwise_or.reduceat(packed, (counts.cumsum() - counts)[own], axis=0)
            found[own] = np.unpackbits(joined, axis=1, count=sets.shape[1])
        return found

    def union(self, iterations: Sets | None = None) -> Sets:
        """All that some iterations read, or all of them."""
        found = np.zeros(self.shape[1], bool)
        found[self.places if iterations is None else self.places[iterations[self.rows]]] = True
        return found


def _values(nest: Nest, index: Index, extent: int) -> tuple[list[int], np.ndarray[Any, Any]]:
    """The parallel dims that an index depends on, and what it comes to for each of their iterations, along
    the last axis with all that others make of it."""
    dims = {d.name: number for number, d in enumerate(nest.parallel_dims)}
    if isinstance(index, Lookup):
        table = np.array(index.table)
        return ([dims[index.dim]], table[:, None]) if index.dim in dims else ([], distinct(table))
    if not isinstance(index, Affine):
        return [], np.arange(extent)  # data decide: all is there before
    values = np.array([index.offset])
    for name, c in index.terms:
        if name not in dims:
            values = distinct((values[:, None] + c * np.arange(nest.extents[name])).ravel())
    deciding = [(name, c) for name, c in index.terms if name in dims]
    for name, c in reversed(deciding):
        values = c * np.arange(nest.extents[name]).reshape(-1, *(1,) * values.ndim) + values
    return [dims[name] for name, _ in deciding], values


def _stored(nest: Nest, of: Field) -> Field:
    """The field of what a nest writes, of that of its iterations."""
    shape = nest.write.operand.shape if nest.write.view is None else nest.write.view
    part = []
    axes: list[int | None] = [None] * len(of.axes)
    sets = [
        s if axis is None else _in_common(s, of.part[axis]) for axis, s in zip(of.axes, of.sets, strict=True)
    ]
    for place, (index, extent) in enumerate(zip(nest.write.index, shape, strict=True)):
        deciding, values = _values(nest, index, extent)
        is_inside = reduce(np.multiply.outer, (of.part[dim] for dim in deciding), np.ones((), bool))
        part.append(np.zeros(extent, bool))
        part[-1][values[..., 0][is_inside]] = True
        for b, axis in enumerate(of.axes):
            if axis in deciding:
                steps = np.indices(values.shape[:-1])[deciding.index(axis)]
                sets[b] = np.zeros((extent, of.sets[b].shape[1]), bool)
                sets[b][values[..., 0].ravel()] = of.sets[b][steps.ravel()]
                axes[b] = place
    return Field(tuple(part), tuple(axes), tuple(sets), of.all_of)


def _there_in_time(sets: Sets) -> Sets:
    """What of their sets is there when elements are begun: of any slice from a to b, of which element i is
    in a tile that waits for (i - a + 1) of b - a parts of what the slice reads, at least."""
    first, stop = sets.argmax(1), sets.shape[1] - sets[:, ::-1].argmax(1)
    if not sets.any(1).all() or (np.diff(first) < 0).any() or (np.diff(stop) < 0).any():
        return np.zeros_like(sets)
    places = np.arange(sets.shape[1])
    found = np.zeros_like(sets)
    for i in range(len(sets)):
        checkpoint()
        begin = first[: i + 1, None]
        parts = np.arange(i + 1, 0, -1)[:, None]
        length = parts + np.arange(len(sets) - i)
        come = begin + parts * (stop[None, i:] - begin) // length
        found[i] = sets[i] & (places < come.min())
    return found


def _factors(found: Sets) -> list[Sets] | None:
    """A set of places as the product of sets along each axis; None if it is none."""
    axes = range(found.ndim)
    along: list[Sets] = [
        np.logical_or.reduce(found, axis=tuple(a for a in axes if a != axis)) for axis in axes
    ]
    whole = reduce(np.multiply.outer, along, np.ones((), bool))
    return along if (whole == found).all() else None


def _in_common(sets: Sets, part: Sets) -> Sets:
    """What all sets of a part hold, as a single set."""
    found: Sets = np.logical_and.reduce(sets[part], axis=0, keepdims=True)
    return found


def _union(sets: Sets) -> Sets:
    found: Sets = np.logical_or.reduce(sets, axis=0)
    return found


def _reshaped(of: Field, shape: Sequence[int], other: Sequence[int]) -> Field | None:
    """A field of the same elements under another shape; None where the part is no product there."""
    part = _reshaped_part(of.part, shape, other)
    if part is None:
        return None
    groups = equal_product_groups(tuple(shape), tuple(other))
    pairs = ((range(*group.left), range(*group.right)) for group in groups)
    new_axis = {left[0]: right[0] for left, right in pairs if len(left) == len(right) == 1}
    axes = tuple(None if axis is None else new_axis.get(axis) for axis in of.axes)
    sets = tuple(
        s if old is None or new is not None else _in_common(s, of.part[old])
        for s, old, new in zip(of.sets, of.axes, axes, strict=True)
    )
    return Field(part, axes, sets, of.all_of)


def _reshaped_part(part: Sequence[Sets], shape: Sequence[int], other: Sequence[int]) -> Part | None:
    """A product of sets along axes under another shape; None where it is none there."""
    found: Part = tuple(np.ones(extent, bool) for extent in other)
    for group in equal_product_groups(tuple(shape), tuple(other)):
        left, right = range(*group.left), range(*group.right)
        inside = reduce(np.multiply.outer, (part[axis] for axis in left), np.ones((), bool))
        along = _factors(inside.reshape([other[axis] for axis in right]))
        if along is None:
            return None
        for axis, own in zip(right, along, strict=True):
            found[axis][:] = own
    return found


def needed_elements(nodes: Sequence[Node], wanted: Mapping[Value, Region]) -> dict[Value, Part]:
    """Elements of each value that nodes in order need at least to make `wanted` of their results, as products
    of sets along axes. What windows leave out between the elements that they read is not among them, though
    it lies within the region of a value (`value_regions`)."""
    found = {
        value: tuple(
            _between(*interval, extent) for interval, extent in zip(region, value.shape, strict=True)
        )
        for value, region in wanted.items()
    }
    for node in reversed(nodes):
        checkpoint()
        made = {("output", n): found[v] for n, v in enumerate(node.outputs) if v is not None and v in found}
        if not made:
            continue
        description = describe(node)
        if isinstance(description, Opaque):
            whole: Iterable[Value] = node.operands()
        else:
            whole = node.captures
            for nest in reversed(description):
                part = made.get(nest.write.operand.key)
                iterations = None if part is None else _iterations(nest, part)
                if iterations is not None:
                    for read in nest.reads:
                        _add(made, read.operand.key, _read(nest, read, iterations))
            for place, operand in enumerate(node.inputs):
                if operand is not None:
                    _add(found, operand, made.get(("input", place)))
        for operand in whole:
            _add(found, operand, tuple(np.ones(extent, bool) for extent in operand.shape))
    return found


def _add(parts: dict[_Key, Part], key: _Key, more: Part | None) -> None:
    """Add a part to what is known to be needed: both together where they are a product, else the larger."""
    known = parts.get(key)
    if more is None:
        return
    if known is None:
        parts[key] = more
        return
    differing = [axis for axis, (a, b) in enumerate(zip(known, more, strict=True)) if (a != b).any()]
    if len(differing) == 1:
        parts[key] = tuple(a | b for a, b in zip(known, more, strict=True))
    elif num_elements(more) > num_elements(known):
        parts[key] = more


def num_elements(part: Sequence[Sets]) -> int:
    """Of a product of sets along axes."""
    return prod(int(inside.sum()) for inside in part)


def _between(start: int, stop: int, extent: int) -> Sets:
    places = np.arange(extent)
    inside: Sets = (places >= start) & (places < stop)
    return inside


def _iterations(nest: Nest, part: Part) -> list[Sets] | None:
    """Iterations of each parallel dim that write a part of a result; None where these are no product."""
    write = nest.write
    viewed = part if write.view is None else _reshaped_part(part, write.operand.shape, write.view)
    if viewed is None:
        return None
    found = [np.ones(d.extent, bool) for d in nest.parallel_dims]
    for index, inside in zip(write.index, viewed, strict=True):
        deciding, values = _values(nest, index, len(inside))
        along = _factors(inside[values[..., 0]])
        if along is None:
            return None
        for dim, own in zip(deciding, along, strict=True):
            found[dim] &= own
    return found if all(inside.any() for inside in found) else None


def _read(nest: Nest, read: Access, iterations: Sequence[Sets]) -> Part | None:
    """What iterations read of an operand; None where that is nothing, or no product."""
    decided: list[int] = []
    found = []
    for index, extent in zip(read.index, read.shape, strict=True):
        deciding, values = _values(nest, index, extent)
        decided += deciding
        asked = values[np.ix_(*(iterations[dim] for dim in deciding))].ravel()
        found.append(np.zeros(extent, bool))
        found[-1][asked[(asked >= 0) & (asked < extent)]] = True
    if len(set(decided)) < len(decided) or not all(inside.any() for inside in found):
        return None
    return tuple(found) if read.view is None else _reshaped_part(found, read.view, read.operand.shape)
