"""The plan of a byte product: which instructions multiply, the register tile, the cut into chunks."""

from __future__ import annotations

from dataclasses import replace

from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.product.contraction.choose import plan_of
from tilewright.targets.cpu.product.integer.depthwise import MAX_ROWS
from tilewright.targets.cpu.product.integer.dot import PAIRS_TILE, dot_of
from tilewright.targets.cpu.product.integer.match import IntegerProblem
from tilewright.targets.cpu.product.integer.pack import packed_bytes
from tilewright.targets.cpu.product.integer.tiles import (
    tile_panels,
    tile_rows,
    tiles_suit,
    with_order,
)
from tilewright.targets.cpu.product.plan import Dot, KernelPlan, Units
from tilewright.targets.cpu.product.tiling import Panels, Rows, Tile, choose_tile

# Byte products of one instruction per product of floats: what a chunk must hold to be worth a region.
_PRODUCTS_PER_WORD = 4


def plan_integer(problem: IntegerProblem, isa: Isa) -> KernelPlan:
    """The plan of a problem; there is one."""
    rows, columns = problem.contraction.row.extent, problem.contraction.vector.extent
    if problem.by_column:
        lanes = next((n for n in reversed(isa.lane_choices("i32")) if n >= columns), isa.lanes("i32"))
        tile = Tile(Panels(lanes, 1, columns), MAX_ROWS[isa.num_vector_registers])
        dot: Dot = f"{dot_of(isa, lanes).name} by column"  # type: ignore[assignment]  # one of them
        return _cut(_planned(problem, tile, dot, "whole rows"), isa, 1)
    if tiles_suit(problem, isa):
        tile = Tile(
            tile_panels(columns), tile_rows(rows, in_pairs=any(x.b for x in problem.contraction.outer))
        )
        return with_order(_planned(problem, tile, "byte tiles", "pairs of tiles"), isa)
    tile = choose_tile(isa, "i32", Rows(rows), columns, problem.words.num_words)
    lanes = tile.panels.lanes
    name = dot_of(isa, lanes).name
    if name == "pairs":
        most_rows, most_vectors = PAIRS_TILE[isa.num_vector_registers]
        vectors = min(most_vectors, -(-columns // lanes))
        tile = Tile(Panels(lanes, vectors, columns), most_rows * most_vectors // vectors)
    plan = _cut(_planned(problem, tile, name, "row tiles"), isa, _PRODUCTS_PER_WORD)
    return replace(plan, fetches_ahead=_fetches_ahead(plan, isa))


def _planned(problem: IntegerProblem, tile: Tile, dot: Dot, units: Units) -> KernelPlan:
    return plan_of(
        problem.contraction,
        tile,
        dot=dot,
        staging="in place" if problem.staging is None else "copied",
        packing="in panels" if problem.packs else "in constant panels",
        zeros=problem.zeros,
        units=units,
    )


def _fetches_ahead(plan: KernelPlan, isa: Isa) -> bool:
    """Whether the next panel is fetched meanwhile: of weights that the first cache does not hold, where the
    units of a chunk are enough to fetch every vector."""
    is_constant, panels = plan.packing == "in constant panels", plan.panels
    is_shared = plan.num_units // plan.cut.num_row_parts >= panels.num_vectors
    return is_constant and panels.num_panels > 1 and is_shared and packed_bytes(plan) > isa.caches.l1_bytes


def _cut(plan: KernelPlan, isa: Isa, products_per_operation: int) -> KernelPlan:
    return replace(plan, cut=plan.ranked_cuts(isa, products_per_operation)[0])
