"""The first of several orders whose placement fits: where only the capacity matters, as in inner levels."""

from __future__ import annotations

import random
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tilewright.memory.base import Buffer, MemoryPlan, MemoryProblem, aligned
from tilewright.memory.levels import place_levels
from tilewright.memory.packing import Packing
from tilewright.memory.placement import Item, Placer
from tilewright.planning import Budget, Infeasible, Meter, option

MAX_PAIRS = 1_000_000
"""Of buffers that are live together, above which they are placed in order of time."""

Order = Callable[[Item], tuple[int, ...]]
"""By what buffers are sorted."""
_ORDERS: tuple[tuple[str, Order], ...] = (
    ("size", lambda i: (-i.size_bytes, i.first_step)),
    ("lifetime", lambda i: (i.first_step - i.last_step, -i.size_bytes)),
    ("area", lambda i: (-i.size_bytes * (i.last_step - i.first_step + 1), i.first_step)),
    ("time", lambda i: (i.first_step, -i.size_bytes)),
)


@dataclass(frozen=True, slots=True)
class FirstFitting:
    """The first of several orders that fits: decreasing size, others, then a short search."""

    seed: int = option(0, "Seed of the search.")
    max_rounds: int = option(40, "Most placements of the search.")
    name: ClassVar[str] = "first-fitting"

    def solve(self, problem: MemoryProblem, budget: Budget) -> MemoryPlan | Infeasible:
        """Without a capacity, one placement."""
        return place_levels(problem, budget, self, seed=self.seed)

    def pack_level(self, buffers: Sequence[Buffer], capacity_bytes: int | None, meter: Meter) -> Packing:
        """The first placement that fits the capacity, else the lowest one; where the first order does not
        fit, of each group of buffers that has no step in common with others: kernels that are launched one
        by one are placed as each of them alone."""
        if count_pairs(buffers) > MAX_PAIRS and not any(b.beside for b in buffers):
            meter.spend()
            return Packing(in_time_order(buffers), "time")
        search = _Search(Placer(buffers), capacity_bytes, meter)
        search.try_orders(_ORDERS[:1])
        groups = [] if search.fits else search.placer.groups()
        if len(groups) > 1:
            packings = [self.pack_level(group, capacity_bytes, meter) for group in groups]
            places = {name: place for packing in packings for name, place in packing.offsets.items()}
            note = ", ".join(dict.fromkeys(packing.note for packing in packings))
            return Packing({b.name: places[b.name] for b in buffers}, note)
        search.try_orders(_ORDERS[1:])
        search.improve(random.Random(self.seed), self.max_rounds)
        return Packing(search.placer.by_buffer(search.offsets), search.found_by)


class _Search:
    def __init__(self, placer: Placer, capacity_bytes: int | None, meter: Meter) -> None:
        self.placer, self.capacity_bytes, self.meter = placer, capacity_bytes, meter
        self.order: list[int] = []
        self.offsets: list[int] = []
        self.peak_bytes = -1
        self.found_by = ""

    @property
    def fits(self) -> bool:
        """Whether the best placement so far is good enough."""
        is_placed = self.peak_bytes >= 0
        return is_placed and (self.capacity_bytes is None or self.peak_bytes <= self.capacity_bytes)

    def try_orders(self, orders: Sequence[tuple[str, Order]]) -> None:
        """Orders, until one fits."""
        items = self.placer.items
        for name, key in orders:
            if self.fits or not (self.meter.spend() or self.peak_bytes < 0):
                return
            order = sorted(range(len(items)), key=lambda n: (*key(items[n]), n))
            offsets = self.placer.place(order)
            peak_bytes = self.placer.peak(offsets)
            if self.peak_bytes < 0 or peak_bytes < self.peak_bytes:
                self.order, self.offsets, self.peak_bytes, self.found_by = order, offsets, peak_bytes, name

    def improve(self, rng: random.Random, max_rounds: int) -> None:
        """Place items that end at the peak, or are live with one that does, earlier, while that helps."""
        placer = self.placer
        for _ in range(max_rounds):
            if self.fits or not self.meter.spend():
                return
            highest = [i for i in placer.items if self.offsets[i.number] + i.size_bytes == self.peak_bytes]
            chosen = rng.choice(
                sorted({n for i in highest for n in (i.number, *placer.neighbours(i.number))})
            )
            order = list(self.order)
            place = order.index(chosen)
            order.insert(rng.randrange(place + 1), order.pop(place))
            offsets = placer.place_earlier(order, chosen, self.offsets)
            peak_bytes = placer.peak(offsets)
            if peak_bytes <= self.peak_bytes:
                self.order, self.offsets, self.peak_bytes = order, offsets, peak_bytes
                self.found_by = "local improvement"


