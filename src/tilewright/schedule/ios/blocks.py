"""Where a network is cut into blocks that are scheduled one after another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.bit_sets import bits
from tilewright.schedule.ios.graph import StageGraph

MOST_IN_BLOCK = 40
"""Subgraphs of a block, unless other sizes are asked for."""
_MIN_PART = 8


@dataclass(frozen=True, slots=True)
class Span:
    """Operators [start, stop). `is_natural`: every other operator comes before or after its last one."""

    start: int
    stop: int
    is_natural: bool


def blocks(graph: StageGraph, max_operators: int) -> tuple[Span, ...]:
    """The network cut after articulation points: operators that all others come before or after.

    No schedule in which no stage crosses a cut is lost there. What is still larger than `max_operators` is
    cut where fewest operators are read later, which may lose some.

    >>> [(s.start, s.stop) for s in blocks(StageGraph.of_edges("abcd", ["ab", "ac", "bd", "cd"]), 9)]
    [(0, 1), (1, 4)]
    """
    spans: list[Span] = []
    start = 0
    for stop in _articulations(graph):
        spans += _parts(graph, start, stop, max_operators, is_natural=True)
        start = stop
    if start < graph.num_operators:
        spans += _parts(graph, start, graph.num_operators, max_operators, is_natural=False)
    return tuple(spans)


def _articulations(graph: StageGraph) -> Iterator[int]:
    """Numbers of operators up to an articulation point, itself included."""
    num_ancestors = [0] * graph.num_operators
    for mask in graph.descendants:
        for i in bits(mask):
            num_ancestors[i] += 1
    for i, mask in enumerate(graph.descendants):
        if num_ancestors[i] + mask.bit_count() + 1 == graph.num_operators:
            yield i + 1


def _parts(
    graph: StageGraph, start: int, stop: int, max_operators: int, *, is_natural: bool
) -> Iterator[Span]:
    while stop - start > max_operators:
        places = range(start + min(_MIN_PART, max_operators), start + max_operators + 1)
        place = min(places, key=lambda p: (_num_read_later(graph, p), p))
        yield Span(start, place, is_natural=False)
        start = place
    yield Span(start, stop, is_natural)


def _num_read_later(graph: StageGraph, place: int) -> int:
    return sum(1 for mask in graph.successors[:place] if mask >> place)
