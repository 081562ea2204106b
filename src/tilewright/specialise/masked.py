"""Code for one extent of an axis that serves all smaller ones: what pads is hidden where sums would see it.

Beside rows, which depend on no other (`rows`), a sequence is mixed: attention sums over it. Two graphs of one
model, for the extent that arrives and for a larger one, are walked side by side. What is real lies at the
begin of the axis, or at its end, to which a decoder adds new keys. Where nests only go along
the axis, what pads stays beside what is real. Where they reduce it, the operands are masked: a node before
them puts in the place of what pads a value of which the nests say that it changes no result. So real results
depend on real inputs alone. Everything that is not seen to be so - other work at another extent, an index
that is data or counts from the end, a loop's counter, a mean over the axis - counts as not so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.expr import FUNCTIONS, Call, Const, Expr, Iter, Read
from tilewright.ir.graph import Graph, Node, Shape, Value
from tilewright.ir.nest import Access, Affine, Index, Indirect, Lookup, Nest, Opaque, Operand
from tilewright.ir.ops.registry import describe

Array = np.ndarray[Any, Any]
Axes = frozenset[int]
Key = tuple[str, int]

MASK = "is_real"
"""The input that says which places along the axis are not padding."""

_NO_AXES: Axes = frozenset()
_FILLS = (0.0, -np.inf, np.inf, 1.0)
_IDENTITIES: Mapping[str, float] = {"sum": 0.0, "prod": 1.0, "max": -np.inf, "min": np.inf}


@dataclass(frozen=True, slots=True, order=True)
class Mask:
    """`fill` stands for what pads an axis of a node's operand; nodes and operands by their positions."""

    node: int
    operand: int
    axis: int
    extent: int
    fill: float


@dataclass(frozen=True, slots=True)
class Padding:
    """What a graph at an extent needs to serve a smaller one: masks, and the real shapes of its outputs."""

    is_at_end: bool
    masks: tuple[Mask, ...]
    outputs: Mapping[str, Shape]


def padding(
    graph: Graph, larger: Graph, inputs: Mapping[str, Axes], extents: tuple[int, int]
) -> Padding | None:
    """What `larger` needs to serve the shapes of `graph`; None where that cannot be said.

    `inputs` are the axes of inputs that have these extents, the smaller first: two at least, for nests of one
    are written in another way.
    """
    if len(graph.nodes) != len(larger.nodes) or len(graph.inputs) != len(larger.inputs) or extents[0] < 2:
        return None
    return _padding(graph, larger, inputs, extents, False) or _padding(graph, larger, inputs, extents, True)


def _padding(
    graph: Graph, larger: Graph, inputs: Mapping[str, Axes], extents: tuple[int, int], is_at_end: bool
) -> Padding | None:
    walk = _Walk(extents[1] - extents[0], is_at_end)
    for a, b in zip(graph.inputs, larger.inputs, strict=True):
        if a.name != b.name or not walk.pair(a, b, inputs.get(a.name, _NO_AXES)):
            return None
    for position, (node, twin) in enumerate(zip(graph.nodes, larger.nodes, strict=True)):
        if not walk.follow(position, node, twin):
            return None
    if not all(walk.is_pair(a, b) for a, b in zip(graph.outputs, larger.outputs, strict=True)):
        return None
    return Padding(is_at_end, tuple(sorted(walk.masks)), {value.name: value.shape for value in graph.outputs})


