"""Stages of a whole network: neighbours that cost less as one, groups that do not pay apart, in its order."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.bit_sets import bits
from tilewright.progress import checkpoint
from tilewright.schedule.ios.block import Block, Stop, Way
from tilewright.schedule.ios.costs import AskedCosts
from tilewright.schedule.ios.graph import StageGraph
from tilewright.schedule.ios.stages import StageChoice

_ROUNDING = 1e-9  # of costs that are sums of floats


def settled(
    graph: StageGraph, stages: Sequence[StageChoice], costs: AskedCosts, least_gain: float
) -> list[StageChoice]:
    """A schedule in which operators run alone unless their stage saves more than `least_gain` of its time.

    What costs the same with fewer groups is better: fewer buffers live at a time. The order is that of the
    operators as far as stages that need each other allow, as values that were just written are near.
    """
    found: list[StageChoice] = []
    for choice in stages:
        checkpoint()
        found += _apart(choice, costs, least_gain)
    return in_order(graph, found)


def _apart(choice: StageChoice, costs: AskedCosts, least_gain: float) -> list[StageChoice]:
    """The stage, what it needs of it, or its operators one by one, in an order in which they may run."""
    if choice.strategy == "alone":
        return [choice]
    limit_ns = costs.cost_ns(choice) * (1 + max(least_gain, _ROUNDING))
    everything = _one_by_one(choice.mask)
    if sum(map(costs.cost_ns, everything)) <= limit_ns:
        return everything
    if choice.strategy == "merge" or choice.num_cores is not None:
        return [choice]
    before: list[StageChoice] = []
    groups = list(choice.groups)
    for group in sorted(choice.groups, key=len):
        rest = StageChoice(tuple(g for g in groups if g != group), "parallel")
        alone = _one_by_one(sum(1 << i for i in group))
        if len(rest.groups) < 2:
            break
        if sum(map(costs.cost_ns, (*before, *alone, rest))) <= limit_ns:
            before += alone
            groups.remove(group)
    return [*before, StageChoice(tuple(groups), "parallel")]


def _one_by_one(mask: int) -> list[StageChoice]:
    return [StageChoice(((i,),), "alone") for i in bits(mask)]


def in_order(graph: StageGraph, stages: Sequence[StageChoice]) -> list[StageChoice]:
    """The same stages, of those that may run next always the one with the first operator."""
    waiting = sorted((choice.mask & -choice.mask, choice.mask, choice) for choice in stages)
    done = 0
    order: list[StageChoice] = []
    while waiting:
        checkpoint()
        place = next(n for n, (_, mask, _) in enumerate(waiting) if _reads(graph, mask) & ~done == 0)
        _, mask, choice = waiting.pop(place)
        done |= mask
        order.append(choice)
    return order


def _reads(graph: StageGraph, mask: int) -> int:
    read = 0
    for i in bits(mask):
        read |= graph.predecessors[i]
    return read & ~mask


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
