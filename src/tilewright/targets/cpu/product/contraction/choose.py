"""A nest as a problem of contractions, its register tile and estimated cycles, and a plan with its loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from tilewright.ir.derive import nest_flops
from tilewright.ir.expr import Expr, substitute
from tilewright.ir.nest import Nest
from tilewright.targets.cpu.cut import UNCUT, Cut
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import MAX_CHAIN_STEPS, Declined
from tilewright.targets.cpu.product.contraction.edges import MAX_EDGE_OPERATIONS, edge_operations
from tilewright.targets.cpu.product.contraction.match import (
    Contraction,
    match_contraction,
    spread_groups,
    without_padded_rows,
)
from tilewright.targets.cpu.product.loops import StridedLoop
from tilewright.targets.cpu.product.plan import Dot, KernelPlan, Packing, Staging, Strided, Units, ZeroPoints
from tilewright.targets.cpu.product.tiling import (
    Panels,
    Rows,
    Tile,
    choose_lanes,
    choose_tile,
    fits_registers,
    split_rows,
    spread_tile,
    tile_cycles,
)
from tilewright.targets.cpu.template import Context, operand_bytes, overlapped, transfer_cycles
from tilewright.tuning import Choice

TEMPLATE = "contraction"
# Integers of few bits for so many tiles of rows take less than floats that are read. Code for other shapes
# may read them, too: then they are packed alike for any number of tiles.
MAX_WIDENED_TIMES = 8
ELEMENT = {4: "float", 8: "double"}


def contraction_cycles(problem: Contraction, choice: Choice, context: Context) -> float:
    """Estimated cycles of one core: register tiles, without taps outside the input, and operands' bytes.

    Constants count as cold unless a private cache holds them.
    """
    isa, extents = context.isa, problem.nest.extents
    tile = contraction_tile(problem, context, choice)
    assert isinstance(tile, Tile)
    compute = tile_cycles(
        tile,
        _rows(problem),
        _num_steps(problem),
        isa.caches,
        isa.fmas_per_cycle,
        pairs_rows=problem.spread is None,
    )
    compute *= prod(x.extent for x in problem.outer) * prod(w.share_inside(extents) for w in problem.windows)
    compute += finish_cycles(problem, isa)
    cold = 0.0
    moved = [operand_bytes(problem.a.operand), operand_bytes(problem.nest.write.operand)]
    weights, is_shared = operand_bytes(problem.b.operand), problem.b.operand.key in context.shared
    num_tiles = sum(t.count for t in split_rows(problem.row.extent, tile.max_rows))
    num_tiles *= prod(x.extent for x in problem.outer)
    share = next((few.share for key, _, few in context.few_bits if key == problem.b.operand.key), 1.0)
    if is_shared or num_tiles <= MAX_WIDENED_TIMES:
        weights = round(share * weights)
    if problem.b.operand.key in context.constants - context.cached:
        cold = weights / context.cold_bytes_per_cycle
    else:
        moved.append(weights)
    return overlapped(compute, cold + transfer_cycles(moved, isa))


def finish_cycles(problem: Contraction, isa: Isa) -> float:
    """Estimated cycles of what is done to each sum."""
    if problem.nest.finish is None:
        return 0.0
    finish_flops = nest_flops(problem.nest) - nest_flops(replace(problem.nest, finish=None))
    return finish_flops / isa.lanes(_element(problem)) / isa.fmas_per_cycle


def contraction_problem(nest: Nest, context: Context) -> Contraction | Declined:
    """The nest as the micro-kernel sees it; small groups lie side by side in a vector where that helps."""
    problem = match_contraction(nest, context.layouts)
    if isinstance(problem, Declined):
        return problem
    if problem.b.operand.key in context.constants and _num_steps(problem) <= MAX_CHAIN_STEPS:
        problem = spread_groups(problem, context.isa.lanes(_element(problem)))
    return without_padded_rows(problem) if _has_large_edges(problem, context) else problem


def _has_large_edges(problem: Contraction, context: Context) -> bool:
    """Whether tiles at the edges of padded rows would make too much code."""
    window = problem.window_of(problem.row.name)
    if window is None:
        return False
    tile = contraction_tile(problem, context, Choice(TEMPLATE))
    assert isinstance(tile, Tile)
    num_taps = next((x.extent for x in problem.inner if x.name == window.tap), 1)
    parts = [n for n in (tile.panels.num_full and tile.panels.num_vectors, tile.panels.tail_vectors) if n]
    row_tiles = split_rows(problem.row.extent, tile.max_rows)
    return edge_operations(window, row_tiles, num_taps, sum(parts), MAX_EDGE_OPERATIONS) > MAX_EDGE_OPERATIONS


def _element(problem: Contraction) -> str:
    return ELEMENT[problem.dtype.size_bytes]


def _rows(problem: Contraction) -> Rows:
    return Rows(problem.row.extent, abs(problem.row.a) * problem.a.operand.dtype.size_bytes)


def _num_steps(problem: Contraction) -> int:
    return prod(x.extent for x in problem.inner)


def contraction_tile(problem: Contraction, context: Context, choice: Choice) -> Tile | Declined:
    """The register tile of a choice; where it leaves that open the one with the least estimate, of the width
    that serves all numbers of rows where code for others reads the same panels."""
    isa, element, columns = context.isa, _element(problem), problem.vector.extent
    if problem.spread is not None:
        return spread_tile(isa, element, columns, problem.spread.size)
    rows, vectors = choice.get("rows"), choice.get("vectors")
    if rows is None or vectors is None:
        is_shared = problem.b.operand.key in context.shared
        return choose_tile(isa, element, _rows(problem), columns, _num_steps(problem), is_shared=is_shared)
    if not fits_registers(isa, rows, vectors):
        return Declined(f"a tile of {rows} rows by {vectors} vectors does not fit the registers")
    return Tile(Panels(choose_lanes(columns, element, isa), vectors, columns), rows)


def summed_order(problem: Contraction) -> tuple[StridedLoop, ...]:
    """Summed loops, outermost first: taps bounded by loops, the tap along the row, then A's strides down."""
    clamped = [w.tap for w in problem.windows if w.position != problem.row.name]
    along_row = [w.tap for w in problem.windows if w.position == problem.row.name]
    first = [*clamped, *along_row]
    by_name = {x.name: x for x in problem.inner}
    rest = sorted((x for x in problem.inner if x.name not in first), key=lambda x: (-abs(x.a), x.name))
    return (*(by_name[n] for n in first if n in by_name), *rest)


