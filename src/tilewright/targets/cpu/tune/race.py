"""Whole models beside each other: several executables run the same feed in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from tilewright.arrays import Array
from tilewright.targets.cpu.runtime.executable import CpuExecutable

# An executable's block begins with a run that does not count: the one before it had the caches.
_COUNTED = range(3)
_ROUNDS = (9, 60)


T = TypeVar("T")


def race(
    executables: Sequence[CpuExecutable], feed: Mapping[str, Array], seconds: float
) -> list[list[float]]:
    """For each executable the time of a run in ns, one for each round: the least of a block.

    There are enough rounds to tell, and no more begin after so many seconds.
    """
    return _in_turns(executables, feed, seconds, lambda e: min(time_ns(e, feed) for _ in _COUNTED))


def race_steps(
    executables: Sequence[CpuExecutable], feed: Mapping[str, Array], seconds: float
) -> list[list[list[float]]]:
    """The same of each step of executables that stamp them: for each round a time in ns of every step."""

    def least(executable: CpuExecutable) -> list[float]:
        runs = [[step.duration_ns for step in executable.run_profiled(feed)] for _ in _COUNTED]
        return list(map(min, *runs))

    return _in_turns(executables, feed, seconds, least)


def _in_turns(
    executables: Sequence[CpuExecutable],
    feed: Mapping[str, Array],
    seconds: float,
    measure: Callable[[CpuExecutable], T],
) -> list[list[T]]:
    samples: list[list[T]] = [[] for _ in executables]
    least, most = _ROUNDS
    started = time.perf_counter()
    while len(samples[0]) < least or (len(samples[0]) < most and time.perf_counter() - started < seconds):
        for executable, found in zip(executables, samples, strict=True):
            executable.run(feed)
            found.append(measure(executable))
    return samples


def time_ns(executable: CpuExecutable, feed: Mapping[str, Array]) -> float:
    """What one run takes."""
    start_ns = time.perf_counter_ns()
    executable.run(feed)
    return float(time.perf_counter_ns() - start_ns)
