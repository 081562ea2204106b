"""What a contraction kernel is made of before code: problem, register tile, cut; and the other ways to take.

The estimates decide; a `Choice` overrides them where a measurement knew better. Parameters: `rows` and
`vectors` of the register tile, `row_parts` and `panel_parts` of the cut into chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from tilewright.ir.derive import nest_flops
from tilewright.ir.expr import Expr, substitute
from tilewright.ir.nest import Nest
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
    UNCUT,
    Cut,
    Panels,
    Rows,
    Tile,
    choose_lanes,
    choose_tile,
    fits_registers,
    rank_cuts,
    rank_tiles,
    split_rows,
    spread_tile,
    tile_cycles,
)
from tilewright.targets.cpu.template import (
    Context,
    operand_bytes,
    overlapped,
    transfer_cycles,
)
from tilewright.tuning import Choice

TEMPLATE = "contraction"
ELEMENT = {4: "float", 8: "double"}
# From this many row units on, cutting between them balances well enough and keeps tiles in one loop.
_ENOUGH_OUTER_UNITS = 8
_MAX_TILES = 7
_FEWER_ROWS = 0.75
_MAX_CUTS = 5
# Of a longer search: the best tiles by estimate, each with its best cuts.
_MAX_VARIED_TILES = 24
_MAX_VARIED_CUTS = 3


@dataclass(frozen=True, slots=True, eq=False)
class Design:
    """A contraction with its register tile and its cut into chunks.

    `cuts_tiles`: chunks may begin within a row of tiles.
    """

    problem: Contraction
    tile: Tile
    cut: Cut
    cuts_tiles: bool


def design_contraction(problem: Contraction, choice: Choice, isa: Isa) -> Design | Declined:
    """How to compute a problem: as `choice` says, by estimate where it says nothing; or why not so."""
    tile = _tile(problem, isa, choice)
    return tile if isinstance(tile, Declined) else _design(problem, tile, choice)


def contraction_cycles(problem: Contraction, choice: Choice, context: Context) -> float:
    """Estimated cycles of one core: register tiles, without taps outside the input, and operands' bytes.

    Constants count as cold unless a private cache holds them.
    """
    isa, extents = context.isa, problem.nest.extents
    tile = _tile(problem, isa, choice)
    assert isinstance(tile, Tile)
    compute = tile_cycles(tile, _rows(problem), _num_steps(problem), isa.caches, isa.fmas_per_cycle)
    compute *= prod(x.extent for x in problem.outer) * prod(w.share_inside(extents) for w in problem.windows)
    compute += finish_cycles(problem, isa)
    cold = 0.0
    moved = [operand_bytes(problem.a.operand), operand_bytes(problem.nest.write.operand)]
    weights = operand_bytes(problem.b.operand)
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


def contraction_candidates(problem: Contraction, isa: Isa) -> tuple[Choice, ...]:
    """Ways to compute a problem, the one with the least estimate first.

    Register tiles come with the cut estimated for them, the best tile also with other numbers of chunks.
    """
    if problem.spread is not None:
        tile = _tile(problem, isa, Choice(TEMPLATE))
        assert isinstance(tile, Tile)
        return tuple(Choice.of(TEMPLATE, **_cut_parameters(cut)) for cut in _cuts(problem, tile))
    found: list[Choice] = []
    tiles = rank_tiles(isa, _element(problem), _rows(problem), problem.vector.extent, _num_steps(problem))
    for number, tile in enumerate(_distinct(tiles, problem.row.extent)):
        parameters = {"rows": tile.max_rows, "vectors": tile.panels.num_vectors}
        cuts = _cuts(problem, tile)
        found += [
            Choice.of(TEMPLATE, **parameters, **_cut_parameters(cut))
            for cut in (cuts if number == 0 else cuts[:1])
        ]
    return tuple(found)


def contraction_variations(problem: Contraction, isa: Isa) -> tuple[Choice, ...]:
    """Ways to compute a problem beside `contraction_candidates`: more register tiles in more cuts."""
    if problem.spread is not None:
        return ()
    num_rows = problem.row.extent

    def code(choice: Choice) -> tuple[int | None, ...]:
        """What decides the kernel: rows are split evenly, so that several sizes of a tile give the same."""
        rows = choice.get("rows") or num_rows
        return -(-num_rows // rows), *map(choice.get, ("vectors", "row_parts", "panel_parts"))

    known = {code(choice) for choice in contraction_candidates(problem, isa)}
    found: dict[tuple[int | None, ...], Choice] = {}
    tiles = rank_tiles(isa, _element(problem), _rows(problem), problem.vector.extent, _num_steps(problem))
    for tile in tiles[:_MAX_VARIED_TILES]:
        parameters = {"rows": tile.max_rows, "vectors": tile.panels.num_vectors}
        for cut in _cuts(problem, tile)[:_MAX_VARIED_CUTS]:
            choice = Choice.of(TEMPLATE, **parameters, **_cut_parameters(cut))
            found.setdefault(code(choice), choice)
    return tuple(choice for made, choice in found.items() if made not in known)


def _cut_parameters(cut: Cut) -> dict[str, int]:
    return {"row_parts": cut.num_row_parts, "panel_parts": cut.num_panel_parts}


def contraction_problem(nest: Nest, context: Context) -> Contraction | Declined:
    """The nest as the micro-kernel sees it; small groups lie side by side in a vector where that helps."""
    problem = match_contraction(nest, context.layouts)
    if isinstance(problem, Declined):
        return problem
    if problem.b.operand.key in context.constants and _num_steps(problem) <= MAX_CHAIN_STEPS:
        problem = spread_groups(problem, context.isa.lanes(_element(problem)))
    return without_padded_rows(problem) if _has_large_edges(problem, context.isa) else problem


def _has_large_edges(problem: Contraction, isa: Isa) -> bool:
    """Whether tiles at the edges of padded rows would make too much code."""
    window = problem.window_of(problem.row.name)
    if window is None:
        return False
    tile = _tile(problem, isa, Choice(TEMPLATE))
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


def _tile(problem: Contraction, isa: Isa, choice: Choice) -> Tile | Declined:
    element, columns = _element(problem), problem.vector.extent
    if problem.spread is not None:
        return spread_tile(isa, element, columns, problem.spread.size)
    rows, vectors = choice.get("rows"), choice.get("vectors")
    if rows is None or vectors is None:
        return choose_tile(isa, element, _rows(problem), columns, _num_steps(problem))
    if not fits_registers(isa, rows, vectors):
        return Declined(f"a tile of {rows} rows by {vectors} vectors does not fit the registers")
    return Tile(Panels(choose_lanes(columns, element, isa), vectors, columns), rows)


def _design(problem: Contraction, tile: Tile, choice: Choice) -> Design | Declined:
    units, cuts_tiles = _row_units(problem, tile)
    rows, panels = choice.get("row_parts"), choice.get("panel_parts")
    if rows is None or panels is None:
        cut = _ranked_cuts(problem, tile)[0]
    elif 1 <= rows <= units and 1 <= panels <= tile.panels.num_panels:
        cut = Cut(num_row_parts=rows, num_panel_parts=panels)
    else:
        return Declined(f"{rows}x{panels} chunks of {units}x{tile.panels.num_panels} pieces")
    return Design(problem, tile, cut, cuts_tiles)


def _row_units(problem: Contraction, tile: Tile) -> tuple[int, bool]:
    """Pieces that rows can be cut into, and whether these are tiles of a row."""
    num_outer = prod(x.extent for x in problem.outer)
    cuts_tiles = num_outer < _ENOUGH_OUTER_UNITS and problem.window_of(problem.row.name) is None
    num_tiles = sum(t.count for t in split_rows(problem.row.extent, tile.max_rows))
    return num_outer * (num_tiles if cuts_tiles else 1), cuts_tiles


def _ranked_cuts(problem: Contraction, tile: Tile) -> tuple[Cut, ...]:
    size_bytes = problem.dtype.size_bytes
    return rank_cuts(
        _row_units(problem, tile)[0],
        tile.panels.num_panels,
        problem.a.operand.num_elements * size_bytes,
        problem.b.operand.num_elements * size_bytes,
        problem.num_macs,
    )


def _cuts(problem: Contraction, tile: Tile) -> tuple[Cut, ...]:
    """The best cuts, one for each number of chunks of which another is no power of two away."""
    found: dict[int, Cut] = {}
    for cut in _ranked_cuts(problem, tile):
        found.setdefault(cut.num_chunks.bit_length(), cut)
    return tuple(found.values())[:_MAX_CUTS]


def _distinct(tiles: Sequence[Tile], num_rows: int) -> list[Tile]:
    """The best tiles that differ much: of each width the best, and the best with far fewer rows."""
    found: dict[tuple[int, bool], Tile] = {}
    for tile in tiles:
        width = tile.panels.num_vectors
        best = found.setdefault((width, False), tile)
        if _most_rows(tile, num_rows) <= _FEWER_ROWS * _most_rows(best, num_rows):
            found.setdefault((width, True), tile)
    return list(found.values())[:_MAX_TILES]


def _most_rows(tile: Tile, num_rows: int) -> int:
    return split_rows(num_rows, tile.max_rows)[0].rows


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
