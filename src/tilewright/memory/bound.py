"""Lower bounds that no plan beats: on the peak of a level, and on what has to leave the inner levels."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from tilewright.arrays import distinct
from tilewright.memory.base import Buffer, MemoryProblem, aligned
from tilewright.planning.quality import Space
from tilewright.progress import checkpoint

PLACEMENTS = Space("placements of these buffers")
"""All levels and offsets of buffers that live as they do here, so with this order of the steps."""


def lower_bound_bytes(buffers: Sequence[Buffer]) -> int:
    """Least peak of a level that all these buffers live in, whatever their offsets.

    The maximum over steps of the live bytes, less what writing in place can save at most at that step. At the
    step where a buffer is written in place of another, both are live in one place. Which do is the planner's
    choice, so the largest possible saving is subtracted: a matching in which every buffer takes the place of
    at most one other and gives its own to at most one.

    All buffers begin at multiples of the smallest alignment, so each but the topmost takes a multiple of it.

    >>> lower_bound_bytes([Buffer("a", 100, 0, 1), Buffer("b", 100, 1, 2), Buffer("c", 100, 2, 3)])
    228
    """
    return _most_live_bytes(buffers, min((b.alignment_bytes for b in buffers if b.size_bytes), default=1))


def spill_bound_bytes(problem: MemoryProblem) -> int:
    """Bytes of the buffers that cannot all live where they should: 0 where one level holds everything.

    What should live in some neighbouring levels and does not fit in all of these together leaves them.
    Padding is not counted, since a buffer that leaves saves its padding too.
    """
    most = 0
    for first, behind in combinations(range(len(problem.levels)), 2):
        capacities = [level.capacity_bytes for level in problem.levels[first:behind]]
        known = [c for c in capacities if c is not None]
        if len(known) == len(capacities):
            here = [b for b in problem.buffers if first <= b.level < behind]
            most = max(most, _most_live_bytes(here, 1) - sum(known))
    return most


def _most_live_bytes(buffers: Sequence[Buffer], alignment_bytes: int) -> int:
    """Most bytes that are live at one step, each buffer but one padded to the alignment.

    O(n log n), and O(n) more for each of the few steps that may have the most.
    """
    buffers = sorted((b for b in buffers if b.size_bytes > 0), key=lambda b: b.first_step)
    first = np.array([b.first_step for b in buffers], np.int64)
    last = np.array([b.last_step for b in buffers], np.int64)
    sizes = np.array([aligned(b.size_bytes, alignment_bytes) for b in buffers], np.int64)
    paddings = sizes - np.array([b.size_bytes for b in buffers], np.int64)
    begin: dict[int, list[Buffer]] = {}
    die: dict[int, list[Buffer]] = {}
    for buffer in buffers:
        if buffer.may_reuse:
            begin.setdefault(buffer.first_step, []).append(buffer)
        die.setdefault(buffer.last_step, []).append(buffer)
    # Live bytes can only grow where a buffer begins.
    steps = distinct(first)
    by_end = np.argsort(last, kind="stable")
    ended = np.append(0, np.cumsum(sizes[by_end]))
    begun = np.append(0, np.cumsum(sizes))[np.searchsorted(first, steps, side="right")]
    live = begun - ended[np.searchsorted(last[by_end], steps, side="left")]
    bound = 0
    for number in np.argsort(-live, kind="stable").tolist():
        checkpoint()
        if live[number] <= bound:
            break
        step = int(steps[number])
        is_live = (first <= step) & (last >= step)
        saved_bytes = _most_saved_bytes(begin.get(step, ()), die.get(step, ()), alignment_bytes)
        bound = max(bound, int(live[number]) - int(paddings[is_live].max()) - saved_bytes)
    return bound


def _most_saved_bytes(beginning: Sequence[Buffer], dying: Sequence[Buffer], alignment_bytes: int) -> int:
    """Largest sum of sizes over buffers that can all be written in place of distinct dying ones.

    Each saves its own size, whichever it replaces, so the sets of buffers that can be matched form a matroid:
    the largest first, with augmenting paths, is optimal.
    """
    taken: dict[str, Buffer] = {}

    def match(buffer: Buffer, visited: set[str]) -> bool:
        for old in dying:
            if old.name in visited or not buffer.fits_in_place_of(old):
                continue
            visited.add(old.name)
            if old.name not in taken or match(taken[old.name], visited):
                taken[old.name] = buffer
                return True
        return False

    by_size = sorted(beginning, key=lambda b: -b.size_bytes)
    return sum(aligned(b.size_bytes, alignment_bytes) for b in by_size if match(b, set()))
