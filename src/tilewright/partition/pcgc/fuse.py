"""Static fusion: operators joined by the rules until nothing more may be joined.

First what is stable: such clusters, the atoms, are never cut again. Then atoms whose fusion is to be
evaluated. Each round scans the clusters from the results on and tries the producers of each in their order,
until a scan changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass

from tilewright.hardware.capacity import local_capacity_bytes, shared_capacity_bytes
from tilewright.hardware.machine import Level, Machine
from tilewright.ir.derive import operator_class
from tilewright.ir.graph import Node, Value
from tilewright.partition.base import PartitionProblem
from tilewright.partition.fusion_records import Verdict
from tilewright.partition.pcgc.rules import RuleTable, heaviest
from tilewright.partition.quotient import QuotientGraph
from tilewright.progress import checkpoint

Edge = tuple[int, int, Value]
"""Producer and consumer by their positions, and what passes."""


@dataclass(frozen=True, slots=True)
class OnChip:
    """Bytes of one cluster's chip that values may take, and values and weights together; None: no limit."""

    values_bytes: int | None = None
    all_bytes: int | None = None

    @classmethod
    def of(cls, machine: Machine | None) -> OnChip:
        """Levels that schedules fill, of which a part is kept free of values; else the largest cache."""
        if machine is None:
            return NO_LIMIT
        filled = [level for level in (machine.local, machine.shared) if level is not None]
        shared = shared_capacity_bytes(machine)
        if shared is None or any(level.capacity_bytes is None for level in filled):
            return NO_LIMIT
        values_bytes = local_capacity_bytes(machine) + shared
        if values_bytes:
            return cls(values_bytes, sum(_cluster_bytes(machine, level) for level in filled))
        caches = [level for level in machine.levels[:-1] if level.capacity_bytes is not None]
        largest = max((_cluster_bytes(machine, level) for level in caches), default=0)
        return cls(largest, largest)

    def holds(self, working_set: WorkingSet) -> bool:
        """Whether a cluster runs without moving what passes inside it through main memory."""
        return (self.values_bytes is None or working_set.values_bytes <= self.values_bytes) and (
            self.all_bytes is None or working_set.all_bytes <= self.all_bytes
        )


NO_LIMIT = OnChip()


@dataclass(frozen=True, slots=True)
class WorkingSet:
    """Most bytes at any time of what passes between the atoms of a cluster, and of that with the weights of
    the atom that runs."""

    values_bytes: int
    all_bytes: int


def _cluster_bytes(machine: Machine, level: Level) -> int:
    assert level.capacity_bytes is not None
    return int(level.capacity_bytes * machine.num_instances_per_cluster(level))


@dataclass(frozen=True, slots=True)
class Fused:
    """Clusters of atoms, atoms of nodes by their positions; atoms in an order in which they can run."""

    clusters: tuple[tuple[int, ...], ...]
    atoms: tuple[tuple[int, ...], ...]
    atom_of: tuple[int, ...]
    cluster_of: tuple[int, ...]  # by atom

    def regrouped(self, home: Mapping[int, int], edges: Sequence[Edge]) -> Fused:
        """The same atoms in other clusters; an atom that reaches into several becomes its nodes."""
        parts = [
            part
            for atom in self.atoms
            for part in ([atom] if len({home[n] for n in atom}) == 1 else [(n,) for n in atom])
        ]
        number_of = {n: i for i, part in enumerate(parts) for n in part}
        pairs = {(number_of[u], number_of[v]) for u, v, _ in edges}
        readers: dict[int, list[int]] = {}
        for u, v in sorted(pairs):
            if u != v:
                readers.setdefault(u, []).append(v)
        order = _topological(len(parts), readers)
        atoms = tuple(parts[i] for i in order)
        atom_of = {n: i for i, atom in enumerate(atoms) for n in atom}
        clusters: dict[int, list[int]] = {}
        for number, atom in enumerate(atoms):
            clusters.setdefault(home[atom[0]], []).append(number)
        numbers = {cluster: i for i, cluster in enumerate(clusters)}
        return Fused(
            tuple(map(tuple, clusters.values())),
            atoms,
            tuple(atom_of[n] for n in range(len(self.atom_of))),
            tuple(numbers[home[atom[0]]] for atom in atoms),
        )


