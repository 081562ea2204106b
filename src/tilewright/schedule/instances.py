"""The graph of a partition's instances: which reads which part of what, with exact edges.

A subgraph that is split into F slices has F instances. An instance depends on those of a producer whose
slices meet the region it reads, and on no others. Where it takes several slices of one value, a concatenation
collects them first. Whole subgraphs are the case F = 1, so that every partition has such a graph. An instance
that reads rows which earlier ones of its subgraph keep runs after these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from tilewright.ir.graph import Value
from tilewright.ir.graph_regions import RegionMaps
from tilewright.ir.region import Region, intersect
from tilewright.partition.base import Partition, Subgraph
from tilewright.partition.layers import LayerRegions
from tilewright.partition.rows import ChainInstance, RowChain, chain_slices
from tilewright.partition.split import Split, instance_region, instances_meeting


class Kind(StrEnum):
    """What a node of the instance graph does."""

    INSTANCE = "instance"
    CONCAT = "concat"  # collects slices of one value
    COPY = "copy"  # moves a slice to another level of memory
    REDISTRIBUTE = "redistribute"  # distributes a buffer over the cores in another way


@dataclass(frozen=True, slots=True, eq=False)
class Edge:
    """The node `consumer` reads `region` of `value`, which `producer` made; both by their place."""

    producer: int
    consumer: int
    value: Value
    region: Region


@dataclass(frozen=True, slots=True, eq=False)
class InstanceNode:
    """One node.

    `outputs` are the slices it makes, `inputs` the regions it reads, the network's inputs included.

    `subgraph_id` and `index` name the instance: of a concatenation, copy or redistribution the one it serves.
    `rows` is what an instance makes and keeps where its subgraph's instances keep rows for each other.
    """

    id: int
    kind: Kind
    subgraph_id: int
    index: int
    outputs: Mapping[Value, Region]
    inputs: Mapping[Value, Region]
    rows: ChainInstance | None = None

    @property
    def value(self) -> Value:
        """The first value it makes."""
        return next(iter(self.outputs))

    @property
    def region(self) -> Region:
        """The slice of that value."""
        return next(iter(self.outputs.values()))

    def __str__(self) -> str:
        name = f"{self.subgraph_id}.{self.index}"
        return name if self.kind is Kind.INSTANCE else f"{self.kind}({self.value.name})->{name}"


@dataclass(frozen=True, slots=True, eq=False)
class InstanceGraph:
    """Nodes in breadth-first order: by subgraph, instances by index, concatenations before their reader.

    `splits` is how each subgraph is cut into its instances. `nodes[i].id == i`. `edges` are in order of
    consumers; there is one per producer, consumer and value. `waits` are pairs of nodes, by their places, of
    which the second runs after the first though no edge joins them. Instances of one subgraph: the second
    reads rows that the first keeps. Whole subgraphs: the second is given a value of the first but no element
    of it decides a result, which keeps the order of the graph all the same.
    """

    partition: Partition
    splits: tuple[Split, ...]
    nodes: tuple[InstanceNode, ...]
    edges: tuple[Edge, ...]
    maps: RegionMaps = field(repr=False)
    waits: tuple[tuple[int, int], ...] = ()
    _incoming: tuple[tuple[Edge, ...], ...] = field(init=False, repr=False)
    _outgoing: tuple[tuple[Edge, ...], ...] = field(init=False, repr=False)
    _before: tuple[tuple[int, ...], ...] = field(init=False, repr=False)
    _after: tuple[tuple[int, ...], ...] = field(init=False, repr=False)
    _results: frozenset[Value] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        incoming: list[list[Edge]] = [[] for _ in self.nodes]
        outgoing: list[list[Edge]] = [[] for _ in self.nodes]
        for edge in self.edges:
            incoming[edge.consumer].append(edge)
            outgoing[edge.producer].append(edge)
        before: list[set[int]] = [{e.producer for e in edges} for edges in incoming]
        after: list[set[int]] = [{e.consumer for e in edges} for edges in outgoing]
        for first, second in self.waits:
            before[second].add(first)
            after[first].add(second)
        object.__setattr__(self, "_incoming", tuple(map(tuple, incoming)))
        object.__setattr__(self, "_outgoing", tuple(map(tuple, outgoing)))
        object.__setattr__(self, "_before", tuple(tuple(sorted(nodes)) for nodes in before))
        object.__setattr__(self, "_after", tuple(tuple(sorted(nodes)) for nodes in after))
        object.__setattr__(self, "_results", frozenset(self.partition.graph.outputs))

    def reads(self, node: int) -> tuple[Edge, ...]:
        """Edges into a node."""
        return self._incoming[node]

    def readers(self, node: int) -> tuple[Edge, ...]:
        """Edges out of a node."""
        return self._outgoing[node]

    def predecessors(self, node: int) -> tuple[int, ...]:
        """Nodes that must run before, ascending."""
        return self._before[node]

    def successors(self, node: int) -> tuple[int, ...]:
        """Nodes that wait for this one, ascending."""
        return self._after[node]

    @property
    def results(self) -> frozenset[Value]:
        """The network's outputs: slices of these are needed after the end."""
        return self._results

    def bytes_of(self, value: Value, region: Region) -> int:
        """Bytes of a slice as the machine keeps it."""
        return self.partition.bytes_of(value, region)

    def main_bytes_of(self, value: Value, region: Region) -> int:
        """Bytes of a part of an input or result of the network as it lies in main memory."""
        return self.partition.main_bytes_of(value, region)

    def kept_bytes(self, node: InstanceNode, position: int = 0) -> int:
        """Bytes of the rows that an instance keeps for later ones of its chain, those from `position` on."""
        kept = {} if node.rows is None else node.rows.kept
        return sum(self.bytes_of(v, rows.region) for v, rows in kept.items() if rows.until >= position)


