"""Places of buffers that are used again: write-after-read dependencies of the steps that write there."""

from __future__ import annotations

from tilewright.memory.scopes import PlacedBuffer, ScopePlan
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
        there: list[PlacedBuffer] = []
        for buffer in buffers:
            if buffer.size_bytes == 0:
                continue
            kept = []
            for other in there:
                if other.offset_bytes >= buffer.end_bytes or other.end_bytes <= buffer.offset_bytes:
                    kept.append(other)
                    continue
                after[buffer.first_step] |= {u for u in users[other.id] if u < buffer.first_step}
                if other.offset_bytes < buffer.offset_bytes or other.end_bytes > buffer.end_bytes:
                    kept.append(other)  # part of it is still to be reused
            there = [*kept, buffer]
    return [tuple(sorted(steps)) for steps in after]
