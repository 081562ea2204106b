"""Stages across blocks: neighbours that cost less as one."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.progress import checkpoint
from tilewright.schedule.ios.block import Block, Stop, Way
from tilewright.schedule.ios.stages import StageChoice


def joined(
    whole: Block, stages: Sequence[StageChoice], starts: Sequence[int], stop: Stop
) -> list[StageChoice]:
    """The stages with runs of them as one stage each where that costs least, over all ways to join them.

    `whole` is the network as one block, `starts` are the numbers of stages with which blocks begin: runs
    within a block are left alone, since the search has seen them. Endings taken one after the other make one
    ending, so every run is a stage as far as the rules allow. O(stages x longest run).
    """
    alone = [Way(choice, whole.costs.cost_ns(choice), is_known=True) for choice in stages]
    best: list[tuple[float, int, Way | None]] = [(0.0, 0, None)]
    longest = whole.rules.pruning.max_group_size or len(stages)
    for stop_at in range(1, len(stages) + 1):
        checkpoint()
        mask = 0
        options: list[tuple[float, int, Way | None]] = []
        for start in range(stop_at - 1, max(-1, stop_at - 1 - longest), -1):
            mask |= stages[start].mask
            if start == stop_at - 1:
                options.append((best[start][0] + alone[start].ns, start, alone[start]))
                continue
            if any(start < first < stop_at for first in starts) and not stop.is_due(0):
                options += _joins(whole, mask, best[start][0], start, options[0][0])
        best.append(min(options, key=lambda option: (option[0], -option[1])))
    chosen: list[StageChoice] = []
    place = len(stages)
    while place:
        _, place, way = best[place]
        assert way is not None
        chosen.append(way.choice)
    return chosen[::-1]


def _joins(
    whole: Block, mask: int, before_ns: float, start: int, limit_ns: float
) -> list[tuple[float, int, Way | None]]:
    """A run as one stage, in the ways that could cost less than `limit_ns` in all."""
    ways = [way for way in whole.ways(mask) if before_ns + way.ns < limit_ns]
    return [(before_ns + whole.cost_ns(way), start, way) for way in ways]
