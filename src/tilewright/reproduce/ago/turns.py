"""Engines in turns in one process: rounds of short blocks, so that slow phases of a machine hit all alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from tilewright.benchmark import Timing

# Threads of other engines, which may spin for a while after a run, go to sleep before a block.
_SETTLE_S = 0.02
_BLOCK_S = 0.06
_MIN_ROUNDS = 9

Run = Callable[[], object]


def in_turns(runs: Mapping[str, Run], seconds: float) -> dict[str, Timing]:
    """The times of each, by name; a round's is the median of its block."""
    for run in runs.values():
        run()
    rounds: dict[str, list[float]] = {name: [] for name in runs}
    every: dict[str, list[float]] = {name: [] for name in runs}
    started_s = time.perf_counter()
    number = 0
    while number < _MIN_ROUNDS or time.perf_counter() - started_s < seconds:
        names = list(runs)
        turn = number % len(names)
        for name in (*names[turn:], *names[:turn]):
            block = sorted(_block_ms(runs[name]))
            rounds[name].append(block[len(block) // 2])
            every[name] += block
        number += 1
    return {name: Timing(tuple(rounds[name]), tuple(every[name])) for name in runs}


def _block_ms(run: Run) -> list[float]:
    """Times of the runs of one block; the first warms the caches."""
    time.sleep(_SETTLE_S)
    run()
    block: list[float] = []
    started_s = time.perf_counter()
    while not block or time.perf_counter() - started_s < _BLOCK_S:
        start_ns = time.perf_counter_ns()
        run()
        block.append((time.perf_counter_ns() - start_ns) / 1e6)
    return block
