"""Recognise what the matrix unit multiplies: a grid of output positions, a window, a depth, a second factor.

A is read as *positions* (pixels, rows) whose summed elements, the *depth*, lie side by side. Each axis of the
grid has output positions and, where the operator slides a window, taps: the input index along the axis is
`step * position + tap_step * tap + offset`. Products without a window (matrix products, pointwise
convolutions, strided ones too) have axes without taps.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from math import prod

from tilewright.ir.dtype import DType
from tilewright.ir.nest import Affine, Nest, RowsOf
from tilewright.records import dataclass
from tilewright.targets.cpu.kernel import Declined, Layout, Layouts, OperandKey
from tilewright.targets.cpu.product.contraction import Contraction, match_contraction
from tilewright.targets.cpu.product.loops import StridedLoop, Window, WindowLoop
from tilewright.targets.llvm.addresses import matched_walk

# A window with more taps would make too much code: every tap is unrolled.
_MAX_TAPS = 25


@dataclass(frozen=True, slots=True)
class MatrixLoops:
    """Loops as the matrix unit walks them. Offsets and strides count elements.

    `axes` are outermost first: batch axes without a window, then at most the last two with one. `depth` are
    the summed elements side by side in A; `a_offset` is that of index zero along every axis.
    """

    axes: tuple[WindowLoop, ...]
    depth: StridedLoop
    a_offset: int

    @property
    def has_window(self) -> bool:
        """Whether several taps read neighbouring positions."""
        return any(x.is_window for x in self.axes)

    @property
    def num_taps(self) -> int:
        """Taps of the whole window."""
        return prod(x.num_taps for x in self.axes)

    @property
    def num_positions(self) -> int:
        """Rows of the product."""
        return prod(x.extent for x in self.axes)

    @property
    def row_loop(self) -> RowsOf | None:
        """Of the outermost axis, where a run may have fewer of its rows."""
        return self.axes[0].rows


def matrix_loops(
    positions: Sequence[StridedLoop], summed: Sequence[StridedLoop], windows: Sequence[Window], a_offset: int
) -> MatrixLoops:
    """The loops over positions, outermost first, and the summed ones: what is no tap is the depth."""
    taps = {w.tap: next(x for x in summed if x.name == w.tap) for w in windows}
    axes: list[WindowLoop] = []
    for x in positions:
        w = next((w for w in windows if w.position == x.name), None)
        if w is None:
            axes.append(WindowLoop(x.extent, x.a, 0, x.c, x.extras, x.name, x.rows))
            continue
        stride, tap = x.a // w.position_step, taps[w.tap]
        a_offset -= stride * w.offset
        window = (w.position_step, tap.extent, w.tap_step, tap.b, w.offset, w.size)
        axes.append(WindowLoop(x.extent, stride, 0, x.c, x.extras, x.name, x.rows, *window))
    (depth,) = (x for x in summed if x.name not in taps)
    return MatrixLoops(tuple(axes), depth, a_offset)


@dataclass(frozen=True, slots=True, eq=False)
class MatrixProblem:
    """A contraction, and what it is with the loops of the matrix unit."""

    contraction: Contraction
    work: Contraction
    packs: bool = False
    """Whether the second factor is no constant: a kernel splits and packs it before."""

    @property
    def heads(self) -> tuple[StridedLoop, ...]:
        """Loops that move the second factor: products of each combination are by themselves."""
        return heads_of(self.work.outer)

    @property
    def num_macs(self) -> int:
        """Multiply-accumulates, padding included."""
        work = self.work
        return prod(x.extent for x in (work.vector, work.row, *work.outer, *work.inner))

    @property
    def loops(self) -> MatrixLoops:
        """Its loops."""
        work = self.work
        positions = (*(x for x in work.outer if not x.b), work.row)
        return matrix_loops(positions, work.inner, work.windows, work.a_offset)


def heads_of(outer: Sequence[StridedLoop]) -> tuple[StridedLoop, ...]:
    """Of the loops outside of rows those that move the second factor."""
    return tuple(x for x in outer if x.b)


def match_matrix(
    nest: Nest, layouts: Layouts, constants: Collection[OperandKey] | None = None
) -> MatrixProblem | Declined:
    """The nest as a product for the matrix unit, or why it is none.

    Without `constants` the second factor counts as one.
    """
    contraction = match_contraction(nest, layouts)
    if isinstance(contraction, Declined):
        return contraction
    if contraction.dtype is not DType.FLOAT32:
        return Declined(f"products of {contraction.dtype}: the matrix unit splits float32")
    a, b, c = (matched_walk(x, layouts) for x in (contraction.a, contraction.b, nest.write))
    extras = [matched_walk(nest.reads[i], layouts) for i in contraction.extra_reads]
    extents, vector = nest.extents, contraction.vector.name
    rows_of = {d.name: d.rows for d in nest.dims}
    packs = constants is not None and contraction.b.operand.key not in constants
    outside = [d.name for d in nest.parallel_dims if d.extent > 1 and d.name != vector]
    heads = [n for n in outside if b[0].get(n)]
    parallel = [n for n in outside if n not in heads]
    if heads and not packs:
        return Declined("the weights differ between positions")
    if packs and any(rows_of.values()):
        return Declined("a run may have fewer rows of two computed factors")
    if any(not a[0].get(n) for n in parallel):
        return Declined("an output dim moves neither factor")
    side_by_side = _depth(nest, a[0], b[0])
    if isinstance(side_by_side, Declined):
        return side_by_side
    names, depth = side_by_side
    axes: list[WindowLoop] = []
    taps_of: dict[str, str] = {}
    steps = Layout.row_major(0) if contraction.a.view is None else Layout.row_major(len(contraction.a.view))
    layout = layouts[contraction.a.operand.key] if contraction.a.view is None else steps
    for stride, index, size in zip(
        layout.strides(contraction.a.shape), contraction.a.index, contraction.a.shape, strict=True
    ):
        assert isinstance(index, Affine)
        terms = [(n, k) for n, k in index.terms if extents[n] > 1 and n not in (*names, *heads)]
        if not terms:
            continue
        positions = [t for t in terms if t[0] in parallel]
        taps = [t for t in terms if t[0] not in parallel]
        if len(positions) > 1 or len(taps) > 1 or any(n in names for n, _ in index.terms if extents[n] > 1):
            return Declined("an axis of A that is more than a position and a tap")
        if any(k < 1 for _, k in terms):
            return Declined("a window that runs backwards")
        position, step = positions[0] if positions else ("", 1)
        tap, tap_step = taps[0] if taps else ("", 1)
        is_window = bool(taps)
        name = position or f"at.{tap}"
        taps_of[name] = tap
        axes.append(
            WindowLoop(
                name=name,
                extent=extents.get(position, 1),
                a=stride,
                c=c[0].get(position, 0),
                extras=tuple(x[0].get(position, 0) for x in extras),
                step=step,
                num_taps=extents[tap] if taps else 1,
                tap_step=tap_step,
                tap_b=b[0].get(tap, 0),
                offset=index.offset if is_window else 0,
                size=size,
                rows=None if taps else rows_of.get(position),
            )
        )
    if sum(x.extent > 1 for x in axes) < len(parallel):
        return Declined("an output dim moves along two axes of A")
    ordered = _ordered(axes, len(extras))
    if isinstance(ordered, Declined):
        return ordered
    rows = [StridedLoop(x.extent, x.step * x.a, 0, x.c, x.extras, x.name, x.rows) for x in ordered]
    windowed = [x for x in ordered if x.is_window]
    tapped = [StridedLoop(x.num_taps, x.tap_step * x.a, x.tap_b, name=taps_of[x.name]) for x in windowed]
    windows = [Window(x.name, x.step, taps_of[x.name], x.tap_step, x.offset, x.size) for x in windowed]
    summed = [replace(x, extras=(0,) * len(extras)) for x in (*tapped, depth)]
    if packs and (windows or any(x.is_window for x in ordered)):
        return Declined("a window over two computed factors")
    around = [
        StridedLoop(
            extents[n], a[0].get(n, 0), b[0][n], c[0].get(n, 0), tuple(x[0].get(n, 0) for x in extras), n
        )
        for n in heads
    ]
    work = replace(
        contraction, row=rows[-1], outer=(*around, *rows[:-1]), inner=tuple(summed), windows=tuple(windows)
    )
    return MatrixProblem(contraction, work, packs)


def _depth(nest: Nest, a: dict[str, int], b: dict[str, int]) -> tuple[set[str], StridedLoop] | Declined:
    """The summed dims that lie side by side in A, and the loop that they are together."""
    summed = {d.name: d.extent for d in nest.reduce_dims if d.extent > 1}
    innermost = next((n for n in summed if a.get(n) == 1), None)
    if innermost is None or not b.get(innermost):
        return Declined("the summed elements of A do not lie side by side")
    names, extent, step = {innermost}, summed[innermost], b[innermost]
    grown = True
    while grown:
        grown = False
        for name, count in summed.items():
            if name not in names and a.get(name) == extent and b.get(name) == step * extent:
                names.add(name)
                extent, grown = extent * count, True
    return names, StridedLoop(extent, 1, step, name=".".join(sorted(names)))


def _ordered(axes: Sequence[WindowLoop], num_extras: int) -> tuple[WindowLoop, ...] | Declined:
    """Axes outermost first, those that walk as one merged; the windows last."""
    found = sorted(axes, key=lambda x: -abs(x.a * x.step))
    windows = [i for i, x in enumerate(found) if x.is_window]
    if windows and windows[0] < len(found) - 2:
        return Declined("a window along an outer axis")
    if prod(x.num_taps for x in found) > _MAX_TAPS:
        return Declined(f"a window of more than {_MAX_TAPS} taps")
    merged: list[WindowLoop] = []
    for x in found:
        if merged and x.collapses_into(merged[-1]):
            outer = merged.pop()
            name = f"{outer.name}.{x.name}"
            x = replace(x, name=name, extent=x.extent * outer.extent, size=0, rows=outer.rows_with(x))
        merged.append(x)
    return tuple(merged) if merged else (WindowLoop(1, extras=(0,) * num_extras),)
