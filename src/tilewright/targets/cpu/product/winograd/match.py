"""Recognise 3x3 convolutions with unit steps from their nests alone."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from math import prod

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Read
from tilewright.ir.nest import Affine, Nest, RowsOf
from tilewright.targets.cpu.arrangements import NUM_TAPS
from tilewright.targets.cpu.kernel import Declined, Layouts
from tilewright.targets.cpu.product.contraction import Contraction, match_contraction
from tilewright.targets.cpu.product.loops import StridedLoop, WindowLoop
from tilewright.targets.cpu.product.plan import KernelPlan, ZeroPoints
from tilewright.targets.llvm.addresses import matched_walk
from tilewright.targets.llvm.byte_products import constant_factor, product_of, refused_factors
from tilewright.targets.llvm.layout import OperandKey


@dataclass(frozen=True, slots=True, eq=False)
class WinogradLoops:
    """The loops of a 3x3 convolution; `batch` are the output dims beside its image. Offsets count elements.

    `inputs` and `outputs` are the channels of one group, where there are `groups`. The `taps` are those along
    `rows` and `columns`. Bytes have `zeros`, which are taken off them.
    """

    rows: WindowLoop
    columns: WindowLoop
    taps: tuple[StridedLoop, StridedLoop]
    batch: tuple[StridedLoop, ...]
    groups: StridedLoop | None
    inputs: StridedLoop
    outputs: StridedLoop
    zeros: ZeroPoints | None

    @property
    def channels_per_step(self) -> int:
        """Input channels that a step of a sum multiplies: floats, or halves of a word that bytes become."""
        return 1 if self.zeros is None else 2

    @property
    def num_steps(self) -> int:
        """Steps of a sum over input channels."""
        return -(-self.inputs.extent // self.channels_per_step)

    @property
    def num_groups(self) -> int:
        """Groups of channels that are convolved on their own."""
        return self.groups.extent if self.groups is not None else 1

    @property
    def num_batch(self) -> int:
        """Images."""
        return prod(x.extent for x in self.batch)

    @property
    def row_loop(self) -> RowsOf | None:
        """Of the outermost loop over images, where a run may have fewer of its rows."""
        return self.batch[0].rows if self.batch else None

    def num_tiles(self, tile: int) -> int:
        """Output tiles of all images."""
        return self.num_batch * tiles_along(self.rows, tile) * tiles_along(self.columns, tile)


@dataclass(frozen=True, slots=True, eq=False)
class WinogradProblem(WinogradLoops):
    """A nest as a 3x3 convolution; the `contraction` of bytes is one of plain products."""

    contraction: Contraction
    nest: Nest


def plan_loops(plan: KernelPlan) -> WinogradLoops:
    """The loops of a kernel's plan."""
    positions = {x.name: x for x in (*plan.outer, plan.row)}
    summed = {x.name: x for x in plan.summed}
    rows, columns = (
        window_loop(positions.pop(w.position), summed[w.tap], w.offset, w.size) for w in plan.windows
    )
    rows_tap, columns_tap = (summed.pop(w.tap) for w in plan.windows)
    (inputs,) = summed.values()
    return WinogradLoops(
        rows=rows,
        columns=columns,
        taps=(rows_tap, columns_tap),
        batch=tuple(x for x in positions.values() if not x.b),
        groups=next((x for x in positions.values() if x.b), None),
        inputs=inputs,
        outputs=plan.vector,
        zeros=plan.zeros,
    )


def window_loop(at: StridedLoop, tap: StridedLoop, offset: int, size: int) -> WindowLoop:
    """A loop over positions along an axis of A with its taps."""
    shared = {f.name: getattr(at, f.name) for f in fields(StridedLoop)}
    return WindowLoop(**shared, num_taps=NUM_TAPS, tap_b=tap.b, offset=offset, size=size)


