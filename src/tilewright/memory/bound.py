"""A lower bound on the arena: the most bytes that are live at one step, whatever the offsets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.memory.base import Buffer, MemoryProblem, aligned
from tilewright.progress import checkpoint


def lower_bound_bytes(problem: MemoryProblem) -> int:
    """Maximum over steps of the live bytes, less what taking buffers over can save at most at that step.

    At the step where a buffer takes over another, both are live in one place. Which takeovers happen is
    the planner's choice, so the largest possible saving is subtracted: a matching in which every buffer
    takes over at most one other and is taken over at most once.

    All places begin at multiples of the smallest alignment, so each but the topmost takes a multiple of it.
    O(steps * buffers), in numpy.
    """
    buffers = sorted((b for b in problem.buffers if b.size_bytes > 0), key=lambda b: b.first_step)
    alignment = min((b.alignment_bytes for b in buffers), default=1)
    first = np.array([b.first_step for b in buffers], np.int64)
    last = np.array([b.last_step for b in buffers], np.int64)
    sizes = np.array([aligned(b.size_bytes, alignment) for b in buffers], np.int64)
    paddings = sizes - np.array([b.size_bytes for b in buffers], np.int64)

    def stacked_bytes(is_live: np.ndarray[Any, np.dtype[np.bool_]]) -> int:
        """Bytes of the live buffers stacked, the one with the most padding on top."""
        return int(sizes[is_live].sum() - paddings[is_live].max(initial=0))

    begin: dict[int, list[Buffer]] = {}
    die: dict[int, list[Buffer]] = {}
    for buffer in buffers:
        begin.setdefault(buffer.first_step, []).append(buffer)
        die.setdefault(buffer.last_step, []).append(buffer)
    bound = 0
    # Live bytes can only grow where a buffer begins.
    for step, beginning in begin.items():
        checkpoint()
        is_live = (first <= step) & (last >= step)
        bound = max(
            bound,
            stacked_bytes(is_live) - _most_saved_bytes(beginning, die.get(step, ()), alignment),
            # Takeovers end with this step, so what lives on is not shared.
            stacked_bytes(is_live & (last > step)),
        )
    return bound


def _most_saved_bytes(beginning: Sequence[Buffer], dying: Sequence[Buffer], alignment_bytes: int) -> int:
    """Largest sum of sizes over buffers that can all take over distinct dying ones.

    A takeover saves the size of the buffer that takes over, whichever it takes over, so the sets of buffers
    that can be matched form a matroid: the largest first, with augmenting paths, is optimal.
    """
    beginning = sorted((b for b in beginning if b.may_reuse), key=lambda b: -b.size_bytes)
    taken: dict[str, Buffer] = {}

    def match(buffer: Buffer, visited: set[str]) -> bool:
        for old in dying:
            if old.name in visited or not buffer.takes_over(old):
                continue
            visited.add(old.name)
            if old.name not in taken or match(taken[old.name], visited):
                taken[old.name] = buffer
                return True
        return False

    return sum(aligned(b.size_bytes, alignment_bytes) for b in beginning if match(b, set()))
