"""A lower bound on the arena: the most bytes that are live at one step, whatever the offsets."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.memory.base import Buffer, MemoryProblem, aligned


def lower_bound_bytes(problem: MemoryProblem) -> int:
    """Maximum over steps of the live bytes, less what taking buffers over can save at most at that step.

    At the step where a buffer takes over another, both are live in one place. Which takeovers happen is
    the planner's choice, so the largest possible saving is subtracted: a matching in which every buffer
    takes over at most one other and is taken over at most once.

    All places begin at multiples of the smallest alignment, so each but the topmost takes a multiple of it.
    O(steps + overlaps at the steps where buffers begin).
    """
    buffers = sorted((b for b in problem.buffers if b.size_bytes > 0), key=lambda b: b.first_step)
    alignment = min((b.alignment_bytes for b in buffers), default=1)
    live: list[Buffer] = []
    place = 0
    bound = 0
    # Live bytes can only grow where a buffer begins.
    for step in sorted({b.first_step for b in buffers}):
        live = [b for b in live if b.last_step >= step]
        while place < len(buffers) and buffers[place].first_step == step:
            live.append(buffers[place])
            place += 1
        after = [b for b in live if b.last_step > step]
        bound = max(
            bound,
            _stacked_bytes(live, alignment) - _most_saved_bytes(live, step, alignment),
            # Takeovers end with this step, so what lives on is not shared.
            _stacked_bytes(after, alignment),
        )
    return bound


def _stacked_bytes(live: Sequence[Buffer], alignment_bytes: int) -> int:
    """Bytes of the live buffers stacked, the one with the most padding on top."""
    sizes = [aligned(b.size_bytes, alignment_bytes) for b in live]
    padding = max((s - b.size_bytes for s, b in zip(sizes, live, strict=True)), default=0)
    return sum(sizes) - padding


def _most_saved_bytes(live: Sequence[Buffer], step: int, alignment_bytes: int) -> int:
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

    return sum(aligned(b.size_bytes, alignment_bytes) for b in beginning if match(b, set()))
