"""Whole models beside each other: several executables run the same feed in turns."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.targets.cpu.runtime.executable import CpuExecutable

Array = np.ndarray[Any, Any]

# An executable's block begins with a run nobody counts: the one before it had the caches.
BLOCK_RUNS = 4
_ROUNDS = (9, 60)


def race(
    executables: Sequence[CpuExecutable], feed: Mapping[str, Array], seconds: float
) -> list[list[float]]:
    """For each executable the time of a run in ns, one for each round: the least of a block.

    There are enough rounds to tell, and no more begin after so many seconds.
    """
    samples: list[list[float]] = [[] for _ in executables]
    least, most = _ROUNDS
    started = time.perf_counter()
    while len(samples[0]) < least or (len(samples[0]) < most and time.perf_counter() - started < seconds):
        for executable, times in zip(executables, samples, strict=True):
            executable.run(feed)
            times.append(min(time_ns(executable, feed) for _ in range(BLOCK_RUNS - 1)))
    return samples


def time_ns(executable: CpuExecutable, feed: Mapping[str, Array]) -> float:
    """What one run takes."""
    start_ns = time.perf_counter_ns()
    executable.run(feed)
    return float(time.perf_counter_ns() - start_ns)
