"""Two graphs of one model at two sets of shapes, walked side by side: which of their values are the same.

Values are the same but for axes in which the second graph has more places, or fewer. What that takes of the
nests of two nodes is said by kinds of `Places`: that each row is computed alike (`rows`), or that real places
do not depend on those that pad (`masked`). What is not seen to be so counts as not so.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np

from tilewright.arrays import Array
from tilewright.ir.block_weights import BlockWeights
from tilewright.ir.graph import Graph, Node, Shape, Value
from tilewright.ir.nest import Description, Nest, Opaque, Operand, Walks
from tilewright.ir.ops.registry import describe

Axes = frozenset[int]
Key = tuple[str, int]

NO_AXES: Axes = frozenset()


class GraphPairing:
    """Values of both graphs that are the same but for axes, which are longer by `growth` in the second graph.

    `constant_axes` says which axes these are of two constants, None where the constants are not the same.
    """

    def __init__(self, growth: int, constant_axes: Callable[[Array, Array], Axes | None]) -> None:
        self.growth = growth
        self._constant_axes = constant_axes
        self._pairs: dict[Value, Value] = {}
        self._axes: dict[Value, Axes] = {}

    def pair(self, a: Value, b: Value, axes: Axes) -> bool:
        """Remember two values as the same, if their types and shapes allow it."""
        if a.dtype is not b.dtype or len(a.shape) != len(b.shape) or grown_axes(a.shape, b.shape) != axes:
            return False
        if any(b.shape[axis] - a.shape[axis] != self.growth for axis in axes):
            return False
        self._pairs[a], self._axes[a] = b, axes
        return True

    def axes(self, a: Value, b: Value) -> Axes | None:
        """In which axes two values differ that are the same else; None where they are not."""
        if a not in self._pairs and a.is_constant and b.is_constant:
            axes = self._axes_of(a, b)
            if axes is None or not self.pair(a, b, axes):
                return None
        return self._axes[a] if self._pairs.get(a) is b else None

    def _axes_of(self, a: Value, b: Value) -> Axes | None:
        """In which axes two constants differ; None where they are not the same else."""
        if isinstance(a.stored, BlockWeights) and isinstance(b.stored, BlockWeights):
            return NO_AXES if a.stored.equals(b.stored, same_bits) else None
        assert a.data is not None
        assert b.data is not None
        return self._constant_axes(a.data, b.data)


class Places(ABC):
    """The operands of two nodes while their nests are compared, with the axes in which each differs."""

    def __init__(self, pairing: GraphPairing, node: Node, twin: Node) -> None:
        self.pairing = pairing
        self.node = node
        self.twin = twin
        self.axes: dict[Key, Axes] = {}

    @abstractmethod
    def follow(self, nest: Nest, other: Nest) -> bool:
        """Whether two nests do the same, or may once all are known; their operands are noted."""

    def is_complete(self) -> bool:
        """Whether the nodes do the same, now that all nests were followed."""
        return True

    def reads(self, a: Operand, b: Operand) -> bool:
        """Whether two operands that nests read are the same; notes in which axes they differ."""
        if a.key != b.key or a.dtype is not b.dtype or len(a.shape) != len(b.shape):
            return False
        if a.data is not None or b.data is not None:
            if a.data is None or b.data is None or not same_bits(a.data, b.data):
                return False
            self.axes[a.key] = NO_AXES
        elif a.key not in self.axes:
            value, twin = self._input(self.node, a), self._input(self.twin, a)
            axes = None if value is None or twin is None else self.pairing.axes(value, twin)
            if axes is None:
                return False
            self.axes[a.key] = axes
        return grown_axes(a.shape, b.shape) <= self.axes[a.key]

    def writes(self, a: Operand, b: Operand) -> bool:
        """Whether two nests write the same operand; notes in which axes it differs."""
        if a.key != b.key or a.dtype is not b.dtype or len(a.shape) != len(b.shape):
            return False
        axes = grown_axes(a.shape, b.shape)
        return self.axes.setdefault(a.key, axes) == axes

    @staticmethod
    def _input(node: Node, operand: Operand) -> Value | None:
        return node.input(operand.position) if operand.kind == "input" else None


Kind = TypeVar("Kind", bound=Places)


def walk(
    graph: Graph, other: Graph, inputs: Mapping[str, Axes], pairing: GraphPairing, kind: type[Kind]
) -> list[Kind] | None:
    """The places of each node; None where the graphs are not the same. `inputs` are the axes by name."""
    if len(graph.nodes) != len(other.nodes) or len(graph.inputs) != len(other.inputs):
        return None
    for a, b in zip(graph.inputs, other.inputs, strict=True):
        if a.name != b.name or not pairing.pair(a, b, inputs.get(a.name, NO_AXES)):
            return None
    followed = []
    for node, twin in zip(graph.nodes, other.nodes, strict=True):
        places = kind(pairing, node, twin)
        if not follow(places):
            return None
        followed.append(places)
    is_same = all(pairing.axes(a, b) is not None for a, b in zip(graph.outputs, other.outputs, strict=True))
    return followed if is_same else None


def follow(places: Places) -> bool:
    """Whether two nodes do the same; then so are their results."""
    nests, others = _nests(places.node), _nests(places.twin)
    if isinstance(nests, Opaque) or isinstance(others, Opaque) or len(nests) != len(others):
        return False
    if isinstance(describe(places.node), Walks) and places.node.attributes != places.twin.attributes:
        return False
    if not all(places.follow(a, b) for a, b in zip(nests, others, strict=True)):
        return False
    for position, (a, b) in enumerate(zip(places.node.outputs, places.twin.outputs, strict=True)):
        if a is None or b is None:
            if a is not b:
                return False
            continue
        axes = places.axes.get(("output", position))
        if axes is None or not places.pairing.pair(a, b, axes):
            return False
    return places.is_complete()


def _nests(node: Node) -> Description:
    """The nests of a node, or of a walk those that read and write what it does."""
    description = describe(node)
    return description.reach if isinstance(description, Walks) else description


def grown_axes(a: Shape, b: Shape) -> Axes:
    """Axes in which two shapes of one rank differ."""
    return frozenset(axis for axis, (x, y) in enumerate(zip(a, b, strict=True)) if x != y)


def same_bits(a: Array, b: Array) -> bool:
    """Whether two arrays hold the same bits: zeros of both signs differ, and NaN does not."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a is b or (a.ndim and a.strides == b.strides and a.ctypes.data == b.ctypes.data):
        return True  # views of the same weights
    return bool(np.array_equal(a, b)) if a.dtype.hasobject else a.tobytes() == b.tobytes()