def plan_of(
    problem: Contraction,
    tile: Tile,
    *,
    dot: Dot,
    units: Units,
    cut: Cut = UNCUT,
    staging: Staging = "in place",
    packing: Packing = "in constant panels",
    zeros: ZeroPoints | None = None,
    summed: Sequence[StridedLoop] | None = None,
) -> KernelPlan:
    """The plan of a problem, its expressions renumbered to the epilogue's operands."""
    nest = problem.nest
    numbers = {read: number for number, read in enumerate(problem.extra_reads)}

    def renumbered(expression: Expr | None) -> Expr | None:
        if expression is None:
            return None
        return substitute(expression, lambda read: replace(read, index=numbers[read.index]))

    return KernelPlan(
        dtype=problem.dtype,
        dot=dot,
        a=Strided(problem.a.operand, problem.a_offset),
        b=Strided(problem.b.operand, problem.b_offset),
        c=Strided(nest.write.operand, problem.c_offset),
        extras=tuple(
            Strided(nest.reads[read].operand, offset)
            for read, offset in zip(problem.extra_reads, problem.extra_offsets, strict=True)
        ),
        staging=staging,
        packing=packing,
        zeros=zeros,
        vector=problem.vector,
        row=problem.row,
        outer=problem.outer,
        summed=problem.inner if summed is None else tuple(summed),
        windows=problem.windows,
        spread=problem.spread,
        max_rows=tile.max_rows,
        panels=tile.panels,
        cut=cut,
        units=units,
        block_parts=None,
        fetches_ahead=False,
        init=renumbered(nest.init),
        finish=renumbered(nest.finish),
    )