def instance_graph(
    partition: Partition, splits: Sequence[Split] | None = None, maps: RegionMaps | None = None
) -> InstanceGraph:
    """The instances of a partition, split as it says or as `splits` does instead.

    `maps` are regions through the graph's nodes that are known. O(instances * nodes of their subgraphs).
    """
    chosen = partition.splits if splits is None else tuple(splits)
    return _Builder(partition, chosen, RegionMaps() if maps is None else maps).build()


class _Builder:
    """Nodes and edges under construction."""

    def __init__(self, partition: Partition, splits: tuple[Split, ...], maps: RegionMaps) -> None:
        self.partition = partition
        self.splits = splits
        self.maps = maps
        self.nodes: list[InstanceNode] = []
        self.edges: list[Edge] = []
        self.waits: list[tuple[int, int]] = []
        self.made: dict[Value, tuple[Split, list[int]]] = {}
        self.regions = LayerRegions(maps)

    def build(self) -> InstanceGraph:
        for subgraph, split in zip(self.partition.subgraphs, self.splits, strict=True):
            makers: list[int] = []
            rows: tuple[ChainInstance, ...] = ()
            for index in range(split.num_instances):
                position = index % split.chain_length
                if split.chain_length > 1 and position == 0:
                    rows = self._chain(subgraph, split, index // split.chain_length)
                makers.append(self._add_instance(subgraph, split, index, rows[position] if rows else None))
                if position:
                    self._wait_for_rows(rows, makers[-1 - position :])
            for value in outputs_of(subgraph):
                self.made[value] = (split, makers)
        return InstanceGraph(
            self.partition, self.splits, tuple(self.nodes), tuple(self.edges), self.maps, tuple(self.waits)
        )

    def _chain(self, subgraph: Subgraph, split: Split, number: int) -> tuple[ChainInstance, ...]:
        """The instances of a chain that keep rows for each other."""
        layers, outputs = self.partition.layers_of(subgraph), outputs_of(subgraph)

        def instances() -> tuple[ChainInstance, ...]:
            return RowChain(layers, chain_slices(outputs, split, number), self.regions).instances

        # Other partitions have the same layers in the same slices again and again.
        parts = tuple((x.nodes, x.inputs, x.outputs) for x in layers)
        same = ("chain", parts, tuple(outputs), split.cuts, split.chain_length, number)
        return self.maps.known.of(
            same, instances, lambda found: sum(len(i.inputs) + len(i.runs) for i in found)
        )

    def _wait_for_rows(self, rows: Sequence[ChainInstance], nodes: Sequence[int]) -> None:
        """The last of these nodes of a chain runs after those before it: that keeps rows, and the nearest."""
        position = len(nodes) - 1
        for earlier, maker in zip(rows[:position], nodes[:-1], strict=True):
            keeps = any(kept.until >= position for kept in earlier.kept.values())
            if keeps or earlier.position == position - 1:
                self.waits.append((maker, nodes[-1]))

    def _add_instance(
        self, subgraph: Subgraph, split: Split, index: int, rows: ChainInstance | None = None
    ) -> int:
        outputs = {v: instance_region(v.shape, split, index) for v in outputs_of(subgraph)}
        regions = self.maps.values_of(subgraph.nodes, outputs) if rows is None else rows.inputs
        inputs = {v: regions[v] for v in subgraph.inputs if v in regions}
        taken: list[tuple[int, Value, Region]] = []
        for value, region in inputs.items():
            if value not in self.made:
                continue
            slices = self._slices(value, region)
            if len(slices) == 1:
                taken.append((slices[0][0], value, region))
            elif slices:
                taken.append((self._add_concat(subgraph.id, index, value, region, slices), value, region))
        node = self._add(Kind.INSTANCE, subgraph.id, index, outputs, inputs, rows)
        self.edges += [Edge(producer, node, value, region) for producer, value, region in taken]
        read = {value for _, value, _ in taken}
        for value in subgraph.inputs if split.num_instances == 1 else ():
            source, makers = self.made.get(value, (split, []))
            if makers and source.num_instances == 1 and value not in read:
                self.waits.append((makers[0], node))
        return node

    def _add_concat(
        self, subgraph_id: int, index: int, value: Value, region: Region, slices: list[tuple[int, Region]]
    ) -> int:
        node = self._add(Kind.CONCAT, subgraph_id, index, {value: region}, {value: region})
        self.edges += [Edge(producer, node, value, part) for producer, part in slices]
        return node

    def _slices(self, value: Value, region: Region) -> list[tuple[int, Region]]:
        """The producing instances whose slices meet a region, with what of it they hold."""
        split, makers = self.made[value]
        found: list[tuple[int, Region]] = []
        for index in instances_meeting(value.shape, split, region):
            common = intersect(instance_region(value.shape, split, index), region)
            if common is not None:
                found.append((makers[index], common))
        return found

    def _add(
        self,
        kind: Kind,
        subgraph_id: int,
        index: int,
        outputs: Mapping[Value, Region],
        inputs: Mapping[Value, Region],
        rows: ChainInstance | None = None,
    ) -> int:
        node = InstanceNode(len(self.nodes), kind, subgraph_id, index, outputs, inputs, rows)
        self.nodes.append(node)
        return node.id


def outputs_of(subgraph: Subgraph) -> tuple[Value, ...]:
    """What a subgraph makes; of one that nothing reads, the results of its last node."""
    return subgraph.outputs or tuple(subgraph.nodes[-1].results())
