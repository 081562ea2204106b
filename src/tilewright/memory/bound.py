"""A lower bound on the arena: the most bytes that are live at one step, whatever the offsets."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.memory.base import Buffer, MemoryProblem


def lower_bound_bytes(problem: MemoryProblem) -> int:
    """Maximum over steps of the live bytes, less what taking buffers over can save at most at that step.

    At the step where a buffer takes over another, both are live in one place. Which takeovers happen is
    the planner's choice, so the largest possible saving is subtracted: a matching in which every buffer
    takes over at most one other and is taken over at most once. Padding for alignment is not counted.
    O(steps + overlaps at the steps where buffers begin).
    """
    starts = sorted({b.first_step for b in problem.buffers})
    by_first = sorted(problem.buffers, key=lambda b: b.first_step)
    live: list[Buffer] = []
    place = 0
    bound = 0
    # Live bytes can only grow where a buffer begins.
    for step in starts:
        live = [b for b in live if b.last_step >= step]
        while place < len(by_first) and by_first[place].first_step == step:
            live.append(by_first[place])
            place += 1
        bound = max(bound, sum(b.size_bytes for b in live) - _most_saved_bytes(live, step))
        # A buffer that died here by takeover leaves the step after with its successor alone in its place,
        # which no start may mark; without takeover the sum after this step is no larger than at it.
        later = sum(b.size_bytes for b in live if b.last_step > step)
        bound = max(bound, later)
    return bound


def _most_saved_bytes(live: Sequence[Buffer], step: int) -> int:
    """Largest sum of sizes over buffers that can all take over distinct dying ones.

    A takeover saves the size of the buffer that takes over, whichever it takes over, so the sets of buffers
    that can be matched form a matroid: the largest first, with augmenting paths, is optimal.
    """
    beginning = sorted((b for b in live if b.first_step == step and b.may_reuse), key=lambda b: -b.size_bytes)
    dying = [b for b in live if b.last_step == step]
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

    return sum(b.size_bytes for b in beginning if match(b, set()))