def count_pairs(buffers: Sequence[Buffer]) -> int:
    """Pairs of buffers that are live at the same step. O(n log n)."""
    firsts = sorted(b.first_step for b in buffers)
    lasts = sorted(b.last_step for b in buffers)
    # Beside each buffer, in the order of their first steps: those before it that have not ended.
    return sum(number - bisect_left(lasts, first) for number, first in enumerate(firsts))


def in_time_order(buffers: Sequence[Buffer]) -> dict[str, int]:
    """Offsets at the lowest gap, in the order of time. O(n * gaps).

    Other orders compare each buffer with all that are live beside it, which is quadratic where many are.
    """
    by_name = {b.name: b for b in buffers}
    starting: dict[int, list[Buffer]] = {}
    ended: dict[int, list[Buffer]] = {}
    for buffer in buffers:
        starting.setdefault(buffer.first_step, []).append(buffer)
        ended.setdefault(buffer.last_step + 1, []).append(buffer)
    gaps = _Gaps(max((b.alignment_bytes for b in buffers), default=1))
    offsets: dict[str, int] = {}
    reused: dict[str, int] = {}  # by buffer: bytes at its beginning that another one lies in place of
    for step in sorted({*starting, *ended}):
        for old in ended.get(step, ()):
            taken = reused.get(old.name, 0)
            gaps.give_back(offsets[old.name] + taken, gaps.padded(old.size_bytes) - taken)
        for buffer in starting.get(step, ()):
            operand = next(
                (
                    name
                    for name in buffer.may_reuse
                    if name in by_name and name not in reused and buffer.fits_in_place_of(by_name[name])
                ),
                None,
            )
            if operand is not None:
                offsets[buffer.name] = offsets[operand]
                reused[operand] = gaps.padded(buffer.size_bytes)
            else:
                offsets[buffer.name] = gaps.take(gaps.padded(buffer.size_bytes))
    return offsets


class _Gaps:
    """Free ranges below the end of all buffers, apart from each other and in order; all of them aligned."""

    def __init__(self, alignment_bytes: int) -> None:
        self.alignment_bytes = alignment_bytes
        self.free: list[tuple[int, int]] = []
        self.end = 0

    def padded(self, size_bytes: int) -> int:
        """What a buffer takes."""
        return aligned(size_bytes, self.alignment_bytes)

    def take(self, size_bytes: int) -> int:
        """The lowest gap that is large enough, else what lies behind everything."""
        for number, (start, stop) in enumerate(self.free):
            if stop - start >= size_bytes:
                if stop - start == size_bytes:
                    del self.free[number]
                else:
                    self.free[number] = (start + size_bytes, stop)
                return start
        start = self.end
        if self.free and self.free[-1][1] == self.end:
            start = self.free.pop()[0]
        self.end = start + size_bytes
        return start

    def give_back(self, start: int, size_bytes: int) -> None:
        """Join a range with the gaps beside it."""
        if size_bytes == 0:
            return
        stop = start + size_bytes
        place = bisect_left(self.free, (start, stop))
        if place < len(self.free) and self.free[place][0] == stop:
            stop = self.free.pop(place)[1]
        if place > 0 and self.free[place - 1][1] == start:
            start = self.free.pop(place - 1)[0]
        insort(self.free, (start, stop))
