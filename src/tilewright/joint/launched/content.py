"""What a block of a program runs: kernels, by the numbers of their nodes, in stages of their own.

Every schedule of kernels that are launched one by one falls apart into such blocks, between which nothing is
left on the chip; and blocks that hold every node once are a schedule again. Blocks of different schedulers
therefore combine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, replace

from tilewright.bit_sets import bits
from tilewright.ir.extract import part_of
from tilewright.ir.graph import Graph, Node, Value
from tilewright.partition.base import Partition, PartitionProblem, Reason, build_partition
from tilewright.partition.layers import Layer, layer_of
from tilewright.partition.split import WHOLE, Split
from tilewright.planning import Provenance, Quality, Status
from tilewright.records import dataclass
from tilewright.schedule.base import Group, Instance, Schedule, Stage

NAME = "joint"
_UNPRICED = Quality(0.0, "ns", Status.FEASIBLE, ())


@dataclass(frozen=True, slots=True)
class Kernel:
    """Nodes that are compiled together: the numbers of each layer's nodes, in the order of the layers, and
    the slices in which they run."""

    layers: tuple[tuple[int, ...], ...]
    split: Split = WHOLE

    @property
    def nodes(self) -> Iterator[int]:
        """The numbers of its nodes, layer by layer."""
        for layer in self.layers:
            yield from layer

    @property
    def mask(self) -> int:
        """The set of its nodes."""
        return sum(1 << i for i in self.nodes)


@dataclass(frozen=True, slots=True)
class Content:
    """Kernels and the stages that run them; instances name kernels by their places."""

    kernels: tuple[Kernel, ...]
    stages: tuple[Stage, ...]
    mask: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "mask", sum(kernel.mask for kernel in self.kernels))

    @classmethod
    def of_kernel(cls, layers: Sequence[Sequence[int]], split: Split = WHOLE) -> Content:
        """One kernel alone."""
        instances = tuple(Instance(0, i) for i in range(split.num_instances))
        return cls((Kernel(tuple(map(tuple, layers)), split),), (Stage((Group(instances),)),))

    def with_stages(self, stages: Sequence[Stage], ids: Sequence[int]) -> Content:
        """The same kernels in other stages, whose instances name them by these numbers."""
        place = {i: number for number, i in enumerate(ids)}
        moved = Content(self.kernels, tuple(stages))
        return Content(self.kernels, moved.renumbered([place.get(i, 0) for i in range(max(ids) + 1)]))

    def of_nodes(self, numbers: Sequence[int] | dict[int, int]) -> Content:
        """The same of other nodes: those with these numbers in place of its own."""
        kernels = (
            replace(kernel, layers=tuple(tuple(numbers[i] for i in layer) for layer in kernel.layers))
            for kernel in self.kernels
        )
        return Content(tuple(kernels), self.stages)

    def renumbered(self, ids: Sequence[int]) -> tuple[Stage, ...]:
        """The stages with these numbers in place of the kernels' places."""

        def group(old: Group) -> Group:
            return replace(
                old, instances=tuple(replace(i, subgraph_id=ids[i.subgraph_id]) for i in old.instances)
            )

        return tuple(replace(stage, groups=tuple(map(group, stage.groups))) for stage in self.stages)


