"""Offsets in the order of time, at the lowest gap: for levels in which very many pieces are live at once.

Other orders compare each piece with all that are live beside it, which is quadratic there.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

from tilewright.memory.base import DEFAULT_ALIGNMENT_BYTES, aligned
from tilewright.memory.scoped.expand import Draft


def count_pairs(drafts: Sequence[Draft]) -> int:
    """Pairs of pieces that are live at the same step. O(n log n)."""
    firsts = sorted(d.first_step for d in drafts)
    lasts = sorted(d.last_step for d in drafts)
    # Beside each piece, in the order of their first steps: those before it that have not ended.
    return sum(number - bisect_left(lasts, first) for number, first in enumerate(firsts))


def first_fit(drafts: Sequence[Draft]) -> dict[int, int]:
    """Offsets by the id of a piece. O(n * gaps)."""
    by_id = {d.id: d for d in drafts}
    starting: dict[int, list[Draft]] = {}
    ended: dict[int, list[Draft]] = {}
    for draft in drafts:
        starting.setdefault(draft.first_step, []).append(draft)
        ended.setdefault(draft.last_step + 1, []).append(draft)
    gaps = _Gaps()
    offsets: dict[int, int] = {}
    cut: dict[int, int] = {}  # by piece: bytes at its beginning that another one has taken over
    for step in sorted({*starting, *ended}):
        for old in ended.get(step, ()):
            taken = cut.get(old.id, 0)
            gaps.give_back(offsets[old.id] + taken, old.reserved_bytes - taken)
        for draft in starting.get(step, ()):
            operand = next((o for o in draft.may_take_over if o in by_id), None)
            if operand is not None:
                offsets[draft.id] = offsets[operand]
                cut[operand] = draft.reserved_bytes
            else:
                offsets[draft.id] = gaps.take(draft.reserved_bytes)
    return offsets


class _Gaps:
    """Free ranges below the end of all places, apart from each other and in order."""

    def __init__(self) -> None:
        self.free: list[tuple[int, int]] = []
        self.end = 0

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
        self.end = aligned(start + size_bytes, DEFAULT_ALIGNMENT_BYTES)
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