def masked_graph(larger: Graph, masks: Sequence[Mask]) -> Graph:
    """A copy of a graph that applies masks; for each extent of one it is fed a vector, after its inputs."""
    graph = larger.clone()
    nodes = list(graph.nodes)
    fed: dict[int, Value] = {}
    shaped: dict[Shape, Value] = {}
    for m in masks:
        node = nodes[m.node]
        operand = node.require(m.operand)
        if m.extent not in fed:
            name = graph.fresh_name(f"{MASK}_{m.extent}")
            fed[m.extent] = graph.add_input(Value(name, DType.BOOL, (m.extent,)))
        shape = tuple(m.extent if axis == m.axis else 1 for axis in range(len(operand.shape)))
        if shape not in shaped:
            target = graph.constant(np.array(shape, np.int64), "mask_shape")
            shaped[shape] = graph.value("mask", DType.BOOL, shape)
            first = Node("Reshape", [fed[m.extent], target], [shaped[shape]], opset=node.opset)
            graph.insert_before(graph.nodes[0], first)
        fill = graph.constant(np.array(m.fill, operand.dtype.numpy), "padding")
        hidden = graph.value(f"{operand.name}_masked", operand.dtype, operand.shape)
        graph.insert_before(node, Node("Where", [shaped[shape], operand, fill], [hidden], opset=node.opset))
        inputs = list(node.inputs)
        inputs[m.operand] = hidden
        graph.set_inputs(node, inputs)
    return graph


def real_places(extent: int, num_padded: int, *, is_at_end: bool) -> slice:
    """Of an axis, those that are not padding."""
    return slice(num_padded, extent) if is_at_end else slice(0, extent - num_padded)


@dataclass(slots=True)
class _Walk:
    """Values of both graphs that are the same in real places, with the axes that may be padded."""

    num_padded: int
    is_at_end: bool
    twins: dict[Value, Value] = field(default_factory=dict)
    axes: dict[Value, Axes] = field(default_factory=dict)
    masks: list[Mask] = field(default_factory=list)

    def pair(self, a: Value, b: Value, axes: Axes) -> bool:
        """Remember two values as the same, if their types allow it."""
        if a.dtype is not b.dtype or len(a.shape) != len(b.shape) or _grown(a.shape, b.shape) != axes:
            return False
        if any(b.shape[axis] - a.shape[axis] != self.num_padded for axis in axes):
            return False
        self.twins[a], self.axes[a] = b, axes
        return True

    def is_pair(self, a: Value | None, b: Value | None) -> bool:
        """Whether two values are the same; constants are looked at when they are met."""
        if a is None or b is None:
            return a is b
        if a not in self.twins and a.data is not None and b.data is not None:
            return (
                len(a.shape) == len(b.shape)
                and _holds(b.data, a.data, is_at_end=self.is_at_end)
                and self.pair(a, b, _grown(a.shape, b.shape))
            )
        return self.twins.get(a) is b

    def follow(self, position: int, node: Node, twin: Node) -> bool:
        """Whether two nodes give the same in real places, if need be with masks; then so do results."""
        nests, others = describe(node), describe(twin)
        if isinstance(nests, Opaque) or isinstance(others, Opaque) or len(nests) != len(others):
            return False
        places = _Places(self, node, twin)
        if not all(places.follow(a, b) for a, b in zip(nests, others, strict=True)):
            return False
        for number, (a, b) in enumerate(zip(node.outputs, twin.outputs, strict=True)):
            if a is None or b is None:
                if a is not b:
                    return False
            elif ("output", number) not in places.axes or not self.pair(a, b, places.axes["output", number]):
                return False
        if not places.reduced:
            return True
        is_float = all(node.require(operand).dtype.is_float for operand, _ in places.reduced)
        for fill in _FILLS if is_float else (0.0, 1.0):
            if places.is_hidden_by(others, fill):
                for operand, axis in sorted(places.reduced):
                    extent = twin.require(operand).shape[axis]
                    self.masks.append(Mask(position, operand, axis, extent, fill))
                return True
        return False


