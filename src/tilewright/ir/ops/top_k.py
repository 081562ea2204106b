"""TopK: the largest or smallest elements along an axis, in order, and where they were.

Equal elements come in the order of their indices, and NaN is larger than every number. Few of many elements
are found one after the other, each as an extreme of those that come after the one before. Of few elements,
each counts how many come before it, which is its place. Anything else is a sort, which no nest describes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.arrays import Array
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Const, Expr, Iter, Read, call, cast, select
from tilewright.ir.graph import Node, Shape
from tilewright.ir.nest import (
    Access,
    Combine,
    Description,
    Dim,
    Index,
    Indirect,
    Nest,
    Opaque,
    Operand,
    affine,
)
from tilewright.ir.ops.build import (
    axis_of,
    copy_nest,
    dims_of,
    identity,
    input_operand,
    local,
    output_operand,
    read,
    require,
    require_result,
    require_scalar,
)
from tilewright.ir.ops.operands import axis_within, optional, present
from tilewright.ir.ops.quantization import limits
from tilewright.ir.ops.registry import Sizing, operator
from tilewright.records import dataclass

# Each extreme is two passes over the row; counting compares each pair of its elements.
MAX_PASSES = 10
MAX_COMPARED = 1024

# On the host: of rows of so many elements, where one of so many is asked for, not all are sorted.
MIN_PRESELECTED = 512
FEW = 4


def _top_k_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    x = present(inputs)
    axis, given = _axis(node), optional(inputs, 1)
    count = node.int_attr("k", 0) if given is None else int(given.reshape(-1)[0])
    is_largest = bool(node.int_attr("largest", 1))
    rows = x.swapaxes(axis, -1)
    if rows.shape[-1] >= MIN_PRESELECTED and 0 < FEW * count <= rows.shape[-1]:
        chosen = np.empty((*rows.shape[:-1], count), np.int64)
        for place in np.ndindex(rows.shape[:-1]):
            chosen[place] = _preselected(rows[place], count, is_largest)
    else:
        chosen = _sorted(rows, count, is_largest)
    found = rows[chosen] if rows.ndim == 1 else np.take_along_axis(rows, chosen, -1)
    return found.swapaxes(axis, -1), chosen.swapaxes(axis, -1)


def _sorted(rows: Array, count: int, is_largest: bool) -> Array:
    """Places of the first elements of each row in order; what is no number is larger than every number."""
    if not is_largest:
        return np.argsort(rows, -1, kind="stable")[..., :count]
    # The reverse of an ascending order of the reversed row: equal elements keep their order.
    turned = np.argsort(rows[..., ::-1], -1, kind="stable")[..., ::-1]
    first: Array = rows.shape[-1] - 1 - turned[..., :count]
    return first


def _preselected(row: Array, count: int, is_largest: bool) -> Array:
    """The same for few of many: those that come before the last one, or equal it, are found without sorting
    all."""
    rank = len(row) - count if is_largest else count - 1
    last = np.partition(row, rank)[rank]
    candidates = np.flatnonzero(~(row < last) if is_largest else ~(row > last))
    return candidates[_sorted(row[candidates], count, is_largest)]


def _axis(node: Node) -> int:
    return axis_within(node.int_attr("axis", -1), len(node.require(0).shape))


def _top_k_shape(node: Node, source: Shape, data: Array) -> Shape:
    axis, count = axis_within(node.int_attr("axis", -1), len(source)), int(data.reshape(-1)[0])
    if not 0 <= count <= source[axis]:
        raise ValueError(f"there are {source[axis]} elements to choose from")
    return (*source[:axis], count, *source[axis + 1 :])


def _top_k_count(node: Node, source: Shape, out: Shape) -> list[int]:
    return [out[axis_within(node.int_attr("axis", -1), len(source))]]


@operator("TopK", reference=_top_k_reference, sizing=Sizing(1, "K", _top_k_shape, _top_k_count))
def top_k(node: Node) -> Description:
    """By extremes where there are few, by counting where elements are few; `k` is the result's extent."""
    search = _Search.of(node)
    if search is None:
        return Opaque("TopK of nothing")
    by_extremes = search.count <= MAX_PASSES and (search.is_largest or not search.x.dtype.is_float)
    if by_extremes and (4 * search.count <= search.extent or search.extent > MAX_COMPARED):
        nests, where = search.extremes()
    elif search.extent <= MAX_COMPARED:
        nests, where = search.places()
    else:
        return Opaque(f"TopK sorts {search.extent} elements for {search.count}")
    return (*nests, *search.results(where))


