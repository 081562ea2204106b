"""Placing buffers one by one in a given order: the step that all greedy planners share."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import field
from operator import or_
from typing import Any, Literal

import numpy as np

from tilewright.memory.base import Buffer, aligned
from tilewright.progress import checkpoint
from tilewright.records import dataclass

Fit = Literal["lowest", "tightest"]
Array = np.ndarray[Any, np.dtype[np.int64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]

MAX_KEPT_PAIRS = 1 << 20
"""Items with more pairs of neighbours in time find them anew for each placement, in numpy."""


@dataclass(slots=True)
class Placer:
    """Places buffers of one level, in any order, as often as wanted.

    A chain of buffers of equal size, each in place of the one before, is placed as one, since sharing costs
    nothing there. The neighbours in time are found once, so that a placement costs the sum of the items'
    overlaps. What a buffer may reuse counts as far as it is among the buffers.
    """

    buffers: Sequence[Buffer]
    items: list[Item] = field(init=False)
    num_pairs: int = field(init=False)
    _neighbours: list[list[int]] | None = field(init=False, default=None)
    _sizes: list[int] = field(init=False)
    _first: Array = field(init=False)
    _last: Array = field(init=False)
    _met: dict[int, Array] = field(init=False)

    def __post_init__(self) -> None:
        self.items = _join_chains(self.buffers)
        self._sizes = [item.size_bytes for item in self.items]
        self._first = np.array([i.first_step for i in self.items], np.int64)
        self._last = np.array([i.last_step for i in self.items], np.int64)
        self._met = _meetings(self.items)
        self.num_pairs = (sum(map(self.num_neighbours, range(len(self.items))))) // 2
        if self.num_pairs <= MAX_KEPT_PAIRS:
            self._neighbours = [self._overlapping(number).tolist() for number in range(len(self.items))]

    def neighbours(self, number: int) -> list[int]:
        """Items that are live when this one is, or may be, in order."""
        if self._neighbours is not None:
            return self._neighbours[number]
        return [int(n) for n in self._overlapping(number)]

    def num_neighbours(self, number: int) -> int:
        """How many those are."""
        return int(np.count_nonzero(self._is_live_with(number))) - 1

    def groups(self) -> list[list[Buffer]]:
        """The buffers by connected groups of neighbours, each in the order given: no place of one group
        matters to another, so that each may be placed in an order of its own. O(items + pairs)."""
        home = [-1] * len(self.items)
        num_groups = 0
        for first in range(len(home)):
            todo = [first] if home[first] < 0 else []
            while todo:
                checkpoint()
                number = todo.pop()
                if home[number] < 0:
                    home[number] = num_groups
                    todo += [n for n in self.neighbours(number) if home[n] < 0]
            num_groups += home[first] == num_groups
        of_buffer = {b.name: home[item.number] for item in self.items for b in item.buffers}
        found: list[list[Buffer]] = [[] for _ in range(num_groups)]
        for buffer in self.buffers:
            found[of_buffer[buffer.name]].append(buffer)
        return found

    def _is_live_with(self, number: int) -> Mask:
        live: Mask = (self._first <= self._last[number]) & (self._last >= self._first[number])
        if number in self._met:
            live[self._met[number]] = True
        return live

    def _overlapping(self, number: int) -> Array:
        live: Array = np.flatnonzero(self._is_live_with(number))
        others: Array = live[live != number]
        return others

    def place(self, order: Sequence[int], fit: Fit = "lowest") -> list[int]:
        """Offset of each item when they are placed in this order, each at the lowest or tightest gap.

        The lowest gap is the first that is large enough; the tightest is the one that leaves least over.
        """
        if self._neighbours is None:
            return self._place_many(order, fit)
        offsets = [-1] * len(self.items)
        for number in order:
            checkpoint()
            offsets[number] = self._offset(number, offsets, fit)
        return offsets

    def place_earlier(self, order: Sequence[int], moved: int, before: Sequence[int]) -> list[int]:
        """The same at the lowest gap, where `before` are the offsets of an order in which one item, which
        is `moved`, came later. Only what is beside it, or beside another that moves so, is placed anew."""
        if self._neighbours is None:
            return self._place_many(order, "lowest")
        offsets = [-1] * len(self.items)
        differs = {moved}
        for number in order:
            checkpoint()
            if number not in differs:
                offsets[number] = before[number]
                continue
            offsets[number] = self._offset(number, offsets, "lowest")
            if number == moved or offsets[number] != before[number]:
                differs.update(self._neighbours[number], self.items[number].shares)
        return offsets

    def _offset(self, number: int, offsets: Sequence[int], fit: Fit) -> int:
        """Where an item lies, beside those that are placed: a function of its neighbours' offsets, and of
        those of items that it shares a place with."""
        assert self._neighbours is not None
        item, sizes = self.items[number], self._sizes
        busy = [(offsets[n], offsets[n] + sizes[n]) for n in self._neighbours[number] if offsets[n] >= 0]
        busy.sort()
        place = _find_gap(item, busy, fit)
        shared = self._shared_offset(item, offsets)
        return place if shared is None else min(place, shared)

    def _place_many(self, order: Sequence[int], fit: Fit) -> list[int]:
        """The same for many items at once: those placed are kept sorted, neighbours are picked by masks."""
        offsets = [-1] * len(self.items)
        placed = np.empty((5, 0), np.int64)  # start, end, first and last step, number; sorted by start
        for number in order:
            checkpoint()
            item = self.items[number]
            is_live = (placed[2] <= item.last_step) & (placed[3] >= item.first_step)
            if number in self._met:
                meets = np.zeros(len(self.items), np.bool_)
                meets[self._met[number]] = True
                is_live |= meets[placed[4]]
            together = placed[:2, is_live]
            place = _find_gap_of_many(item, together[0], together[1], fit)
            shared = self._shared_offset(item, offsets)
            offsets[number] = place = place if shared is None else min(place, shared)
            column = (place, place + item.size_bytes, item.first_step, item.last_step, number)
            placed = np.insert(placed, np.searchsorted(placed[0], place), column, axis=1)
        return offsets

    def peak(self, offsets: Sequence[int]) -> int:
        """End of the highest item."""
        return max((offsets[i.number] + i.size_bytes for i in self.items), default=0)

    def by_buffer(self, offsets: Sequence[int]) -> dict[str, int]:
        """Offset of every buffer, in the problem's order."""
        places = {b.name: offsets[item.number] for item in self.items for b in item.buffers}
        return {b.name: places[b.name] for b in self.buffers}

    def _shared_offset(self, item: Item, offsets: Sequence[int]) -> int | None:
        """The lowest offset at which it can lie in place of another item, or another in place of it."""
        best: int | None = None
        for number in item.shares:
            offset = offsets[number]
            if offset < 0 or offset % item.alignment_bytes or (best is not None and offset >= best):
                continue
            end = offset + item.size_bytes
            free = all(
                n == number
                or offsets[n] < 0
                or offsets[n] >= end
                or offsets[n] + self.items[n].size_bytes <= offset
                for n in self.neighbours(item.number)
            )
            if free:
                best = offset
        return best


