"""Starting partitions: clusters of atoms as rules or a default partition made them, and their re-cutting."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from tilewright.partition.pcgc.fuse import Edge, Fused, StaticFusion
from tilewright.partition.pcgc.pieces import Cost, Pieces, Pricer
from tilewright.partition.pcgc.recut import Cutting, Exact, greedy, whole

Recut = Literal["exact", "greedy", "none"]
StartName = Literal[
    "static-fusion", "rules-alone", "layerwise", "layerwise-fused-on", "graphturbo", "graphturbo-fused-on"
]
"""A starting partition: what the rules fuse within the chip's capacity or without regard to it; a default
partition as it is, or with what the rules fuse beyond it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A start with its clusters taken apart: nodes by their positions, and what they cost."""

    start: Start
    clusters: tuple[tuple[int, ...], ...]
    cost: Cost


@dataclass(eq=False)
class Start:
    """Clusters, and how they are cut again."""

    name: StartName
    pieces: tuple[Pieces, ...]
    recut: Recut
    is_default: bool = False

    def plan(self, cutting: Cutting) -> Plan:
        """Clusters cut so."""
        cut = zip(self.pieces, cutting.parts, strict=True)
        return Plan(self, tuple(p.nodes_of(part) for p, parts in cut for part in parts), cutting.cost)

    @cached_property
    def whole(self) -> Plan:
        """Nothing cut."""
        return self.plan(whole(self.pieces))

    def at(self, price: float) -> Plan:
        """The best at a price of the secondary cost."""
        if self.recut == "none":
            return self.whole
        return self.plan(self._exact.at(price) if self.recut == "exact" else greedy(self.pieces, price=price))

    @cached_property
    def _exact(self) -> Exact:
        return Exact(self.pieces)

    @cached_property
    def home(self) -> Mapping[int, int]:
        """The cluster of each node."""
        return {n: i for i, pieces in enumerate(self.pieces) for atom in pieces.atoms for n in atom}

    @cached_property
    def atom(self) -> Mapping[int, tuple[int, int]]:
        """The cluster of each node, and the number of its atom in it."""
        return {
            n: (i, a)
            for i, pieces in enumerate(self.pieces)
            for a, atom in enumerate(pieces.atoms)
            for n in atom
        }

    def costs(self, producer: int, consumer: int, home: Mapping[int, int]) -> tuple[float, float] | None:
        """Of the fusion of an edge, if both were priced: its two parts as one, and apart.

        `home` is the part in which each node is at last: the two ends' parts, or the one of both taken apart.
        """
        number, reader = self.atom[consumer]
        pieces = self.pieces[number]
        ends = [
            sum(1 << i for i, atom in enumerate(pieces.atoms) if home[atom[0]] == home[end])
            for end in (producer, consumer)
        ]
        if ends[0] == ends[1]:
            side = pieces.behind(reader, ends[0])
            ends = [ends[0] & ~side, side]
        together, *apart = (pieces.pricer.known(pieces.nodes_of(mask)) for mask in (ends[0] | ends[1], *ends))
        known = [cost.target for cost in apart if cost is not None]
        return (together.target, sum(known)) if together is not None and len(known) == 2 else None


def pieces_of(fusion: StaticFusion, fused: Fused, pricer: Pricer) -> Iterator[Pieces]:
    """The clusters of a fusion."""
    pairs: list[dict[tuple[int, int], list[Edge]]] = [{} for _ in fused.clusters]
    places = {atom: i for cluster in fused.clusters for i, atom in enumerate(cluster)}
    for edge in fusion.edges:
        u, v = fused.atom_of[edge[0]], fused.atom_of[edge[1]]
        if u != v and fused.cluster_of[u] == fused.cluster_of[v]:
            pairs[fused.cluster_of[u]].setdefault((places[u], places[v]), []).append(edge)
    for cluster, edges in zip(fused.clusters, pairs, strict=True):
        passing = [edge for pair in sorted(edges) for edge in edges[pair]]
        yield Pieces([fused.atoms[a] for a in cluster], sorted(edges), pricer, passing)
