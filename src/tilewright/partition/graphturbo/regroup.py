"""Partitions with groups of layers and splits as asked for.

Where `merge.py` grows subgraphs by the paper's rules, here any groups may be named whose instances fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.ir.graph import Value
from tilewright.partition.base import Partition, PartitionProblem, build_partition
from tilewright.partition.footprint import SubgraphPart
from tilewright.partition.graphturbo.merge import Member
from tilewright.partition.graphturbo.planner import GraphTurbo, Reasons, nodes_of, with_splits
from tilewright.partition.split import WHOLE, Split
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
        self._singles = [self.splitter.footprints.single(layer, i) for i, layer in enumerate(self.layers)]
        self._home = {v: i for i, layer in enumerate(self.layers) for v in layer.outputs}
        self._results = set(graph.outputs)
        self._readers: dict[int, tuple[int, ...]] = dict.fromkeys(range(len(self.layers)), ())
        for number, layer in enumerate(self.layers):
            for maker in dict.fromkeys(self._home[v] for v in layer.inputs if v in self._home):
                self._readers[maker] += (number,)
        self._members: dict[Group, Member | None] = {}

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
                self.problem, [nodes_of(m) for m in members], Reasons(members), Provenance("regrouped")
            )
        except ValueError:
            return None
        return with_splits(partition, members, self.splitter, self.sizes)

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
            part = self.splitter.footprints.joined([self._singles[i] for i in group.layers], outputs)
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
