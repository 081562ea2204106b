"""Recognise sums of products of bytes, and bring them into the form that multiplies four steps at once.

The body of such a nest is `(a - a_zero) * (b - b_zero)` in int32. Instructions multiply unsigned by signed
bytes and add four products to each int32 sum, so A is taken as unsigned bytes, B as signed ones (signs
change by flipping the top bit, which moves the zero point by 128), and with these

    sum (a - za) * (b - zb) = sum a*b - za * sum b - zb * sum a + steps * za * zb

where `sum b` is known per column at compile time, and `sum a` is only needed where zb is not zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from tilewright.ir.contraction import Centred
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Expr, Read, cast, reads_of, select
from tilewright.ir.nest import Access, Affine, Dim, Nest, Operand, affine
from tilewright.ir.ops.integer import inside
from tilewright.records import dataclass
from tilewright.targets.cpu.arrangements import STEPS_PER_WORD
from tilewright.targets.cpu.kernel import Declined, Layout, Layouts, OperandKey
from tilewright.targets.cpu.product.contraction import Contraction, match_contraction
from tilewright.targets.cpu.product.integer.words import Words, words_of
from tilewright.targets.cpu.product.loops import StridedLoop
from tilewright.targets.cpu.product.plan import ZeroPoints
from tilewright.targets.llvm.addresses import access_walk, leaves, walk
from tilewright.targets.llvm.byte_products import constant_factor, product_of, refused_factors

# A window with more positions would make too much code: each is unrolled.
_MAX_TAPS = 81
# What reading whole words may touch behind the last element of a staged factor.
_SLACK_BYTES = 64


@dataclass(frozen=True, slots=True, eq=False)
class IntegerProblem:
    """A sum of byte products as the kernel sees it; `staging` first copies A to where words can be read.

    `contraction` describes the loops (A's strides are those of the staged copy, `inner` is in the order of
    the code). With `by_column` each column has bytes of A of its own. With `packs` B is no constant: a kernel
    before packs it.
    """

    contraction: Contraction
    staging: Nest | None
    zeros: ZeroPoints
    by_column: bool = False
    packs: bool = False

    @property
    def words(self) -> Words:
        """The summed loops, in words of four."""
        return words_of(self.contraction.inner, "widened")

    @property
    def b_zero(self) -> int:
        """B's zero point as instructions see it, to which B is signed."""
        return signed_zero(self.zeros, self.contraction.b.operand)


def signed_zero(zeros: ZeroPoints, b: Operand) -> int:
    """The zero point of B as signed bytes: unsigned ones have their top bit flipped."""
    return zeros.b - 128 * (b.dtype is DType.UINT8)


@dataclass(frozen=True, slots=True, eq=False)
class _Sides:
    """Both factors, and A as the kernel will read it: in place, or staged."""

    a: Centred
    b: Centred
    source: Access
    staging: Nest | None

    def problem(self, contraction: Contraction, *, by_column: bool = False) -> IntegerProblem:
        """What they make of the nest's loops."""
        flipped = self.staging is not None and self.staging.reads[0].operand.dtype is DType.INT8
        read = self.a.zero_read
        operand = None if read is None else contraction.nest.reads[read].operand
        zeros = ZeroPoints(self.a.zero + 128 * flipped, self.b.zero, operand)
        return IntegerProblem(contraction, self.staging, zeros, by_column)


def match_integer(
    nest: Nest, layouts: Layouts, *, constants: frozenset[OperandKey], next_local: int
) -> IntegerProblem | Declined:
    """The nest as sums of byte products with a constant factor, or why it is none that we generate."""
    sides = _sides(nest, layouts, constants, next_local)
    if isinstance(sides, Declined):
        return sides
    a, b = sides.a.read, sides.b.read
    plain = replace(
        nest,
        reads=tuple(sides.source if i == a else r for i, r in enumerate(nest.reads)),
        body=Read(a, DType.INT32) * Read(b, DType.INT32),
    )
    layouts = _with_staged(layouts, sides.source)
    contraction = match_contraction(plain, layouts, dtypes=(DType.INT32,))
    if isinstance(contraction, Declined):
        return contraction
    if contraction.b_read != b:
        return Declined("the contiguous output dim selects elements of the factor that is not constant")
    run, _ = _run_of(sides.source, nest, layouts)
    inner = [x for x in contraction.inner if x.name not in run]
    by_name = {x.name: x for x in contraction.inner}
    outer = sorted(inner, key=lambda x: (-abs(x.a), x.name))
    contraction = replace(contraction, inner=(*outer, *(by_name[name] for name in reversed(run))))
    problem = sides.problem(contraction)
    if contraction.b.operand.key in constants:
        return problem
    if len(run) != 1:
        return Declined("the summed steps to pack are no single run")
    if not any(x.extent > 1 and not x.b for x in (contraction.row, *contraction.outer)):
        return Declined("each element of the factor to pack is used once")
    return replace(problem, packs=True)


