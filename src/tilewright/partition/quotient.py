"""The quotient graph of a partition under construction: the one place that decides if a merge is safe.

Merging two clusters of an acyclic graph gives a cycle exactly when a path of two or more edges joins
them; merging a set is safe exactly when the set is convex (no path leaves it and comes back). Weaker
tests are wrong: see the counterexamples in the tests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from tilewright.ir.graph import Graph
from tilewright.records import dataclass


@dataclass(frozen=True, slots=True)
class _Search:
    """What lies between two clusters: one on a path of two or more edges, if there is any.

    Otherwise `closed` is all that lies in the order between both and behind the first, or before the last,
    whichever was known earlier.
    """

    witness: int | None
    closed: tuple[int, ...] = ()
    is_behind_first: bool = True


class QuotientGraph:
    """An acyclic graph of clusters, changed only by contraction, with a topological order kept up to date.

    Clusters are named by integers; a merged cluster keeps the smaller of the two names. A query or a merge
    searches the window of the order between two clusters (Pearce and Kelly 2006) from both ends in turn, and
    stops as soon as one end has no more to visit: only that end is moved. Where one has few edges into the
    window, as one of many readers of the same value, this costs little however wide the window is.

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
        self._order = _Order(num_nodes)
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

    def copy(self) -> QuotientGraph:
        """The same clusters in the same order, to be contracted on their own. O(nodes + edges)."""
        copied = QuotientGraph(0, ())
        copied._successors = {cluster: dict(others) for cluster, others in self._successors.items()}
        copied._predecessors = {cluster: dict(others) for cluster, others in self._predecessors.items()}
        copied._members = {cluster: list(nodes) for cluster, nodes in self._members.items()}
        copied._cluster = list(self._cluster)
        copied._order = self._order.copy()
        return copied

    @property
    def clusters(self) -> tuple[int, ...]:
        """Names of all clusters in a topological order."""
        return tuple(sorted(self._members, key=self._order.label))

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

    def each_successor(self, cluster: int) -> Iterable[int]:
        """The same as `successors` in the order in which they were met, without sorting."""
        return self._successors[cluster].keys()

    def each_predecessor(self, cluster: int) -> Iterable[int]:
        """The same as `predecessors` in the order in which they were met, without sorting."""
        return self._predecessors[cluster].keys()

    def stages(self) -> dict[int, int]:
        """For each cluster, how many clusters the longest path that ends in it has (sources: 1). O(edges)."""
        stage: dict[int, int] = {}
        for cluster in self.clusters:
            stage[cluster] = 1 + max((stage[p] for p in self._predecessors[cluster]), default=0)
        return stage

    def can_contract(self, u: int, v: int) -> bool:
        """Whether merging two clusters leaves the graph acyclic. Exact; they need not be adjacent."""
        return u != v and self.between(u, v) is None

    def between(self, u: int, v: int) -> int | None:
        """A cluster on a path of two or more edges that joins two clusters; None: merging both is safe.

        The answer stays true until that cluster is merged with one of the two, whatever else is merged.
        """
        return self._search(*sorted((u, v), key=self._order.label)).witness

    def can_contract_all(self, clusters: Iterable[int]) -> bool:
        """Whether merging all these clusters into one leaves the graph acyclic, i.e. the set is convex."""
        inside = dict.fromkeys(clusters)
        if not inside:
            return True
        label = self._order.label
        end = max(map(label, inside))
        stack = [s for c in inside for s in self._successors[c] if s not in inside]
        seen: set[int] = set()
        while stack:
            outside = stack.pop()
            if outside in seen or label(outside) > end:
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
        first, last = sorted((u, v), key=self._order.label)
        search = self._search(first, last)
        if u == v or search.witness is not None:
            raise ValueError(f"merging clusters {u} and {v} would make a cycle")
        moved = sorted(search.closed, key=self._order.label)
        if search.is_behind_first:
            self._order.move_after(last, moved)
            place = last
        else:
            self._order.move_before(first, moved)
            place = first
        kept, dropped = min(u, v), max(u, v)
        self._order.replace(place, kept, first if place is last else last)
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
        ordered = sorted(dict.fromkeys(clusters), key=self._order.label)
        if not ordered or not self.can_contract_all(ordered):
            raise ValueError(f"clusters {sorted(ordered)} cannot be merged")
        # In topological order each step is safe: a path around it would leave and re-enter the set.
        merged = ordered[0]
        for cluster in ordered[1:]:
            merged = self.contract(merged, cluster)
        return merged

    def _search(self, first: int, last: int) -> _Search:
        """From both ends in turn, edge by edge; the edge between both does not count."""
        label = self._order.label
        low, high = label(first), label(last)
        behind, before = _Frontier(first, self._successors), _Frontier(last, self._predecessors)
        while True:
            for here, there, end in ((behind, before, last), (before, behind, first)):
                met = next(here.met, None)
                if met is None:
                    return _Search(None, tuple(here.seen), here is behind)
                if met in here.seen or not low < label(met) < high:
                    continue
                # Asked at once, before going deeper: most detours end in what was just met.
                if met in there.seen or end in here.neighbours[met]:
                    return _Search(met)
                here.visit(met)


