"""Which axes of values run through the whole network untouched, as the batch does.

Axes of values that follow each other one to one (slice by slice) form a class. A class is independent if no
operator of the graph reduces it, slides a window over it or mixes it otherwise: then its slices can be
computed alone, with nothing computed twice. This is derived from regions of unit slices, not from extents or
names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import gcd

from tilewright.ir.graph import Graph, Node, Shape, Value
from tilewright.ir.graph_regions import RegionMaps
from tilewright.ir.region import Region, full_region

Axis = tuple[Value, int]


class IndependentAxes:
    """The independent classes of a graph. `units_of` an axis is how many slices its class has."""

    def __init__(self, graph: Graph, maps: RegionMaps) -> None:
        self._parent: dict[Axis, Axis] = {}
        self._mixed: dict[Axis, None] = {}
        self._units: dict[Axis, int] = {}
        for node in graph.nodes:
            self._follow(node, maps)
        for value in (*graph.inputs, *(v for n in graph.nodes for v in n.results())):
            self._separate(value)

    def units_of(self, value: Value, axis: int) -> int:
        """Slices that can be computed alone: a divisor of the extent; 1 where the axis is not independent."""
        root = self._root((value, axis))
        return 1 if root in self._mixed else self._units[root]

    def class_of(self, value: Value, axis: int) -> Axis:
        """What names the class of an axis: one of its members."""
        return self._root((value, axis))

    def _follow(self, node: Node, maps: RegionMaps) -> None:
        followed: set[Axis] = set()
        for index, output in enumerate(node.outputs):
            if output is None:
                continue
            for axis, extent in enumerate(output.shape):
                if extent > 1:
                    followed.update(self._follow_axis(node, index, axis, maps))
        for operand in dict.fromkeys(node.operands()):
            if operand.is_constant:
                continue
            for axis, extent in enumerate(operand.shape):
                if extent > 1 and (operand, axis) not in followed:
                    self._mix((operand, axis))

    def _follow_axis(self, node: Node, index: int, axis: int, maps: RegionMaps) -> Iterator[Axis]:
        """Operand axes that follow one output axis; the output's class is mixed if an operand mixes it."""
        output = node.outputs[index]
        assert output is not None
        extent = output.shape[axis]
        found = False
        for position, operand in enumerate(node.inputs):
            if operand is None or operand.is_constant:
                continue

            def needed(start: int, stop: int, position: int = position) -> Region | None:
                return maps.inputs_of(node, index, _cut(full_region(output.shape), axis, start, stop))[
                    position
                ]

            whole = needed(0, extent)
            if all(needed(k, k + 1) == whole for k in _probes(extent)):
                continue
            match = None if whole is None else _aligned(whole, operand.shape, extent, needed)
            if match is None:
                self._mix((output, axis))
                continue
            found = True
            self._join((output, axis), (operand, match))
            yield operand, match
        if not found:
            self._mix((output, axis))

    def _separate(self, value: Value) -> None:
        """Two axes of one value in one class follow the same slices in two roles: not independent."""
        seen: set[Axis] = set()
        for axis, extent in enumerate(value.shape):
            if extent > 1:
                root = self._root((value, axis))
                if root in seen:
                    self._mix((value, axis))
                seen.add(root)

    def _root(self, axis: Axis) -> Axis:
        if axis not in self._parent:
            self._parent[axis] = axis
            self._units[axis] = axis[0].shape[axis[1]]
        root = axis
        while self._parent[root] != root:
            root = self._parent[root]
        while self._parent[axis] != root:
            self._parent[axis], axis = root, self._parent[axis]
        return root

    def _join(self, a: Axis, b: Axis) -> None:
        kept, dropped = self._root(a), self._root(b)
        if kept != dropped:
            self._parent[dropped] = kept
            self._units[kept] = gcd(self._units[kept], self._units.pop(dropped))
            if dropped in self._mixed:
                self._mixed[kept] = None

    def _mix(self, axis: Axis) -> None:
        self._mixed[self._root(axis)] = None


def _cut(region: Region, axis: int, start: int, stop: int) -> Region:
    return (*region[:axis], (start, stop), *region[axis + 1 :])


def _probes(extent: int) -> list[int]:
    """Places that stand for all: regions are affine."""
    return sorted({0, 1, extent // 2, extent - 1})


def _aligned(
    whole: Region, shape: Shape, extent: int, needed: Callable[[int, int], Region | None]
) -> int | None:
    """The one axis of an operand whose slices are those of an output axis; None if there is none.

    `whole` is what all of the output needs: the other axes must be read alike by every slice, though perhaps
    not to their ends (a stride leaves the last row). Where one of the two extents divides the other, its
    slices answer to several of the other's.
    """
    for axis, own in enumerate(shape):
        units = min(extent, own)
        if units < 2 or extent % units or own % units or whole[axis] != (0, own):
            continue
        wide, own_wide = extent // units, own // units
        if all(
            needed(k * wide, (k + 1) * wide) == _cut(whole, axis, k * own_wide, (k + 1) * own_wide)
            for k in _probes(units)
        ):
            return axis
    return None
