"""The proof that loop nests stay inside their tensors and write every element of their results.

Generated code relies on both without checking. The proof reads nothing but accesses: it looks at every index
of every read and write, at the order of temporaries, and at what the writes to one result cover together. It
runs on every node that is imported, on every graph that passes have changed, and on the fused nests that code
is generated from.

What the writes cover is proved, not counted. Along one axis a write visits a progression or a table of
places, each once; its dims belong to one axis each, so it visits a product of such sets. Products that agree
on which sets divide an axis are taken apart axis by axis until one fills what is left.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations
from math import prod

import numpy as np

from tilewright.arrays import distinct
from tilewright.errors import InternalError, ModelRejected
from tilewright.ir.expr import reads_of
from tilewright.ir.graph import Graph, Node, Shape, Value
from tilewright.ir.nest import (
    Access,
    Affine,
    Index,
    Indirect,
    Lookup,
    Nest,
    Opaque,
    Operand,
    Stepwise,
    format_access,
    operands_of,
)
from tilewright.ir.ops import describe
from tilewright.ir.restrict import RestrictedNests
from tilewright.records import dataclass

# Generated code computes indices in 64 bits; below this no step on the way to one overflows.
LARGEST_INDEX = 1 << 53
# Elements up to which writes that are no products of sets are followed one by one.
_MAX_FOLLOWED = 1 << 22

OperandKey = tuple[str, int]


def find_out_of_bounds(graph: Graph) -> str | None:
    """The first access of any node that leaves its tensor, or result that is not written whole, or None.

    O(accesses). Nodes that run on the host have none. Operands that an operator does not take count too.
    """
    for node in graph.nodes:
        try:
            problem = find_problem(node)
        except ModelRejected as error:
            return str(error).rstrip(".")
        if problem is not None:
            return f"{node.op_type} {node.name!r}: {problem}"
    return None


def require_bounded(node: Node) -> None:
    """Raise if the nests of a node of a model leave a tensor or leave a result unwritten.

    Raises:
        ModelRejected: they do, or the operator does not take its operands.
    """
    problem = find_problem(node)
    if problem is not None:
        raise ModelRejected(
            f"{node.op_type} {node.name!r}: {problem}; its operands, attributes and declared results do not "
            "fit each other."
        )


def require_bounded_graph(graph: Graph, after: str) -> None:
    """Raise if any node of a graph does not pass the proof after a step that should have kept it.

    Raises:
        InternalError: naming the node and the step.
    """
    problem = find_out_of_bounds(graph)
    if problem is not None:
        raise InternalError(f"after {after}, {problem}; please report this.")


def find_problem(node: Node) -> str | None:
    """The first access of a node that leaves its tensor, or result that is not written whole, or None.

    Raises:
        ModelRejected: the operator does not take its operands.
    """
    nests = describe(node)
    if isinstance(nests, Stepwise):
        # What the step before has made is there, or read as its fill.
        carried = {a.operand.key for n in nests.nests for a in n.reads if a.fill is not None}
        return find_nest_problem(nests.nests, node.inputs, node.outputs, carried)
    return None if isinstance(nests, Opaque) else find_nest_problem(nests, node.inputs, node.outputs)


def require_bounded_nests(
    nests: Sequence[Nest], inputs: Sequence[Value | None], outputs: Sequence[Value | None], after: str
) -> None:
    """Raise if nests that a step made of others do not pass the proof.

    Raises:
        InternalError: naming the problem and the step.
    """
    problem = find_nest_problem(nests, inputs, outputs)
    if problem is not None:
        names = ", ".join(repr(v.name) for v in outputs if v is not None)
        raise InternalError(f"after {after}, the nests for {names}: {problem}; please report this.")


def require_bounded_part(part: RestrictedNests, present: Collection[OperandKey], after: str) -> None:
    """Raise if a part of a group of nests leaves the windows that it sees or leaves its result unwritten.

    What is `present` of temporaries was made by a part before.

    Raises:
        InternalError: naming the problem and the step.
    """
    seen: dict[str, dict[int, Value]] = {"input": {}, "output": {}}
    for operand in operands_of(part.nests):
        if operand.kind in seen:
            name = f"{operand.kind} {operand.position}"
            seen[operand.kind][operand.position] = Value(name, operand.dtype, operand.shape)
    inputs, outputs = ([of.get(i) for i in range(max(of, default=-1) + 1)] for of in seen.values())
    problem = find_nest_problem(part.nests, inputs, outputs, present)
    if problem is not None:
        raise InternalError(f"after {after}, a block of nests: {problem}; please report this.")


def find_nest_problem(
    nests: Sequence[Nest],
    inputs: Sequence[Value | None],
    outputs: Sequence[Value | None],
    present: Collection[OperandKey] = (),
) -> str | None:
    """The same of nests that run one after the other, over these inputs and outputs.

    Temporaries that are `present` were written before.
    """
    try:
        return next(_Proof(inputs, outputs, present).problems(nests), None)
    except KeyError as error:
        return f"an index uses the dim {error}, which its nest has not"


# Sets of places along one axis ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Steps:
    """`start, start + step, ...`: `count` places."""

    start: int
    step: int
    count: int

    def places(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return self.start + self.step * np.arange(self.count)

    def holds(self, low: int, high: int) -> bool:
        """Whether all of `low` to `high`, both inclusive, are places of this set."""
        dense = self.step == 1 or low == high
        last = self.start + self.step * (self.count - 1)
        return dense and self.start <= low and high <= last and (low - self.start) % self.step == 0


@dataclass(frozen=True, slots=True)
class _Table:
    """Places in no regular order, sorted."""

    sorted_places: tuple[int, ...]

    @property
    def count(self) -> int:
        return len(self.sorted_places)

    def places(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.asarray(self.sorted_places, np.int64)

    def holds(self, low: int, high: int) -> bool:
        return low == high and low in self.sorted_places


_Places = _Steps | _Table
_Box = tuple[_Places, ...]


def _table(places: np.ndarray[tuple[int], np.dtype[np.int64]]) -> _Table | None:
    """None where a place comes twice."""
    visited = distinct(places)
    return _Table(tuple(visited.tolist())) if len(visited) == len(places) else None


def _places(index: Index, extents: Mapping[str, int], size: int) -> _Places | None:
    """The places that an index visits along an axis of `size`, None where it visits one of them twice."""
    match index:
        case Affine(terms):
            low, _ = index.bounds(extents)
            steps = sorted((abs(c), extents[d]) for d, c in terms if extents[d] > 1)
            if not steps:
                return _Steps(low, 1, 1)
            step, count = steps[0]
            for c, n in steps[1:]:
                if c != step * count:
                    break
                count *= n
            else:
                return _Steps(low, step, count)
            if prod(n for _, n in steps) > size:
                return None
            values = np.asarray([low], np.int64)
            for c, n in steps:
                values = (values[:, None] + c * np.arange(n)).ravel()
            return _table(values)
        case Lookup(table, dim):
            return _table(np.asarray(table[: extents[dim]], np.int64))
        case Indirect():
            raise AssertionError("where it points is data")


def _divide(classes: Collection[_Places], extent: int) -> bool:
    """Whether sets share no place of an axis and together are all of it."""
    if sum(c.count for c in classes) != extent:
        return False
    if all(isinstance(c, _Steps) and c.step == 1 for c in classes):
        end = 0
        for start, count in sorted((c.start, c.count) for c in classes if isinstance(c, _Steps)):
            if start != end:
                return False
            end += count
        return True
    seen = np.zeros(extent, np.bool_)
    for places in classes:
        seen[places.places()] = True
    return bool(seen.all())


def _is_all(box: _Box, shape: Shape) -> bool:
    # The places of a box are different and inside, so as many as there are elements are all of them.
    return all(places.count == extent for places, extent in zip(box, shape, strict=True))


def _cover(boxes: Sequence[_Box], shape: Shape) -> bool:
    """Whether products of sets, all inside a shape, together are all of it."""
    if any(_is_all(box, shape) for box in boxes):
        return True
    for axis, extent in enumerate(shape):
        groups: dict[_Places, list[_Box]] = {}
        for box in boxes:
            groups.setdefault(box[axis], []).append((*box[:axis], *box[axis + 1 :]))
        rest = (*shape[:axis], *shape[axis + 1 :])
        if _divide(groups.keys(), extent):
            return all(_cover(group, rest) for group in groups.values())
    total = sum(prod(places.count for places in box) for box in boxes)
    if total != prod(shape):
        return False
    return not any(
        all(
            np.intersect1d(a.places(), b.places(), assume_unique=True).size
            for a, b in zip(first, second, strict=True)
        )
        for first, second in combinations(boxes, 2)
    )


# The proof --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Write:
    """What one nest writes of an operand: under a shape, and there a product of sets where it is one."""

    nest: Nest
    shape: Shape
    box: _Box | None


class _Proof:
    def __init__(
        self, inputs: Sequence[Value | None], outputs: Sequence[Value | None], present: Collection[OperandKey]
    ) -> None:
        self._values = {"input": inputs, "output": outputs}
        self._temporaries: dict[OperandKey, Operand] = {}
        self._writes: dict[OperandKey, list[_Write]] = {}
        self._whole: set[OperandKey] = set(present)

    def problems(self, nests: Sequence[Nest]) -> Iterator[str]:
        for nest in nests:
            yield from self._nest(nest)
        for position, value in enumerate(self._values["output"]):
            if value is not None and not self._is_whole(("output", position)) and 0 not in value.shape:
                yield f"not every element of the result {value.name!r} {list(value.shape)} is written"

    def _nest(self, nest: Nest) -> Iterator[str]:
        extents = nest.extents
        least = min(extents.values(), default=1)
        if least < 0:
            yield f"a loop has a negative extent ({extents})"
            return
        for access in (*nest.reads, nest.write):
            if not self._fits(access):
                yield f"{format_access(access)} has another shape or type than its tensor"
                return
        if least == 0 and any(d.extent == 0 for d in nest.parallel_dims):
            return
        for position, access in enumerate(nest.reads):
            if not _is_read(nest, position):
                continue
            if not _stays_inside(access, nest, extents, may_leave=access.fill is not None):
                yield f"{format_access(access)} leaves its tensor {list(access.shape)}"
            elif access.operand.kind in ("local", "output") and not self._was_written(access, extents):
                yield f"{format_access(access)} reads what is not written yet"
        if _visits_each(nest, extents):
            self._whole.add(nest.write.operand.key)
        elif not _stays_inside(nest.write, nest, extents, may_leave=False):
            yield f"{format_access(nest.write)} leaves its tensor {list(nest.write.shape)}"
        else:
            yield from self._write(nest, extents)

    def _fits(self, access: Access) -> bool:
        operand = access.operand
        if access.view is not None and prod(access.view) != operand.num_elements:
            return False
        if len(access.index) != len(access.shape):
            return False
        if operand.kind in ("local", "table"):
            first = self._temporaries.setdefault(operand.key, operand)
            same = first.shape == operand.shape and first.dtype is operand.dtype
            return same and (operand.data is None or operand.data.shape == operand.shape)
        values = self._values[operand.kind]
        value = values[operand.position] if operand.position < len(values) else None
        return value is not None and value.shape == operand.shape and value.dtype is operand.dtype

    def _write(self, nest: Nest, extents: Mapping[str, int]) -> Iterator[str]:
        access, key = nest.write, nest.write.operand.key
        if access.operand.kind not in ("output", "local"):
            yield f"{format_access(access)} is no result"
            return
        used = [d for index in access.index for d in _dims(index) if extents[d] > 1]
        if any(d.name in used for d in nest.reduce_dims):
            yield f"{format_access(access)} depends on a dim that is reduced"
            return
        writes = self._writes.setdefault(key, [])
        if any(isinstance(index, Indirect) for index in access.index):
            return
        if {d.name for d in nest.parallel_dims if d.extent > 1} != set(used):
            yield f"{format_access(access)} is written more than once"
            return
        if len(set(used)) < len(used):
            writes.append(_Write(nest, access.shape, None))
            return
        box: list[_Places] = []
        for index, size in zip(access.index, access.shape, strict=True):
            places = _places(index, extents, size)
            if places is None:
                yield f"{format_access(access)} is written more than once"
                return
            box.append(places)
        writes.append(_Write(nest, access.shape, tuple(box)))
        if _is_all(tuple(box), access.shape):
            self._whole.add(key)

    def _was_written(self, access: Access, extents: Mapping[str, int]) -> bool:
        key = access.operand.key
        if key in self._whole:
            return True
        spans = [_span(i, size, extents) for i, size in zip(access.index, access.shape, strict=True)]
        if any(low > high for low, high in spans):
            return True  # nothing but padding
        for write in self._writes.get(key, ()):
            if write.shape != access.shape or write.box is None:
                continue
            if all(places.holds(*span) for places, span in zip(write.box, spans, strict=True)):
                return True
        return self._is_whole(key)

    def _is_whole(self, key: OperandKey) -> bool:
        """Whether the writes so far cover an operand."""
        if key in self._whole:
            return True
        writes = self._writes.get(key, [])
        by_shape: dict[Shape, list[_Box]] = {}
        for write in writes:
            if write.box is not None:
                by_shape.setdefault(write.shape, []).append(write.box)
        if any(_cover(boxes, shape) for shape, boxes in by_shape.items()):
            self._whole.add(key)
            return True
        is_simple = len(by_shape) == 1 and all(write.box is not None for write in writes)
        if writes and not is_simple and _follow(writes):
            self._whole.add(key)
            return True
        return False


def _is_read(nest: Nest, position: int) -> bool:
    """Whether a read happens: without anything to reduce only initial and final values are read."""
    if all(d.extent for d in nest.reduce_dims):
        return True
    used = reads_of(nest.init, nest.finish)
    used |= {i.read for r in used for i in nest.reads[r].index if isinstance(i, Indirect)}
    return position in used


def _stays_inside(access: Access, nest: Nest, extents: Mapping[str, int], *, may_leave: bool) -> bool:
    for index, size in zip(access.index, access.shape, strict=True):
        match index:
            case Affine():
                low, high = index.bounds(extents)
            case Lookup(table, dim):
                if len(table) < extents[dim]:
                    return False
                low, high = min(table), max(table)
            case Indirect(read):
                # Generated code keeps it inside, for which there must be an inside.
                if size == 0 or not _is_plain_index(nest, read):
                    return False
                continue
        if (low < 0 or high >= size) and not (may_leave and low >= -LARGEST_INDEX and high <= LARGEST_INDEX):
            return False
    return True


def _visits_each(nest: Nest, extents: Mapping[str, int]) -> bool:
    """Whether a nest writes its result in the plainest way: one dim from end to end along each axis."""
    write = nest.write
    used: set[str] = set()
    if write.operand.kind not in ("output", "local"):
        return False
    for index, size in zip(write.index, write.shape, strict=True):
        if not isinstance(index, Affine) or index.offset:
            return False
        if len(index.terms) != 1:
            if index.terms or size != 1:
                return False
            continue
        ((name, c),) = index.terms
        if c != 1 or extents[name] != size or name in used:
            return False
        used.add(name)
    return all(d.extent == 1 or (d.name in used) is (d.role == "parallel") for d in nest.dims)


def _is_plain_index(nest: Nest, read: int) -> bool:
    """Whether an index that is data is an integer of another read, which is not indexed by data itself."""
    if not 0 <= read < len(nest.reads):
        return False
    source = nest.reads[read]
    return source.operand.dtype.is_integer and not any(isinstance(i, Indirect) for i in source.index)


def _dims(index: Index) -> tuple[str, ...]:
    match index:
        case Affine():
            return index.dims()
        case Lookup(_, dim):
            return (dim,)
        case Indirect():
            return ()


def _span(index: Index, size: int, extents: Mapping[str, int]) -> tuple[int, int]:
    """The first and the last place along an axis that a read can take; padding lies outside."""
    match index:
        case Affine():
            low, high = index.bounds(extents)
        case Lookup(table, dim):
            low, high = min(table[: extents[dim]], default=0), max(table[: extents[dim]], default=-1)
        case Indirect():
            low, high = 0, size - 1
    return max(low, 0), min(high, size - 1)


def _follow(writes: Sequence[_Write]) -> bool:
    """Whether writes of any kind cover their operand, element by element."""
    size = writes[0].nest.write.operand.num_elements
    if size > _MAX_FOLLOWED:
        return False
    seen = np.zeros(size, np.bool_)
    for write in writes:
        dims = [d for d in write.nest.parallel_dims if d.extent > 1]
        if prod(d.extent for d in dims) > size:
            continue
        steps = {
            d.name: np.arange(d.extent).reshape([-1 if d is other else 1 for other in dims]) for d in dims
        }
        address = np.zeros([1] * len(dims), np.int64)
        for index, extent in zip(write.nest.write.index, write.shape, strict=True):
            place: np.ndarray[tuple[int, ...], np.dtype[np.int64]] = np.zeros([1] * len(dims), np.int64)
            match index:
                case Affine(terms, offset):
                    place = place + offset
                    for name, c in terms:
                        place = place + c * steps.get(name, np.zeros(1, np.int64))
                case Lookup(table, dim):
                    place = place + np.asarray(table, np.int64)[steps.get(dim, np.zeros(1, np.int64))]
                case Indirect():
                    raise AssertionError("where it points is data")
            address = address * extent + place
        seen[address] = True
    return bool(seen.all())