class _Places:
    """The operands of two nodes while their nests are compared, with the axes of each that may be padded.

    `reduced` are inputs and axes over which a nest reduces; `loops` the dims of each nest that do so.
    """

    def __init__(self, walk: _Walk, node: Node, twin: Node) -> None:
        self._walk = walk
        self._node = node
        self._twin = twin
        self.axes: dict[Key, Axes] = {}
        self.reduced: set[tuple[int, int]] = set()
        self.loops: list[str | None] = []

    def follow(self, nest: Nest, other: Nest) -> bool:
        """Whether two nests do the same in real places, but for what they reduce."""
        if not _same_work(nest, other):
            return False
        grown = {a.name for a, b in zip(nest.dims, other.dims, strict=True) if a.extent != b.extent}
        longer = (b.extent - a.extent for a, b in zip(nest.dims, other.dims, strict=True) if a.name in grown)
        if any(more != self._walk.num_padded for more in longer):
            return False
        if any(isinstance(part, Iter) and part.dim in grown for part in _parts(nest)):
            return False
        parallel = {d.name for d in nest.parallel_dims}
        reduced = grown - parallel
        if len(reduced) > 1 or (reduced and nest.combine not in _IDENTITIES):
            return False
        loop = next(iter(reduced), None)
        self.loops.append(loop)
        for a, b in zip(nest.reads, other.reads, strict=True):
            if not self._knows(a.operand, b.operand) or not self._goes_along(a, b, nest.extents, grown, loop):
                return False
            axis = None if loop is None else _axis_of(a, loop)
            if axis is not None and a.operand.kind == "input":
                self.reduced.add((a.operand.position, axis))
        write, written = nest.write, other.write
        if write.operand.key != written.operand.key or write.operand.dtype is not written.operand.dtype:
            return False
        if len(write.operand.shape) != len(written.operand.shape):
            return False
        axes = _grown(write.operand.shape, written.operand.shape)
        if self.axes.setdefault(write.operand.key, axes) != axes:
            return False
        used = {dim for index in write.index if isinstance(index, Affine) for dim in index.dims()}
        return grown & parallel <= used and self._goes_along(
            write, written, nest.extents, grown, loop, is_write=True
        )

    def is_hidden_by(self, nests: Sequence[Nest], fill: float) -> bool:
        """Whether every reduction is the same with and without what pads, if `fill` stands there."""
        padded: dict[tuple[Key, int], float] = {(("input", p), axis): fill for p, axis in self.reduced}
        highest: dict[Key, Key] = {}  # the largest values of an operand along what is masked
        written: set[Key] = set()
        for nest, loop in zip(nests, self.loops, strict=True):
            key = nest.write.operand.key
            if key in written:  # by several nests, each a part of it
                return False
            if key[0] != "output":  # which no nest reads
                written.add(key)
            if loop is not None:
                found = _padded_value(nest, loop, padded, highest)
                if found is None or found != _IDENTITIES[nest.combine or ""]:
                    return False
                if nest.combine == "max" and isinstance(nest.body, Read) and nest.finish is None:
                    highest[key] = nest.reads[nest.body.index].operand.key
                continue
            for axis, index in enumerate(nest.write.index if key in written else ()):
                dim = _dim(index)
                value = None if dim is None else _padded_value(nest, dim, padded, highest)
                if value is not None:
                    padded[key, axis] = value
        return True

    def _knows(self, a: Operand, b: Operand) -> bool:
        if a.key != b.key or a.dtype is not b.dtype or len(a.shape) != len(b.shape):
            return False
        if a.data is not None or b.data is not None:
            if a.data is None or b.data is None or a.shape != b.shape:
                return False
            if not _holds(b.data, a.data, is_at_end=False):
                return False
            self.axes[a.key] = _NO_AXES
            return True
        if a.key not in self.axes:
            if a.kind != "input":
                return False
            value, twin = self._node.input(a.position), self._twin.input(a.position)
            if value is None or twin is None or not self._walk.is_pair(value, twin):
                return False
            self.axes[a.key] = self._walk.axes[value]
        return _grown(a.shape, b.shape) <= self.axes[a.key]

    def _goes_along(
        self,
        a: Access,
        b: Access,
        extents: Mapping[str, int],
        grown: set[str],
        loop: str | None,
        *,
        is_write: bool = False,
    ) -> bool:
        """Whether real places of padded axes answer to real ones, and writes elsewhere are to padding."""
        if len(a.index) != len(b.index) or a.fill != b.fill or a.view is not None or b.view is not None:
            return False
        axes = self.axes[a.operand.key]
        for axis, (index, twin) in enumerate(zip(a.index, b.index, strict=True)):
            if axis not in axes:
                if index != twin or _uses(index, grown):
                    return False
                continue
            if not isinstance(index, Affine) or not isinstance(twin, Affine) or index.terms != twin.terms:
                return False
            low, high = index.bounds(extents)
            if low < 0 or high >= a.operand.shape[axis]:
                return False
            if not _uses(index, grown):
                if twin.offset != index.offset + (self._walk.num_padded if self._walk.is_at_end else 0):
                    return False
                continue
            if len(index.terms) != 1 or index.terms[0][1] != 1 or twin.offset != index.offset:
                return False
            is_exact = index.offset == 0 if self._walk.is_at_end else high == a.operand.shape[axis] - 1
            if not is_exact and (is_write or index.terms[0][0] == loop):
                return False
        return True


