"""Regions through the nodes of a graph, remembered: networks repeat nodes, planners their questions.

All of it is `region.py`'s arithmetic. Nodes whose nests touch the same elements share their answers.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import field

from tilewright.ir.derive import macs
from tilewright.ir.graph import Node, Value
from tilewright.ir.nest import Access, Nest, Opaque
from tilewright.ir.ops import describe
from tilewright.ir.region import Region, full_region, hull, input_regions
from tilewright.known_facts import KnownFacts
from tilewright.records import dataclass

_MOST_REGIONS = 100_000
"""Regions that are remembered in answers about several nodes, at most."""


@dataclass(slots=True)
class _NodeMap:
    """Region function of all nodes with the same accesses."""

    node: Node
    known: dict[tuple[int, Region], tuple[Region | None, ...]] = field(default_factory=dict)

    def __call__(self, output: int, region: Region) -> tuple[Region | None, ...]:
        regions = self.known.get((output, region))
        if regions is None:
            regions = self.known[output, region] = input_regions(self.node, region, output)
        return regions


class RegionMaps:
    """The region functions of a graph's nodes."""

    def __init__(self) -> None:
        self._maps: dict[Hashable, _NodeMap] = {}
        self._of_node: dict[Node, _NodeMap] = {}
        self.known = KnownFacts(_MOST_REGIONS)

    def of_copies(self) -> RegionMaps:
        """The same functions for nodes that are copies, which these do not keep alive."""
        maps = RegionMaps()
        maps._maps = self._maps
        return maps

    def inputs_of(self, node: Node, output: int, region: Region) -> tuple[Region | None, ...]:
        """The region of each input that a region of one output needs, as `input_regions` says."""
        regions_of_node = self._of_node.get(node)
        if regions_of_node is None:
            regions_of_node = self._of_node[node] = self._maps.setdefault(
                node_structure(node), _NodeMap(node)
            )
        return regions_of_node(output, region)

    def values_of(self, nodes: Sequence[Node], wanted: Mapping[Value, Region]) -> Mapping[Value, Region]:
        """What `value_regions` says, remembered for as many questions as plans that differ a little ask."""
        return self.known.of((*nodes, *wanted.items()), lambda: value_regions(nodes, wanted, self), len)

    def macs_of(self, node: Node) -> int:
        """Multiply-accumulates of a node, counted once."""
        return node.remembered(macs)


def value_regions(
    nodes: Sequence[Node], wanted: Mapping[Value, Region], maps: RegionMaps
) -> dict[Value, Region]:
    """Regions of all values, constants left out, that nodes in order touch to make `wanted` of their results.

    A value that several of them read has the hull of what they read; captured values are needed whole.
    """
    regions = dict(wanted)
    for node in reversed(nodes):
        is_needed = False
        for index, value in enumerate(node.outputs):
            region = None if value is None else regions.get(value)
            if region is None:
                continue
            is_needed = True
            for operand, need in zip(node.inputs, maps.inputs_of(node, index, region), strict=True):
                if operand is not None and need is not None and not operand.is_constant:
                    regions[operand] = hull(regions[operand], need) if operand in regions else need
        if is_needed:
            for captured in node.captures:
                if not captured.is_constant:
                    regions[captured] = full_region(captured.shape)
    return regions


class _Structure:
    """Something hashable whose hash is worked out once."""

    __slots__ = ("hash", "what")

    def __init__(self, what: Hashable) -> None:
        self.what, self.hash = what, hash(what)

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, _Structure) and self.what == other.what)

    def __repr__(self) -> str:
        return repr(self.what)


def node_structure(node: Node) -> Hashable:
    """Everything that regions through a node depend on."""
    return node.remembered(_structure_of)


def _structure_of(node: Node) -> _Structure:
    shapes = tuple(None if v is None else v.shape for v in (*node.inputs, *node.outputs))
    nests = describe(node)
    if isinstance(nests, Opaque):
        return _Structure((len(node.inputs), shapes))
    return _Structure((len(node.inputs), shapes, tuple(_nest_structure(n) for n in nests)))


def kernel_structure(nodes: Iterable[Node], outputs: Iterable[Value]) -> Hashable:
    """What the cost of a kernel depends on: its operators, what they touch, and how they are connected."""
    numbers: dict[Value, int] = {}
    facts: list[Hashable] = []
    for node in nodes:
        operands = (*node.inputs, *node.captures, *node.outputs)
        places = tuple(None if v is None else numbers.setdefault(v, len(numbers)) for v in operands)
        kinds = tuple(None if v is None else (v.dtype, v.is_constant) for v in operands)
        facts.append((node.op_type, node_structure(node), places, kinds))
    return tuple(facts), tuple(numbers[v] for v in outputs if v in numbers)


def _nest_structure(nest: Nest) -> Hashable:
    def accessed(access: Access) -> Hashable:
        return access.operand.key, access.operand.shape, access.index, access.view

    return nest.dims, tuple(accessed(a) for a in nest.reads), accessed(nest.write)
