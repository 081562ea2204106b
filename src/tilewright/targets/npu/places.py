"""Places of buffers that are used again: write-after-read dependencies of the steps that write there."""

from __future__ import annotations

from tilewright.memory.scopes import ScopePlan
from tilewright.schedule.binding import Scope


def reused_places(plan: ScopePlan) -> list[tuple[int, ...]]:
    """For each step those that wrote or read what lay where its own buffers come to lie.

    Every reader counts, not the last one only: steps on different units may end in any order.
    """
    after: list[set[int]] = [set() for _ in plan.steps]
    users = [{buffer.first_step} for buffer in plan.buffers]
    for number, step in enumerate(plan.steps):
        for read in step.reads:
            if read.buffer is not None:
                users[read.buffer].add(number)
    for scope in (Scope.LOCAL, Scope.SHARED, Scope.MAIN):
        buffers = sorted((p for p in plan.buffers if p.scope is scope), key=lambda p: p.first_step)
        there: list[tuple[int, int, set[int]]] = []  # where it begins and ends, and what used it
        for buffer in buffers:
            if buffer.size_bytes == 0:
                continue
            first, start, end = buffer.first_step, buffer.offset_bytes, buffer.end_bytes
            met = [used for low, high, used in there if low < end and high > start]
            for used in met:
                after[first].update(u for u in used if u < first)
            if met:  # of what is not covered a part is still to be reused
                there = [x for x in there if x[0] < start or x[1] > end]
            there.append((start, end, users[buffer.id]))
    return [tuple(sorted(steps)) for steps in after]
