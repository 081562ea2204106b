"""Proof that an axis holds rows: slices of which each is computed from the same slice of the inputs, alike.

Two graphs of one model, for two extents of the axis, are walked side by side. Their loop nests must be the
same but for the extent of at most one dim, the row; whatever holds rows is read and written at that dim, and
nothing else depends on it: no other operand, no index, no sum, no value of the loop's counter. Then any rows
may be computed beside any others, by the code for any extent. What is not seen to be so counts as not so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.ir.graph import Graph, Node, Shape, Value
from tilewright.ir.nest import Nest, Opaque, Operand
from tilewright.ir.ops.registry import describe
from tilewright.ir.rows import row_form

Array = np.ndarray[Any, Any]
Axes = Mapping[str, int | None]
"""Of inputs or outputs by name: the axis that holds rows, None where there is none."""


def row_axes(graph: Graph, other: Graph, inputs: Axes) -> dict[str, int | None] | None:
    """Which axis of each output holds rows, where the axes of the inputs do; None where that is not proven.

    The graphs are of one model at two extents of these axes.
    """
    if len(graph.nodes) != len(other.nodes) or len(graph.inputs) != len(other.inputs):
        return None
    walk = _Walk()
    for a, b in zip(graph.inputs, other.inputs, strict=True):
        axis = inputs.get(a.name)
        if a.name != b.name or not walk.pair(a, b, axis):
            return None
    for node, twin in zip(graph.nodes, other.nodes, strict=True):
        if not walk.follow(node, twin):
            return None
    found: dict[str, int | None] = {}
    for a, b in zip(graph.outputs, other.outputs, strict=True):
        if not walk.is_pair(a, b):
            return None
        found[a.name] = walk.rows[a]
    return found


@dataclass(slots=True)
class _Walk:
    """Values of both graphs that are the same but for their rows, with the axis that holds these."""

    twins: dict[Value, Value] = field(default_factory=dict)
    rows: dict[Value, int | None] = field(default_factory=dict)

    def pair(self, a: Value, b: Value, axis: int | None) -> bool:
        """Remember two values as the same, if their types allow it."""
        if a.dtype is not b.dtype or not _same_shape(a.shape, b.shape, axis):
            return False
        self.twins[a], self.rows[a] = b, axis
        return True

    def is_pair(self, a: Value | None, b: Value | None) -> bool:
        """Whether two values are the same; constants are looked at when they are met."""
        if a is None or b is None:
            return a is b
        if a not in self.twins and a.data is not None and b.data is not None:
            axis = _constant_rows(a.data, b.data)
            if axis == _DIFFERENT:
                return False
            return self.pair(a, b, axis)
        return self.twins.get(a) is b

    def follow(self, node: Node, twin: Node) -> bool:
        """Whether two nodes do the same to each row; then so are their results."""
        nests, others = describe(node), describe(twin)
        if isinstance(nests, Opaque) or isinstance(others, Opaque) or len(nests) != len(others):
            return False
        places = _Places(self, node, twin)
        if not all(places.follow(a, b) for a, b in zip(nests, others, strict=True)):
            return False
        for position, (a, b) in enumerate(zip(node.outputs, twin.outputs, strict=True)):
            if a is None or b is None:
                if a is not b:
                    return False
                continue
            key = ("output", position)
            if key not in places.rows or not self.pair(a, b, places.rows[key]):
                return False
        return True


class _Places:
    """The operands of two nodes while their nests are compared, with the axis of each that holds rows."""

    def __init__(self, walk: _Walk, node: Node, twin: Node) -> None:
        self._walk = walk
        self._node = node
        self._twin = twin
        self.rows: dict[tuple[str, int], int | None] = {}

    def follow(self, nest: Nest, other: Nest) -> bool:
        """Whether two nests do the same to each row; remembers where the written operand holds rows."""
        if len(nest.reads) != len(other.reads):
            return False
        if not all(self._knows(a.operand, b.operand) for a, b in zip(nest.reads, other.reads, strict=True)):
            return False
        write, written = nest.write.operand, other.write.operand
        if (
            write.key != written.key
            or write.dtype is not written.dtype
            or len(write.shape) != len(written.shape)
        ):
            return False
        grown = [i for i, (x, y) in enumerate(zip(write.shape, written.shape, strict=True)) if x != y]
        if len(grown) > 1:
            return False
        axes = [self.rows[access.operand.key] for access in nest.reads]
        axis = grown[0] if grown else None
        form, other_form = row_form(nest, axes, axis), row_form(other, axes, axis)
        if form is None or form != other_form:
            return False
        return self.rows.setdefault(write.key, axis) == axis

    def _knows(self, a: Operand, b: Operand) -> bool:
        """Whether two operands that are read are the same but for their rows."""
        if a.key != b.key or a.dtype is not b.dtype:
            return False
        if a.data is not None or b.data is not None:
            if a.data is None or b.data is None or not _equal(a.data, b.data):
                return False
            self.rows[a.key] = None
            return True
        if a.key in self.rows:
            return _same_shape(a.shape, b.shape, self.rows[a.key])
        if a.kind != "input":
            return False
        value, twin = self._node.input(a.position), self._twin.input(a.position)
        if value is None or twin is None or not self._walk.is_pair(value, twin):
            return False
        self.rows[a.key] = self._walk.rows[value]
        return True


def _same_shape(a: Shape, b: Shape, axis: int | None) -> bool:
    return len(a) == len(b) and all(x == y for i, (x, y) in enumerate(zip(a, b, strict=True)) if i != axis)


_DIFFERENT = -1


def _constant_rows(a: Array, b: Array) -> int | None:
    """The axis of two constants that holds rows, all of which are alike; None where the constants are equal.

    Those of two extents are made by the model's arithmetic on shapes: an initial state of zeros, say.
    """
    if a.shape == b.shape:
        return None if _equal(a, b) else _DIFFERENT
    if a.ndim != b.ndim or a.size == 0 or b.size == 0:
        return _DIFFERENT
    differing = [axis for axis, (x, y) in enumerate(zip(a.shape, b.shape, strict=True)) if x != y]
    if len(differing) > 1:
        return _DIFFERENT
    first = a.take([0], differing[0])
    is_alike = all(_equal(np.broadcast_to(first, c.shape), c) for c in (a, b))
    return differing[0] if is_alike else _DIFFERENT


def _equal(a: Array, b: Array) -> bool:
    """Whether two arrays hold the same bits."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a is b:
        return True
    if a.dtype.hasobject:
        return bool(np.array_equal(a, b))
    return np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()