@dataclass(frozen=True, slots=True)
class _Search:
    """One TopK: its operand, and the local that will hold the indices."""

    node: Node
    x: Operand
    axis: int
    count: int
    is_largest: bool

    @classmethod
    def of(cls, node: Node) -> _Search | None:
        """None where there is nothing to find."""
        x, axis = input_operand(node, 0), axis_of(node, len(node.require(0).shape), -1)
        shape = next(node.results()).shape
        for position in (0, 1):
            require_result(node, (*x.shape[:axis], None, *x.shape[axis + 1 :]), position)
            require_result(node, shape, position)
        require_scalar(node, 1)
        fits = shape[axis] <= x.shape[axis]
        require(node, fits, f"it takes {shape[axis]} of {x.shape[axis]} elements")
        if 0 in shape or node.outputs[0] is None:
            return None
        return cls(node, x, axis, shape[axis], bool(node.int_attr("largest", 1)))

    @property
    def extent(self) -> int:
        """Elements to choose from."""
        return self.x.shape[self.axis]

    def _shape(self, extent: int) -> list[int]:
        return [extent if i == self.axis else e for i, e in enumerate(self.x.shape)]

    def _at(self, dims: Sequence[Dim], index: Index) -> tuple[Index, ...]:
        """Every axis by its own dim, the searched one by `index`."""
        return tuple(index if i == self.axis else affine(d.name) for i, d in enumerate(dims))

    def results(self, where: Operand) -> tuple[Nest, ...]:
        """The elements at the indices, and the indices."""
        out = output_operand(self.node)
        dims = dims_of(out.shape)
        found = Access(where, identity(dims))
        source = Access(self.x, self._at(dims, Indirect(0, None)))
        nests = [Nest(dims, (found, source), Access(out, identity(dims)), read(1, source))]
        if len(self.node.outputs) > 1 and self.node.outputs[1] is not None:
            target = Access(output_operand(self.node, 1), identity(dims))
            nests.append(copy_nest(dims, found, target))
        return tuple(nests)

    def places(self) -> tuple[tuple[Nest, ...], Operand]:
        """Each element's place is the number of those before it; place by place, the element that has it."""
        place = local(0, DType.INT32, self._shape(self.extent))
        where = local(1, DType.INT32, self._shape(self.count))
        dims = dims_of(place.shape)
        name = dims[self.axis].name
        other = Dim("j", self.extent, "reduce")
        mine, theirs = Access(self.x, identity(dims)), Access(self.x, self._at(dims, affine(other.name)))
        earlier = call("lt", Iter(other.name), Iter(name))
        before = self._is_before(read(1, theirs), read(0, mine), earlier)
        one = cast(before, DType.INT32)
        count = Nest((*dims, other), (mine, theirs), Access(place, identity(dims)), one, "sum")
        chosen = dims_of(where.shape)
        at = Access(place, self._at(chosen, affine(other.name)))
        index = cast(Iter(chosen[self.axis].name), DType.INT32)
        mark = select(call("eq", read(0, at), index), cast(Iter(other.name), DType.INT32), 0)
        find = Nest((*chosen, other), (at,), Access(where, identity(chosen)), mark, "sum")
        return (count, find), where

    def _is_before(self, a: Expr, b: Expr, earlier: Expr) -> Expr:
        """Whether element `a` comes before `b`; `earlier` decides between equal ones."""
        same = call("eq", a, b)
        if not a.result.is_float:
            return call("or", call("gt" if self.is_largest else "lt", a, b), call("and", same, earlier))
        # Comparisons with NaN are false.
        same = call("or", same, call("and", call("is_nan", a), call("is_nan", b)))
        greater = call("and", call("not", call("le", a, b)), call("not", call("is_nan", b)))
        smaller = call("and", call("not", call("ge", a, b)), call("not", call("is_nan", a)))
        return call("or", greater if self.is_largest else smaller, call("and", same, earlier))

    def extremes(self) -> tuple[tuple[Nest, ...], Operand]:
        """One extreme after the other, each with the first index at which it stands."""
        dtype = self.x.dtype.compute
        values = local(0, dtype, self._shape(self.count))
        where = local(1, DType.INT32, self._shape(self.count))
        dims = tuple(
            Dim(f"d{i}", e, "reduce" if i == self.axis else "parallel") for i, e in enumerate(self.x.shape)
        )
        combine: Combine = "max" if self.is_largest else "min"
        source = Access(self.x, identity(dims))
        x, index = read(0, source), cast(Iter(dims[self.axis].name), DType.INT32)
        worst = Const(_worst(dtype, self.is_largest), dtype)
        nests: list[Nest] = []
        for turn in range(self.count):
            value_at = Access(values, self._at(dims, affine(turn)))
            index_at = Access(where, self._at(dims, affine(turn)))
            reads = [source]
            candidate, is_left = x, None
            if turn:
                reads += [
                    Access(values, self._at(dims, affine(turn - 1))),
                    Access(where, self._at(dims, affine(turn - 1))),
                ]
                last, last_index = read(1, reads[1]), read(2, reads[2])
                is_left = self._is_before(last, x, call("lt", last_index, index))
                candidate = select(is_left, x, worst)
            nests.append(Nest(dims, tuple(reads), value_at, candidate, combine))
            best = Read(len(reads), dtype)
            hit = call("eq", x, best)
            if dtype.is_float:
                hit = call("or", hit, call("and", call("is_nan", x), call("is_nan", best)))
            if is_left is not None:
                hit = call("and", hit, is_left)
            mark = select(hit, index, self.extent)
            nests.append(Nest(dims, (*reads, value_at), index_at, mark, "min"))
        return tuple(nests), where


def _worst(dtype: DType, is_largest: bool) -> float | int | bool:
    """What loses against every element, or equals it."""
    if dtype is DType.BOOL:
        return not is_largest
    if dtype.is_float:
        return -np.inf if is_largest else np.inf
    return limits(dtype)[0 if is_largest else 1]
