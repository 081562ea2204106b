"""How factor B reaches the micro-kernel: rearranged into panels, or read where it lies.

A packed B is, for each of its outer positions, the panels one after the other; a panel holds its whole
width of consecutive columns for each step of the summed loops, in the order in which the kernel runs
them, so that the micro-kernel reads it front to back. Missing columns of the last vector are zero.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from math import prod

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Read, cast
from tilewright.ir.nest import Access, Affine, Dim, Index, Nest, Operand, affine
from tilewright.records import dataclass
from tilewright.targets.cpu.arrangements import (
    COMPACT_BEHIND_BYTES,
    COMPACT_BYTES,
    FewBitPanels,
    PanelOrder,
    window,
)
from tilewright.targets.cpu.few_bits import FewBits
from tilewright.targets.cpu.kernel import KernelArg, Packed
from tilewright.targets.cpu.product.contraction.match import Contraction
from tilewright.targets.cpu.product.frame import Factor
from tilewright.targets.cpu.product.loops import StridedLoop
from tilewright.targets.cpu.product.plan import PACKINGS, KernelPlan, Packing
from tilewright.targets.cpu.product.tiling import Panels

FEW_BITS: Mapping[Packing, FewBits] = {
    packing: FewBits(int(bits), int(block), has_zeros=zeros == "with zeros")
    for packing in PACKINGS
    for _, bits, block, zeros in re.findall(r"^(in constant panels) of (\d+) bits by (\d+) ?(.*)$", packing)
}
"""How numbers are stored, of each packing by few bits."""


@dataclass(frozen=True, slots=True, eq=False)
class FactorB(Factor):
    """B with the elements moved by a step of each summed loop, in a full panel and in a narrower last one."""

    step_strides: dict[str, int] = field(default_factory=dict)
    tail_step_strides: dict[str, int] = field(default_factory=dict)
    is_packed: bool = True
    is_compact: bool = False
    few_bits: FewBits | None = None
    """How weights are stored, where these are numbers of few bits with scales."""
    half: DType | None = None
    """The type of weights that are packed as they are, and computed with in float32."""


def factor_of(plan: KernelPlan) -> FactorB:
    """B as the kernel of a plan finds it."""
    if plan.packing == "in place":
        return _in_place(plan)
    if plan.packing == "in panels":
        return _in_panels(plan, plan.b.operand, _local_width(plan.panels), _local_width(plan.panels))
    if plan.packing in FEW_BITS:
        return _in_panels_of_few_bits(plan, FEW_BITS[plan.packing])
    return _in_constant_panels(plan)


def widened(factor: FactorB, plan: KernelPlan) -> FactorB:
    """One panel of B of few bits, or of a half type, as floats, where its kernel put them."""
    (loop,), panels = plan.summed, plan.panels
    return replace(
        factor,
        panel_stride=0,
        step_strides={loop.name: panels.width},
        tail_step_strides={loop.name: panels.tail_vectors * panels.lanes},
        few_bits=None,
        half=None,
    )


def _in_panels_of_few_bits(plan: KernelPlan, few: FewBits) -> FactorB:
    """B as integers of few bits with their scales; a step of the summed loop is a block of them."""
    panels, (loop,) = plan.panels, plan.summed
    lies = window((loop.extent, plan.vector.extent), (loop.b, plan.vector.b), plan.b.offset)
    arrangement = FewBitPanels(lies, panels.lanes, panels.width, few.block, few.bits, few.has_zeros)
    words = loop.extent // few.block * few.words_per_block
    tail_width = panels.tail_vectors * panels.lanes
    return FactorB(
        arg=Packed(plan.b.operand, arrangement, words * panels.padded_extent * DType.INT32.size_bytes),
        outer_strides={},
        panel_stride=words * panels.width,
        step_strides={loop.name: few.words_per_block * panels.width},
        tail_step_strides={loop.name: few.words_per_block * tail_width},
        few_bits=few,
    )


def _in_constant_panels(plan: KernelPlan) -> FactorB:
    """B as a constant packed at compile time.

    In 24 bits are the upper three bytes of each float32, rounded. Behind them lies room for a kernel to read
    whole vectors of bytes.
    """
    panels, is_compact = plan.panels, plan.packing == "in constant panels of 24 bits"
    half = plan.b.operand.dtype if plan.packing == "in constant panels of 16 bits" else None
    dtype = half or plan.dtype
    outer = [x for x in plan.outer if x.b]
    loops = (*outer, *plan.summed, plan.vector)
    arrangement = PanelOrder(
        window(tuple(x.extent for x in loops), tuple(x.b for x in loops), plan.b.offset),
        prod(x.extent for x in outer),
        panels.lanes,
        panels.width,
        dtype,
        is_compact,
    )
    behind = COMPACT_BEHIND_BYTES if is_compact else 0
    element_bytes = COMPACT_BYTES if is_compact else dtype.size_bytes
    num_elements = arrangement.num_outer * prod(x.extent for x in plan.summed) * panels.padded_extent
    packed = Packed(plan.b.operand, arrangement, num_elements * element_bytes + behind)
    factor = _in_panels(plan, packed, panels.width, panels.tail_vectors * panels.lanes)
    return replace(factor, is_compact=is_compact, half=half)


def _in_panels(plan: KernelPlan, arg: KernelArg, width: int, tail_width: int) -> FactorB:
    """B in panels of one width; the last is narrower where it lies in `tail_width`."""
    steps = prod(x.extent for x in plan.summed)
    panels = plan.panels
    padded = panels.padded_extent if isinstance(arg, Packed) else width * panels.num_panels
    outer_strides: dict[str, int] = {}
    stride = steps * padded
    for x in reversed([x for x in plan.outer if x.b]):
        outer_strides[x.name] = stride
        stride *= x.extent
    return FactorB(
        arg=arg,
        outer_strides=outer_strides,
        panel_stride=steps * width,
        step_strides=_row_major_strides(plan.summed, width),
        tail_step_strides=_row_major_strides(plan.summed, tail_width),
    )


def _in_place(plan: KernelPlan) -> FactorB:
    """B read where it lies: its columns are contiguous already."""
    steps = {x.name: x.b for x in plan.summed}
    return FactorB(
        arg=plan.b.operand,
        outer_strides={x.name: x.b for x in plan.outer if x.b},
        panel_stride=plan.panels.width,
        step_strides=steps,
        tail_step_strides=steps,
        offset=plan.b.offset,
        is_packed=False,
    )


def _local_width(panels: Panels) -> int:
    return panels.width if panels.num_full else panels.tail_vectors * panels.lanes


def run_time_packing(
    problem: Contraction, panels: Panels, order: Sequence[StridedLoop], local_position: int
) -> Nest:
    """A nest that copies B into panels of one width, zeros behind the last column.

    The loops named in `order` and the outer loops must be dims of the nest (nothing collapsed).
    """
    nest = problem.nest
    dims = {d.name: d for d in nest.dims}
    outer = [x for x in problem.outer if x.b]
    width = _local_width(panels)
    panel, lane = Dim("panel", panels.num_panels), Dim("lane", width)
    outer_dims = tuple(dims[x.name] for x in outer)
    step_dims = tuple(replace(dims[x.name], role="parallel") for x in order)
    kept = {x.name for x in (*outer, *order)}
    index = tuple(_with_columns(i, problem.vector.name, width, kept) for i in problem.b.index)
    source = Access(problem.b.operand, index, fill=0, view=problem.b.view)
    loops = (*outer_dims, panel, *step_dims, lane)
    target = Operand("local", local_position, problem.dtype, tuple(d.extent for d in loops))
    value = cast(Read(0, source.operand.dtype.compute), problem.dtype)
    return Nest(loops, (source,), Access(target, tuple(affine(d.name) for d in loops)), value)


def _with_columns(index: Index, column: str, width: int, kept: set[str]) -> Affine:
    """The index with its column made of panel and lane; dims of one iteration are left out."""
    assert isinstance(index, Affine)
    c = index.coefficient(column)
    terms: list[tuple[str, int]] = [(n, k) for n, k in index.terms if n in kept]
    if c:
        terms += [("panel", c * width), ("lane", c)]
    return affine(*terms, index.offset)


def _row_major_strides(order: Sequence[StridedLoop], width: int) -> dict[str, int]:
    strides: dict[str, int] = {}
    step = width
    for x in reversed(order):
        strides[x.name] = step
        step *= x.extent
    return strides
