"""Topological stages of clusters that are merged: on which place of the longest path each stands."""

from __future__ import annotations

import heapq

from tilewright.partition.quotient import QuotientGraph


class Stages:
    """For each cluster of a quotient graph, how many clusters the longest path that ends in it has.

    Clusters stand on levels, which are linked in order and vanish with their last cluster. Where the longest
    path becomes shorter, as in any network where all paths meet, a level vanishes and all behind it keep
    theirs: only what stands beside others on a level has to move. It moves when a caller asks for a stage
    behind it, so that many merges in one place make one change to the rest.
    """

    def __init__(self, quotient: QuotientGraph) -> None:
        self._quotient = quotient
        self._level = quotient.stages()
        depth = max(self._level.values(), default=0)
        # Level 0 is before the first.
        self._next = {level: level + 1 for level in range(depth)}
        self._previous = {level + 1: level for level in range(depth)}
        self._num_members = dict.fromkeys(range(1, depth + 1), 0)
        self._num_levels = depth
        for level in self._level.values():
            self._num_members[level] += 1
        # Clusters that may have to move; all others stand right behind the last of what they read.
        self._unsettled: dict[int, None] = {}
        self._waiting: list[tuple[int, int]] = []

    def are_neighbours(self, u: int, v: int) -> bool:
        """Whether the stages of two clusters differ by one."""
        self._settle(u, v)
        a, b = self._level[u], self._level[v]
        return self._next.get(a) == b or self._next.get(b) == a

    def merge(self, u: int, v: int) -> int:
        """Merge two clusters in the quotient graph, too; the result's name.

        Raises:
            ValueError: their stages do not differ by one.
        """
        if not self.are_neighbours(u, v):
            raise ValueError(f"the stages of clusters {u} and {v} do not differ by one")
        quotient = self._quotient
        first, last = sorted((u, v), key=self._level.__getitem__)
        low, high = self._level[first], self._level[last]
        is_behind = any(self._level[p] == low for p in quotient.each_predecessor(last) if p != first)
        # One of the two keeps its level, and so do its readers.
        readers = [r for r in quotient.each_successor(first if is_behind else last) if r not in (u, v)]
        del self._level[first], self._level[last]
        merged = quotient.contract(first, last)
        self._level[merged] = high if is_behind else low
        self._leave(low if is_behind else high)
        for reader in readers:
            self._unsettle(reader)
        return merged

    def of(self, cluster: int) -> int:
        """The stage of a cluster. O(stages)."""
        self._settle(cluster)
        stage, level = 0, self._level[cluster]
        while level:
            stage, level = stage + 1, self._previous[level]
        return stage

    def _unsettle(self, cluster: int) -> None:
        if cluster not in self._unsettled:
            self._unsettled[cluster] = None
            heapq.heappush(self._waiting, (self._level[cluster], cluster))

    def _settle(self, *asked: int) -> None:
        """Move what stands wrong up to the levels of some clusters: nothing behind them changes theirs."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= max(self._level[c] for c in asked):
            _, cluster = heapq.heappop(waiting)
            del self._unsettled[cluster]
            last = max((self._level[p] for p in self._quotient.each_predecessor(cluster)), default=0)
            level, before = self._behind(last), self._level[cluster]
            if level == before:
                continue
            behind = self._next.get(before)
            self._level[cluster] = level
            self._num_members[level] += 1
            self._leave(before)
            for reader in self._quotient.each_successor(cluster):
                # Others stand behind something else that they read.
                if self._level[reader] <= level or self._level[reader] == behind:
                    self._unsettle(reader)

    def _behind(self, level: int) -> int:
        """The next level, a new one behind the last."""
        if level not in self._next:
            self._num_levels += 1
            self._next[level], self._previous[self._num_levels] = self._num_levels, level
            self._num_members[self._num_levels] = 0
        return self._next[level]

    def _leave(self, level: int) -> None:
        self._num_members[level] -= 1
        if self._num_members[level]:
            return
        before, after = self._previous.pop(level), self._next.pop(level, None)
        del self._num_members[level], self._next[before]
        if after is not None:
            self._next[before], self._previous[after] = after, before
