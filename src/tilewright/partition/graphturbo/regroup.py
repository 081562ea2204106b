"""Partitions with groups of layers and splits as asked for, and the ways to change them a little.

Where `merge.py` grows subgraphs by the paper's rules, here any groups may be named whose instances fit: what
a search needs. Groups of the same structure, as the blocks of a transformer, are changed together.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from tilewright.ir.graph import Value
from tilewright.partition.base import Partition, PartitionProblem, build_partition
from tilewright.partition.footprint import SubgraphPart, joined, single
from tilewright.partition.graphturbo.merge import Member
from tilewright.partition.graphturbo.planner import (
    GraphTurbo,
    Reasons,
    nodes_of,
    with_splits,
)
from tilewright.partition.layers import Layer
from tilewright.partition.split import WHOLE, Split, split_of
from tilewright.planning import Provenance


@dataclass(frozen=True, slots=True)
class Group:
    """Layers, by their numbers in canonical order, that are one subgraph, and how it is split."""

    layers: tuple[int, ...]
    split: Split


Groups = tuple[Group, ...]
"""All groups of a network, by their first layers."""


class Regrouper:
    """Partitions of a problem's graph with given groups, whose instances fit what `planner` plans with."""

    def __init__(self, problem: PartitionProblem, planner: GraphTurbo) -> None:
        graph, known = problem.graph, problem.analysis
        self.problem = problem
        self.sizes = planner.element_sizes(problem)
        self.splitter = planner.splitter(problem)
        self.layers = known.layers(fuse_joins=planner.fuse_joins)
        self.axes = known.axes
        self._singles = [single(layer, i) for i, layer in enumerate(self.layers)]
        self._home = {v: i for i, layer in enumerate(self.layers) for v in layer.outputs}
        self._results = set(graph.outputs)
        self._readers: dict[int, tuple[int, ...]] = dict.fromkeys(range(len(self.layers)), ())
        for number, layer in enumerate(self.layers):
            for maker in dict.fromkeys(self._home[v] for v in layer.inputs if v in self._home):
                self._readers[maker] += (number,)
        self._members: dict[Group, Member | None] = {}

    def groups_of(self, partition: Partition) -> Groups:
        """The groups of a partition of the same layers."""
        number = {layer.nodes[0]: i for i, layer in enumerate(self.layers)}
        found = [
            Group(tuple(sorted(number[layer.nodes[0]] for layer in partition.layers_of(subgraph))), split)
            for subgraph, split in zip(partition.subgraphs, partition.splits, strict=True)
        ]
        return tuple(sorted(found, key=lambda group: group.layers))

    def partition(self, groups: Groups) -> Partition | None:
        """The partition with these groups; None where one has several results, does not fit, or they depend
        on each other in a circle."""
        members: list[Member] = []
        for group in groups:
            member = self._member(group)
            if member is None:
                return None
            members.append(member)
        try:
            partition = build_partition(
                self.problem, [nodes_of(m) for m in members], Reasons(members), Provenance("search")
            )
        except ValueError:
            return None
        return with_splits(partition, members, self.splitter, self.sizes)

    def fits(self, group: Group) -> bool:
        """Whether it may be a subgraph that is split so."""
        return self._member(group) is not None

    def _member(self, group: Group) -> Member | None:
        if group not in self._members:
            self._members[group] = self._build(group)
        return self._members[group]

    def _build(self, group: Group) -> Member | None:
        if len(group.layers) == 1:
            part = self._singles[group.layers[0]]
            if part.is_opaque:
                return Member(part, (), None)
        else:
            outputs = self.results_of(group.layers)
            if len(outputs) != 1 or any(self.layers[i].is_opaque for i in group.layers):
                return None
            part = joined([self._singles[i] for i in group.layers], outputs)
        if not self._can_cut(part, group.split):
            return None
        option = self.splitter.option_of(part, group.split)
        if option is None:
            return Member(part, (), None) if part.layer is not None and group.split == WHOLE else None
        if option.recompute > self.splitter.rules.recompute_limit:
            return None
        return Member(part, (option,), option)

    @staticmethod
    def _can_cut(part: SubgraphPart, split: Split) -> bool:
        """Whether slices are equal, as those are that the partitioner proposes."""
        shapes = [v.shape for v in part.outputs]
        return all(dim < len(s) and s[dim] % factor == 0 for s in shapes for dim, factor in split.cuts)

    def results_of(self, layers: Sequence[int]) -> tuple[Value, ...]:
        """What layers together make for others."""
        inside = set(layers)
        return tuple(
            v
            for i in layers
            for v in self.layers[i].outputs
            if v in self._results
            or any(r not in inside and v in self.layers[r].inputs for r in self._readers[i])
        )

    def producers(self, groups: Groups, group: Group) -> Iterator[Group]:
        """Groups that make what another one reads."""
        home = {i: g for g in groups for i in g.layers}
        found = dict.fromkeys(
            home[self._home[v]] for i in group.layers for v in self.layers[i].inputs if v in self._home
        )
        yield from (g for g in found if g is not group)

    def prefixes(self, layers: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """The beginnings of a group that make one value for the rest: all that one of its layers needs."""
        inside = set(layers)
        for last in layers[:-1]:
            needed = {last}
            stack = [last]
            while stack:
                for value in self.layers[stack.pop()].inputs:
                    maker = self._home.get(value)
                    if maker in inside and maker is not None and maker not in needed:
                        needed.add(maker)
                        stack.append(maker)
            prefix = tuple(i for i in layers if i in needed)
            if len(prefix) < len(layers) and len(self.results_of(prefix)) == 1:
                yield prefix

    def finer(self, group: Group) -> Iterator[Split]:
        """A group's split with twice and with half as many slices, along its axis or one that can be cut."""
        part = self._singles[group.layers[-1]]
        cuts = group.split.cuts
        dims = [cuts[0][0]] if cuts else [d for d, e in enumerate(part.outputs[0].shape) if e > 1]
        for dim in dims:
            factor = cuts[0][1] if cuts else 1
            units = self.axes.units_of(part.outputs[0], dim)
            if not cuts and units == 1:
                continue
            yield split_of(((dim, factor * 2), *cuts[1:]))
            if factor % 2 == 0:
                yield split_of(((dim, factor // 2), *cuts[1:]))

    def structure(self, group: Group) -> Hashable:
        """What groups that can be changed alike have in common."""
        first = group.layers[0]
        return (
            group.split,
            tuple(i - first for i in group.layers),
            tuple(_structure(self.layers[i]) for i in group.layers),
        )


def _structure(layer: Layer) -> Hashable:
    return tuple((n.op_type, tuple(v.shape for v in n.results())) for n in layer.nodes)
