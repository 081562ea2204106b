"""The layerwise rule of Relay (Roesch et al. 2018; TVM's FuseOps): one heavy operator and what follows it.

A layer is a convolution, product, pooling, reduction or normalisation with the element-wise operators
that consume its result, or a chain of operators that move or compute single elements. A layer has one
exit: the rule takes a set of followers only where every path from the anchor ends in the same node
(Relay's post-dominator). Such layers never wait for each other: if one reads another, its exit lies
behind the other's exit in the graph, and that order has no cycle.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import ClassVar

from tilewright.ir.graph import Graph, Node, Value
from tilewright.ir.operation_class import OperationClass
from tilewright.partition.base import Partition, PartitionProblem, Reason, build_partition
from tilewright.partition.exits import Exits
from tilewright.planning import Budget, Provenance, option
from tilewright.progress import checkpoint
from tilewright.records import dataclass

_ANCHORS = (OperationClass.COMPLEX, OperationClass.REDUCTION)
_SINGLE_ELEMENT = (OperationClass.INJECTIVE, OperationClass.POINTWISE)
_MAX_NODES = 256


@dataclass(frozen=True, slots=True)
class Layerwise:
    """One heavy operator and the element-wise ones that follow it, as in TVM: the baseline of comparisons."""

    max_nodes: int = option(_MAX_NODES, "Most nodes of a layer.")
    name: ClassVar[str] = "layerwise"

    def solve(self, problem: PartitionProblem, budget: Budget) -> Partition:
        """One pass of the rule; the budget is not needed."""
        layers = _grown(problem.graph, self.max_nodes)
        provenance = Provenance(self.name, num_evaluations=1)
        return build_partition(problem, layers.clusters(), layers.reason, provenance)


def layerwise_clusters(graph: Graph) -> list[list[Node]]:
    """The nodes of each layer of a graph."""
    return _grown(graph, _MAX_NODES).clusters()


@dataclass(slots=True)
class _Layers:
    """Layers under construction. A layer is known by its first node, the anchor."""

    graph: Graph
    max_nodes: int
    kinds: dict[Node, OperationClass] = field(init=False)
    nodes: tuple[Node, ...] = field(init=False)
    position: dict[Node, int] = field(init=False)
    home: dict[Node, Node] = field(init=False, default_factory=dict)
    members: dict[Node, list[Node]] = field(init=False, default_factory=dict)
    feeders: dict[Node, None] = field(init=False, default_factory=dict)
    results: dict[Value, None] = field(init=False)
    exits: Exits = field(init=False)

    def __post_init__(self) -> None:
        self.kinds = {node: OperationClass.of(node) for node in self.graph.nodes}
        self.nodes = self.graph.nodes
        self.position = {node: i for i, node in enumerate(self.nodes)}
        self.results = dict.fromkeys(self.graph.outputs)
        self.exits = Exits(self.nodes, self.position, self.results)

    def start(self, anchor: Node, accepts: Callable[[Node, Node], bool]) -> None:
        """Open a layer and let it grow while `accepts(anchor, node)` holds."""
        checkpoint()
        layer = [anchor]
        while extension := self._extension(layer, accepts):
            layer += extension
        self.members[anchor] = layer
        for node in layer:
            self.home[node] = anchor

    def _extension(self, layer: Sequence[Node], accepts: Callable[[Node, Node], bool]) -> list[Node]:
        """The fewest nodes that give the layer one exit again; none if some path forbids it."""
        anchor, last = layer[0], layer[-1]
        if len(list(last.results())) != 1 or last.output in self.results:
            return []
        start = self.position[last]
        exit = self.exits.of(start)
        if exit is None or len(layer) + self.exits.distance(start, exit) > self.max_nodes:
            return []
        found: list[Node] = []
        seen: set[int] = set()
        open_positions = self._positions(last.output.users)
        seen.update(open_positions)
        heapq.heapify(open_positions)
        while open_positions:
            position = heapq.heappop(open_positions)
            node = self.nodes[position]
            if not accepts(anchor, node) or len(layer) + len(found) >= self.max_nodes:
                return []
            found.append(node)
            if position == exit:
                return found
            # A path goes on beside this node, so its own result comes back to that path before the exit.
            for behind in self._positions(node.output.users):
                if behind not in seen:
                    seen.add(behind)
                    heapq.heappush(open_positions, behind)
        return []

    def _positions(self, nodes: Sequence[Node]) -> list[int]:
        return [self.position[n] for n in nodes]

    def follows_anchor(self, anchor: Node, node: Node) -> bool:
        """Whether an element-wise node can be applied to the anchor's result where it is made."""
        return (
            node not in self.home
            and self.kinds[node] is OperationClass.POINTWISE
            and len(list(node.results())) == 1
            and node.output.shape == anchor.output.shape
        )

    def continues_chain(self, anchor: Node, node: Node) -> bool:
        """Whether a node moves or computes single elements and is still free."""
        return (
            node not in self.home and self.kinds[node] in _SINGLE_ELEMENT and len(list(node.results())) == 1
        )

    def nothing(self, anchor: Node, node: Node) -> bool:
        """Nothing joins an opaque operator."""
        return False

    def move_feeders(self) -> None:
        """Compute element-wise chains inside the epilogue that alone reads them, element by element."""
        for anchor in reversed(list(self.members)):
            layer = self.members[anchor]
            if any(self.kinds[n] is not OperationClass.POINTWISE for n in layer):
                continue
            target = self._fed_layer(layer)
            if target is None or len(layer) + len(self.members[target]) > self.max_nodes:
                continue
            self.members[target] += self.members.pop(anchor)
            for node in layer:
                self.home[node] = target
                self.feeders[node] = None

    def _fed_layer(self, layer: Sequence[Node]) -> Node | None:
        """The anchor whose epilogue is the only reader of the layer, at the layer's own shape."""
        value = layer[-1].output
        readers = value.users
        if value in self.results or not readers or any(n.output.shape != value.shape for n in layer):
            return None
        target = self.home[readers[0]]
        fits = (
            self.kinds[target] in _ANCHORS
            and target.output.shape == value.shape
            and all(self.home[r] is target and r is not target for r in readers)
        )
        return target if fits else None

    def clusters(self) -> list[list[Node]]:
        """All layers."""
        return list(self.members.values())

    def reason(self, producer: Node, consumer: Node, value: Value, fused: bool) -> Reason:
        """Why an edge was fused or cut."""
        anchor = self.kinds[self.home[producer]]
        if fused:
            if producer in self.feeders:
                return Reason.FEEDER
            return Reason.EPILOGUE if anchor in _ANCHORS else Reason.CHAIN
        if OperationClass.OPAQUE in (anchor, self.kinds[consumer]):
            return Reason.OPAQUE
        if self.kinds[consumer] is OperationClass.COMPLEX:
            return Reason.COMPLEX
        if self.kinds[consumer] is OperationClass.REDUCTION:
            return Reason.REDUCTION
        if len(list(producer.results())) > 1 or len(list(consumer.results())) > 1:
            return Reason.MULTIPLE_RESULTS
        if anchor in _ANCHORS and self.kinds[consumer] is OperationClass.INJECTIVE:
            return Reason.INJECTIVE
        if anchor in _ANCHORS and consumer.output.shape != self.home[producer].output.shape:
            return Reason.SHAPE
        if value in self.results or len(value.users) > 1:
            return Reason.ESCAPES
        if len(self.members[self.home[producer]]) >= self.max_nodes:
            return Reason.LIMIT
        return Reason.OTHER_KERNEL


def _grown(graph: Graph, max_nodes: int) -> _Layers:
    layers = _Layers(graph, max_nodes)
    # A sum of two layers joins the one that is computed last: its other operand is there by then.
    for kind in _ANCHORS:
        for node in reversed(graph.nodes):
            if layers.kinds[node] is kind:
                layers.start(node, layers.follows_anchor)
    for node in graph.nodes:
        if layers.kinds[node] in _SINGLE_ELEMENT and node not in layers.home:
            layers.start(node, layers.continues_chain)
    for node in graph.nodes:
        if layers.kinds[node] is OperationClass.OPAQUE:
            layers.start(node, layers.nothing)
    layers.move_feeders()
    return layers
