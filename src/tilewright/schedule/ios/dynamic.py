"""The paper's dynamic programme (algorithm 1): every state, every ending, every stage cost. The oracle."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tilewright.progress import checkpoint
from tilewright.schedule.ios.block import Block, BlockAnswer, Stop
from tilewright.schedule.ios.stages import StageChoice


def dynamic(block: Block, stop: Stop | None = None) -> BlockAnswer | None:
    """The cheapest schedule of a block; None where the effort ends before. O(transitions)."""
    graph = block.graph
    levels: list[dict[int, None]] = [{} for _ in range(graph.num_operators + 1)]
    levels[graph.num_operators][graph.everything] = None
    endings: dict[int, list[int]] = {}
    num_transitions = 0
    for size in range(graph.num_operators, 0, -1):
        for state in levels[size]:
            checkpoint()
            if stop is not None and stop.is_due(num_transitions):
                return None
            endings[state] = list(block.endings(state))
            num_transitions += len(endings[state])
            for mask in endings[state]:
                levels[size - mask.bit_count()][state ^ mask] = None
    best: dict[int, float] = {0: 0.0}
    last: dict[int, StageChoice] = {}
    for size in range(1, graph.num_operators + 1):
        for state in levels[size]:
            checkpoint()
            if stop is not None and stop.is_due(num_transitions):
                return None
            cost, _, choice = min(_ways(block, state, endings[state], best), key=lambda way: way[:2])
            best[state], last[state] = cost, choice
    total = best[graph.everything]
    stages = tuple(_way_back(graph.everything, last))
    return BlockAnswer(total, total, stages, True, len(best) - 1, num_transitions)


def _ways(
    block: Block, state: int, endings: Iterable[int], best: dict[int, float]
) -> Iterator[tuple[float, int, StageChoice]]:
    for mask in endings:
        for way in block.ways(mask):
            yield best[state ^ mask] + block.cost_ns(way), mask, way.choice


def _way_back(state: int, last: dict[int, StageChoice]) -> list[StageChoice]:
    """The stages in the order in which they run."""
    stages: list[StageChoice] = []
    while state:
        stages.append(last[state])
        state ^= last[state].mask
    return stages[::-1]
