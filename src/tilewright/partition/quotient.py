"""The quotient graph of a partition under construction: the one place that decides if a merge is safe.

Merging two clusters of an acyclic graph gives a cycle exactly when a path of two or more edges joins
them; merging a set is safe exactly when the set is convex (no path leaves it and comes back). Weaker
tests are wrong: see the counterexamples in the tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tilewright.ir.graph import Graph


class QuotientGraph:
    """An acyclic graph of clusters, changed only by contraction, with a topological order kept up to date.

    Clusters are named by integers; a merged cluster keeps the smaller of the two names. The order is
    repaired in the window between the two merged clusters (Pearce and Kelly 2006), so that a query or a
    merge costs no more than the edges inside that window.

    >>> q = QuotientGraph(3, [(0, 1), (1, 2), (0, 2)])
    >>> q.can_contract(0, 2), q.can_contract(0, 1)
    (False, True)
    >>> q.contract(0, 1)
    0
    >>> q.can_contract(0, 2), q.members(0)
    (True, (0, 1))
    """

    def __init__(self, num_nodes: int, edges: Iterable[tuple[int, int]]) -> None:
        """Start with one cluster per node; nodes must be numbered in a topological order.

        Raises:
            ValueError: an edge does not lead from a lower to a higher number.
        """
        self._successors: dict[int, dict[int, None]] = {i: {} for i in range(num_nodes)}
        self._predecessors: dict[int, dict[int, None]] = {i: {} for i in range(num_nodes)}
        self._members: dict[int, list[int]] = {i: [i] for i in range(num_nodes)}
        self._cluster = list(range(num_nodes))
        self._order = list(range(num_nodes))
        for u, v in edges:
            if not 0 <= u < v < num_nodes:
                raise ValueError(f"edge {u}->{v} does not follow the numbering of {num_nodes} nodes")
            self._successors[u][v] = None
            self._predecessors[v][u] = None

    @classmethod
    def of(cls, graph: Graph) -> QuotientGraph:
        """One cluster per node of `graph`, named by its position in `graph.nodes`."""
        position = {node: i for i, node in enumerate(graph.nodes)}
        return cls(
            len(position),
            (
                (position[value.producer], position[node])
                for node in graph.nodes
                for value in node.operands()
                if value.producer is not None
            ),
        )

    @property
    def clusters(self) -> tuple[int, ...]:
        """Names of all clusters in a topological order."""
        return tuple(sorted(self._members, key=self._order.__getitem__))

    def members(self, cluster: int) -> tuple[int, ...]:
        """Nodes of a cluster, ascending."""
        return tuple(sorted(self._members[cluster]))

    def cluster_of(self, node: int) -> int:
        """Name of the cluster that holds a node. O(1)."""
        return self._cluster[node]

    def successors(self, cluster: int) -> tuple[int, ...]:
        """Clusters that read from this one, ascending."""
        return tuple(sorted(self._successors[cluster]))

    def predecessors(self, cluster: int) -> tuple[int, ...]:
        """Clusters that this one reads from, ascending."""
        return tuple(sorted(self._predecessors[cluster]))

    def stages(self) -> dict[int, int]:
        """For each cluster, how many clusters the longest path that ends in it has (sources: 1). O(edges)."""
        stage: dict[int, int] = {}
        for cluster in self.clusters:
            stage[cluster] = 1 + max((stage[p] for p in self._predecessors[cluster]), default=0)
        return stage

    def can_contract(self, u: int, v: int) -> bool:
        """Whether merging two clusters leaves the graph acyclic. Exact; they need not be adjacent."""
        return u != v and self.can_contract_all((u, v))

    def can_contract_all(self, clusters: Iterable[int]) -> bool:
        """Whether merging all these clusters into one leaves the graph acyclic, i.e. the set is convex."""
        inside = dict.fromkeys(clusters)
        if not inside:
            return True
        end = max(self._order[c] for c in inside)
        stack = [s for c in inside for s in self._successors[c] if s not in inside]
        seen: set[int] = set()
        while stack:
            outside = stack.pop()
            if outside in seen or self._order[outside] > end:
                continue
            seen.add(outside)
            for successor in self._successors[outside]:
                if successor in inside:
                    return False
                stack.append(successor)
        return True

    def contract(self, u: int, v: int) -> int:
        """Merge two clusters and return the name of the result, the smaller of the two.

        Raises:
            ValueError: the merge would make a cycle.
        """
        if not self.can_contract(u, v):
            raise ValueError(f"merging clusters {u} and {v} would make a cycle")
        self._repair_order(u, v)
        kept, dropped = min(u, v), max(u, v)
        for neighbours, opposite in (
            (self._successors, self._predecessors),
            (self._predecessors, self._successors),
        ):
            for other in neighbours.pop(dropped):
                del opposite[other][dropped]
                if other != kept:
                    neighbours[kept][other] = None
                    opposite[other][kept] = None
        for node in self._members[dropped]:
            self._cluster[node] = kept
        self._members[kept] += self._members.pop(dropped)
        return kept

    def contract_all(self, clusters: Sequence[int]) -> int:
        """Merge a convex set of clusters and return the name of the result.

        Raises:
            ValueError: the set is empty, or merging it would make a cycle.
        """
        ordered = sorted(dict.fromkeys(clusters), key=self._order.__getitem__)
        if not ordered or not self.can_contract_all(ordered):
            raise ValueError(f"clusters {sorted(ordered)} cannot be merged")
        # In topological order each step is safe: a path around it would leave and re-enter the set.
        merged = ordered[0]
        for cluster in ordered[1:]:
            merged = self.contract(merged, cluster)
        return merged

    def _repair_order(self, u: int, v: int) -> None:
        """Give u and v one place: behind all ancestors, before all descendants, that lie between them."""
        first, last = sorted((u, v), key=self._order.__getitem__)
        low, high = self._order[first], self._order[last]
        after = self._reached(first, self._successors, lambda place: place < high)
        before = self._reached(last, self._predecessors, lambda place: place > low)
        places = sorted([low, high, *(self._order[c] for c in (*before, *after))])
        # One place more than clusters: the two merged ones share a name afterwards.
        for cluster, place in zip(before, places, strict=False):
            self._order[cluster] = place
        self._order[u] = self._order[v] = places[len(before)]
        for cluster, place in zip(after, places[len(before) + 2 :], strict=True):
            self._order[cluster] = place

    def _reached(
        self, start: int, edges: dict[int, dict[int, None]], within: Callable[[int], bool]
    ) -> list[int]:
        found: dict[int, None] = {}
        stack = [start]
        while stack:
            for neighbour in edges[stack.pop()]:
                if neighbour not in found and within(self._order[neighbour]):
                    found[neighbour] = None
                    stack.append(neighbour)
        return sorted(found, key=self._order.__getitem__)
