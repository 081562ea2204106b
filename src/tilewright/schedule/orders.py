"""Orders in which the instances of a network run, and what they ask of the local buffers.

Breadth-first runs subgraph after subgraph; depth-first is GraphTurbo's Algorithm 3; level order takes
branches in turns; min-delta takes what frees most, or adds least. `exact_order.py` finds the best of all.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.errors import InternalError
from tilewright.progress import checkpoint
from tilewright.schedule.instances import InstanceGraph, Kind

Order = tuple[int, ...]


@dataclass(frozen=True, slots=True, order=True)
class OrderCost:
    """What does not fit the local buffers, summed over the nodes, and the most that is held at once."""

    overflow_bytes: int
    peak_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Demand:
    """What each node of an instance graph asks of the local buffers, by its place.

    `piece_bytes` it leaves for its readers (results of the network go to main memory and leave nothing), rows
    that it keeps for later instances included. `extra_bytes` it holds while it runs beside all buffers that
    are live before it: its peak without the buffers, and the rows, that it reads.
    """

    piece_bytes: tuple[int, ...]
    extra_bytes: tuple[int, ...]
    predecessors: tuple[tuple[int, ...], ...]
    successors: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, graph: InstanceGraph, peak_bytes: Mapping[int, int]) -> Demand:
        """From the peak of an instance of each subgraph, its inputs included.

        Raises:
            InternalError: a peak is below what an instance reads.
        """
        buffers: list[int] = []
        extra: list[int] = []
        for node in graph.nodes:
            made = sum(graph.bytes_of(v, r) for v, r in node.outputs.items() if v not in graph.results)
            read = {e.consumer for e in graph.readers(node.id)}
            buffers.append((made if read else 0) + graph.kept_bytes(node))
            if node.kind is Kind.INSTANCE:
                taken = sum(graph.bytes_of(e.value, e.region) for e in graph.reads(node.id))
                if node.rows is not None:
                    earlier = (graph.nodes[i] for i in graph.predecessors(node.id))
                    chain = (e for e in earlier if e.subgraph_id == node.subgraph_id)
                    taken += sum(graph.kept_bytes(e, node.rows.position) for e in chain)
                peak = peak_bytes[node.subgraph_id]
                if peak < taken:
                    raise InternalError(f"instance {node} reads {taken} bytes, but its peak is {peak}")
                extra.append(peak - taken)
            else:
                extra.append(made)
        every = range(len(graph.nodes))
        return cls(
            tuple(buffers),
            tuple(extra),
            tuple(graph.predecessors(i) for i in every),
            tuple(graph.successors(i) for i in every),
        )

    def cost_of(self, order: Sequence[int], capacity_bytes: int) -> OrderCost:
        """The cost of a complete order."""
        unread = [len(s) for s in self.successors]
        live = overflow = peak = 0
        for node in order:
            needed = live + self.extra_bytes[node]
            overflow += max(0, needed - capacity_bytes)
            peak = max(peak, needed)
            live += self.piece_bytes[node]
            for producer in self.predecessors[node]:
                unread[producer] -= 1
                if unread[producer] == 0:
                    live -= self.piece_bytes[producer]
        return OrderCost(overflow, peak)


def breadth_first(demand: Demand) -> Order:
    """Subgraph by subgraph: the order in which an instance graph holds its nodes."""
    return tuple(range(len(demand.successors)))


def depth_first(demand: Demand) -> Order:
    """Algorithm 3: of those that wait for nothing, what became a candidate last goes first. O(n log n)."""
    waiting = [len(p) for p in demand.predecessors]
    # A candidate keeps its place in the paper's list `ready` from the first of its producers on.
    place = {node: i for i, node in enumerate(n for n, count in enumerate(waiting) if count == 0)}
    ready = [(-p, node) for node, p in place.items()]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        checkpoint()
        _, node = heapq.heappop(ready)
        order.append(node)
        for successor in demand.successors[node]:
            waiting[successor] -= 1
            place.setdefault(successor, len(place))
            if waiting[successor] == 0:
                heapq.heappush(ready, (-place[successor], successor))
    return tuple(order)


def level_order(demand: Demand) -> Order:
    """By the length of the longest path to a node, then in the order of the graph, so that a node is far from
    what it waits for where branches run side by side. O(edges + n log n)."""
    levels = [0] * len(demand.predecessors)
    waiting = [len(p) for p in demand.predecessors]
    ready = [node for node, count in enumerate(waiting) if count == 0]
    while ready:
        checkpoint()
        node = ready.pop()
        for successor in demand.successors[node]:
            levels[successor] = max(levels[successor], levels[node] + 1)
            waiting[successor] -= 1
            if waiting[successor] == 0:
                ready.append(successor)
    return tuple(sorted(range(len(levels)), key=lambda node: levels[node]))


def min_delta(demand: Demand) -> Order:
    """The ready node that adds least to what is live, or frees most; ties go to the first. O(edges log n)."""
    waiting = [len(p) for p in demand.predecessors]
    unread = [len(s) for s in demand.successors]

    def delta(node: int) -> int:
        freed = sum(demand.piece_bytes[p] for p in demand.predecessors[node] if unread[p] == 1)
        return demand.piece_bytes[node] - freed

    known = {node: delta(node) for node, count in enumerate(waiting) if count == 0}
    ready = [(d, node) for node, d in known.items()]
    heapq.heapify(ready)
    done: set[int] = set()
    order: list[int] = []

    def push(node: int) -> None:
        known[node] = delta(node)
        heapq.heappush(ready, (known[node], node))

    while ready:
        checkpoint()
        stated, node = heapq.heappop(ready)
        if node in done or stated != known[node]:
            continue
        done.add(node)
        order.append(node)
        for producer in demand.predecessors[node]:
            unread[producer] -= 1
            if unread[producer] == 1:
                # Its last reader would free it now.
                last = next(s for s in demand.successors[producer] if s not in done)
                if waiting[last] == 0:
                    push(last)
        for successor in demand.successors[node]:
            waiting[successor] -= 1
            if waiting[successor] == 0:
                push(successor)
    return tuple(order)