@dataclass(slots=True)
class Item:
    """One buffer, or a chain of equal ones, each in place of the one before."""

    number: int
    buffers: list[Buffer]
    shares: list[int] = field(default_factory=list)
    size_bytes: int = field(init=False)
    alignment_bytes: int = field(init=False)
    first_step: int = field(init=False)
    last_step: int = field(init=False)

    def __post_init__(self) -> None:
        self.size_bytes = self.buffers[0].size_bytes
        self.alignment_bytes = max(b.alignment_bytes for b in self.buffers)
        self.first_step = self.buffers[0].first_step
        self.last_step = self.buffers[-1].last_step


def _meetings(items: Sequence[Item]) -> dict[int, Array]:
    """For items used by steps beside which others may run, the items that those use."""
    met: dict[int, Array] = {}
    used = [functools.reduce(or_, (b.used for b in item.buffers)) for item in items]
    for item in items:
        beside = functools.reduce(or_, (b.beside for b in item.buffers))
        if beside:
            meets = (n for n, steps in enumerate(used) if beside & steps and n != item.number)
            met[item.number] = np.fromiter(meets, np.int64)
    return met


def _join_chains(buffers: Sequence[Buffer]) -> list[Item]:
    by_name = {b.name: b for b in buffers}
    successor = _equal_successors(buffers, by_name)
    in_place = {b.name for b in successor.values()}
    items: list[Item] = []
    for buffer in buffers:
        if buffer.name not in in_place:
            chain = [buffer]
            while chain[-1].name in successor:
                chain.append(successor[chain[-1].name])
            items.append(Item(len(items), chain))
    _find_shares(by_name, items)
    return items


def _equal_successors(buffers: Sequence[Buffer], by_name: Mapping[str, Buffer]) -> dict[str, Buffer]:
    """For each buffer in whose place one of equal size comes, which that is: as many pairs as possible."""
    successor: dict[str, Buffer] = {}

    def match(buffer: Buffer, visited: set[str]) -> bool:
        for name in buffer.may_reuse:
            old = by_name.get(name)
            if name in visited or old is None or old.size_bytes != buffer.size_bytes:
                continue
            visited.add(name)
            if buffer.fits_in_place_of(old) and (name not in successor or match(successor[name], visited)):
                successor[name] = buffer
                return True
        return False

    for buffer in buffers:
        match(buffer, set())
    return successor


def _find_shares(by_name: Mapping[str, Buffer], items: Sequence[Item]) -> None:
    """Which items may share a place although they meet at one step: smaller buffers in place of larger."""
    home = {b.name: item for item in items for b in item.buffers}
    for item in items:
        first = item.buffers[0]
        for name in first.may_reuse:
            old = by_name.get(name)
            if old is not None and first.fits_in_place_of(old) and home[name].buffers[-1] is old:
                item.shares.append(home[name].number)
                home[name].shares.append(item.number)


def _find_gap(item: Item, busy: Sequence[tuple[int, int]], fit: Fit) -> int:
    """Offset in a gap between `busy` (sorted by start, may overlap), or behind all of them."""
    offset, size_bytes, alignment_bytes = 0, item.size_bytes, item.alignment_bytes
    best: tuple[int, int] | None = None
    for start, end in busy:
        free_bytes = start - offset - size_bytes
        if free_bytes >= 0:
            if fit == "lowest":
                return offset
            if best is None or free_bytes < best[0]:
                best = (free_bytes, offset)
        if end > offset:
            offset = aligned(end, alignment_bytes)
    return offset if best is None else best[1]


def _find_gap_of_many(item: Item, starts: Array, ends: Array, fit: Fit) -> int:
    """`_find_gap` between arrays."""
    mask = item.alignment_bytes - 1
    offsets = np.maximum.accumulate(np.append(0, (ends + mask) & ~mask))
    free_bytes = starts - offsets[:-1] - item.size_bytes
    fitting = np.flatnonzero(free_bytes >= 0)
    if not len(fitting):
        return int(offsets[-1])
    chosen = fitting[0] if fit == "lowest" else fitting[np.argmin(free_bytes[fitting])]
    return int(offsets[chosen])
