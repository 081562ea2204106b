"""Subgraphs of one input become one: which may, what the merged one is, and the partition that has it.

The rule is that of `ir/merge.py`, applied to whole subgraphs: a convolution and the activation behind it
merge with others of the kind. Siblings depend on nothing but what all of them read, so that merging makes no
cycle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from tilewright.ir.extract import twin_of, without_nodes
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ir.merge import MergedOperators, mergeable
from tilewright.partition.base import EdgeDecision, Partition, Reason, Subgraph, data_edges, make_subgraph
from tilewright.partition.fusion_records import FusionRecord
from tilewright.partition.layers import Layer, layer_of
from tilewright.partition.split import WHOLE
from tilewright.progress import checkpoint
from tilewright.records import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class MergedPartition:
    """A partition with merged siblings, and the number there of each subgraph of the one before."""

    partition: Partition
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class MergedWork:
    """Merged operators and the split of their result, in a graph of their own: one kernel, as `KernelWork`.

    What the split makes is written where it belongs, so that it costs nothing.
    """

    nodes: tuple[Node, ...]
    outputs: tuple[Value, ...]


def merge_sets(partition: Partition, *, pads_kernels: bool = True) -> tuple[frozenset[int], ...]:
    """The maximal sets of subgraphs that may become one kernel, by their numbers; every subset may, too.

    Where `pads_kernels` is false, kernels of convolutions that would have to be padded with zeros stay apart.
    """
    by_input: dict[Value, list[Subgraph]] = {}
    given = frozenset(partition.graph.inputs)
    for subgraph in partition.subgraphs:
        is_fixed = subgraph.constants and given.isdisjoint(subgraph.constants)
        if is_fixed and subgraph.inputs and len(subgraph.outputs) == 1:
            by_input.setdefault(subgraph.inputs[0], []).append(subgraph)
    sets: list[list[Subgraph]] = []
    for readers in by_input.values():
        checkpoint()
        alike: list[list[Subgraph]] = []
        for subgraph in readers if len(readers) > 1 else ():
            for others in alike:
                if merged_operators((others[0], subgraph), pads_kernels=pads_kernels) is not None:
                    others.append(subgraph)
                    break
            else:
                alike.append([subgraph])
        sets += (siblings for siblings in alike if len(siblings) > 1)
    numbers = [frozenset(s.id for s in siblings) for siblings in sets]
    return tuple(sorted(numbers, key=min))


def merged_operators(subgraphs: Sequence[Subgraph], *, pads_kernels: bool = True) -> MergedOperators | None:
    """What these subgraphs are as one; None where the rule forbids it."""
    if len({len(s.nodes) for s in subgraphs}) != 1:
        return None
    for subgraph in subgraphs:
        if subgraph.form is not None or subgraph.outputs != tuple(subgraph.nodes[-1].results()):
            return None
    return mergeable([s.nodes for s in subgraphs], pads_kernels=pads_kernels)


def merged_work(subgraphs: Sequence[Subgraph], *, pads_kernels: bool = True) -> MergedWork | None:
    """The merged operator and its results, the parts of it, as work that can be priced.

    Concatenated constants have their shapes but no elements. None where the subgraphs do not merge.
    """
    operators = merged_operators(subgraphs, pads_kernels=pads_kernels)
    if operators is None:
        return None
    graph = Graph("merged")
    twin: dict[Value, Value] = {}
    for value in (v for s in subgraphs for v in (*s.inputs, *s.constants)):
        if value not in twin:
            twin[value] = Value(value.name, value.dtype, value.shape, value.data)
            if not value.is_constant:
                graph.add_input(twin[value])
    results = [Value(v.name, v.dtype, v.shape) for s in subgraphs for v in s.outputs]
    nodes = operators.build(graph, twin, results, is_priced_only=True)
    graph.outputs = results
    return MergedWork(nodes, tuple(results))


def merge_siblings(
    partition: Partition,
    sets: Iterable[Sequence[int]],
    *,
    pads_kernels: bool = True,
    is_priced_only: bool = False,
) -> MergedPartition:
    """The partition of a graph in which each of these sets of subgraphs is one, in the place of its first.

    The graph is a new one, in which results keep their names. Merged subgraphs run whole. The stated cost is
    that of the partition before. Where it `is_priced_only`, merged constants have no elements.

    Raises:
        ValueError: a set may not merge, or two sets have a subgraph in common.
    """
    return _Rewriting(partition, [sorted(ids) for ids in sets], pads_kernels, is_priced_only).run()


class _Rewriting:
    def __init__(
        self, partition: Partition, sets: Sequence[Sequence[int]], pads_kernels: bool, is_priced_only: bool
    ) -> None:
        self.partition = partition
        self.is_priced_only = is_priced_only
        self.first: dict[int, tuple[Sequence[int], MergedOperators]] = {}
        self.absorbed: dict[int, int] = {}
        for ids in sets:
            operators = merged_operators([partition.subgraphs[i] for i in ids], pads_kernels=pads_kernels)
            if operators is None or not self.absorbed.keys().isdisjoint(ids):
                raise ValueError(f"subgraphs {list(ids)} do not merge")
            self.first[ids[0]] = (ids, operators)
            self.absorbed.update(dict.fromkeys(ids, ids[0]))
        self.graph, self.values = without_nodes(partition.graph)
        self.makers: dict[Node, Node] = {}  # of an old node's result
        self.readers: dict[Node, Node] = {}  # of an old node's operands
        self.subgraphs: list[tuple[Node, ...]] = []

    def run(self) -> MergedPartition:
        ids: list[int] = []
        for subgraph in self.partition.subgraphs:
            checkpoint()
            first = self.absorbed.get(subgraph.id, subgraph.id)
            if first != subgraph.id:
                ids.append(ids[first])
                continue
            ids.append(len(self.subgraphs))
            if subgraph.id in self.first:
                self.subgraphs.append(self._merged(*self.first[subgraph.id]))
            else:
                self.subgraphs.append(tuple(map(self._twin, subgraph.nodes)))
        self.graph.outputs = [self._copied(v) for v in self.partition.graph.outputs]
        return MergedPartition(self._partition(ids), tuple(ids))

    def _copied(self, value: Value) -> Value:
        if value not in self.values:
            self.values[value] = Value(value.name, value.dtype, value.shape, value.data)
        return self.values[value]

    def _twin(self, node: Node) -> Node:
        twin = self.graph.append(twin_of(node, self._copied))
        self.makers[node] = self.readers[node] = twin
        return twin

    def _merged(self, ids: Sequence[int], operators: MergedOperators) -> tuple[Node, ...]:
        members = [self.partition.subgraphs[i] for i in ids]
        for value in (v for s in members for v in (*s.inputs, *s.constants)):
            self._copied(value)
        results = [self._copied(v) for s in members for v in s.outputs]
        nodes = operators.build(self.graph, self.values, results, is_priced_only=self.is_priced_only)
        for member in members:
            for node, merged in zip(member.nodes, nodes, strict=False):
                self.readers[node] = self.makers[node] = merged
                if node is not member.nodes[-1]:
                    self.values[node.output] = merged.output
            self.makers[member.nodes[-1]] = nodes[-1]
        return nodes

    def _partition(self, ids: Sequence[int]) -> Partition:
        old = self.partition
        place = {new: i for i, new in reversed(list(enumerate(ids)))}
        subgraphs: list[Subgraph] = []
        for number, nodes in enumerate(self.subgraphs):
            subgraph = make_subgraph(number, nodes, self.graph)
            subgraphs.append(replace(subgraph, form=old.subgraphs[place[number]].form))
        return replace(
            old,
            graph=self.graph,
            subgraphs=tuple(subgraphs),
            decisions=tuple(self._decisions()),
            fusions=tuple(self._fusions()),
            splits=tuple(
                WHOLE if place[i] in self.first else old.splits[place[i]] for i in range(len(subgraphs))
            ),
            layers=tuple(self._layers(place)),
            weighed=None,
        )

    def _decisions(self) -> Iterable[EdgeDecision]:
        reasons: dict[tuple[Node, Node, Value], Reason] = {}
        for d in self.partition.decisions:
            edge = (self.makers[d.producer], self.readers[d.consumer], self.values[d.value])
            reasons.setdefault(edge, d.reason)
        for producer, consumer, value in data_edges(self.graph):
            yield EdgeDecision(
                producer, consumer, value, reasons.get((producer, consumer, value), Reason.MERGED)
            )

    def _fusions(self) -> Iterable[FusionRecord]:
        """Those of edges that are still there; of several that became one, the first."""
        edges = set(data_edges(self.graph))
        for record in self.partition.fusions:
            edge = (self.makers[record.producer], self.readers[record.consumer], self.values[record.value])
            if edge in edges:
                edges.remove(edge)
                yield replace(record, producer=edge[0], consumer=edge[1], value=edge[2])

    def _layers(self, place: Mapping[int, int]) -> Iterable[tuple[Layer, ...]]:
        old, results = self.partition, frozenset(self.graph.outputs)
        for number, nodes in enumerate(self.subgraphs):
            if place[number] in self.first:
                yield (layer_of(nodes, results),)
            else:
                yield tuple(
                    layer_of([self.readers[n] for n in layer.nodes], results)
                    for layer in old.layers_of(old.subgraphs[place[number]])
                )