@dataclass(frozen=True, slots=True, eq=False)
class Numbered:
    """A graph whose nodes have numbers, in the order of the graph.

    `results` are what each node makes, with the set of nodes that read it; `wanted` those of the network,
    `ends` these and its inputs; where the graph shares its nodes with a larger `network`, those of that
    one.
    """

    graph: Graph
    network: Numbered | None = field(default=None, repr=False)
    nodes: tuple[Node, ...] = field(init=False)
    numbers: dict[Node, int] = field(init=False, repr=False)
    results: tuple[tuple[tuple[Value, int], ...], ...] = field(init=False, repr=False)
    wanted: frozenset[Value] = field(init=False, repr=False)
    ends: frozenset[Value] = field(init=False, repr=False)
    _layers: dict[tuple[int, ...], Layer] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        nodes = tuple(self.graph.nodes)
        numbers = {node: i for i, node in enumerate(nodes)}
        results = (
            ((v, sum(1 << numbers[u] for u in v.users if u in numbers)) for v in node.results())
            for node in nodes
        )
        object.__setattr__(self, "nodes", nodes)
        object.__setattr__(self, "numbers", numbers)
        object.__setattr__(self, "results", tuple(map(tuple, results)))
        object.__setattr__(self, "wanted", frozenset(self.graph.outputs))
        ends = frozenset((*self.graph.inputs, *self.graph.outputs))
        object.__setattr__(self, "ends", ends if self.network is None else ends & self.network.ends)

    def layer(self, numbers: tuple[int, ...]) -> Layer:
        """Nodes by their numbers as a layer of the network."""
        if numbers not in self._layers:
            self._layers[numbers] = layer_of([self.nodes[i] for i in numbers], self.wanted)
        return self._layers[numbers]

    def contents(self, schedule: Schedule) -> Iterator[Content]:
        """The blocks of a schedule of this graph: stages that end all of the subgraphs that they begin."""
        partition, open_stages, left = schedule.partition, list[Stage](), dict[int, int]()
        for stage in schedule.stages:
            open_stages.append(stage)
            for instance in stage.instances():
                i = instance.subgraph_id
                left[i] = left.get(i, schedule.splits[i].num_instances) - 1
            if not any(left.values()):
                yield self._content(partition, schedule.splits, tuple(left), tuple(open_stages))
                open_stages, left = [], {}

    def _content(
        self, partition: Partition, splits: Sequence[Split], ids: Sequence[int], stages: tuple[Stage, ...]
    ) -> Content:
        kernels = tuple(
            Kernel(
                tuple(
                    tuple(self.numbers[node] for node in layer.nodes)
                    for layer in partition.layers_of(partition.subgraphs[i])
                ),
                splits[i],
            )
            for i in ids
        )
        return Content(kernels, ()).with_stages(stages, ids)

    def within(self, numbers: Sequence[int]) -> Numbered:
        """Some nodes, given in an order in which they can run, as a graph in which these are 0, 1, 2."""
        mask = sum(1 << i for i in numbers)
        nodes = [self.nodes[i] for i in numbers]
        return Numbered(part_of(nodes, self.outputs(mask) or tuple(nodes[-1].results())), self)

    def outputs(self, mask: int) -> tuple[Value, ...]:
        """The results of a set of nodes that are read outside of it."""
        return tuple(
            value
            for i in bits(mask)
            for value, users in self.results[i]
            if value in self.wanted or users & ~mask
        )

    def part(self, content: Content) -> Assembled:
        """A block as a network of its own, from main memory to main memory."""
        nodes = [self.nodes[i] for i in bits(content.mask)]
        results = self.outputs(content.mask) or tuple(nodes[-1].results())
        graph = part_of(nodes, results)
        part = assembled(PartitionProblem(graph), [content], self.nodes.__getitem__, quality=_UNPRICED)
        border = frozenset(v for v in (*graph.inputs, *graph.outputs) if v in self.ends)
        return replace(part, partition=replace(part.partition, border=border))

    def border(self, mask: int) -> tuple[int, ...]:
        """The places among what a set of nodes reads and makes of the network's own inputs and results."""
        nodes = (self.nodes[i] for i in bits(mask))
        values = dict.fromkeys(v for node in nodes for v in (*node.operands(), *node.results()))
        return tuple(place for place, value in enumerate(values) if value in self.ends)


@dataclass(frozen=True, slots=True, eq=False)
class Assembled:
    """Blocks as the partition, stages and splits of one graph; `ids` are the subgraphs of all kernels."""

    partition: Partition
    stages: tuple[Stage, ...]
    splits: tuple[Split, ...]
    ids: tuple[int, ...]


def assembled(
    problem: PartitionProblem,
    contents: Sequence[Content],
    node_of: Callable[[int], Node],
    quality: Quality | None = None,
) -> Assembled:
    """Blocks that follow each other as one program; `node_of` says which node has a number.
    `quality` is as of `build_partition`.

    Raises:
        ValueError: the blocks do not hold every node once, or their kernels wait for each other.
    """
    kernels = [kernel for content in contents for kernel in content.kernels]
    clusters = [[node_of(i) for i in kernel.nodes] for kernel in kernels]
    partition = build_partition(
        problem,
        clusters,
        lambda producer, consumer, value, fused: Reason.CLUSTER if fused else Reason.COST,
        Provenance(NAME),
        quality=quality,
    )
    ids = [partition.subgraph_of(cluster[0]).id for cluster in clusters]
    by_id = dict(zip(ids, kernels, strict=True))
    wanted = frozenset(partition.graph.outputs)
    splits = tuple(by_id[s.id].split for s in partition.subgraphs)
    layers = tuple(
        tuple(layer_of([node_of(i) for i in layer], wanted) for layer in by_id[s.id].layers)
        for s in partition.subgraphs
    )
    partition = replace(partition, splits=splits, layers=layers)
    stages: list[Stage] = []
    start = 0
    for content in contents:
        stages += content.renumbered(ids[start:])
        start += len(content.kernels)
    return Assembled(partition, tuple(stages), splits, tuple(ids))
