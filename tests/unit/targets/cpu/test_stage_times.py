"""What stages are estimated to take: list scheduling of launches over threads."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from tilewright.targets.cpu.costs.stage_times import Launched, stage_ns

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
    long, short = [Launched(1.0, 100)], [Launched(60.0)]
    assert unlimited([short, long], 2) == pytest.approx(80.0)


def test_a_long_group_is_shared_from_its_beginning() -> None:
    """What is left for the end are the small chunks: apart, a chunk of 10 would be left for one thread."""
    long, short = [Launched(10.0, 16)], [Launched(1.0, 16)]
    assert unlimited([short, long], 2) == pytest.approx(88.0)
    assert unlimited([[Launched(10.0, 5)], [Launched(1.0, 16)]], 2) == pytest.approx(33.0)


def test_small_groups_are_shared_one_after_another() -> None:
    groups = [[Launched(10.0, 3)], [Launched(10.0, 3)]]
    assert unlimited(groups, 2) == pytest.approx(30.0)
    assert stage_ns([[Launched(10.0, 3)], [Launched(1.0, 20)]], [None, None], 2, near_ns=100.0) == 25.0


def test_a_limit_keeps_threads_away() -> None:
    long, short = [Launched(1.0, 100)], [Launched(20.0)]
    assert stage_ns([short, long], [None, 1], 2) == pytest.approx(100.0)
    assert stage_ns([long], [2], 4) == pytest.approx(50.0)


def test_launches_begin_late_and_end_with_a_meeting() -> None:
    assert unlimited([[Launched(4.0, 2, start_ns=1.0, meeting_ns=3.0)] * 2], 2) == pytest.approx(13.0)
    assert unlimited([[Launched(4.0, 2, start_ns=1.0, meeting_ns=3.0)] * 2], 1) == pytest.approx(18.0)


def test_groups_do_not_wait_for_each_others_kernels() -> None:
    first, second = [Launched(1.0), Launched(9.0)], [Launched(9.0), Launched(1.0)]
    assert unlimited([first, second], 2) == pytest.approx(10.0)  # in lockstep it takes 18


def test_launches_that_fill_the_memory_take_turns() -> None:
    streams = [[Launched(10.0, 1, memory_share=1.0)] for _ in range(2)]
    assert unlimited(streams, 2) == pytest.approx(20.0)
    beside = [[Launched(10.0, 1, memory_share=0.4)] for _ in range(2)]
    assert unlimited(beside, 2) == pytest.approx(10.0)


def test_nothing_takes_no_time() -> None:
    assert unlimited([], 2) == 0.0
    assert unlimited([[], []], 2) == 0.0


@pytest.mark.parametrize("num_threads", [1, 2, 3, 4])
def test_no_chunk_runs_twice_or_early(num_threads: int) -> None:
    """Between the bounds of list scheduling: no faster than work and chains allow, none idle for nothing."""
    rng = random.Random(num_threads)
    for _ in range(200):
        groups = [
            [Launched(rng.uniform(0.5, 2), rng.choice((1, 8, 16))) for _ in range(rng.randint(1, 4))]
            for _ in range(rng.randint(1, 5))
        ]
        found = unlimited(groups, num_threads)
        work = sum(launch.work_ns for group in groups for launch in group)
        chain = max(sum(x.chunk_ns * -(-x.num_chunks // num_threads) for x in group) for group in groups)
        assert found >= max(work / num_threads, chain) * (1 - 1e-9)
        longest_chain = max(sum(x.chunk_ns for x in group) for group in groups)
        assert found <= work / num_threads + longest_chain * len(groups)
        if num_threads == 1:
            assert found == pytest.approx(work)
        assert stage_ns(groups[::-1], [None] * len(groups), num_threads) == pytest.approx(found)