def _padded_value(
    nest: Nest, dim: str, padded: Mapping[tuple[Key, int], float], highest: Mapping[Key, Key]
) -> float | None:
    """What a nest's body is where a dim is at what pads; None if that is not known."""
    if nest.init is not None or nest.finish is not None:
        return None
    keys = [access.operand.key for access in nest.reads]
    reads: list[float | None] = []
    for access in nest.reads:
        axis = _axis_of(access, dim)
        reads.append(None if axis is None else padded.get((access.operand.key, axis)))

    def value(expression: Expr) -> float | None:
        match expression:
            case Const(number):
                return float(number)
            case Read(index):
                return reads[index]
            case Call("sub", (Read(index), Read(top))) if reads[index] == -np.inf:
                # Less the largest: -inf, or no number where all that is real is -inf, as without padding.
                return -np.inf if highest.get(keys[top]) == keys[index] else None
            case Call(function, args):
                values = [value(arg) for arg in args]
                known = [np.float64(v) for v in values if v is not None]
                if len(known) < len(values):
                    return None
                with np.errstate(all="ignore"):
                    found = float(FUNCTIONS[function].numpy(*known))
                return None if np.isnan(found) else found
        return None

    return value(nest.body)


def _same_work(nest: Nest, other: Nest) -> bool:
    """Whether everything of two nests is the same but extents, operands and indices."""
    return (
        [(d.name, d.role) for d in nest.dims] == [(d.name, d.role) for d in other.dims]
        and len(nest.reads) == len(other.reads)
        and (nest.body, nest.combine, nest.init, nest.finish)
        == (other.body, other.combine, other.init, other.finish)
    )


def _parts(nest: Nest) -> Iterator[Expr]:
    for expression in (nest.body, nest.init, nest.finish):
        if expression is not None:
            yield from expression.walk()


def _dim(index: Index) -> str | None:
    """The dim that an index is; None where more is done to it."""
    if isinstance(index, Affine) and len(index.terms) == 1 and index.terms[0][1] == 1 and index.offset == 0:
        return index.terms[0][0]
    return None


def _axis_of(access: Access, dim: str) -> int | None:
    """The axis whose index is a dim."""
    return next((axis for axis, index in enumerate(access.index) if _dim(index) == dim), None)


def _uses(index: Index, dims: set[str]) -> bool:
    """Whether an index depends on one of some dims; of data, the read that gives it is asked."""
    if isinstance(index, Indirect):
        return False
    return index.dim in dims if isinstance(index, Lookup) else not dims.isdisjoint(index.dims())


def _grown(a: Shape, b: Shape) -> Axes:
    return frozenset(axis for axis, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)


def _holds(longer: Array, real: Array, *, is_at_end: bool) -> bool:
    """Whether an array has the bits of another at the begin, or the end, of axes in which it is longer."""
    if longer.dtype != real.dtype or longer.ndim != real.ndim:
        return False
    if longer is real:
        return True
    if any(x > y for x, y in zip(real.shape, longer.shape, strict=True)):
        return False
    places = tuple(
        real_places(y, y - x, is_at_end=is_at_end) for x, y in zip(real.shape, longer.shape, strict=True)
    )
    part = longer[places]
    return bool(np.array_equal(real, part)) if real.dtype.hasobject else real.tobytes() == part.tobytes()
