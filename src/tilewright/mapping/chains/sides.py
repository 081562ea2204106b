"""What the steps of one loop need along an axis, and what follows: rows at a time, rows kept, rows in all."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise

from tilewright.ir.region import Interval

EMPTY: Interval = (0, 0)


class Side:
    """An interval for each step of one loop. Equal sides are mostly one object, compared by identity."""

    def __init__(self, intervals: tuple[Interval, ...]) -> None:
        self.intervals = intervals
        solid = [interval for interval in intervals if interval[0] < interval[1]]
        self.rows = max((stop - start for start, stop in solid), default=0)
        """The most that a step has."""
        self.total = sum(stop - start for start, stop in solid)
        """Of all steps, what several have counted each time."""
        self.span = max(stop for _, stop in solid) - min(start for start, _ in solid) if solid else 0
        """Between the first and the last."""
        self.kept = 0
        """The most that steps leave for the next one that has something."""
        end: int | None = None
        for start, stop in solid:
            if end is not None:
                self.kept = max(self.kept, end - start)
            end = stop if end is None else max(end, stop)

    @cached_property
    def fresh(self) -> Side:
        """What each step has that none before it had."""
        listed: list[Interval] = []
        end: int | None = None
        for start, stop in self.intervals:
            begin = start if end is None else max(start, end)
            listed.append((begin, stop) if begin < stop else EMPTY)
            if start < stop:
                end = stop if end is None else max(end, stop)
        return side_of(tuple(listed))

    @cached_property
    def last(self) -> Side:
        """All that any step has, in the last one."""
        return side_of((EMPTY,) * (len(self.intervals) - 1) + (self.intervals[-1],))


@functools.lru_cache(maxsize=1 << 16)
def side_of(intervals: tuple[Interval, ...]) -> Side:
    """The side with these intervals."""
    return Side(intervals)


@functools.lru_cache(maxsize=1 << 12)
def tiles_of(extent: int, tile: int, factor: int = 1) -> Side:
    """A loop in tiles, the last one with what is left; of an axis with `factor` elements for an iteration."""
    return side_of(tuple((factor * at, factor * min(at + tile, extent)) for at in range(0, extent, tile)))


@functools.lru_cache(maxsize=1 << 12)
def still_side(num_steps: int) -> Side:
    """A loop that moves no axis: each step has the same."""
    return side_of(((0, 1),) * num_steps)


class Reach:
    """What each position along an axis needs along another one; `start` is the first position."""

    def __init__(self, start: int, needs: tuple[Interval, ...]) -> None:
        self.start, self.needs = start, needs
        self._is_rising = all(
            first < last and before[0] <= first and before[1] <= last
            for before, (first, last) in pairwise(((0, 0), *needs))
        )

    @cached_property
    def has_gaps(self) -> bool:
        """Whether there are positions between those that are needed."""
        return any(before[1] < after[0] for before, after in pairwise(self.needs))

    def of(self, side: Side) -> Side:
        """What steps need that compute these intervals."""
        return side_of(tuple(map(self._of_interval, side.intervals)))

    def _of_interval(self, interval: Interval) -> Interval:
        if interval[0] >= interval[1]:
            return EMPTY
        if not self.needs:
            return (0, 1)
        begin, end = interval[0] - self.start, interval[1] - self.start
        if self._is_rising:
            return self.needs[begin][0], self.needs[end - 1][1]
        return _hull(self.needs[begin:end])


STILL = Reach(0, ())
"""Of an axis that a loop does not move."""


def hull_of(sides: Sequence[Side]) -> Side:
    """Step by step the smallest interval that holds those of all sides."""
    return side_of(tuple(_hull(intervals) for intervals in zip(*(s.intervals for s in sides), strict=True)))


def _hull(intervals: Sequence[Interval]) -> Interval:
    solid = [interval for interval in intervals if interval[0] < interval[1]]
    if not solid:
        return EMPTY
    return min(start for start, _ in solid), max(stop for _, stop in solid)
