"""How factor B reaches the micro-kernel: rearranged into panels, or read where it lies.

A packed B is, for each of its outer positions, the panels one after the other; a panel holds its whole
width of consecutive columns for each step of the summed loops, in the order in which the kernel runs
them, so that the micro-kernel reads it front to back. Missing columns of the last vector are zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from tilewright.ir.expr import Read, cast
from tilewright.ir.nest import Access, Affine, Dim, Index, Nest, Operand, affine
from tilewright.records import dataclass
from tilewright.targets.cpu.arrangements import (
    COMPACT_BEHIND_BYTES,
    COMPACT_BYTES,
    PanelOrder,
    window,
)
from tilewright.targets.cpu.kernel import KernelArg, Packed
from tilewright.targets.cpu.product.contraction.match import Contraction
from tilewright.targets.cpu.product.contraction.tiling import Panels
from tilewright.targets.cpu.product.loops import StridedLoop


@dataclass(frozen=True, slots=True, eq=False)
class FactorB:
    """Where the kernel finds B: the argument and the elements moved per loop, panel and step."""

    arg: KernelArg
    outer_strides: dict[str, int]
    panel_stride: int
    step_strides: dict[str, int]  # elements per iteration of each summed loop, in a full panel
    tail_step_strides: dict[str, int]
    offset: int
    is_packed: bool
    is_compact: bool = False


def packed_constant(
    problem: Contraction, panels: Panels, order: Sequence[StridedLoop], *, is_compact: bool = False
) -> FactorB:
    """B as a constant packed at compile time; `order` is the kernel's order of the summed loops.

    `is_compact` keeps the upper three bytes of each float32, rounded. Behind them lies room for a kernel to
    read whole vectors of bytes.
    """
    outer = [x for x in problem.outer if x.b]
    steps = prod(x.extent for x in order)
    loops = (*outer, *order, problem.vector)
    dtype = problem.dtype
    arrangement = PanelOrder(
        window(tuple(x.extent for x in loops), tuple(x.b for x in loops), problem.b_offset),
        prod(x.extent for x in outer),
        panels.lanes,
        panels.width,
        dtype,
        is_compact,
    )
    behind = COMPACT_BEHIND_BYTES if is_compact else 0
    element_bytes = COMPACT_BYTES if is_compact else dtype.size_bytes
    outer_strides: dict[str, int] = {}
    step = steps * panels.padded_extent
    for x in reversed(outer):
        outer_strides[x.name] = step
        step *= x.extent
    return FactorB(
        arg=Packed(
            problem.b.operand,
            arrangement,
            arrangement.num_outer * steps * panels.padded_extent * element_bytes + behind,
        ),
        outer_strides=outer_strides,
        panel_stride=steps * panels.width,
        step_strides=_row_major_strides(order, panels.width),
        tail_step_strides=_row_major_strides(order, panels.tail_vectors * panels.lanes),
        offset=0,
        is_packed=True,
        is_compact=is_compact,
    )


def in_place(problem: Contraction, panels: Panels) -> FactorB:
    """B read where it lies: its columns are contiguous already."""
    steps = {x.name: x.b for x in problem.inner}
    return FactorB(
        arg=problem.b.operand,
        outer_strides={x.name: x.b for x in problem.outer if x.b},
        panel_stride=panels.width,
        step_strides=steps,
        tail_step_strides=steps,
        offset=problem.b_offset,
        is_packed=False,
    )


def packed_at_run_time(
    problem: Contraction, panels: Panels, order: Sequence[StridedLoop], local_position: int
) -> tuple[Nest, FactorB]:
    """A nest that copies B into panels of one width (zeros behind the last column), and B as it is then.

    The loops named in `order` and the outer loops must be dims of the nest (nothing collapsed).
    """
    nest = problem.nest
    dims = {d.name: d for d in nest.dims}
    outer = [x for x in problem.outer if x.b]
    width = panels.width if panels.num_full else panels.tail_vectors * panels.lanes
    num_panels = panels.num_panels
    panel, lane = Dim("panel", num_panels), Dim("lane", width)
    outer_dims = tuple(dims[x.name] for x in outer)
    step_dims = tuple(replace(dims[x.name], role="parallel") for x in order)
    kept = {x.name for x in (*outer, *order)}
    index = tuple(_with_columns(i, problem.vector.name, width, kept) for i in problem.b.index)
    source = Access(problem.b.operand, index, fill=0, view=problem.b.view)
    loops = (*outer_dims, panel, *step_dims, lane)
    target = Operand("local", local_position, problem.dtype, tuple(d.extent for d in loops))
    value = cast(Read(0, source.operand.dtype.compute), problem.dtype)
    write = Access(target, tuple(affine(d.name) for d in loops))
    steps = prod(x.extent for x in order)
    outer_strides: dict[str, int] = {}
    stride = steps * width * num_panels
    for x in reversed(outer):
        outer_strides[x.name] = stride
        stride *= x.extent
    strides = _row_major_strides(order, width)
    factor = FactorB(target, outer_strides, steps * width, strides, strides, 0, True)
    return Nest(loops, (source,), write, value), factor


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