def tiles_along(loop: StridedLoop, tile: int) -> int:
    """Output tiles of so many positions, the last one perhaps clipped."""
    return -(-loop.extent // tile)


def match_winograd(
    nest: Nest, layouts: Layouts, constants: frozenset[OperandKey] = frozenset()
) -> WinogradProblem | Declined:
    """The nest as a 3x3 convolution whose channels are contiguous, or why it is none."""
    found = _of_bytes(nest, constants)
    if isinstance(found, Declined):
        return found
    given, (zeros, nest) = nest, found or (None, nest)
    contraction = match_contraction(nest, layouts, dtypes=(DType.FLOAT32, DType.INT32))
    if isinstance(contraction, Declined):
        return contraction
    if (contraction.dtype is DType.INT32) != (zeros is not None):
        return Declined(f"products of {contraction.dtype}: the transforms are for float32 and bytes")
    access = contraction.a
    extents, roles = nest.extents, {d.name: d.role for d in nest.dims}
    a, b, c = (matched_walk(x, layouts) for x in (access, contraction.b, nest.write))
    groups = [d.name for d in nest.parallel_dims if d.extent > 1 and a[0].get(d.name) and b[0].get(d.name)]
    if len(groups) > 1:
        return Declined("groups of channels along several dims")
    pairs: list[tuple[int, str, str]] = []
    for axis, index in enumerate(access.index):
        assert isinstance(index, Affine)
        varying = [(n, c) for n, c in index.terms if extents[n] > 1]
        taps = [n for n, _ in varying if roles[n] == "reduce"]
        is_grouped = any(n in groups for n, _ in varying)  # an axis of channels
        if len(varying) == 2 and len(taps) == 1 and not is_grouped:
            if any(c != 1 for _, c in varying):
                return Declined("a window with a stride or a dilation")
            pairs.append((axis, next(n for n, _ in varying if n != taps[0]), taps[0]))
    if len(pairs) != 2 or any(extents[tap] != NUM_TAPS for _, _, tap in pairs):
        return Declined("not a window of 3x3 positions")
    if len({p for _, p, _ in pairs}) != 2 or len({t for _, _, t in pairs}) != 2:
        return Declined("one dim moves along both axes of the window")
    windowed = {name for _, position, tap in pairs for name in (position, tap)}
    reduced = [d.name for d in nest.reduce_dims if d.extent > 1 and d.name not in windowed]
    if len(reduced) != 1:
        return Declined("not one dim of input channels")
    channel, vector = reduced[0], contraction.vector.name
    if windowed & {*groups}:
        return Declined("weights that differ between positions")
    batch = [
        d.name
        for d in nest.parallel_dims
        if d.extent > 1 and d.name not in windowed and d.name != vector and d.name not in groups
    ]
    rows_of = {d.name: d.rows for d in nest.dims}
    reads = [matched_walk(nest.reads[i], layouts) for i in contraction.extra_reads]

    def loop(name: str) -> StridedLoop:
        moved = (a[0].get(name, 0), b[0].get(name, 0), c[0].get(name, 0))
        extras = tuple(r[0].get(name, 0) for r in reads)
        return StridedLoop(extents[name], *moved, extras, name, rows_of[name])

    if loop(channel).a != 1:
        return Declined("input channels are not contiguous")
    if any(loop(name).b for name in (*batch, *(p for _, p, _ in pairs))):
        return Declined("weights that differ between positions")
    if any(loop(name).b != extents[vector] * loop(vector).b for name in groups):
        return Declined("weights of groups that do not lie one behind the other")
    if not all(loop(p).a == loop(t).a and not loop(t).c for _, p, t in pairs):
        return Declined("the window's positions and taps move differently")
    axes: list[tuple[WindowLoop, StridedLoop]] = []
    for axis, position, tap in pairs:
        index = access.index[axis]
        assert isinstance(index, Affine)
        axes.append((window_loop(loop(position), loop(tap), index.offset, access.shape[axis]), loop(tap)))
    (rows, rows_tap), (columns, columns_tap) = sorted(axes, key=lambda axis: -abs(axis[0].a))
    return WinogradProblem(
        contraction=contraction,
        rows=rows,
        columns=columns,
        taps=(rows_tap, columns_tap),
        batch=tuple(map(loop, batch)),
        groups=loop(groups[0]) if groups else None,
        inputs=loop(channel),
        outputs=loop(vector),
        zeros=zeros,
        nest=given,
    )


def _of_bytes(nest: Nest, constants: frozenset[OperandKey]) -> tuple[ZeroPoints, Nest] | Declined | None:
    """The zero points of a sum of products of bytes, and the sum as one of plain products: what lies beyond
    the image reads as nothing then. None for other nests."""
    factors = product_of(nest)
    if factors is None:
        return None
    b = constant_factor(nest, factors, constants)
    if b is None:
        return Declined("no factor is constant")
    a = factors[1] if b is factors[0] else factors[0]
    refused = refused_factors(nest, a, b)
    if refused is not None:
        return refused
    if a.zero_read is not None:
        return Declined("a zero point that is known only when the model runs")
    access = nest.reads[a.read]
    reads = [*nest.reads]
    reads[a.read] = access if access.fill is None else replace(access, fill=0)
    body = Read(a.read, DType.INT32) * Read(b.read, DType.INT32)
    return ZeroPoints(a.zero, b.zero), replace(nest, reads=tuple(reads), body=body)
