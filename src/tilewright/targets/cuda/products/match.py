"""A contraction as a product of two matrices: which of its loops are rows, columns, depth and batch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np

from tilewright.ir.contraction import Centred, ContractionForm, Factor, contraction_of
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Const, Expr, Read, cast, reads_of, substitute
from tilewright.ir.nest import Affine, Dim, Nest
from tilewright.options import Accuracy
from tilewright.records import dataclass
from tilewright.targets.cuda.rates import Kind
from tilewright.targets.llvm.byte_products import constant_factor, product_of, refused_factors
from tilewright.targets.llvm.exprgen import unsupported_function
from tilewright.targets.llvm.layout import Declined, OperandKey
from tilewright.targets.llvm.refs import LinearNest, Ref, linearise, simplify

Array = np.ndarray[Any, Any]

NO_CONSTANTS: Mapping[OperandKey, Array] = MappingProxyType({})
_MIN_EXTENT = 8
"""Rows, columns and depth below this leave most of a tile empty."""


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """One factor: its value over the one read that it has, as read 0 of `nest`, and the dims of its rows."""

    nest: LinearNest
    read: int
    value: Expr
    rows: tuple[Dim, ...]

    @property
    def ref(self) -> Ref:
        """The access."""
        return self.nest.refs[0]

    def is_packable(self, constants: Collection[OperandKey], others: Iterable[Ref]) -> bool:
        """Whether its data are known, stand nowhere else in the nest, and lie in the order of no padding."""
        key, ref = self.ref.operand.key, self.ref
        is_alone = all(other is ref or other.operand.key != key for other in others)
        return self.is_plain and key in constants and is_alone and not ref.guards

    @property
    def is_plain(self) -> bool:
        """Whether what is read is multiplied as it is."""
        return isinstance(self.value, Read)

    @property
    def num_rows(self) -> int:
        """Rows of the matrix that the factor is."""
        return prod(d.extent for d in self.rows)


@dataclass(frozen=True, slots=True, eq=False)
class Bytes:
    """What sums of products of bytes have too much: `zero` times the sum of each row of the factor `known`,
    which is packed less its own zero point `known_zero`. `zero` None is 0."""

    kind: Kind
    known: int
    known_zero: int
    zero: Expr | None


@dataclass(frozen=True, eq=False)
class Product:
    """`sides` are what rows and columns of the result belong to; `depth` is in the order of tiles."""

    nest: Nest
    linear: LinearNest
    sides: tuple[Side, Side]
    batch: tuple[Dim, ...]
    depth: tuple[Dim, ...]
    scales: tuple[Expr, ...]
    dtype: DType
    is_packed: tuple[bool, bool]
    bytes: Bytes | None = None

    @cached_property
    def num_batch(self) -> int:
        """Products side by side."""
        return prod(d.extent for d in self.batch)

    @cached_property
    def num_steps(self) -> int:
        """Terms of each sum."""
        return prod(d.extent for d in self.depth)

    @property
    def macs(self) -> int:
        """Multiply-accumulates."""
        return self.nest.num_iterations

    def kind(self, accuracy: Accuracy) -> Kind:
        """What multiplies at an accuracy: products of half types are exact in float32."""
        if self.bytes is not None:
            return self.bytes.kind
        types = {side.ref.operand.dtype for side in self.sides if side.is_plain}
        if len(types) == 1 and all(side.is_plain for side in self.sides):
            if types == {DType.FLOAT16}:
                return "f16"
            if types == {DType.BFLOAT16}:
                return "bf16"
        if self.dtype is not DType.FLOAT32 or accuracy in ("strict", "default"):
            return "fma"
        return "tf32" if accuracy == "relaxed" else "bf16"


def match_product(nest: Nest, constants: Mapping[OperandKey, Array] = NO_CONSTANTS) -> Product | Declined:
    """The product that a nest is, or why it is none; the data of constants can be packed for it."""
    form = contraction_of(nest)
    if form is None:
        return Declined("no sum of products of two reads")
    factors = product_of(nest)
    if form.dtype not in (DType.FLOAT32, DType.FLOAT64) and factors is None:
        return Declined(f"products of {form.dtype}")
    for expr in (nest.body, nest.init, nest.finish):
        reason = None if expr is None else unsupported_function(expr)
        if reason is not None:
            return Declined(reason)
    linear = linearise(nest, {})
    if isinstance(linear, Declined):
        return linear
    linear = simplify(linear)
    if any(linear.refs[i].data or linear.refs[i].tables for i in form.reads) or linear.write.data:
        return Declined("a factor that data or tables find")
    if factors is None:
        return _product(nest, form, linear, constants)
    return _of_bytes(nest, form, factors, linear, constants)


def _of_bytes(
    nest: Nest,
    form: ContractionForm,
    factors: tuple[Centred, Centred],
    linear: LinearNest,
    constants: Mapping[OperandKey, Array],
) -> Product | Declined:
    """Products of bytes as they lie with those of a constant, which are packed less their zero point."""
    known = constant_factor(nest, factors, constants)
    if known is None:
        return Declined("products of bytes that are no constants")
    place = factors.index(known)
    other = factors[1 - place]
    refused = refused_factors(nest, other, known)
    if refused is not None:
        return refused
    data = constants[nest.reads[known.read].operand.key]
    if data.size and not -128 <= int(data.min()) - known.zero <= int(data.max()) - known.zero <= 127:
        return Declined("a constant that is no signed byte less its zero point")
    if other.guarded and other.zero_read is not None:
        return Declined("padding with a zero point that is data")
    refs = list(linear.refs)
    if other.guarded and refs[other.read].fill is not None:
        refs[other.read] = replace(refs[other.read], fill=other.zero)
    left, right = (Factor(f.read, Read(f.read, nest.reads[f.read].operand.dtype)) for f in factors)
    plain = replace(form, left=left, right=right)
    found = _product(nest, plain, replace(linear, refs=tuple(refs)), constants)
    if isinstance(found, Declined):
        return found
    if not found.is_packed[place]:
        return Declined("a constant of bytes that cannot be packed")
    is_signed = nest.reads[other.read].operand.dtype is DType.INT8
    kind: Kind = "s8" if is_signed else "u8.s8" if place else "s8.u8"
    zero: Expr | None = None if other.zero == 0 else Const(other.zero, DType.INT32)
    if other.zero_read is not None:
        zero = cast(Read(other.zero_read, nest.reads[other.zero_read].operand.dtype), DType.INT32)
    return replace(found, bytes=Bytes(kind, place, known.zero, zero))


def _product(
    nest: Nest, form: ContractionForm, linear: LinearNest, constants: Collection[OperandKey]
) -> Product | Declined:
    left, right = (linear.refs[i].names() for i in form.reads)
    parallel, depth = linear.parallel, linear.reduce
    rows = tuple(d for d in parallel if d.name in left and d.name not in right)
    columns = tuple(d for d in parallel if d.name in right and d.name not in left)
    batch = tuple(d for d in parallel if d not in rows and d not in columns)
    sides = (_side(linear, form.left, rows), _side(linear, form.right, columns))
    if sides[0] is None or sides[1] is None:
        return Declined("a factor of several reads")
    packed = tuple(side.is_packable(constants, linear.all_refs()) for side in sides if side is not None)
    if any(packed):
        # The tile of a factor that slides a window stays at one place of it, as far as channels fill a tile.
        others = [s for s, known in zip(sides, packed, strict=True) if s is not None and not known]
        window = {n for side in others for guard in side.ref.guards for n in guard.form.dims()}
        depth = tuple(sorted(depth, key=lambda d: d.name not in window))
    found = Product(
        nest, linear, (sides[0], sides[1]), batch, depth, form.scales, form.dtype, (packed[0], packed[1])
    )
    if min(found.num_steps, *(side.num_rows for side in found.sides)) < _MIN_EXTENT:
        return Declined("few rows, columns or steps")
    return found


def _side(linear: LinearNest, factor: Factor, rows: tuple[Dim, ...]) -> Side | None:
    if reads_of(factor.value) != {factor.read}:
        return None
    value = substitute(factor.value, lambda read: Read(0, read.dtype))
    ref = linear.refs[factor.read]
    return Side(replace(linear, refs=(ref,), write=ref), factor.read, value, rows)


def without_factors(product: Product, linear: LinearNest) -> LinearNest:
    """The nest with accesses that only its end reads: those of factors are at a fixed place."""
    zero = () if product.bytes is None or product.bytes.zero is None else (product.bytes.zero,)
    used = reads_of(product.nest.init, product.nest.finish, *product.scales, *zero)
    refs = tuple(
        ref if i in used else replace(ref, form=Affine(), guards=(), tables=(), data=())
        for i, ref in enumerate(linear.refs)
    )
    return replace(linear, refs=refs)
