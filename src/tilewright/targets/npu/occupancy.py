"""What levels of memory hold over the time of a run: placed buffers, and what passes behind them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter

from tilewright.targets.simulated import Curve, LevelOverTime, NetworkPlan

Held = tuple[str, str, float, float, int]
"""Bytes in a level, as what they are there, from when to when."""

KINDS = ("placed", "weights", "prefetched", "tiles")


def levels_over_time(plan: NetworkPlan) -> tuple[LevelOverTime, ...]:
    """What each level holds when. O(n log n) in buffers and runs."""
    changes: dict[tuple[str, str], list[tuple[float, int]]] = {}
    for level, kind, start_s, end_s, size_bytes in _placed(plan):
        if size_bytes and end_s > start_s:
            changes.setdefault((level, kind), []).extend([(start_s, size_bytes), (end_s, -size_bytes)])
    return tuple(
        LevelOverTime(
            level,
            {kind: _curve(changes[level.name, kind]) for kind in KINDS if (level.name, kind) in changes},
        )
        for level in plan.levels
    )


def _placed(plan: NetworkPlan) -> Iterator[Held]:
    """Buffers, from when they begin to be made to the end of their last readers.

    What is written in place of another buffer, which is no smaller, counts from the end of that.
    """
    for buffer in plan.buffers:
        under = buffer.in_place_of
        start_s = buffer.start_s if under is None else plan.buffers[under].end_s
        yield buffer.level, "placed", start_s, buffer.end_s, buffer.size_bytes


def _curve(changes: Iterable[tuple[float, int]]) -> Curve:
    points: list[tuple[float, int]] = []
    now_bytes = 0
    for at_s, together in groupby(sorted(changes), key=itemgetter(0)):
        now_bytes += sum(size for _, size in together)
        points.append((at_s, now_bytes))
    return tuple(points)
