"""What IOS schedules: operators in topological order, their dependencies as bitmasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import or_

from tilewright.bit_sets import bits, components, union
from tilewright.errors import UsageError
from tilewright.partition.base import Partition
from tilewright.zoo.ios_blocks import ZooBlock


@dataclass(frozen=True, slots=True)
class StageGraph:
    """Operators 0..n-1, each after all that it reads; sets of them are bits of an int.

    `predecessors[i]`, `successors[i]` and both as `neighbours[i]` are direct, `descendants[i]` all that need
    operator i.
    """

    names: tuple[str, ...]
    predecessors: tuple[int, ...]
    successors: tuple[int, ...] = field(init=False)
    neighbours: tuple[int, ...] = field(init=False)
    descendants: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        if len(self.names) != len(self.predecessors):
            raise UsageError(f"{len(self.names)} operators, but predecessors of {len(self.predecessors)}.")
        successors = [0] * self.num_operators
        for index, mask in enumerate(self.predecessors):
            if mask >> index:
                raise UsageError(
                    f"operator {self.names[index]!r} reads one that does not come before it; "
                    "give operators in topological order."
                )
            for source in bits(mask):
                successors[source] |= 1 << index
        descendants = list(successors)
        for index in reversed(range(self.num_operators)):
            for target in bits(successors[index]):
                descendants[index] |= descendants[target]
        object.__setattr__(self, "successors", tuple(successors))
        object.__setattr__(self, "neighbours", tuple(map(or_, self.predecessors, successors)))
        object.__setattr__(self, "descendants", tuple(descendants))

    @classmethod
    def of_edges(cls, names: Sequence[str], edges: Iterable[tuple[str, str]]) -> StageGraph:
        """Of dependencies by name; operators keep their order as far as the edges let them.

        Raises:
            UsageError: a name twice, an edge of an operator that there is not, a cycle.

        >>> StageGraph.of_edges("abc", [("a", "b")]).predecessors
        (0, 1, 0)
        """
        sources = _sources(names, edges)
        order: list[str] = []
        waiting = {name: len(before) for name, before in sources.items()}
        readers: dict[str, list[str]] = {name: [] for name in names}
        for name, before in sources.items():
            for source in before:
                readers[source].append(name)
        place = {name: i for i, name in enumerate(names)}
        while ready := [name for name in names if waiting.get(name) == 0]:
            name = min(ready, key=place.__getitem__)
            order.append(name)
            del waiting[name]
            for reader in readers[name]:
                waiting[reader] -= 1
        if waiting:
            raise UsageError(
                f"operators wait for each other in a cycle: {', '.join(_cycle(waiting, sources))}."
            )
        numbers = {name: i for i, name in enumerate(order)}
        masks = (sum(1 << numbers[s] for s in sources[name]) for name in order)
        return cls(tuple(order), tuple(masks))

    @classmethod
    def of_partition(cls, partition: Partition) -> StageGraph:
        """The quotient graph of a partition: operator i is subgraph i."""
        names = tuple(subgraph.name for subgraph in partition.subgraphs)
        masks = (sum(1 << p.id for p in partition.predecessors(s)) for s in partition.subgraphs)
        return cls(names, tuple(masks))

    @classmethod
    def of_block(cls, block: ZooBlock) -> StageGraph:
        """A block of IOS's networks: operator i is unit i.

        Raises:
            UsageError: an edge is missing or leads nowhere, or the block has a cycle.
        """
        inside = {unit.id for unit in block.units}
        edges = set(block.edges)
        for unit in block.units:
            read = {piece.producer for term in unit.terms for piece in term} & inside
            for source in sorted(read):
                if (source, unit.id) not in edges:
                    raise UsageError(
                        f"block {block.label!r}: {unit.id!r} reads {source!r}, but there is no edge."
                    )
        return cls.of_edges([unit.id for unit in block.units], block.edges)

    @property
    def num_operators(self) -> int:
        """How many there are."""
        return len(self.names)

    @property
    def everything(self) -> int:
        """The set of all operators: the first state."""
        return (1 << self.num_operators) - 1

    def sinks(self, state: int) -> int:
        """The operators of a set that no other of the set reads."""
        return sum(1 << i for i in bits(state) if not self.successors[i] & state)

    def sources(self) -> int:
        """The operators that read none: those that can run first."""
        return sum(1 << i for i, before in enumerate(self.predecessors) if not before)

    def ready_after(self, done: int, ready: int, operator: int) -> int:
        """What can run when one more operator has run, of those that can beside `done`."""
        done |= 1 << operator
        opened = (i for i in bits(self.successors[operator]) if not self.predecessors[i] & ~done)
        return sum((1 << i for i in opened), ready & ~(1 << operator))

    def with_readers(self, mask: int) -> int:
        """A set and all that directly reads one of it: an ending of a state that holds no other of these."""
        return mask | union(self.successors[i] for i in bits(mask))

    def components(self, mask: int) -> tuple[int, ...]:
        """The weakly connected parts of a set, by their first operator. O(operators + edges of the set)."""
        return tuple(components(mask, self.neighbours.__getitem__))

    def connected_sets(self, largest: int) -> list[int]:
        """Every connected set of so many operators at most, ascending."""
        level = {1 << i for i in range(self.num_operators)}
        connected = set(level)
        for _ in range(largest - 1):
            level = {
                mask | 1 << neighbour
                for mask in level
                for i in bits(mask)
                for neighbour in bits(self.neighbours[i] & ~mask)
            }
            connected |= level
        return sorted(connected)

    def slice(self, start: int, stop: int) -> StageGraph:
        """The operators [start, stop) as a graph of their own."""
        keep = (1 << (stop - start)) - 1
        return StageGraph(
            self.names[start:stop], tuple(mask >> start & keep for mask in self.predecessors[start:stop])
        )


def _sources(names: Sequence[str], edges: Iterable[tuple[str, str]]) -> dict[str, dict[str, None]]:
    sources: dict[str, dict[str, None]] = {}
    for name in names:
        if name in sources:
            raise UsageError(f"operator {name!r} is given twice.")
        sources[name] = {}
    for source, target in edges:
        for name in (source, target):
            if name not in sources:
                raise UsageError(f"edge {source!r} to {target!r}: there is no operator {name!r}.")
        sources[target][source] = None
    return sources


def _cycle(waiting: Mapping[str, int], sources: Mapping[str, Mapping[str, None]]) -> list[str]:
    """One cycle among operators that wait, from its first back to it."""
    path: list[str] = []
    name = next(iter(waiting))
    while name not in path:
        path.append(name)
        name = next(source for source in sources[name] if source in waiting)
    return [*reversed(path[path.index(name) :]), path[-1]]