def _topological(count: int, readers: Mapping[int, Sequence[int]]) -> list[int]:
    """Numbers in an order in which none comes before what it reads."""
    waiting = [0] * count
    for others in readers.values():
        for other in others:
            waiting[other] += 1
    ready = [i for i in reversed(range(count)) if not waiting[i]]
    order: list[int] = []
    while ready:
        number = ready.pop()
        order.append(number)
        for other in readers.get(number, ()):
            waiting[other] -= 1
            if not waiting[other]:
                ready.append(other)
    return order


class StaticFusion:
    """The fusion of one graph by one table, within the capacity of the chip."""

    def __init__(self, problem: PartitionProblem, table: RuleTable, on_chip: OnChip) -> None:
        graph = problem.graph
        self.nodes: Sequence[Node] = graph.nodes
        self.table = table
        self.on_chip = on_chip
        self.quotient = QuotientGraph.of(graph)
        self.classes = [operator_class(node) for node in self.nodes]
        self._position = {node: i for i, node in enumerate(self.nodes)}
        self._results = frozenset(graph.outputs)
        self._class_of_atom = dict(enumerate(self.classes))
        self._atom_of = list(range(len(self.nodes)))
        self._atoms: tuple[tuple[int, ...], ...] = ()
        self._weights_bytes: tuple[int, ...] = ()
        self._stable = self.quotient  # before anything was joined that is to be evaluated
        types = problem.element_types
        dtypes = dict.fromkeys(v.dtype for v in graph.values())
        self._sizes = None if types is None else types.sizes(dtypes)
        self.edges = tuple(self._all_edges())
        self._reads: list[list[Edge]] = [[] for _ in self.nodes]
        for edge in self.edges:
            self._reads[edge[1]].append(edge)

    def run(self) -> Fused:
        """Everything that may be fused, fused: what is stable first."""
        self._to_fix_point(self._is_stable, self._join_atoms)
        self._stable = self.quotient.copy()
        self._atoms = tuple(self.quotient.members(cluster) for cluster in self.quotient.clusters)
        for number, atom in enumerate(self._atoms):
            for node in atom:
                self._atom_of[node] = number
        self._class_of_atom = {
            number: heaviest(self.classes[n] for n in atom) for number, atom in enumerate(self._atoms)
        }
        self._weights_bytes = tuple(map(self._weights_of, self._atoms))
        return self._evaluated()

    def with_known(self, known: Iterable[Sequence[int]], on_chip: OnChip | None = None) -> Fused:
        """The same after `run` where clusters are known to go together: they are joined before others may be.

        What is stable stays as it was. Another capacity may take the place of the chip's.
        """
        other = copy(self)
        other.quotient = self._stable.copy()
        other.on_chip = on_chip or self.on_chip
        for nodes in known:
            clusters = sorted({other.quotient.cluster_of(n) for n in nodes})
            if len(clusters) > 1 and other.quotient.can_contract_all(clusters):
                other.quotient.contract_all(clusters)
        return other._evaluated()

    def _evaluated(self) -> Fused:
        """Atoms joined until no more may be."""
        self._to_fix_point(self._may_be_evaluated, self.quotient.contract)
        found: dict[int, list[int]] = {}
        for number, atom in enumerate(self._atoms):
            found.setdefault(self.quotient.cluster_of(atom[0]), []).append(number)
        numbers = {cluster: i for i, cluster in enumerate(found)}
        return Fused(
            tuple(map(tuple, found.values())),
            self._atoms,
            tuple(self._atom_of),
            tuple(numbers[self.quotient.cluster_of(atom[0])] for atom in self._atoms),
        )

    def verdict(self, edge: Edge) -> Verdict:
        """What the rules say of an edge: of its operators, and of the atoms that these are part of."""
        producer, consumer, _ = edge
        of_nodes = self.table.of(self.classes[producer], self.classes[consumer])
        atoms = self._atom_of[producer], self._atom_of[consumer]
        if atoms[0] == atoms[1]:
            return of_nodes
        of_atoms = self.table.of(self._class_of_atom[atoms[0]], self._class_of_atom[atoms[1]])
        return max(of_nodes, of_atoms, key=lambda verdict: verdict.rank)

    def working_set(self, nodes: Sequence[int]) -> WorkingSet:
        """What a cluster of nodes, given in order, holds at most."""
        inside = set(nodes)
        changes: dict[int, int] = {}
        for node in nodes:
            for value in self.nodes[node].results():
                readers = [self._position[u] for u in value.users]
                kept = [r for r in readers if r in inside and self._atom_of[r] != self._atom_of[node]]
                if kept:
                    size = self._bytes_of(value)
                    changes[node] = changes.get(node, 0) + size
                    changes[max(kept) + 1] = changes.get(max(kept) + 1, 0) - size
        values = both = live = 0
        for place in sorted(changes.keys() | inside):
            live += changes.get(place, 0)
            values = max(values, live)
            if place in inside:
                both = max(both, live + self._weights_bytes[self._atom_of[place]])
        return WorkingSet(values, both)

    def _to_fix_point(self, may_join: Callable[[int, int], bool], join: Callable[[int, int], int]) -> None:
        has_changed = True
        while has_changed:
            has_changed = False
            for cluster in reversed(self.quotient.clusters):
                if self.quotient.cluster_of(cluster) != cluster:
                    continue  # joined to its reader in this scan
                has_changed |= self._grow(cluster, may_join, join)

    def _grow(
        self, cluster: int, may_join: Callable[[int, int], bool], join: Callable[[int, int], int]
    ) -> bool:
        """Join producers to a cluster until none may be; whether any was."""
        has_grown = False
        is_growing = True
        while is_growing:
            checkpoint()
            is_growing = False
            # What was computed last comes first: its other readers are fused by then.
            for producer in reversed(self.quotient.predecessors(cluster)):
                if may_join(producer, cluster) and self.quotient.can_contract(producer, cluster):
                    cluster = join(producer, cluster)
                    has_grown = is_growing = True
                    break
        return has_grown

    def _join_atoms(self, u: int, v: int) -> int:
        classes = (self._class_of_atom.pop(u), self._class_of_atom.pop(v))
        moved = (*self.quotient.members(u), *self.quotient.members(v))
        joined = self.quotient.contract(u, v)
        self._class_of_atom[joined] = heaviest(classes)
        for node in moved:
            self._atom_of[node] = joined
        return joined

    def _is_stable(self, producer: int, consumer: int) -> bool:
        """Whether every edge between two clusters is stable and nothing else reads what passes."""
        edges = list(self._edges_between(producer, consumer))
        inside = {*self.quotient.members(producer), *self.quotient.members(consumer)}
        return all(
            self.verdict(edge) is Verdict.STABLE
            and edge[2] not in self._results
            and all(self._position[user] in inside for user in edge[2].users)
            for edge in edges
        )

    def _may_be_evaluated(self, producer: int, consumer: int) -> bool:
        edges = self._edges_between(producer, consumer)
        if any(self.verdict(edge) is Verdict.PROHIBITED for edge in edges):
            return False
        if self.on_chip == NO_LIMIT:
            return True
        nodes = sorted((*self.quotient.members(producer), *self.quotient.members(consumer)))
        return self.on_chip.holds(self.working_set(nodes))

    def _edges_between(self, producer: int, consumer: int) -> Iterator[Edge]:
        for node in self.quotient.members(consumer):
            for edge in self._reads[node]:
                if self.quotient.cluster_of(edge[0]) == producer:
                    yield edge

    def _all_edges(self) -> Iterator[Edge]:
        for consumer, node in enumerate(self.nodes):
            for value in dict.fromkeys(node.operands()):
                if value.producer is not None:
                    yield self._position[value.producer], consumer, value

    def _weights_of(self, atom: Sequence[int]) -> int:
        """Bytes of the constants that an atom reads."""
        operands = dict.fromkeys(v for n in atom for v in self.nodes[n].operands())
        return sum(self._bytes_of(value) for value in operands if value.is_constant)

    def _bytes_of(self, value: Value) -> int:
        if self._sizes is None:
            return value.size_bytes
        return value.num_elements * self._sizes[str(value.dtype)]
