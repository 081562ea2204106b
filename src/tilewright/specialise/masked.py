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
from functools import partial
from typing import ClassVar

import numpy as np

from tilewright.arrays import Array
from tilewright.ir.dtype import DType
from tilewright.ir.expr import FUNCTIONS, Call, Const, Expr, Iter, Read
from tilewright.ir.graph import Graph, Node, Shape, Value
from tilewright.ir.nest import Access, Affine, Nest, dim_of, index_dims
from tilewright.records import dataclass
from tilewright.specialise.divided import real_places
from tilewright.specialise.graph_pairing import Axes, GraphPairing, Key, Places, grown_axes, same_bits, walk

MASK = "is_real"
"""The input that says which places along the axis are not padding."""

_LEAST_EXTENT = 2
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
    small, large = extents
    if small < _LEAST_EXTENT:
        return None
    for kind in (_PaddedAfter, PaddedBefore):
        pairing = GraphPairing(large - small, partial(real_axes, is_at_end=kind.is_at_end))
        followed = walk(graph, larger, inputs, pairing, kind)
        if followed is not None:
            masks = sorted(m for position, places in enumerate(followed) for m in places.masks(position))
            return Padding(kind.is_at_end, tuple(masks), {value.name: value.shape for value in graph.outputs})
    return None


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


class _MaskedPlaces(Places):
    """Operands whose axes that differ may be padded.

    `reduced` are inputs and axes over which a nest reduces. `fill` stands there for what pads.
    """

    is_at_end: ClassVar[bool]
    """Whether real places are at the end of an axis."""

    def __init__(self, pairing: GraphPairing, node: Node, twin: Node) -> None:
        super().__init__(pairing, node, twin)
        self.reduced: set[tuple[int, int]] = set()
        self.fill = 0.0
        # Nests of the larger graph, with the dim that each reduces.
        self._loops: list[tuple[Nest, str | None]] = []

    def follow(self, nest: Nest, other: Nest) -> bool:
        """Whether two nests do the same in real places, but for what they reduce."""
        if not _same_work(nest, other):
            return False
        grown = {a.name for a, b in zip(nest.dims, other.dims, strict=True) if a.extent != b.extent}
        longer = (b.extent - a.extent for a, b in zip(nest.dims, other.dims, strict=True) if a.name in grown)
        if any(more != self.pairing.growth for more in longer):
            return False
        if any(isinstance(part, Iter) and part.dim in grown for part in nest.parts()):
            return False
        parallel = {d.name for d in nest.parallel_dims}
        reduced = grown - parallel
        if len(reduced) > 1 or (reduced and nest.combine not in _IDENTITIES):
            return False
        loop = next(iter(reduced), None)
        self._loops.append((other, loop))
        for a, b in zip(nest.reads, other.reads, strict=True):
            if not self.reads(a.operand, b.operand) or not self._goes_along(a, b, nest.extents, grown, loop):
                return False
            axis = None if loop is None else _axis_of(a, loop)
            if axis is not None and a.operand.kind == "input":
                self.reduced.add((a.operand.position, axis))
        if not self.writes(nest.write.operand, other.write.operand):
            return False
        used = {dim for index in nest.write.index if isinstance(index, Affine) for dim in index.dims()}
        return grown & parallel <= used and self._goes_along(
            nest.write, other.write, nest.extents, grown, loop, is_write=True
        )

    def is_complete(self) -> bool:
        """Whether there is a value that hides what pads, where that is reduced."""
        if all(loop is None for _, loop in self._loops):
            return True
        is_float = all(self.node.require(operand).dtype.is_float for operand, _ in self.reduced)
        for fill in _FILLS if is_float else (0.0, 1.0):
            if self._is_hidden_by(fill):
                self.fill = fill
                return True
        return False

    def masks(self, position: int) -> Iterator[Mask]:
        """What hides what pads, if the node stands there."""
        for operand, axis in sorted(self.reduced):
            yield Mask(position, operand, axis, self.twin.require(operand).shape[axis], self.fill)

    def _is_hidden_by(self, fill: float) -> bool:
        """Whether every reduction is the same with and without what pads, if `fill` stands there."""
        padded: dict[tuple[Key, int], float] = {(("input", p), axis): fill for p, axis in self.reduced}
        highest: dict[Key, Key] = {}  # the largest values of an operand along what is masked
        written: set[Key] = set()
        for nest, loop in self._loops:
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
                dim = dim_of(index)
                value = None if dim is None else _padded_value(nest, dim, padded, highest)
                if value is not None:
                    padded[key, axis] = value
        return True

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
                if index != twin or not grown.isdisjoint(index_dims(index)):
                    return False
                continue
            if not isinstance(index, Affine) or not isinstance(twin, Affine) or index.terms != twin.terms:
                return False
            low, high = index.bounds(extents)
            if low < 0 or high >= a.operand.shape[axis]:
                return False
            if grown.isdisjoint(index_dims(index)):
                if twin.offset != index.offset + (self.pairing.growth if self.is_at_end else 0):
                    return False
                continue
            if len(index.terms) != 1 or index.terms[0][1] != 1 or twin.offset != index.offset:
                return False
            is_exact = index.offset == 0 if self.is_at_end else high == a.operand.shape[axis] - 1
            if not is_exact and (is_write or index.terms[0][0] == loop):
                return False
        return True


class _PaddedAfter(_MaskedPlaces):
    is_at_end = False


class PaddedBefore(_MaskedPlaces):
    """Places of which the last are real."""

    is_at_end = True


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


def _axis_of(access: Access, dim: str) -> int | None:
    """The axis whose index is a dim."""
    return next((axis for axis, index in enumerate(access.index) if dim_of(index) == dim), None)


def real_axes(real: Array, longer: Array, *, is_at_end: bool) -> Axes | None:
    """Axes in which an array is longer than another of which it has the bits at the begin, or the end; None
    where it has not.
    """
    if real.ndim != longer.ndim or any(x > y for x, y in zip(real.shape, longer.shape, strict=True)):
        return None
    places = tuple(
        real_places(y, y - x, is_at_end=is_at_end) for x, y in zip(real.shape, longer.shape, strict=True)
    )
    return grown_axes(real.shape, longer.shape) if same_bits(real, longer[places]) else None
