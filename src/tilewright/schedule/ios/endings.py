"""Endings: what the last stage of a set of operators may hold. Each is enumerated once.

The groups of a stage are connected sets that hold all their readers within the state. Two such sets that
have no operator in common have no edge between them either, so an ending is nothing but some of them that
are disjoint: every partial choice is an ending, and work grows with the endings, not with all subsets.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from tilewright.bit_sets import bits
from tilewright.errors import UsageError
from tilewright.schedule.ios.graph import StageGraph

Grouping = Literal["component", "single-source"]
"""Groups are any connected operators, or those that all follow from one, as the released code has them."""

# Groups up to this size are listed once for the graph, larger ones for each state.
_MAX_LISTED_SIZE = 3


@dataclass(frozen=True, slots=True)
class Pruning:
    """The paper's r and s: operators of a group and groups of a stage, None without a limit."""

    max_group_size: int | None = None
    max_groups: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_group_size", "max_groups"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name}={value}: a stage needs at least 1.")


@dataclass(slots=True)
class EndingSpace:
    """The endings of the states of a graph under a rule for groups and a pruning."""

    graph: StageGraph
    grouping: Grouping = "component"
    pruning: Pruning = Pruning()
    _listed: list[tuple[int, int]] | None = field(init=False, default=None)

    def masks(self, state: int) -> Iterator[int]:
        """The endings of a state, each once."""
        most = self.pruning.max_groups or self.graph.num_operators
        stack = [(0, self.groups(state), most)]
        while stack:
            base, candidates, left = stack.pop()
            left -= 1
            for number, group in enumerate(candidates, 1):
                mask = base | group
                yield mask
                if left:
                    rest = [other for other in candidates[number:] if not other & group]
                    if rest:
                        stack.append((mask, rest, left))

    def groups(self, state: int) -> list[int]:
        """What may be one group of the last stage of a state, ascending."""
        listed = self.listed()
        if listed is not None:
            return [group for group, reach in listed if reach & state == group]
        largest = self.pruning.max_group_size or self.graph.num_operators
        cones = [1 << i | self.graph.descendants[i] & state for i in bits(state)]
        groups = {cone for cone in cones if cone.bit_count() <= largest}
        if self.grouping == "component":
            cones = sorted(groups)
            frontier = cones
            while frontier:
                unions = {a | b for a in frontier for b in cones if a & b}
                frontier = [u for u in unions if u not in groups and u.bit_count() <= largest]
                groups.update(frontier)
        return sorted(groups)

    def listed(self) -> list[tuple[int, int]] | None:
        """All groups there can be, each with all that reads it; None where they depend on the state."""
        size = self.pruning.max_group_size
        if size is None or size > _MAX_LISTED_SIZE:
            return None
        if self._listed is None:
            self._listed = self._list_groups(size)
        return self._listed

    def allows(self, groups: tuple[int, ...]) -> bool:
        """Whether disjoint connected groups may be one stage."""
        size, most = self.pruning.max_group_size, self.pruning.max_groups
        return (
            (most is None or len(groups) <= most)
            and (size is None or all(group.bit_count() <= size for group in groups))
            and (self.grouping == "component" or all(self._num_sources(group) == 1 for group in groups))
        )

    def _num_sources(self, group: int) -> int:
        return sum(1 for i in bits(group) if not self.graph.predecessors[i] & group)

    def _list_groups(self, largest: int) -> list[tuple[int, int]]:
        """Connected sets, and each with all that reads it: a group of the states that hold no more of that.

        That those readers are no longer there makes the set convex and its own closure.
        """
        return [
            (mask, self.graph.with_readers(mask))
            for mask in self.graph.connected_sets(largest)
            if self.grouping == "component" or self._num_sources(mask) == 1
        ]