class _Frontier:
    """A search in one direction. `seen` has what was visited but the start; `met` goes on edge by edge."""

    def __init__(self, start: int, neighbours: Mapping[int, Mapping[int, None]]) -> None:
        self.neighbours = neighbours
        self.seen: dict[int, None] = {}
        self._open = deque([iter(neighbours[start])])
        self.met = self._walk()

    def visit(self, cluster: int) -> None:
        """Go on from here, too, after all that was visited before: what is near is met first."""
        self.seen[cluster] = None
        self._open.append(iter(self.neighbours[cluster]))

    def _walk(self) -> Iterator[int]:
        while self._open:
            met = next(self._open[0], None)
            if met is None:
                self._open.popleft()
            else:
                yield met


class _Order:
    """A list whose members can be moved and compared in constant time, by labels with gaps between them."""

    def __init__(self, num_members: int) -> None:
        # A head and a tail stand at -1 and `num_members`; nothing goes beyond them.
        self._tail = num_members
        self._next = {i: i + 1 for i in range(-1, num_members)}
        self._previous = {i + 1: i for i in range(-1, num_members)}
        self._label: dict[int, int] = {}
        self._renumber()

    def copy(self) -> _Order:
        """The same members in the same order."""
        copied = _Order(0)
        copied._tail = self._tail
        copied._next, copied._previous = dict(self._next), dict(self._previous)
        copied._label = dict(self._label)
        return copied

    def label(self, member: int) -> int:
        """What is smaller for what comes earlier."""
        return self._label[member]

    def move_after(self, place: int, members: Sequence[int]) -> None:
        """Put members, in this order, right behind another."""
        for member in members:
            self._unlink(member)
        self._insert(place, members, self._next[place])

    def move_before(self, place: int, members: Sequence[int]) -> None:
        """Put members, in this order, right before another."""
        for member in members:
            self._unlink(member)
        self._insert(self._previous[place], members, place)

    def replace(self, place: int, name: int, removed: int) -> None:
        """Remove a member, and call the one at a place by a name that either of the two had."""
        self._unlink(removed)
        before, after, label = self._previous[place], self._next[place], self._label[place]
        self._unlink(place)
        del self._label[place], self._label[removed]
        self._label[name] = label
        self._link(before, name)
        self._link(name, after)

    def _insert(self, before: int, members: Sequence[int], after: int) -> None:
        chain = (before, *members, after)
        for a, b in pairwise(chain):
            self._link(a, b)
        low, step = self._label[before], (self._label[after] - self._label[before]) // (len(members) + 1)
        if step == 0:
            self._renumber()
            return
        for number, member in enumerate(members, start=1):
            self._label[member] = low + number * step

    def _renumber(self) -> None:
        member, label = -1, 0
        self._label[member] = label
        while member != self._tail:
            member, label = self._next[member], label + _GAP
            self._label[member] = label

    def _unlink(self, member: int) -> None:
        self._link(self._previous[member], self._next[member])

    def _link(self, a: int, b: int) -> None:
        self._next[a], self._previous[b] = b, a


_GAP = 1 << 62
"""Between neighbours of a new numbering: halved sixty times before the next."""
