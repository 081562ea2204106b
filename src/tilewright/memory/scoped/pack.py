"""Offsets of pieces within one level of memory: decreasing size, then other orders, then a short search."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.memory.base import Buffer, MemoryProblem
from tilewright.memory.placement import Item, Placer
from tilewright.memory.scoped.expand import Draft
from tilewright.memory.scoped.first_fit import count_pairs, first_fit

MAX_ROUNDS = 40  # of search, each one placement of all pieces
MAX_PAIRS = 1_000_000  # of pieces that are live together, above which they are placed in order of time
_ORDERS: tuple[Callable[[Item], tuple[int, ...]], ...] = (
    lambda i: (-i.size_bytes, i.first_step),
    lambda i: (i.first_step - i.last_step, -i.size_bytes),
    lambda i: (-i.size_bytes * (i.last_step - i.first_step + 1), i.first_step),
    lambda i: (i.first_step, -i.size_bytes),
)


@dataclass(frozen=True, slots=True)
class Packing:
    """Offsets by the id of a piece, and the end of the highest place.

    `culprit` is the piece that lies highest, the first of equals; None where there are no pieces.
    """

    offsets: dict[int, int]
    used_bytes: int
    culprit: int | None


def pack(drafts: Sequence[Draft], capacity_bytes: int | None) -> Packing:
    """Places for the pieces of one level: the first that fit the capacity, else the lowest found."""
    if count_pairs(drafts) > MAX_PAIRS:
        return _in_time_order(drafts)
    placer = Placer(MemoryProblem(_buffers(drafts)))
    best = _in_orders(placer, capacity_bytes)
    offsets = placer.by_buffer(best)
    items = placer.items
    highest = max(items, key=lambda i: (best[i.number] + i.size_bytes, -i.first_step), default=None)
    culprit = None if highest is None else int(highest.buffers[0].name)
    return Packing({int(name): offset for name, offset in offsets.items()}, placer.peak(best), culprit)


def _in_time_order(drafts: Sequence[Draft]) -> Packing:
    offsets = first_fit(drafts)
    highest = max(drafts, key=lambda d: (offsets[d.id] + d.size_bytes, -d.first_step), default=None)
    if highest is None:
        return Packing({}, 0, None)
    return Packing(offsets, offsets[highest.id] + highest.size_bytes, highest.id)


def _buffers(drafts: Sequence[Draft]) -> tuple[Buffer, ...]:
    here = {d.id for d in drafts}
    return tuple(
        Buffer(
            str(d.id),
            d.size_bytes,
            d.first_step,
            d.last_step,
            may_reuse=tuple(str(o) for o in d.may_take_over if o in here),
        )
        for d in drafts
    )


def _in_orders(placer: Placer, capacity_bytes: int | None) -> list[int]:
    count = len(placer.items)
    best: list[int] = []
    best_order: list[int] = []
    best_peak = -1
    for key in _ORDERS:
        order = sorted(range(count), key=lambda n: (*key(placer.items[n]), n))
        offsets = placer.place(order)
        peak = placer.peak(offsets)
        if best_peak < 0 or peak < best_peak:
            best, best_order, best_peak = offsets, order, peak
        if capacity_bytes is None or best_peak <= capacity_bytes:
            return best
    return _improved(placer, best, best_order, capacity_bytes)


def _improved(placer: Placer, offsets: list[int], order: list[int], capacity_bytes: int | None) -> list[int]:
    """Pieces that end above the capacity, or lie in their way, are placed earlier, as long as that helps."""
    rng = random.Random(0)
    peak = placer.peak(offsets)
    for _ in range(MAX_ROUNDS):
        if capacity_bytes is None or peak <= capacity_bytes:
            break
        highest = [i for i in placer.items if offsets[i.number] + i.size_bytes == peak]
        chosen = rng.choice(sorted({n for i in highest for n in (i.number, *placer.neighbours(i.number))}))
        changed = list(order)
        place = changed.index(chosen)
        changed.insert(rng.randrange(place + 1), changed.pop(place))
        found = placer.place(changed)
        found_peak = placer.peak(found)
        if found_peak <= peak:
            order, offsets, peak = changed, found, found_peak
    return offsets