def match_depthwise(
    nest: Nest, layouts: Layouts, *, constants: frozenset[OperandKey], next_local: int
) -> IntegerProblem | Declined:
    """The nest as sums per channel: each channel of the result comes from its own channel of A.

    Channels lie side by side in A and in the result, and only positions of a window are summed.
    """
    channel = _own_channel(nest, layouts)
    if isinstance(channel, Declined):
        return channel
    sides = _sides(nest, layouts, constants, next_local, words=False)
    if isinstance(sides, Declined):
        return sides
    layouts = _with_staged(layouts, sides.source)
    reads = tuple(sides.source if i == sides.a.read else r for i, r in enumerate(nest.reads))
    plain = replace(nest, reads=reads)
    extra_reads = tuple(sorted(reads_of(nest.init, nest.finish)))
    touched = [reads[sides.a.read], reads[sides.b.read], nest.write, *(reads[i] for i in extra_reads)]
    steps: list[dict[str, int]] = []
    offsets: list[int] = []
    for access in touched:
        found = Declined("a reshaped view") if access.view is not None else access_walk(access, layouts)
        if isinstance(found, Declined):
            return found
        steps.append(found[0])
        offsets.append(found[1])

    def loop(dim: Dim) -> StridedLoop:
        a, b, c, *extras = (s.get(dim.name, 0) for s in steps)
        return StridedLoop(dim.extent, a, b, c, tuple(extras), dim.name, dim.rows)

    loops = {d.name: loop(d) for d in nest.dims if d.extent > 1 or d.name == channel}
    parallel = [loops[d.name] for d in nest.parallel_dims if d.name in loops and d.name != channel]
    inner = tuple(loops[d.name] for d in nest.reduce_dims if d.name in loops)
    if any(x.b for x in parallel) or steps[0].get(channel) != 1 or not all(x.a for x in inner):
        return Declined("not one window of positions for each channel")
    if prod(x.extent for x in inner) > _MAX_TAPS:
        return Declined("a window of so many positions that its code would be long")
    row = min(parallel, key=lambda x: (abs(x.c), x.name), default=None)
    outer = tuple(sorted((x for x in parallel if x is not row), key=lambda x: (-abs(x.a), x.name)))
    contraction = Contraction(
        nest=plain,
        dtype=DType.INT32,
        a=reads[sides.a.read],
        b=reads[sides.b.read],
        a_read=sides.a.read,
        b_read=sides.b.read,
        extra_reads=extra_reads,
        vector=loops[channel],
        row=row or StridedLoop(1, extras=(0,) * len(extra_reads)),
        outer=outer,
        inner=inner,
        windows=(),
        a_offset=offsets[0],
        b_offset=offsets[1],
        c_offset=offsets[2],
        extra_offsets=tuple(offsets[3:]),
    )
    return sides.problem(contraction, by_column=True)


def _own_channel(nest: Nest, layouts: Layouts) -> str | Declined:
    """The dim that is contiguous in the result and moves along one axis of A alone."""
    factors = product_of(nest)
    written = access_walk(nest.write, layouts)
    if factors is None or isinstance(written, Declined) or nest.write.view is not None:
        return Declined("not a sum of products of bytes")
    channel = next((d.name for d in nest.parallel_dims if d.extent > 1 and written[0].get(d.name) == 1), None)
    for factor in factors:
        if channel is None or channel not in nest.reads[factor.read].dims():
            return Declined("no dim of channels in both factors")
    assert channel is not None
    return channel


def _factor_of_columns(nest: Nest, layouts: Layouts, factors: Sequence[Centred]) -> Centred | None:
    """The one factor that the contiguous output dim moves, if that can be packed when the kernel runs."""
    written = access_walk(nest.write, layouts)
    if isinstance(written, Declined):
        return None
    column = next((d.name for d in nest.parallel_dims if d.extent > 1 and written[0].get(d.name) == 1), None)
    moved = [f for f in factors if column is not None and column in nest.reads[f.read].dims()]
    if len(moved) != 1 or isinstance(access_walk(nest.reads[moved[0].read], layouts), Declined):
        return None
    return moved[0]


def _with_staged(layouts: Layouts, source: Access) -> Layouts:
    return {**layouts, source.operand.key: layouts.get(source.operand.key, Layout.row_major(1))}


