"""How long groups of launches take that share threads: list scheduling, as a stage runs (`stage_ir`).

Nothing is measured. Launches progress at a rate that depends on how many threads work on them; threads move
where a stage lets them, at the instants at which a launch ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class Work(Protocol):
    """A launch, as a cost model knows it."""

    @property
    def num_chunks(self) -> int:
        """Parts that different threads can take."""
        ...

    def alone_ns(self, num_threads: int) -> float:
        """Its time on so many threads, all that belongs to it included, with main memory to itself."""
        ...

    def bandwidth(self, num_threads: int) -> float:
        """The share of main memory's rate that it then takes."""
        ...


@dataclass(slots=True)
class _Progress:
    """A group on its way: `left` of its current launch is still to do, 1 before it begins."""

    work: Sequence[Work]
    limit: int
    position: int = 0
    left: float = 1.0
    num_threads: int = 0

    @property
    def current(self) -> Work:
        return self.work[self.position]

    @property
    def most_threads(self) -> int:
        """Threads that find a chunk."""
        return min(self.limit, self.current.num_chunks)


def stage_ns(groups: Sequence[Sequence[Work]], limits: Sequence[int | None], num_threads: int) -> float:
    """Time from the first chunk to the last, on so many threads.

    Each thread stays with its group while that has chunks for it, then goes where fewest work, to the longest
    group of equals. Launches that together ask for more than main memory gives slow each other down.
    O(launches * groups).
    """
    waiting = [
        _Progress(work, num_threads if limit is None else min(limit, num_threads))
        for work, limit in zip(groups, limits, strict=True)
        if work
    ]
    waiting.sort(key=lambda group: -sum(x.alone_ns(1) for x in group.work))
    now_ns = 0.0
    while waiting:
        _distribute(waiting, num_threads)
        running = [group for group in waiting if group.num_threads]
        crowd = max(1.0, sum(group.current.bandwidth(group.num_threads) for group in running))
        paces = [_pace(group, crowd) for group in running]
        step_ns = min(group.left * pace for group, pace in zip(running, paces, strict=True))
        now_ns += step_ns
        for group, pace in zip(running, paces, strict=True):
            group.left -= step_ns / pace
            if group.left <= _ROUNDING:
                group.position += 1
                group.left = 1.0
        waiting = [group for group in waiting if group.position < len(group.work)]
    return now_ns


_ROUNDING = 1e-9


def _pace(group: _Progress, crowd: float) -> float:
    """Time of its whole launch as things are: what main memory limits takes longer in a crowd."""
    work, num_threads = group.current, group.num_threads
    share = work.bandwidth(num_threads)
    # Of a launch that asks for a share of the rate, that share of its time is spent on memory.
    return work.alone_ns(num_threads) * (1 + share * (crowd - 1))


def _distribute(groups: Sequence[_Progress], num_threads: int) -> None:
    """Threads that find no chunk in their group leave it; those that are free join where fewest work."""
    for group in groups:
        group.num_threads = min(group.num_threads, group.most_threads)
    free = num_threads - sum(group.num_threads for group in groups)
    for _ in range(free):
        open_ones = [group for group in groups if group.num_threads < group.most_threads]
        if not open_ones:
            return
        min(open_ones, key=lambda group: group.num_threads).num_threads += 1
