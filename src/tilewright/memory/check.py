"""Independent check of a memory plan: every pair of buffers, O(n²). Shares no code with any planner."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tilewright.memory.base import Buffer, MemoryPlan, MemoryProblem
from tilewright.planning import Violation
from tilewright.progress import checkpoint


def check_memory(problem: MemoryProblem, plan: MemoryPlan) -> tuple[Violation, ...]:
    """Everything wrong with a plan: nothing, if it is valid.

    Checked: every buffer has a level, no further inside than asked for, and an aligned offset in it; no two
    live at a step, or used by steps that may run at the same time, share a byte, unless one is written in
    place of the other as the problem allows; no level has more live than its capacity or a buffer that ends
    behind it; what the plan says of levels and costs is so, and no bound lies above what the plan needs.
    """
    missing = tuple(_check_names(problem, plan))
    if missing:
        return missing
    return (
        *_check_places(problem, plan),
        *_check_in_place(problem, plan),
        *(v for level in range(len(problem.levels)) for v in _check_pairs(problem, plan, level)),
        *_check_levels(problem, plan),
        *_check_cost(problem, plan),
    )


def _check_names(problem: MemoryProblem, plan: MemoryPlan) -> Iterator[Violation]:
    names = {b.name for b in problem.buffers}
    for what, given in (("offset", plan.offsets), ("level", plan.levels)):
        for name in sorted(names - set(given)):
            yield Violation("place", f"buffer {name!r} has no {what}")
        for name in sorted(set(given) - names):
            yield Violation("place", f"{what} for {name!r}, which is no buffer")
    for name, level in plan.levels.items():
        if not 0 <= level < len(problem.levels):
            yield Violation("level", f"buffer {name!r} lives in level {level} of {len(problem.levels)}")
    if len(plan.uses) != len(problem.levels):
        yield Violation("summary", f"{len(plan.uses)} levels are summarised of {len(problem.levels)}")


def _check_places(problem: MemoryProblem, plan: MemoryPlan) -> Iterator[Violation]:
    for buffer in problem.buffers:
        offset, level = plan.offsets[buffer.name], plan.levels[buffer.name]
        if offset < 0 or offset % buffer.alignment_bytes != 0:
            yield Violation(
                "align", f"buffer {buffer.name!r} at {offset} is not a multiple of {buffer.alignment_bytes}"
            )
        if level < buffer.level:
            yield Violation("level", f"buffer {buffer.name!r} lives in level {level}, inside {buffer.level}")


def _check_in_place(problem: MemoryProblem, plan: MemoryPlan) -> Iterator[Violation]:
    known = {b.name: b for b in problem.buffers}
    for name, operand in plan.in_place_of.items():
        if name not in known or operand not in known or not _is_in_place(plan, known[name], known[operand]):
            yield Violation("in-place", f"buffer {name!r} cannot lie in place of {operand!r}")


def _is_in_place(plan: MemoryPlan, new: Buffer, old: Buffer) -> bool:
    """Whether a buffer is written in place of an operand, and may be."""
    return (
        old.name in new.may_reuse
        and old.first_step < new.first_step == old.last_step
        and plan.levels[new.name] == plan.levels[old.name]
        and plan.offsets[new.name] == plan.offsets[old.name]
        and new.size_bytes <= old.size_bytes
        and not new.beside & old.used
    )


def _check_pairs(problem: MemoryProblem, plan: MemoryPlan, level: int) -> Iterator[Violation]:
    placed = [b for b in problem.buffers if plan.levels[b.name] == level and b.size_bytes > 0]
    first = np.array([b.first_step for b in placed], np.int64)
    last = np.array([b.last_step for b in placed], np.int64)
    start = np.array([plan.offsets[b.name] for b in placed], object)  # any size of number
    end = start + np.array([b.size_bytes for b in placed], object)
    if not placed or max(end) < 1 << 62:
        start, end = start.astype(np.int64), end.astype(np.int64)
    for i, a in enumerate(placed):
        checkpoint()
        together = (first[:i] <= last[i]) & (last[:i] >= first[i])
        if a.beside:
            together |= np.array([bool(a.beside & b.used) for b in placed[:i]], bool)
        meet = np.flatnonzero(together & (start[:i] < end[i]) & (end[:i] > start[i]))
        for j in meet.tolist():
            b = placed[j]
            new, old = (a, b) if a.first_step > b.first_step else (b, a)
            if plan.in_place_of.get(new.name) != old.name or not _is_in_place(plan, new, old):
                shared = int(min(end[i], end[j])) - max(int(start[i]), int(start[j]))
                yield Violation(
                    "overlap", f"buffers {a.name!r} and {b.name!r} share {shared} bytes while both are live"
                )


def _check_levels(problem: MemoryProblem, plan: MemoryPlan) -> Iterator[Violation]:
    for number, (level, use) in enumerate(zip(problem.levels, plan.uses, strict=True)):
        here = [b for b in problem.buffers if plan.levels[b.name] == number]
        spilled = [b for b in problem.buffers if b.level <= number < plan.levels[b.name]]
        peak = 0
        for buffer in here:
            peak = max(peak, plan.offsets[buffer.name] + buffer.size_bytes)
        live = _most_live_bytes(plan, here)
        if use.level != level:
            yield Violation("summary", f"{use.level} is summarised instead of {level}")
        if peak != use.peak_bytes:
            yield Violation("peak", f"{level.name}: planned {use.peak_bytes} bytes, used {peak}")
        told = (use.num_buffers, use.live_bytes, use.num_spilled, use.spilled_bytes)
        counted = (len(here), live, len(spilled), sum(b.size_bytes for b in spilled))
        if told != counted:
            yield Violation("summary", f"{level.name}: stated {told}, counted {counted}")
        if use.lower_bound_bytes > peak:
            yield Violation(
                "bound", f"{level.name}: bound {use.lower_bound_bytes}, above the {peak} bytes used"
            )
        if level.capacity_bytes is not None and max(peak, live) > level.capacity_bytes:
            yield Violation("capacity", f"{level.name}: {peak} bytes used of {level.capacity_bytes}")


def _most_live_bytes(plan: MemoryPlan, here: list[Buffer]) -> int:
    """Step by step; a buffer in place of another counts from when that one is gone."""
    entering: dict[int, int] = {}
    leaving: dict[int, int] = {}
    for buffer in here:
        start = buffer.first_step + (1 if buffer.name in plan.in_place_of else 0)
        if start <= buffer.last_step:
            entering[start] = entering.get(start, 0) + buffer.size_bytes
            leaving[buffer.last_step + 1] = leaving.get(buffer.last_step + 1, 0) + buffer.size_bytes
    live = most = 0
    for step in sorted({*entering, *leaving}):
        live += entering.get(step, 0) - leaving.get(step, 0)
        most = max(most, live)
    return most


def _check_cost(problem: MemoryProblem, plan: MemoryPlan) -> Iterator[Violation]:
    quality = plan.quality
    cost = sum(b.size_bytes for b in problem.buffers if plan.levels[b.name] != b.level)
    if len(problem.levels) == 1:
        cost = max((plan.offsets[b.name] + b.size_bytes for b in problem.buffers), default=0)
    if (quality.cost, quality.unit) != (cost, "bytes"):
        yield Violation("cost", f"stated {quality.cost} {quality.unit}, it is {cost} bytes")
    for bound in quality.bounds:
        if bound.value > cost:
            yield Violation("bound", f"bound {bound.value} lies above the cost of {cost} bytes")
