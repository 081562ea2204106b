"""Independent check of a memory plan: every pair of buffers, O(n²). Shares no code with any planner."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tilewright.memory.base import Buffer, MemoryPlan, MemoryProblem
from tilewright.planning import Violation
from tilewright.progress import checkpoint


def check_memory(problem: MemoryProblem, plan: MemoryPlan) -> tuple[Violation, ...]:
    """Everything wrong with a plan: nothing, if it is valid.

    Checked: every buffer placed, aligned and inside the arena; no two live at a step share a byte, unless
    one takes over the other as the problem allows; the arena is exactly as large as used and fits; the
    bound is none that some plan is seen to beat.
    """
    return (*_check_places(problem, plan), *_check_pairs(problem, plan), *_check_peak(problem, plan))


def _check_places(problem: MemoryProblem, plan: MemoryPlan) -> Iterator[Violation]:
    names = {b.name for b in problem.buffers}
    for name in sorted(names - set(plan.offsets)):
        yield Violation("place", f"buffer {name!r} has no offset")
    for name in sorted(set(plan.offsets) - names):
        yield Violation("place", f"offset for {name!r}, which is no buffer")
    for buffer in problem.buffers:
        offset = plan.offsets.get(buffer.name, 0)
        if offset < 0 or offset % buffer.alignment_bytes != 0:
            yield Violation(
                "align", f"buffer {buffer.name!r} at {offset} is not a multiple of {buffer.alignment_bytes}"
            )


def _check_pairs(problem: MemoryProblem, plan: MemoryPlan) -> Iterator[Violation]:
    placed = [b for b in problem.buffers if b.name in plan.offsets and b.size_bytes > 0]
    first = np.array([b.first_step for b in placed], np.int64)
    last = np.array([b.last_step for b in placed], np.int64)
    start = np.array([plan.offsets[b.name] for b in placed], object)  # any size of number
    end = start + np.array([b.size_bytes for b in placed], object)
    if not placed or max(end) < 1 << 62:
        start, end = start.astype(np.int64), end.astype(np.int64)
    for i, a in enumerate(placed):
        checkpoint()
        together = (first[:i] <= last[i]) & (last[:i] >= first[i])
        meet = np.flatnonzero(together & (start[:i] < end[i]) & (end[:i] > start[i]))
        for j in meet.tolist():
            b, start_a, start_b = placed[j], int(start[i]), int(start[j])
            shared = int(min(end[i], end[j])) - max(start_a, start_b)
            if not (_in_place(a, b, start_a, start_b) or _in_place(b, a, start_b, start_a)):
                yield Violation(
                    "overlap", f"buffers {a.name!r} and {b.name!r} share {shared} bytes while both are live"
                )


def _in_place(new: Buffer, old: Buffer, new_start: int, old_start: int) -> bool:
    return (
        old.name in new.may_reuse
        and old.first_step < new.first_step == old.last_step
        and new_start == old_start
        and new.size_bytes <= old.size_bytes
    )


def _check_peak(problem: MemoryProblem, plan: MemoryPlan) -> Iterator[Violation]:
    used = 0
    for buffer in problem.buffers:
        used = max(used, plan.offsets.get(buffer.name, 0) + buffer.size_bytes)
    if used != plan.peak_bytes:
        yield Violation("peak", f"planned {plan.peak_bytes} bytes, used {used}")
    if plan.lower_bound_bytes > used:
        yield Violation("bound", f"bound {plan.lower_bound_bytes} lies above the {used} bytes used")
    if problem.capacity_bytes is not None and used > problem.capacity_bytes:
        yield Violation("capacity", f"{used} bytes used of {problem.capacity_bytes}")
