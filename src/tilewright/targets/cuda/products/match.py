"""A contraction as a product of two matrices: which of its loops are rows, columns, depth and batch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from math import prod
from types import MappingProxyType

import numpy as np

from tilewright.arrays import Array
from tilewright.ir.contraction import Centred, ContractionForm, Factor, contraction_of
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Const, Expr, Iter, Read, cast, evaluate, reads_of, substitute
from tilewright.ir.nest import Affine, Dim, Nest
from tilewright.options import Accuracy
from tilewright.records import dataclass
from tilewright.targets.cuda.device import MOST_BLOCKS
from tilewright.targets.cuda.rates import Kind
from tilewright.targets.llvm.byte_products import constant_factor, product_of, refused_factors
from tilewright.targets.llvm.exprgen import unsupported_function
from tilewright.targets.llvm.layout import Declined, OperandKey
from tilewright.targets.llvm.refs import LinearNest, Ref, block_name, linearise, simplify, split_dim
from tilewright.targets.llvm.shared_loops import renamed

NO_CONSTANTS: Mapping[OperandKey, Array] = MappingProxyType({})
_MOST_MADE_STEPS = 64
"""Terms of a sum that each element of a factor may be, where it is made while tiles are filled."""
_MIN_EXTENT = 8
"""Rows, columns and depth below this leave most of a tile empty."""
_MIN_COLUMNS = 32
"""Columns of the narrowest tile."""


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """One factor: its value over the one read that it has, as read 0 of `nest`, and the dims of its rows."""

    nest: LinearNest
    read: int
    value: Expr
    rows: tuple[Dim, ...]
    is_made: bool = False
    """Whether `nest` computes the factor, whose operands it reads; nothing stores it."""

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
        return isinstance(self.value, Read) and not self.is_made

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

    @property
    def made_macs(self) -> int:
        """Iterations of what makes a factor."""
        return sum(
            self.num_batch * side.num_rows * self.num_steps * prod(d.extent for d in side.nest.reduce)
            for side in self.sides
            if side.is_made
        )

    @cached_property
    def num_batch(self) -> int:
        """Products side by side."""
        return prod(d.extent for d in self.batch)

    @cached_property
    def num_steps(self) -> int:
        """Terms of each sum."""
        return prod(d.extent for d in self.depth)

    @property
    def has_row_sums(self) -> bool:
        """Whether sums have too much by a zero point times the sum of a row of the constant factor."""
        return self.bytes is not None and self.bytes.zero is not None

    @property
    def macs(self) -> int:
        """Multiply-accumulates."""
        return self.nest.num_iterations + self.made_macs

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


def match_made_product(
    maker: Nest, nest: Nest, constants: Mapping[OperandKey, Array] = NO_CONSTANTS
) -> Product | Declined:
    """The product of which another nest computes one factor, element by element, while tiles are filled: a
    depthwise convolution with its activation, say."""
    form = contraction_of(nest)
    if form is None or form.dtype is not DType.FLOAT32 or not form.is_plain:
        return Declined("no product of float32")
    places = [i for i in form.reads if nest.reads[i].operand.key == maker.write.operand.key]
    names = _made_along(maker, nest, places[0]) if len(places) == 1 else None
    if names is None or nest.num_iterations == 0 or _num_steps(maker) > _MOST_MADE_STEPS:
        return Declined("no factor that a short sum makes, axis by axis")
    for expr in (nest.finish, nest.init, maker.body, maker.init, maker.finish):
        if expr is not None and unsupported_function(expr) is not None:
            return Declined("an expression without instructions")
    linear, made = linearise(nest, {}), linearise(maker, {})
    if isinstance(linear, Declined) or isinstance(made, Declined):
        return Declined("an index that is not affine")
    if any(ref.data or ref.tables for ref in (*linear.all_refs(), *made.all_refs())):
        return Declined("indices that are data or tables")
    linear = simplify(linear, frozenset(names.values()))
    found = _product(nest, form, linear, constants)
    if isinstance(found, Declined):
        return found
    own = {d.name: names.get(d.name, f"made/{d.name}") for d in maker.dims}
    made = renamed(made, own)
    kept = frozenset(names.values())
    reduce = tuple(d for d in made.dims if d.name not in kept and d.extent > 1)
    dims = (*(replace(d, role="parallel") for d in linear.dims), *reduce)
    made = replace(made, dims=dims, write=made.refs[0])
    side = form.reads.index(places[0])
    sides = list(found.sides)
    sides[side] = replace(sides[side], nest=made, is_made=True)
    return replace(found, sides=(sides[0], sides[1]))


def with_activation(activation: Nest, maker: Nest) -> Nest | None:
    """A nest that computes what it reads of another, element by element, instead of reading that; None where
    the other is no function of one element, or changes what padding is."""
    source, key = activation.reads[0] if activation.reads else None, activation.write.operand.key
    if source is None or len(activation.reads) != 1 or activation.combine is not None:
        return None
    axes = zip(source.index, activation.write.index, source.operand.shape, strict=False)
    places = [i for i, access in enumerate(maker.reads) if access.operand.key == key]
    is_plain = source.view is None and source.fill is None and activation.write.view is None
    if len(places) != 1 or not is_plain or any(a != b and extent > 1 for a, b, extent in axes):
        return None
    (place,) = places
    access, body = maker.reads[place], activation.body
    if access.view is not None or source.operand.shape != access.operand.shape:
        return None
    if any(isinstance(part, Iter) for part in body.walk()) or body.result is not DType.FLOAT32:
        return None
    if access.fill is not None and evaluate(body, [np.float32(access.fill)]) != access.fill:
        return None
    reads = (*maker.reads[:place], replace(access, operand=source.operand), *maker.reads[place + 1 :])
    inner = substitute(body, lambda read: replace(read, index=place))
    made = substitute(maker.body, lambda read: inner if read.index == place else read)
    return replace(maker, reads=reads, body=made)


def _made_along(maker: Nest, nest: Nest, read: int) -> dict[str, str] | None:
    """Loops of the product by those of what makes its factor; None unless each axis goes along both."""
    access, write = nest.reads[read], maker.write
    if access.view is not None or access.fill is not None or access.shape != write.shape:
        return None
    names: dict[str, str] = {}
    for of, to, extent in zip(access.index, write.index, access.shape, strict=True):
        if not isinstance(of, Affine) or not isinstance(to, Affine) or of.offset or to.offset:
            return None
        one = [(n, c) for n, c in of.terms if nest.extents[n] > 1]
        other = [(n, c) for n, c in to.terms if maker.extents[n] > 1]
        if extent == 1:
            continue
        if len(one) != 1 or len(other) != 1 or one[0][1] != 1 or other[0][1] != 1:
            return None
        if nest.extents[one[0][0]] != extent or maker.extents[other[0][0]] != extent:
            return None
        names[other[0][0]] = one[0][0]
    looping = {d.name for d in maker.parallel_dims if d.extent > 1}
    return names if looping == set(names) and len(set(names.values())) == len(names) else None


def _num_steps(nest: Nest) -> int:
    return prod(d.extent for d in nest.reduce_dims)


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
    if found.num_batch > MOST_BLOCKS[2] or found.sides[1].num_rows > _MIN_COLUMNS * MOST_BLOCKS[1]:
        return Declined("more products side by side, or columns, than a grid has blocks")
    return found


def _side(linear: LinearNest, factor: Factor, rows: tuple[Dim, ...]) -> Side | None:
    if reads_of(factor.value) != {factor.read}:
        return None
    value = substitute(factor.value, lambda read: Read(0, read.dtype))
    ref = linear.refs[factor.read]
    return Side(replace(linear, refs=(ref,), write=ref), factor.read, value, rows)


def in_blocks(product: Product, num_steps: int) -> Product:
    """With a loop over blocks of so many steps of the innermost loop around all others, where there are whole
    ones: what a window meets again is read soon."""
    *others, innermost = product.depth
    has_window = any(dim.extent > 1 for dim in others)
    if not has_window or innermost.extent % num_steps or any(side.is_made for side in product.sides):
        return product
    name = innermost.name
    left, right = (
        replace(side, nest=split_dim(side.nest, name, num_steps, num_steps)) for side in product.sides
    )
    blocks = Dim(block_name(name), innermost.extent // num_steps, "reduce")
    depth = (blocks, *others, replace(innermost, extent=num_steps))
    return replace(product, sides=(left, right), depth=depth)


def without_factors(product: Product, linear: LinearNest) -> LinearNest:
    """The nest with accesses that only its end reads: those of factors are at a fixed place."""
    zero = () if product.bytes is None or product.bytes.zero is None else (product.bytes.zero,)
    used = reads_of(product.nest.init, product.nest.finish, *product.scales, *zero)
    refs = tuple(
        ref if i in used else replace(ref, form=Affine(), guards=(), tables=(), data=())
        for i, ref in enumerate(linear.refs)
    )
    return replace(linear, refs=refs)