def _sides(
    nest: Nest, layouts: Layouts, constants: frozenset[OperandKey], next_local: int, *, words: bool = True
) -> _Sides | Declined:
    """The factors of a nest and how A is read: without `words`, single bytes are enough."""
    factors = product_of(nest)
    if factors is None:
        return Declined("not a sum of products of bytes")
    if nest.num_iterations == 0:
        return Declined("no iterations")
    b = constant_factor(nest, factors, constants)
    if b is None:
        is_known = any(nest.reads[f.read].operand.key in constants for f in factors)
        found = _factor_of_columns(nest, layouts, factors) if words and not is_known else None
        if found is None:
            return Declined("no factor is constant, nor selected by the contiguous output dim")
        b = found
    a = factors[1] if b is factors[0] else factors[0]
    refused = refused_factors(nest, a, b)
    if refused is not None:
        return refused
    access = nest.reads[a.read]
    in_words = not words or _run_of(access, nest, layouts)[1] % STEPS_PER_WORD == 0
    if leaves(access, nest.extents) or not in_words:
        staging, source = _staged(access, nest, layouts, next_local, a, words)
        return _Sides(a, b, source, staging)
    return _Sides(a, b, replace(access, fill=None), None)


def _run_of(access: Access, nest: Nest, layouts: Layouts) -> tuple[list[str], int]:
    """Summed dims that together walk through neighbouring bytes, innermost first, and their steps."""
    strides = layouts.get(access.operand.key, Layout.row_major(1)).strides(access.shape)
    walked = walk(access.index, strides)
    assert walked is not None
    steps, _ = walked
    run: list[str] = []
    length = 1
    left = {d.name: d.extent for d in nest.reduce_dims if d.extent > 1}
    while True:
        found = next((n for n in left if steps.get(n, 0) == length), None)
        if found is None:
            return run, length
        run.append(found)
        length *= left.pop(found)


def _staged(
    access: Access, nest: Nest, layouts: Layouts, position: int, a: Centred, words: bool
) -> tuple[Nest, Access]:
    """A nest that copies the elements A reads, with its padding, and A read from there.

    The copy holds unsigned bytes and some more than it needs, so that words may be read beyond the last
    element. With `words` an axis of summed elements is innermost.
    """
    operand, extents = access.operand, nest.extents
    reduced = {d.name for d in nest.reduce_dims if d.extent > 1}
    bounds: list[tuple[int, int]] = []
    walked: list[bool] = []
    for index in access.index:
        assert isinstance(index, Affine)
        bounds.append(index.bounds(extents))
        walked.append(any(name in reduced and c == 1 for name, c in index.terms))
    strides = layouts[operand.key].strides(access.shape)
    order = sorted(range(len(bounds)), key=lambda axis: (-strides[axis], axis))
    if words and order and not walked[order[-1]] and any(walked):
        last = next(axis for axis in reversed(order) if walked[axis])
        order = [*(axis for axis in order if axis != last), last]
    steps = [0] * len(bounds)
    total = 1
    for axis in reversed(order):
        steps[axis] = total
        total *= bounds[axis][1] - bounds[axis][0] + 1
    dims = tuple(Dim(f"s{axis}", bounds[axis][1] - bounds[axis][0] + 1) for axis in order)
    target = Operand("local", position, DType.UINT8, (total + _SLACK_BYTES,))
    place = tuple(affine(f"s{axis}", low) for axis, (low, _) in enumerate(bounds))
    source = Access(operand, place, fill=a.zero)
    if all(low >= 0 and high < size for (low, high), size in zip(bounds, access.shape, strict=True)):
        source = replace(source, fill=None)
    reads: tuple[Access, ...] = (source,)
    value: Expr = Read(0, operand.dtype)
    if source.fill is not None and a.zero_read is not None:
        zero = nest.reads[a.zero_read]
        reads = (source, zero)
        value = select(inside(source), value, Read(1, zero.operand.dtype))
    if operand.dtype is DType.INT8:
        value = cast(cast(value, DType.INT32) + 128, DType.UINT8)
    write = Access(target, (affine(*((f"s{axis}", step) for axis, step in enumerate(steps))),))
    terms: list[str | int | tuple[str, int]] = []
    for index, step, (low, _) in zip(access.index, steps, bounds, strict=True):
        assert isinstance(index, Affine)
        terms += [(name, c * step) for name, c in index.terms]
        terms.append((index.offset - low) * step)
    return Nest(dims, reads, write, value), Access(target, (affine(*terms),))
