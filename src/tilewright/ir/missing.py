"""How many elements of a value wait for a source at least, while so many elements of that are missing.

Any m indices along an axis of the source are needed by a + b m indices along an axis of the value, for some
a, b >= 0. So elements at m of its rows and n of its columns, wherever they lie, are needed by a product of
such sums, and any P elements by the least of these products with m n >= P. (By induction over axes: in each
row of the value all waits that the fullest of the rows which it needs asks for; cut into layers by how full
rows are, each layer is a set of rows, and counts are concave in how many elements are missing, so that the
least is reached where all rows are empty or equally full. For windows of an image it is what the inequality
of Brunn and Minkowski says.)
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import ceil, inf, prod
from typing import Any

import numpy as np

from tilewright.ir.receptive import Field, Part, Sets

Line = tuple[float, float]
"""Any m > 0 indices along one axis are needed by this and that many times m indices along another one."""
_SLOPES = 0.0, 0.5, 0.85
"""Of lines, in proportion to what all indices come to: more for each index leaves less to begin with."""
_MOST_INDICES = 2048
"""Along an axis, of which lines that rise are looked for."""


class Waiting:
    """Elements of a part of a value that wait for a source, of which all of `needed` is asked."""

    def __init__(self, field: Field, needed: Part, lines: Lines) -> None:
        deciding, others = [], []
        decided: list[int] = []
        for axis, sets, inside in zip(field.axes, field.sets, needed, strict=True):
            own = (sets if axis is None else sets[field.part[axis]])[:, inside]
            if axis is None or own.shape[1] == 1:
                others.append(own)
            else:
                deciding.append(own)
                decided.append(axis)
        self.is_of_all = field.is_of_all
        self._is_known = all(n.all() for n in others) and len(set(decided)) == len(decided)
        extents = [int(inside.sum()) for inside in field.part]
        self._num_elements = prod(extents)
        self._num_alike = self._num_elements // max(1, prod(extents[axis] for axis in decided))
        self._num_beside = prod(n.shape[1] for n in others)
        self._products = list(product(*([(line, n.shape[1]) for line in lines.of(n)] for n in deciding)))

    def least(self, num_missing: int) -> int:
        """How many elements wait at least while so many elements of the source are missing."""
        if num_missing <= 0 or not self._is_known:
            return 0
        along = -(-num_missing // self._num_beside)
        each = max(least_product(lines, along) for lines in self._products)
        return min(self._num_elements, ceil(each * (1 - 1e-9)) * self._num_alike)


def least_product(lines: Sequence[tuple[Line, int]], volume: float) -> float:
    """The least product of a + b m over all m of at least 1 and at most some extents whose product is at
    least `volume`, or less."""
    flat, rising = 1.0, []
    for (a, b), extent in lines:
        if b == 0:
            flat, volume = flat * a, volume / extent
        else:
            rising.append((a, b, extent))
    rising.sort(key=lambda line: line[0] / line[1], reverse=True)
    return flat * _least_of_rising(rising, max(1.0, volume))


def _least_of_rising(lines: Sequence[tuple[float, float, int]], volume: float) -> float:
    if not lines:
        return 1.0
    *rest, (a, b, extent) = lines
    if len(lines) == 2:
        ((c, d, other),) = rest
        m = np.arange(1, other + 1)
        n = np.maximum(1.0, volume / m)
        return float(np.where(n <= extent, (a + b * n) * (c + d * m), inf).min())
    # Rows are fewest where they are full, and what one row asks for is least where all have a share.
    room = min(volume, prod(e for _, _, e in rest))
    few = _least_of_rising(rest, max(1.0, volume / extent))
    return a * few + b * volume / room * _least_of_rising(rest, room)


class Lines:
    """Lines of sets of indices; equal sets are looked at once."""

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[int, ...], bytes], list[Line]] = {}

    def of(self, needs: Sets) -> list[Line]:
        """Any m indices are in at least so many of the sets."""
        key = needs.shape, needs.tobytes()
        if key not in self._known:
            self._known[key] = list(_lines(needs))
        return self._known[key]


def _lines(needs: Sets) -> list[Line]:
    num_sets, extent = needs.shape
    counts = needs.sum(0)
    least = float(counts.min())
    found = [(least, 0.0)]
    first = needs.argmax(0)
    last = num_sets - 1 - needs[::-1].argmax(0)
    is_monotone = bool((np.diff(first) >= 0).all() and (np.diff(last) >= 0).all())
    if least == 0 or not is_monotone or (last - first + 1 != counts).any() or extent > _MOST_INDICES:
        return found
    for share in _SLOPES[1:]:
        slope = share * num_sets / extent
        begin = _least_over(first, last, slope)
        if begin >= 0:
            found.append((begin, slope))
    return found


def _least_over(first: np.ndarray[Any, Any], last: np.ndarray[Any, Any], slope: float) -> float:
    """The least of how many sets hold some of the indices, less `slope` for each of these, over all choices.
    The sets that hold an index are those from `first` to `last`, neither of which falls."""
    best = np.zeros(len(first))
    for j in range(len(first)):
        alone = last[j] - first[j] + 1.0
        more = last[j] - np.maximum(last[:j], first[j] - 1)
        best[j] = min(alone, float((best[:j] + more).min(initial=inf))) - slope
    return float(best.min())
