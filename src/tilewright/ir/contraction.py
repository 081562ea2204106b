"""Contractions: nests that sum products of two reads. The one place that recognises them.

Matrix units run contractions, mappers map them, cost models count their iterations as multiply-accumulates,
and kernels of products compute them. Everybody asks `contraction_of` and reads off the form what is needed:
whether factors are plain, centred or dense, which dims are rows, columns, batch or summed.

Not a contraction is a sum over one read (a square, a scaled sum), over three (a chain of products in one
`Einsum`), one whose factor is a choice of two reads (the state of a recurrent layer: of the start, or of the
last step), and a sum whose products are guarded by data (the taps of `GridSample`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cached_property

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Call, Const, Expr, Iter, Read, reads_of
from tilewright.ir.nest import Access, Affine, Nest, access_dims
from tilewright.ir.ops.integer import inside
from tilewright.records import dataclass


@dataclass(frozen=True, slots=True)
class Factor:
    """One side of the product: the read that moves along summed dims, and its value as it is multiplied."""

    read: int
    value: Expr

    @property
    def is_plain(self) -> bool:
        """Whether what is read is multiplied as it is."""
        return isinstance(self.value, Read)


@dataclass(frozen=True, slots=True)
class Centred:
    """A factor `value - zero`: the read of the value, and the zero point as a number or as another read.

    `guarded` factors are zero outside the tensor: padding reads as the zero point, whatever that is.
    """

    read: int
    zero: int = 0
    zero_read: int | None = None
    guarded: bool = False


@dataclass(frozen=True, eq=False)
class ContractionForm:
    """A nest as a sum of products. `scales` are further multiplicands, which move along no summed dim.

    Names of dims are those of the nest, in its order, extents of 1 included.
    """

    nest: Nest
    left: Factor
    right: Factor
    scales: tuple[Expr, ...] = ()

    @property
    def reads(self) -> tuple[int, int]:
        """The reads whose products are summed, in the order of the product."""
        return self.left.read, self.right.read

    @property
    def accesses(self) -> tuple[Access, Access]:
        """What they read."""
        return self.nest.reads[self.left.read], self.nest.reads[self.right.read]

    @property
    def dtype(self) -> DType:
        """Type of the products."""
        return self.nest.body.result

    @property
    def is_plain(self) -> bool:
        """Whether the body is the product of two reads and nothing else."""
        return self.left.is_plain and self.right.is_plain and not self.scales

    @cached_property
    def centred(self) -> tuple[Centred, Centred] | None:
        """Both factors as integers less their zero points, if that is what is multiplied."""
        if self.scales or self.dtype.is_float:
            return None
        left, right = (_centred(f.value, self.nest) for f in (self.left, self.right))
        return None if left is None or right is None else (left, right)

    @cached_property
    def batch(self) -> tuple[str, ...]:
        """Dims of the result that move both factors: batch, groups, heads, a depthwise layer's channels."""
        return self._parallel(moves_left=True, moves_right=True)

    @cached_property
    def rows(self) -> tuple[str, ...]:
        """Dims of the result that move the left factor alone: along them the right one is used again."""
        return self._parallel(moves_left=True, moves_right=False)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Dims of the result that move the right factor alone: along them the left one is used again."""
        return self._parallel(moves_left=False, moves_right=True)

    @property
    def summed(self) -> tuple[str, ...]:
        """Dims that are summed over."""
        return tuple(d.name for d in self.nest.reduce_dims)

    @cached_property
    def channels(self) -> tuple[str, ...]:
        """Summed dims that move both factors and slide no window over the left one."""
        windowed = {
            name
            for index in self.accesses[0].index
            if isinstance(index, Affine) and len(index.terms) > 1
            for name in index.dims()
        }
        left, right = self._moving
        return tuple(n for n in self.summed if n not in windowed and n in left and n in right)

    @property
    def is_dense(self) -> bool:
        """Whether each factor is used again along a dim of the result: a depthwise layer's input is not."""
        looping = {d.name for d in self.nest.parallel_dims if d.extent > 1}
        return all(looping - moving for moving in self._moving)

    @property
    def is_depthwise(self) -> bool:
        """Whether each channel is summed alone: a window slides, nothing is summed over channels."""
        return not self.columns and not self.channels

    def result_axes(self, dims: Iterable[str]) -> frozenset[int]:
        """Axes of the result that move with any of these dims."""
        wanted = frozenset(dims)
        return frozenset(
            axis
            for axis, index in enumerate(self.nest.write.index)
            if isinstance(index, Affine) and wanted.intersection(index.dims())
        )

    @cached_property
    def _moving(self) -> tuple[frozenset[str], frozenset[str]]:
        left, right = self.accesses
        return frozenset(access_dims(self.nest, left)), frozenset(access_dims(self.nest, right))

    def _parallel(self, *, moves_left: bool, moves_right: bool) -> tuple[str, ...]:
        left, right = self._moving
        names = (d.name for d in self.nest.parallel_dims)
        return tuple(n for n in names if (n in left) == moves_left and (n in right) == moves_right)


def contraction_of(nest: Nest) -> ContractionForm | None:
    """The nest as a sum of products of two reads that both move along a summed dim; None if it is none."""
    body = nest.body
    if nest.combine != "sum" or not isinstance(body, Call) or body.function != "mul":
        return None
    summed = {d.name for d in nest.reduce_dims}
    moving = frozenset(i for i, a in enumerate(nest.reads) if not summed.isdisjoint(access_dims(nest, a)))
    factors: list[Factor] = []
    scales: list[Expr] = []
    for term in _multiplicands(body, moving):
        found = reads_of(term) & moving
        if len(found) > 1 or (len(factors) == 2 and found):
            return None
        if found:
            (read,) = found
            factors.append(Factor(read, term))
        elif any(isinstance(e, Iter) and e.dim in summed for e in term.walk()):
            return None
        else:
            scales.append(term)
    if len(factors) != 2 or factors[0].read == factors[1].read:
        return None
    return ContractionForm(nest, factors[0], factors[1], tuple(scales))


def contractions(nests: Iterable[Nest]) -> tuple[ContractionForm, ...]:
    """Those of the nests that are contractions, in order."""
    return tuple(form for nest in nests if (form := contraction_of(nest)) is not None)


def _multiplicands(body: Expr, moving: frozenset[int]) -> Iterator[Expr]:
    """What is multiplied, from left to right; a product of what stays the same counts as one."""
    stack = [body]
    while stack:
        term = stack.pop()
        if isinstance(term, Call) and term.function == "mul" and reads_of(term) & moving:
            stack.extend(reversed(term.args))
        else:
            yield term


def _centred(value: Expr, nest: Nest) -> Centred | None:
    match value:
        case Read(index, _) | Call("cast", (Read(index, _),)):
            return Centred(index)
        case Call("select", (condition, guarded, Const(0, _))):
            inner = _centred(guarded, nest)
            if inner is None or not _is_inside(condition, nest.reads[inner.read]):
                return None
            return replace(inner, guarded=True)
        case Call("sub", (shifted, Const(number, _))):
            inner = _centred(shifted, nest)
            return None if inner is None else replace(inner, zero=int(number))
        case Call("sub", (shifted, Read(index, _) | Call("cast", (Read(index, _),)))):
            inner = _centred(shifted, nest)
            return None if inner is None else replace(inner, zero_read=index)
    return None


def _is_inside(condition: Expr, access: Access) -> bool:
    return all(isinstance(i, Affine) for i in access.index) and condition == inside(access)
