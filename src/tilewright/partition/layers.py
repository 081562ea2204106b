"""Layers: an operator and the element-wise ones that follow it, what they read, and the work they do.

A layer becomes one kernel body: its last operator makes its result, what lies between exists as tiles only.
The order of layers depends on the structure of the graph alone, not on the order in which its nodes are kept,
so that the same network gives the same plan however it was written down.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import field

from tilewright.ir.graph import Graph, Node, Value
from tilewright.ir.graph_regions import RegionMaps, value_regions
from tilewright.ir.in_place import in_place_operands
from tilewright.ir.operation_class import OperationClass
from tilewright.ir.region import Region, volume
from tilewright.records import dataclass

Outputs = tuple[Region | None, ...]

_JOINED = {
    OperationClass.POINTWISE: (OperationClass.COMPLEX, OperationClass.POINTWISE),
    OperationClass.INJECTIVE: (OperationClass.INJECTIVE,),
}


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """Nodes in order; `inputs` come from outside and are not constant, `outputs` are read outside.

    The result may be made in the place of an input of `overwrites`: see `in_place_operands`.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    overwrites: frozenset[Value]
    is_opaque: bool
    _members: frozenset[Node] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_members", frozenset(self.nodes))

    def __contains__(self, node: Node) -> bool:
        return node in self._members


def canonical_order(graph: Graph) -> tuple[Node, ...]:
    """A topological order that follows operands from the outputs on; nodes that reach no output come last."""
    done: dict[Node, None] = {}
    inside = set(graph.nodes)
    roots = [v.producer for v in graph.outputs if v.producer is not None]
    for root in (*roots, *reversed(graph.nodes)):
        stack = [(root, False)]
        while stack:
            node, is_ready = stack.pop()
            if node in done:
                continue
            if is_ready:
                done[node] = None
                continue
            stack.append((node, True))
            producers = [v.producer for v in node.operands() if v.producer in inside]
            stack.extend((p, False) for p in reversed(producers) if p not in done)
    return tuple(done)


def cut_layers(graph: Graph, *, fuse_joins: bool = False) -> tuple[Layer, ...]:
    """The layers of a graph in canonical order.

    An element-wise operator joins the layer that makes its one full-size operand and has no other reader;
    with `fuse_joins` a sum of two full-size operands joins the later of its two producers (Relay's rule).
    """
    order = canonical_order(graph)
    kinds = {node: OperationClass.of(node) for node in order}
    results = set(graph.outputs)
    home: dict[Node, int] = {}
    members: list[list[Node]] = []
    for node in order:
        number = _joined(node, kinds, results, home, members, fuse_joins)
        if number is None:
            number = len(members)
            members.append([])
        members[number].append(node)
        home[node] = number
    # A layer stands where its last node does: by then everything it reads has been made.
    place = {node: i for i, node in enumerate(order)}
    members.sort(key=lambda nodes: place[nodes[-1]])
    return tuple(_layer(nodes, results, kinds) for nodes in members)


def layers_within(graph: Graph, groups: Sequence[Sequence[Node]]) -> list[tuple[Layer, ...]]:
    """The layers of each of these groups of nodes: what of each of the graph's layers lies in it.

    A group's nodes are in topological order; each of its layers stands where its last node does.
    """
    home = {node: number for number, layer in enumerate(cut_layers(graph)) for node in layer.nodes}
    results = frozenset(graph.outputs)
    layers: list[tuple[Layer, ...]] = []
    for group in groups:
        members: dict[int, list[Node]] = {}
        for node in group:
            members.setdefault(home[node], []).append(node)
        place = {node: i for i, node in enumerate(group)}
        ordered = sorted(members.values(), key=lambda nodes: place[nodes[-1]])
        layers.append(tuple(layer_of(nodes, results) for nodes in ordered))
    return layers


def layer_of(nodes: Sequence[Node], results: Collection[Value]) -> Layer:
    """These nodes, given in order, as a layer of a network with these results."""
    return _layer(nodes, results, {node: OperationClass.of(node) for node in nodes})


def _joined(
    node: Node,
    kinds: dict[Node, OperationClass],
    results: set[Value],
    home: dict[Node, int],
    members: Sequence[Sequence[Node]],
    fuse_joins: bool,
) -> int | None:
    """The layer that a node joins, None where it starts its own."""
    anchors = _JOINED.get(kinds[node], ())
    if not anchors or len(list(node.results())) != 1:
        return None
    full = [v for v in dict.fromkeys(node.operands()) if not v.is_constant and v.shape == node.output.shape]
    if kinds[node] is OperationClass.INJECTIVE:
        full = [v for v in dict.fromkeys(node.operands()) if not v.is_constant]
    if len(full) != 1 and not (fuse_joins and full):
        return None
    numbers = [
        home[v.producer]
        for v in full
        if v.producer in home
        and v.users == (node,)
        and v not in results
        and len(list(v.producer.results())) == 1
        and members[home[v.producer]][-1] is v.producer
        and kinds[members[home[v.producer]][0]] in anchors
    ]
    return max(numbers, default=None)


def _layer(nodes: Sequence[Node], results: Collection[Value], kinds: dict[Node, OperationClass]) -> Layer:
    inside = set(nodes)
    operands = dict.fromkeys(v for n in nodes for v in n.operands() if not v.is_constant)
    inputs = tuple(v for v in operands if v.producer not in inside)
    made = [v for n in nodes for v in n.results()]
    outputs = tuple(v for v in made if v in results or any(u not in inside for u in v.users))
    if not outputs:
        outputs = tuple(nodes[-1].results())
    overwrites = in_place_operands(nodes, inputs, outputs[0]) if len(outputs) == 1 else frozenset[Value]()
    is_opaque = any(kinds[n] is OperationClass.OPAQUE for n in nodes)
    return Layer(tuple(nodes), inputs, outputs, overwrites, is_opaque)


@dataclass(frozen=True, slots=True, eq=False)
class LayerNeeds:
    """What a layer reads and does to make regions of its outputs.

    `inputs` follow the layer's, None where nothing of it is read. `macs` and `elements` are the work that is
    really done, `num_divided` the operators that make less than all of their result.
    """

    inputs: Outputs
    macs: float
    elements: int
    num_divided: int


class LayerRegions:
    """The region functions of a graph's layers, remembered."""

    def __init__(self, maps: RegionMaps) -> None:
        self.maps = maps
        self._needs: dict[tuple[Layer, Outputs], LayerNeeds] = {}

    def needs_of(self, layer: Layer, outputs: Outputs) -> LayerNeeds:
        """What a layer needs to make regions of its outputs; None asks nothing of an output."""
        key = (layer, outputs)
        found = self._needs.get(key)
        if found is None:
            found = self._needs[key] = self._derive(layer, outputs)
        return found

    def _derive(self, layer: Layer, outputs: Outputs) -> LayerNeeds:
        wanted = {v: r for v, r in zip(layer.outputs, outputs, strict=True) if r is not None}
        regions = value_regions(layer.nodes, wanted, self.maps)
        work, elements, num_divided = 0.0, 0, 0
        for node in reversed(layer.nodes):
            results = [v for v in node.results() if v in regions]
            if not results:
                continue
            made, whole = sum(volume(regions[v]) for v in results), sum(v.num_elements for v in results)
            work += self.maps.macs_of(node) * made / whole if whole else 0.0
            elements += made
            num_divided += made < whole
        return LayerNeeds(tuple(regions.get(v) for v in layer.inputs), work, elements, num_divided)
