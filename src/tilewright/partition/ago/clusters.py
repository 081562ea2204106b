"""Joining (Algorithm 1, CLUSTER): the heaviest cluster takes its lightest neighbours until none may join."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from tilewright.partition.ago.limits import Limit
from tilewright.partition.ago.stages import Stages
from tilewright.partition.ago.weights import Weight
from tilewright.partition.quotient import QuotientGraph
from tilewright.progress import checkpoint

Accept = Literal["exact", "affix"]
"""Which neighbours may be merged: `exact`, those between which no other path leads; `affix`, as published,
those whose stages differ by one, which is safe too and accepts fewer."""

_ANY_MERGE = -1
"""Stands for every cluster: whatever is merged may change the answer."""


class _Rule(Protocol):
    """Which merges keep the quotient without a cycle."""

    def obstacle(self, u: int, v: int) -> int | None:
        """What must be merged with one of two neighbours before they may be merged; None: they may now."""
        ...

    def merge(self, u: int, v: int) -> int:
        """Merge both; the result's name."""
        ...


class _Exact:
    """No path of two or more edges joins them."""

    def __init__(self, quotient: QuotientGraph) -> None:
        self.obstacle = quotient.between
        self.merge = quotient.contract


class _Affix:
    """Their stages differ by one: a path through a third would make them differ by two or more."""

    def __init__(self, quotient: QuotientGraph) -> None:
        self._stages = Stages(quotient)
        self.merge = self._stages.merge

    def obstacle(self, u: int, v: int) -> int | None:
        return None if self._stages.are_neighbours(u, v) else _ANY_MERGE


_RULES: dict[Accept, Callable[[QuotientGraph], _Rule]] = {"exact": _Exact, "affix": _Affix}


class Clustering:
    """Clusters of a quotient graph that grow until a limit; `weights` are those of its nodes, in order.

    What is not `joinable`, as an operator without loop nests, stays alone.
    """

    def __init__(
        self,
        quotient: QuotientGraph,
        weights: Sequence[Weight],
        limit: Limit,
        accept: Accept = "exact",
        joinable: Callable[[int], bool] = lambda node: True,
    ) -> None:
        self.quotient = quotient
        self.weights = dict(enumerate(weights))
        self._limit = limit
        self._rule = _RULES[accept](quotient)
        self._joinable = joinable

    def run(self) -> None:
        """Let the heaviest cluster grow, then the heaviest of the rest, until each has had its turn.

        What is taken by another loses its turn; what has had it can still be taken.
        """
        turns = [(-weight.total, node) for node, weight in self.weights.items() if self._joinable(node)]
        heapq.heapify(turns)
        while turns:
            checkpoint()
            weight, cluster = heapq.heappop(turns)
            # A merged cluster grows until it can no more, so what still waits is a node or was taken.
            if cluster in self.weights and self.weights[cluster].total == -weight:
                self._grow(cluster)

    def may_join(self, u: int, v: int) -> bool:
        """Whether two neighbours may be merged without a cycle, however heavy they are."""
        return self._rule.obstacle(u, v) is None

    def _grow(self, cluster: int) -> None:
        """Merge a cluster with the lightest neighbour that may join, again and again."""
        waiting: list[tuple[float, int]] = []
        refused: dict[int, list[tuple[float, int]]] = {}
        met = {cluster}
        self._meet(cluster, waiting, met)
        while waiting:
            lightest = heapq.heappop(waiting)
            other = lightest[1]
            if self._limit.is_beyond(self.weights[cluster], self.weights[other]):
                return  # and so are all that wait, which are heavier
            obstacle = self._rule.obstacle(cluster, other)
            if obstacle is None and not self._limit.allows(cluster, other):
                obstacle = _ANY_MERGE
            if obstacle is not None:
                refused.setdefault(obstacle, []).append(lightest)
                continue
            cluster = self._merge(cluster, other)
            for again in (*refused.pop(_ANY_MERGE, ()), *refused.pop(other, ())):
                heapq.heappush(waiting, again)
            self._meet(cluster, waiting, met)

    def _merge(self, u: int, v: int) -> int:
        merged = self._rule.merge(u, v)
        self.weights[merged] = self.weights.pop(u) + self.weights.pop(v)
        self._limit.merged(u, v, merged)
        return merged

    def _meet(self, cluster: int, waiting: list[tuple[float, int]], met: set[int]) -> None:
        """Let neighbours wait that were not met yet; only `cluster` changes meanwhile."""
        quotient = self.quotient
        for neighbours in (quotient.each_predecessor(cluster), quotient.each_successor(cluster)):
            for other in neighbours:
                if other not in met and self._joinable(other):
                    met.add(other)
                    heapq.heappush(waiting, (self.weights[other].total, other))
