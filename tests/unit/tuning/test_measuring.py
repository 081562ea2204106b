"""Rounds of contestants: which count, and when they end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest

from tilewright.errors import UsageError
from tilewright.tuning.measuring import Rounds, RunTime, wrong_values
from tilewright.tuning.workers import Effort


@dataclass
class World:
    """A clock that runs with what contestants do, and a count of interruptions."""

    now_s: float = 0.0
    num_interruptions: int = 0
    order: list[str] = field(default_factory=list)


@dataclass
class Contestant:
    """Takes the next of its times, and is interrupted in the runs that it names."""

    name: str
    world: World
    times_ns: Iterator[float]
    interrupted: frozenset[int] = frozenset()
    num_timed: int = 0

    def run(self, feed: object) -> dict[str, np.ndarray]:
        self.world.order.append(self.name)
        return {}

    def time(self, feed: object) -> RunTime:
        self.num_timed += 1
        time_ns = next(self.times_ns)
        self.world.now_s += time_ns * 1e-9
        self.world.num_interruptions += self.num_timed in self.interrupted
        return RunTime(time_ns, (time_ns,))

    def close(self) -> None:
        pass


def repeated(*times_ns: float) -> Iterator[float]:
    while True:
        yield from times_ns


def rounds(world: World, effort: Effort, *contestants: Contestant, most_s: float = 100.0) -> Rounds:
    clock, interruptions = (lambda: world.now_s), (lambda: world.num_interruptions)
    return Rounds(contestants, {}, effort, most_s, clock, interruptions)


def test_contestants_run_in_turns_and_the_least_of_a_round_counts() -> None:
    world = World()
    a, b = Contestant("a", world, repeated(3, 1, 2)), Contestant("b", world, repeated(30, 20, 40))
    samples, num_rejected, is_disturbed = rounds(world, Effort(2, 2, 1.0, num_warm_up=1), a, b).run()
    assert world.order == ["a", "b", "a", "b", "a", "b"]
    assert [s.whole_ns for s in samples] == [(1, 1), (20, 20)]
    assert samples[0].steps_ns == ((1,), (1,))
    assert (num_rejected, is_disturbed) == (0, False)


def test_a_run_that_was_interrupted_counts_only_where_all_of_its_round_were() -> None:
    world = World()
    a = Contestant("a", world, repeated(10, 11, 12), interrupted=frozenset({1, 7, 8, 9}))
    samples, num_rejected, is_disturbed = rounds(world, Effort(2, 4, 100.0), a).run()
    assert samples[0].whole_ns == (11, 10, 10)  # the third round is left out
    assert (num_rejected, is_disturbed) == (1, False)


def test_a_round_that_takes_much_longer_than_usual_is_left_out_for_all() -> None:
    world = World()
    a = Contestant("a", world, repeated(*[1] * 3, *[2] * 3, *[1] * 6))
    b = Contestant("b", world, repeated(5))
    samples, num_rejected, _ = rounds(world, Effort(2, 4, 100.0), a, b).run()
    assert [s.whole_ns for s in samples] == [(1, 1, 1), (5, 5, 5)]
    assert num_rejected == 1


def test_where_nearly_all_is_disturbed_all_counts_and_is_said_to_be() -> None:
    world = World()
    a = Contestant("a", world, repeated(1), interrupted=frozenset(range(1, 9 * 3)))
    samples, num_rejected, is_disturbed = rounds(world, Effort(3, 9, 100.0), a).run()
    assert (len(samples[0].whole_ns), num_rejected, is_disturbed) == (9, 0, True)


def test_rounds_end_with_their_time() -> None:
    world = World()
    a = Contestant("a", world, repeated(1e9))  # a second
    samples, _, _ = rounds(world, Effort(2, 40, 10.0), a).run()
    assert len(samples[0].whole_ns) == 4  # of three seconds each; none begins after ten
    a = Contestant("a", world, repeated(1e9))
    samples, _, is_disturbed = rounds(world, Effort(20, 40, 1.0), a, most_s=7.0).run()
    assert len(samples[0].whole_ns) == 3  # fewer than there should be, for the limit comes first
    assert is_disturbed


def test_no_rounds_are_refused() -> None:
    with pytest.raises(UsageError, match="0 to 3 rounds"):
        Effort(0, 3)


def test_values_that_are_no_numbers_are_wrong_where_numbers_are_expected() -> None:
    y, nan = np.array([1.0, 2.0]), np.array([1.0, np.nan])
    assert wrong_values({"y": y}, {"y": y}, 0.0) is None
    assert wrong_values({"y": nan}, {"y": nan}, 0.0) is None
    assert wrong_values({"y": nan}, {"y": y}, 1e9) is not None
    assert wrong_values({"y": y}, {"y": nan}, 1e9) is not None
