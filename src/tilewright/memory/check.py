"""Independent check of a memory plan: every pair of buffers, O(n²). Shares no code with any planner."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewright.memory.base import Buffer, MemoryPlan, MemoryProblem
from tilewright.planning import Violation


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
    for a, b in _live_together(placed):
        start_a, start_b = plan.offsets[a.name], plan.offsets[b.name]
        shared = min(start_a + a.size_bytes, start_b + b.size_bytes) - max(start_a, start_b)
        if shared > 0 and not (_in_place(a, b, start_a, start_b) or _in_place(b, a, start_b, start_a)):
            yield Violation(
                "overlap", f"buffers {a.name!r} and {b.name!r} share {shared} bytes while both are live"
            )


def _live_together(buffers: Sequence[Buffer]) -> list[tuple[Buffer, Buffer]]:
    """Pairs whose ranges meet, the one that is listed later first; in the order of the list."""
    pairs: list[tuple[int, int]] = []
    live: list[int] = []
    for number in sorted(range(len(buffers)), key=lambda n: buffers[n].first_step):
        live = [n for n in live if buffers[n].last_step >= buffers[number].first_step]
        pairs += [(max(n, number), min(n, number)) for n in live]
        live.append(number)
    return [(buffers[i], buffers[j]) for i, j in sorted(pairs)]


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
