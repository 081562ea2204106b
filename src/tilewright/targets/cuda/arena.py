"""The arena of a graph of kernels: two buffers share memory only where the graph's edges keep them apart.

There are no steps on a GPU: what has no path between it may run at the same time, and in either order. So a
buffer may lie where another lay if every use of that one comes before its definition by edges, or if edges
are added that make it so and leave the longest path through the graph as long as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tilewright.memory.base import ARENA, Buffer, MemoryLevel, MemoryPlan, MemoryProblem
from tilewright.planning import Infeasible
from tilewright.records import dataclass
from tilewright.targets.cuda.device import ALIGNMENT_BYTES

MAX_ROUNDS = 8
"""Plans with added edges that are tried: each drops the edges with which the one before got slower."""

After = Sequence[Sequence[int]]
"""For each node of a graph the nodes that it follows; all come before it."""
Solve = Callable[[MemoryProblem], MemoryPlan | Infeasible]
Edge = tuple[int, int]


@dataclass(frozen=True, slots=True)
class GraphBuffer:
    """A buffer of an arena, and the nodes that use it, ascending: the first defines it.

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
    apart = unordered(after)
    plan = solve(_problem(buffers, apart, level))
    best = plan if isinstance(plan, Infeasible) else GraphArena(plan)
    times = _Times(after, durations_ns)
    refused: set[Edge] = set()
    for _ in range(MAX_ROUNDS):
        cheap = [_without_cheap(node, others, times, refused) for node, others in enumerate(apart)]
        if cheap == apart:
            break
        plan = solve(_problem(buffers, cheap, level))
        if isinstance(plan, Infeasible):
            break
        if isinstance(best, GraphArena) and plan.peak_bytes >= best.plan.peak_bytes:
            break
        added, slower = _needed_edges(after, buffers, durations_ns, plan)
        if not slower:
            return GraphArena(plan, added)
        refused |= slower
    return best


def unordered(after: After) -> list[int]:
    """For each node, as bits, those that no path connects with it.

    >>> [bin(others) for others in unordered([(), (0,), (0,)])]
    ['0b0', '0b100', '0b10']
    """
    before = ancestors(after)
    connected = [mask | (1 << node) for node, mask in enumerate(before)]
    for node, mask in enumerate(before):
        for other in _bits(mask):
            connected[other] |= 1 << node
    whole = (1 << len(after)) - 1
    return [whole & ~mask for mask in connected]


def ancestors(after: After) -> list[int]:
    """For each node, as bits, those from which a path leads to it."""
    masks: list[int] = []
    for nodes in after:
        mask = 0
        for node in nodes:
            mask |= masks[node] | (1 << node)
        masks.append(mask)
    return masks


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


class _Times:
    """When nodes end at the earliest, and how long it takes from their start to the end of the graph."""

    def __init__(self, after: After, durations_ns: Sequence[float]) -> None:
        count = len(after)
        self.ends, self.tails = [0.0] * count, list(durations_ns)
        for node in range(count):
            self.ends[node] = durations_ns[node] + max(
                (self.ends[before] for before in after[node]), default=0.0
            )
        for node in reversed(range(count)):
            for before in after[node]:
                self.tails[before] = max(self.tails[before], durations_ns[before] + self.tails[node])
        self.longest = max(self.ends, default=0.0)

    def allow(self, edge: Edge) -> bool:
        """Whether the longest path stays as long with an edge."""
        return self.ends[edge[0]] + self.tails[edge[1]] <= self.longest * (1 + 1e-9)


def _without_cheap(node: int, others: int, times: _Times, refused: set[Edge]) -> int:
    """Those of the nodes beside a node that no edge may order."""
    kept = 0
    for other in _bits(others):
        edge = (min(node, other), max(node, other))
        if edge in refused or not times.allow(edge):
            kept |= 1 << other
    return kept


def _needed_edges(
    after: After, buffers: Sequence[GraphBuffer], durations_ns: Sequence[float], plan: MemoryPlan
) -> tuple[tuple[Edge, ...], set[Edge]]:
    """The edges that a plan needs; or those of them with which the longest path would be longer."""
    added: list[Edge] = []
    slower: set[Edge] = set()
    whole = [list(nodes) for nodes in after]
    before, times = ancestors(whole), _Times(whole, durations_ns)
    order = sorted(buffers, key=lambda buffer: buffer.uses)
    for place, new in enumerate(order):
        start = plan.offsets[new.name]
        for old in order[:place]:
            other = plan.offsets[old.name]
            if start >= other + old.size_bytes or other >= start + new.size_bytes:
                continue
            for node in old.uses:
                edge = (node, new.uses[0])
                if node == edge[1] or before[edge[1]] >> node & 1:
                    continue
                if node > edge[1] or not times.allow(edge):
                    slower.add(edge)
                    continue
                added.append(edge)
                whole[edge[1]].append(node)
                before, times = ancestors(whole), _Times(whole, durations_ns)
    return tuple(added), slower


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
