"""What stages are estimated to take: list scheduling of launches over threads."""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from tilewright.targets.cpu.stage_times import stage_ns


@dataclass(frozen=True)
class Launched:
    """So many chunks of equal time, of which memory takes a share."""

    chunk_ns: float
    num_chunks: int = 1
    share: float = 0.0

    def alone_ns(self, num_threads: int) -> float:
        return self.chunk_ns * -(-self.num_chunks // num_threads)

    def bandwidth(self, num_threads: int) -> float:
        return self.share


Groups = Sequence[Sequence[Launched]]


def unlimited(groups: Groups, num_threads: int) -> float:
    return stage_ns(groups, [None] * len(groups), num_threads)


def test_one_thread_takes_the_sum() -> None:
    groups = [[Launched(3.0, 4), Launched(5.0)], [Launched(7.0, 2)]]
    assert unlimited(groups, 1) == pytest.approx(12 + 5 + 14)


def test_groups_with_a_thread_each_take_as_long_as_the_longest() -> None:
    groups = [[Launched(3.0), Launched(5.0)], [Launched(7.0)]]
    assert unlimited(groups, 2) == pytest.approx(8.0)
    assert unlimited(groups, 8) == pytest.approx(8.0)


def test_idle_threads_help_the_groups_that_are_left() -> None:
    long, short = [Launched(1.0, 100)], [Launched(20.0)]
    assert unlimited([short, long], 2) == pytest.approx(60.0)


def test_a_limit_keeps_threads_away() -> None:
    long, short = [Launched(1.0, 100)], [Launched(20.0)]
    assert stage_ns([short, long], [None, 1], 2) == pytest.approx(100.0)
    assert stage_ns([long], [2], 4) == pytest.approx(50.0)


def test_groups_do_not_wait_for_each_others_kernels() -> None:
    first, second = [Launched(1.0), Launched(9.0)], [Launched(9.0), Launched(1.0)]
    assert unlimited([first, second], 2) == pytest.approx(10.0)  # in lockstep it takes 18


def test_launches_that_fill_the_memory_take_turns() -> None:
    streams = [[Launched(10.0, 1, share=1.0)] for _ in range(2)]
    assert unlimited(streams, 2) == pytest.approx(20.0)
    beside = [[Launched(10.0, 1, share=0.4)] for _ in range(2)]
    assert unlimited(beside, 2) == pytest.approx(10.0)


def test_nothing_takes_no_time() -> None:
    assert unlimited([], 2) == 0.0
    assert unlimited([[], []], 2) == 0.0


def by_chunks(groups: Groups, limits: Sequence[int | None], num_threads: int) -> float:
    """The same, chunk by chunk: each thread claims from its group while it can, else where fewest work."""
    waiting = [[x.num_chunks for x in group] for group in groups]
    running = [0] * len(groups)  # claimed chunks that have not ended
    position = [0] * len(groups)
    members = [0] * len(groups)
    first = sorted(range(len(groups)), key=lambda g: -sum(x.alone_ns(1) for x in groups[g]))
    home: list[int | None] = [None] * num_threads
    events: list[tuple[float, int]] = []
    now, idle = 0.0, list(range(num_threads))

    def has_chunk(g: int) -> bool:
        return position[g] < len(groups[g]) and waiting[g][position[g]] > 0

    while True:
        for thread in list(idle):
            at = home[thread]
            if at is not None and not has_chunk(at):
                members[at] -= 1
                home[thread] = at = None
            if at is None:
                open_ones = [g for g in first if has_chunk(g) and members[g] < (limits[g] or num_threads)]
                if not open_ones:
                    continue
                home[thread] = at = min(open_ones, key=lambda g: members[g])
                members[at] += 1
            waiting[at][position[at]] -= 1
            running[at] += 1
            heapq.heappush(events, (now + groups[at][position[at]].chunk_ns, thread))
            idle.remove(thread)
        if not events:
            return now
        now, thread = heapq.heappop(events)
        at = home[thread]
        assert at is not None
        running[at] -= 1
        if not running[at] and not waiting[at][position[at]]:
            position[at] += 1
        idle.append(thread)


@pytest.mark.parametrize("num_threads", [1, 2, 3, 4])
def test_the_estimate_is_near_a_simulation_of_all_chunks(num_threads: int) -> None:
    rng = random.Random(num_threads)
    ratios: list[float] = []
    for _ in range(200):
        groups = [
            [Launched(rng.uniform(0.5, 2), rng.choice((1, 8, 16))) for _ in range(rng.randint(1, 4))]
            for _ in range(rng.randint(1, 5))
        ]
        limits = [rng.choice((None, None, 1, 2)) for _ in groups]
        exact = by_chunks(groups, limits, num_threads)
        estimate = stage_ns(groups, limits, num_threads)
        longest_ns = max(x.chunk_ns for group in groups for x in group)
        ratios.append(estimate / exact)
        # Threads move at whole chunks; each launch may wait for one.
        assert abs(estimate - exact) <= longest_ns * (1 + max(map(len, groups)))
    assert 0.9 < sorted(ratios)[len(ratios) // 2] <= 1.02
