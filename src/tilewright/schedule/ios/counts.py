"""How large the search of IOS is: states, transitions, schedules and stages (the paper's Table 1)."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.progress import checkpoint
from tilewright.schedule.ios.endings import EndingSpace


@dataclass(frozen=True, slots=True)
class Counts:
    """Of one graph under one rule: `num_states` are sets still to be scheduled, the empty one left out.

    A transition takes an ending away from a state, a schedule is a way from all operators to none,
    `num_stages` counts the endings that differ.
    """

    num_operators: int
    width: int
    num_states: int
    num_transitions: int
    num_schedules: int
    num_stages: int


def count(space: EndingSpace) -> Counts:
    """Walk every state once, the larger ones first. O(transitions).

    >>> from tilewright.schedule.ios.graph import StageGraph
    >>> counts = count(EndingSpace(StageGraph.of_edges("abc", [("a", "b")])))
    >>> counts.num_states, counts.num_transitions, counts.num_schedules, counts.num_stages
    (5, 12, 8, 7)
    """
    graph = space.graph
    # By the number of operators left: all ways into a state are known when it is its turn.
    levels: list[dict[int, int]] = [{} for _ in range(graph.num_operators + 1)]
    levels[graph.num_operators][graph.everything] = 1
    num_states = num_transitions = 0
    stages: set[int] = set()
    for size in range(graph.num_operators, 0, -1):
        checkpoint()
        num_states += len(levels[size])
        for state, num_ways in levels[size].items():
            for mask in space.masks(state):
                num_transitions += 1
                stages.add(mask)
                following = levels[size - mask.bit_count()]
                following[state ^ mask] = following.get(state ^ mask, 0) + num_ways
        levels[size] = {}
    num_schedules = levels[0].get(0, 0)
    return Counts(graph.num_operators, width(space), num_states, num_transitions, num_schedules, len(stages))


def width(space: EndingSpace) -> int:
    """The most operators of which none needs another: by Dilworth's theorem, n less a largest matching.

    The matching pairs operators with descendants; augmenting paths, O(operators x pairs).
    """
    descendants = space.graph.descendants
    reader_of: dict[int, int] = {}

    def augment(source: int, seen: set[int]) -> bool:
        for target in range(source + 1, len(descendants)):
            if descendants[source] >> target & 1 and target not in seen:
                seen.add(target)
                if target not in reader_of or augment(reader_of[target], seen):
                    reader_of[target] = source
                    return True
        return False

    num_matched = sum(augment(source, set()) for source in range(len(descendants)))
    return len(descendants) - num_matched
