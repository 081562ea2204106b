"""The arena of a graph of kernels: two buffers share memory only where the graph's edges keep them apart.

There are no steps on a GPU: what has no path between it may run at the same time, and in either order. So a
buffer may lie where another lay if every use of that one comes before its definition by edges, or if edges
are added that make it so and leave the longest path through the graph as long as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product

from tilewright.memory.base import ARENA, Buffer, MemoryLevel, MemoryPlan, MemoryProblem
from tilewright.planning import Infeasible
from tilewright.records import dataclass
from tilewright.targets.cuda.device import ALIGNMENT_BYTES

After = Sequence[Sequence[int]]
"""For each node of a graph the nodes that it follows; all come before it."""
Solve = Callable[[MemoryProblem], MemoryPlan | Infeasible]
Edge = tuple[int, int]


@dataclass(frozen=True, slots=True)
class GraphBuffer:
    """A buffer of an arena, and the nodes that use it, ascending: those that no other comes before define it.

    `may_reuse` names buffers in whose place it may be written where their last use is that node.
    """

    name: str
    size_bytes: int
    uses: tuple[int, ...]
    may_reuse: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GraphArena:
    """Offsets of all buffers, and the edges that these need beside those of the graph."""

    plan: MemoryPlan
    added: tuple[Edge, ...] = ()


def place_in_graph(
    after: After,
    buffers: Sequence[GraphBuffer],
    durations_ns: Sequence[float],
    solve: Solve,
    level: MemoryLevel = ARENA,
) -> GraphArena | Infeasible:
    """The smaller of two arenas: by the graph's edges alone, and with edges added where time allows."""
    before = ancestors(after)
    plan = solve(_problem(buffers, _apart(before), level))
    ordered = _ordered(after, durations_ns)
    if ordered == before:
        return plan if isinstance(plan, Infeasible) else GraphArena(plan)
    smaller = solve(_problem(buffers, _apart(ordered), level))
    if isinstance(smaller, Infeasible):
        return plan if isinstance(plan, Infeasible) else GraphArena(plan)
    if not isinstance(plan, Infeasible) and plan.peak_bytes <= smaller.peak_bytes:
        return GraphArena(plan)
    return GraphArena(smaller, _needed_edges(after, buffers, smaller))


def _apart(before: Sequence[int]) -> list[int]:
    """For each node, as bits, those that no path connects with it, given those `before` each.

    >>> [bin(others) for others in _apart([0b0, 0b1, 0b1])]
    ['0b0', '0b100', '0b10']
    """
    connected = [mask | (1 << node) for node, mask in enumerate(before)]
    for node, mask in enumerate(before):
        for other in _bits(mask):
            connected[other] |= 1 << node
    whole = (1 << len(before)) - 1
    return [whole & ~mask for mask in connected]


def ancestors(after: After) -> list[int]:
    """For each node, as bits, those from which a path leads to it."""
    masks: list[int] = []
    for nodes in after:
        masks.append(_closure(nodes, masks))
    return masks


def _closure(nodes: Sequence[int], masks: Sequence[int]) -> int:
    """These nodes and all before them."""
    mask = 0
    for node in nodes:
        mask |= masks[node] | 1 << node
    return mask


def _problem(buffers: Sequence[GraphBuffer], apart: Sequence[int], level: MemoryLevel) -> MemoryProblem:
    """The problem whose steps are nodes; what may run at the same time never shares memory."""
    placed = []
    for buffer in buffers:
        used = beside = 0
        for node in buffer.uses:
            used |= 1 << node
            beside |= apart[node]
        placed.append(
            Buffer(
                buffer.name,
                buffer.size_bytes,
                buffer.uses[0],
                buffer.uses[-1],
                ALIGNMENT_BYTES,
                buffer.may_reuse,
                used=used,
                beside=beside,
            )
        )
    return MemoryProblem(tuple(placed), (level,))


def _ordered(after: After, durations_ns: Sequence[float]) -> list[int]:
    """The nodes before each node if it also follows all nodes that end early enough for it.

    What a node follows is known before it is looked at, and what follows it is not changed yet: so it is
    enough that its own longest path to the end of the graph begins late enough.
    """
    count = len(after)
    tails, ends = list(durations_ns), [0.0] * count
    for node in reversed(range(count)):
        for other in after[node]:
            tails[other] = max(tails[other], durations_ns[other] + tails[node])
    longest = max(tails, default=0.0) * (1 + 1e-9)
    ordered: list[int] = []
    for node, direct in enumerate(after):
        follows = list(direct)
        mask = _closure(follows, ordered)
        while free := ~mask & ((1 << node) - 1):
            other = free.bit_length() - 1
            mask |= 1 << other
            if ends[other] + tails[node] <= longest:
                follows.append(other)
                mask |= ordered[other]
        ends[node] = durations_ns[node] + max((ends[other] for other in follows), default=0.0)
        ordered.append(_closure(follows, ordered))
    return ordered


def _needed_edges(after: After, buffers: Sequence[GraphBuffer], plan: MemoryPlan) -> tuple[Edge, ...]:
    """Edges by which buffers that share memory follow each other where the graph has no path."""
    added: list[Edge] = []
    before = ancestors(after)
    order = sorted(buffers, key=lambda buffer: buffer.uses)
    for place, new in enumerate(order):
        start = plan.offsets[new.name]
        firsts = [node for node in new.uses if not any(before[node] >> other & 1 for other in new.uses)]
        for old in order[:place]:
            other = plan.offsets[old.name]
            if start >= other + old.size_bytes or other >= start + new.size_bytes:
                continue
            for node, first in product(old.uses, firsts):
                if node != first and not before[first] >> node & 1:
                    added.append((node, first))
                    reached = before[node] | 1 << node
                    for later in range(first, len(before)):
                        if later == first or before[later] >> first & 1:
                            before[later] |= reached
    return tuple(added)


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
