"""The decisions of a product's plan: as the estimates take them, as a choice says, and one of them otherwise.

A `Choice` says what the estimates leave open: `rows` and `vectors` of the register tile, `row_parts` and
`panel_parts` of the cut into chunks; and what is to differ from them: whether chunks may begin within a row
of tiles (`row_tiles`), whether a kernel before packs B (`packs`), `bits` of packed constants, `block_parts`
of a long sum (0: none), whether the next panel is fetched (`fetches`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

from tilewright.ir.dtype import DType
from tilewright.targets.cpu.cut import Cut
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import Declined
from tilewright.targets.cpu.product.contraction.blocks import (
    best_block_parts,
    possible_block_parts,
    step_blocks,
)
from tilewright.targets.cpu.product.contraction.choose import (
    ELEMENT,
    MAX_WIDENED_TIMES,
    TEMPLATE,
    contraction_tile,
    plan_of,
    summed_order,
)
from tilewright.targets.cpu.product.contraction.match import Contraction
from tilewright.targets.cpu.product.contraction.pack import FEW_BITS
from tilewright.targets.cpu.product.plan import KernelPlan, Packing, Units
from tilewright.targets.cpu.product.tiling import Rows, Tile, rank_tiles, split_rows
from tilewright.targets.cpu.template import Context
from tilewright.tuning import Choice

# From this many row units on, cutting between them balances well enough and keeps tiles in one loop.
_ENOUGH_OUTER_UNITS = 8
# A panel of this size is worth fetching while the one before it is multiplied: weights come from memory
# that is too slow to keep up with the FMAs (196 x 1152 over 384 sums, weights from the last cache: 210 → 235
# GFLOP/s, one thread). Smaller ones that the processor fetches by itself are not worth an instruction a step.
_MIN_PREFETCH_BYTES = 12 * 1024
# With more rows than this, widening compact weights takes longer than reading whole ones; fewer bytes of them
# stay in the L2 cache from run to run.
MAX_COMPACT_ROWS = 4
_MIN_COMPACT_BYTES = 64 * 1024
# The bits and the packing by a kernel before that say how B is packed.
_NAMES: Mapping[Packing, tuple[int | None, int | None]] = {
    "in place": (None, 0),
    "in panels": (None, 1),
    "in constant panels": (32, None),
    "in constant panels of 24 bits": (24, None),
    "in constant panels of 16 bits": (16, None),
    **{packing: (few.bits, None) for packing, few in FEW_BITS.items()},
}
_HALVES = (DType.FLOAT16, DType.BFLOAT16)
# Up to how many tiles of rows weights are widened in each run, where no other code reads them. For two tiles
# and more those of a half type take 1.2 to 1.5 times as long as floats, for one 0.7.
_MOST_TILES: Mapping[Packing, int] = {
    "in constant panels of 16 bits": 1,
    **dict.fromkeys(FEW_BITS, MAX_WIDENED_TIMES),
}
# Of other register tiles: those that differ much in their best cuts, then the best ones in several.
_MAX_DISTINCT = 7
_FEWER_ROWS = 0.75
_MAX_TILES = 24
_MAX_CUTS_OF_A_TILE = 3
_MAX_CUTS = 5


def plan_contraction(problem: Contraction, choice: Choice, context: Context) -> KernelPlan | Declined:
    """How to compute a problem: as `choice` says, by estimate where it says nothing; or why not so."""
    tile = contraction_tile(problem, context, choice)
    if isinstance(tile, Declined):
        return tile
    plan = plan_of(problem, tile, dot="fma", units="whole rows", summed=summed_order(problem))
    units = _units(plan, choice.get("row_tiles"))
    packing = _packing(plan, choice, context)
    if isinstance(units, Declined) or isinstance(packing, Declined):
        return units if isinstance(units, Declined) else packing  # type: ignore[return-value]  # one of them
    plan = replace(plan, units=units, packing=packing)
    rows, panels = choice.get("row_parts"), choice.get("panel_parts")
    if rows is None or panels is None:
        cut = plan.ranked_cuts(context.isa)[0]
    elif 1 <= rows <= plan.num_units and 1 <= panels <= plan.panels.num_panels:
        cut = Cut(num_row_parts=rows, num_panel_parts=panels)
    else:
        return Declined(f"{rows}x{panels} chunks of {plan.num_units}x{plan.panels.num_panels} pieces")
    plan = _settled(replace(plan, cut=cut), context.isa)
    parts, fetches = choice.get("block_parts"), choice.get("fetches")
    if parts is not None:
        if parts and parts not in possible_block_parts(plan, context.isa):
            return Declined(f"blocks of {parts} parts")
        plan = _fetching(replace(plan, block_parts=parts or None), context.isa)
    if fetches is not None:
        if fetches and not _has_next_panel(plan):
            return Declined("no panel behind another to fetch")
        plan = replace(plan, fetches_ahead=bool(fetches))
    return plan


def choice_of(plan: KernelPlan, context: Context) -> Choice:
    """The choice that asks for a plan."""
    numbers = {"row_parts": plan.cut.num_row_parts, "panel_parts": plan.cut.num_panel_parts}
    if plan.spread is None:
        numbers |= {"rows": plan.max_rows, "vectors": plan.panels.num_vectors}
    if plan.units != _usual_units(plan):
        numbers["row_tiles"] = int(plan.cuts_tiles)
    if plan.packing != _usual_packing(plan, context):
        named = zip(("bits", "packs"), _NAMES[plan.packing], strict=True)
        numbers |= {name: number for name, number in named if number is not None}
    if plan.block_parts != best_block_parts(plan, context.isa):
        numbers["block_parts"] = plan.block_parts or 0
    if plan.fetches_ahead != _fetching(plan, context.isa).fetches_ahead:
        numbers["fetches"] = int(plan.fetches_ahead)
    return Choice.of(TEMPLATE, **numbers)


def neighbours(plan: KernelPlan, context: Context) -> tuple[KernelPlan, ...]:
    """Plans one decision away, those worth measuring in any case first.

    What follows from a decision is estimated anew: of another tile the cut, of another cut the blocks of long
    sums and what is fetched.
    """
    isa, tiles = context.isa, _ranked_tiles(plan, context.isa)
    distinct = [p for tile in _distinct(tiles, plan.row.extent) for p in _in_cuts(plan, tile, isa, 1)]
    own = _in_cuts(plan, Tile(plan.panels, plan.max_rows), isa, _MAX_CUTS)
    best = [p for tile in tiles[:1] for p in _in_cuts(plan, tile, isa, _MAX_CUTS)]
    others = (p for tile in tiles[:_MAX_TILES] for p in _in_cuts(plan, tile, isa, _MAX_CUTS_OF_A_TILE))
    found: dict[object, KernelPlan] = {_code(plan): plan}
    for other in (*best, *own, *distinct, *_otherwise(plan, context), *others):
        found.setdefault(_code(other), other)
    return tuple(found.values())[1:]


def _otherwise(plan: KernelPlan, context: Context) -> Iterator[KernelPlan]:
    """The plan with one of the decisions beside tile and cut taken otherwise."""
    isa = context.isa
    if _has_next_panel(plan):
        yield replace(plan, fetches_ahead=not plan.fetches_ahead)
    for parts in (None, *possible_block_parts(plan, isa)):
        yield _fetching(replace(plan, block_parts=parts), isa)
    for packing in _packings(plan, context):
        yield _settled(replace(plan, packing=packing), isa)
    if plan.window_of(plan.row.name) is None:
        units: Units = "whole rows" if plan.cuts_tiles else "row tiles"
        other = replace(plan, units=units)
        yield _settled(replace(other, cut=other.ranked_cuts(isa)[0]), isa)


def _code(plan: KernelPlan) -> object:
    """What decides the kernel of plans of one product: several sizes of a tile split rows alike."""
    pieces = plan.row_tiles, plan.panels, plan.cut
    units = plan.units if sum(t.count for t in plan.row_tiles) > 1 else ""
    return *pieces, units, plan.packing, plan.block_parts, plan.fetches_ahead


# Tile and cut.


def _ranked_tiles(plan: KernelPlan, isa: Isa) -> Sequence[Tile]:
    if plan.spread is not None:
        return ()
    rows = Rows(plan.row.extent, abs(plan.row.a) * plan.a.operand.dtype.size_bytes)
    num_steps = prod(x.extent for x in plan.summed)
    return rank_tiles(isa, ELEMENT[plan.dtype.size_bytes], rows, plan.vector.extent, num_steps)


def _distinct(tiles: Sequence[Tile], num_rows: int) -> list[Tile]:
    """The best tiles that differ much: of each width the best, and the best with far fewer rows."""
    found: dict[tuple[int, bool], Tile] = {}
    for tile in tiles:
        width = tile.panels.num_vectors
        best = found.setdefault((width, False), tile)
        if _most_rows(tile, num_rows) <= _FEWER_ROWS * _most_rows(best, num_rows):
            found.setdefault((width, True), tile)
    return list(found.values())[:_MAX_DISTINCT]


def _most_rows(tile: Tile, num_rows: int) -> int:
    return split_rows(num_rows, tile.max_rows)[0].rows


def _in_cuts(plan: KernelPlan, tile: Tile, isa: Isa, most: int) -> list[KernelPlan]:
    """The plan with a tile in its best cuts, one for each number of chunks up to a power of two."""
    tiled = replace(plan, max_rows=tile.max_rows, panels=tile.panels)
    cuts: dict[int, Cut] = {}
    for cut in tiled.ranked_cuts(isa):
        cuts.setdefault(cut.num_chunks.bit_length(), cut)
    return [_settled(replace(tiled, cut=cut), isa) for cut in list(cuts.values())[:most]]


def _units(plan: KernelPlan, row_tiles: int | None) -> Units | Declined:
    if row_tiles is None:
        return _usual_units(plan)
    if row_tiles and plan.window_of(plan.row.name) is not None:
        return Declined("chunks that begin within a padded row")
    return "row tiles" if row_tiles else "whole rows"


def _usual_units(plan: KernelPlan) -> Units:
    num_outer = prod(x.extent for x in plan.outer)
    is_padded = plan.window_of(plan.row.name) is not None
    return "row tiles" if num_outer < _ENOUGH_OUTER_UNITS and not is_padded else "whole rows"


# How B is packed, and what follows from all that.


def _packing(plan: KernelPlan, choice: Choice, context: Context) -> Packing | Declined:
    bits, packs = choice.get("bits"), choice.get("packs")
    if bits is None and packs is None:
        return _usual_packing(plan, context)
    named = next((p for p in _packings(plan, context) if _NAMES[p] == (bits, packs)), None)
    return named or Declined(f"a factor of {bits} bits, packed: {packs}")


def _packings(plan: KernelPlan, context: Context) -> tuple[Packing, ...]:
    """How B may be packed, the usual way first but for weights that may have 24 bits."""
    if few := _of_few_bits(plan, context):
        return few, "in constant panels"
    if _is_half(plan, context):
        return "in constant panels of 16 bits", "in constant panels"
    if plan.b.operand.key in context.constants:
        is_plain = plan.dtype is DType.FLOAT32 and plan.spread is None
        operands = (plan.a.operand, plan.b.operand, *plan.operands)
        if is_plain and context.may_round(operands):
            return "in constant panels", "in constant panels of 24 bits"
        return ("in constant panels",)
    if not (plan.vector.b == 1 and all(x.b for x in plan.summed)):
        return ("in panels",)
    # A kernel that packs B must know its loops, which those that became one are not, and be worth its time.
    is_known = not any("." in x.name for x in (*plan.outer, *plan.summed) if x.b)
    is_used_again = any(x.extent > 1 and not x.b for x in (plan.row, *plan.outer))
    return ("in place", "in panels") if is_known and is_used_again else ("in place",)


def _is_half(plan: KernelPlan, context: Context) -> bool:
    """Whether B are weights of a half type in panels that a kernel can widen."""
    is_plain = (
        not plan.spread and not plan.windows and len(plan.summed) == 1 and not any(x.b for x in plan.outer)
    )
    is_constant = plan.b.operand.key in context.constants
    return is_plain and is_constant and plan.dtype is DType.FLOAT32 and plan.b.operand.dtype in _HALVES


def _of_few_bits(plan: KernelPlan, context: Context) -> Packing | None:
    """The packing of weights that are integers of few bits, whose blocks lie along the sum."""
    if plan.dtype is not DType.FLOAT32 or plan.spread or plan.windows or len(plan.summed) != 1:
        return None
    loop, shape = plan.summed[0], plan.b.operand.shape
    known = {axis: few for key, axis, few in context.few_bits if key == plan.b.operand.key}
    strides = (shape[-1], 1) if len(shape) == 2 else ()
    for axis, few in known.items():
        lies = (loop.b, plan.vector.b) == (strides if axis == 0 else strides[::-1])
        if lies and (loop.extent, plan.vector.extent) == (shape if axis == 0 else shape[::-1]):
            return next(packing for packing, named in FEW_BITS.items() if named == few)
    return None


def _usual_packing(plan: KernelPlan, context: Context) -> Packing:
    """Weights have 24 bits where they may be rounded and reading them takes longer than multiplying."""
    first, *others = _packings(plan, context)
    num_tiles = sum(t.count for t in plan.row_tiles) * prod(x.extent for x in plan.outer)
    if num_tiles > _MOST_TILES.get(first, num_tiles) and plan.b.operand.key not in context.shared:
        return "in constant panels"
    rows = prod(x.extent for x in (plan.row, *plan.outer) if not x.b)
    size_bytes = plan.b.operand.num_elements * plan.dtype.size_bytes
    is_bound_by_weights = rows <= MAX_COMPACT_ROWS and size_bytes >= _MIN_COMPACT_BYTES
    return others[0] if first == "in constant panels" and others and is_bound_by_weights else first


def _settled(plan: KernelPlan, isa: Isa) -> KernelPlan:
    """The plan with blocks of long sums, and what is fetched, as the estimates have them."""
    parts = best_block_parts(plan, isa)
    return _fetching(plan if plan.block_parts == parts else replace(plan, block_parts=parts), isa)


def _fetching(plan: KernelPlan, isa: Isa) -> KernelPlan:
    """The plan with the next panel fetched while one is multiplied, where that is estimated to pay."""
    panels, blocks = plan.panels, step_blocks(plan)
    steps = prod(x.extent for x in plan.summed) if blocks is None else blocks.num_steps
    num_tiles = sum(t.count for t in plan.row_tiles)
    pays = (
        _has_next_panel(plan)
        and plan.num_units * num_tiles >= 2 * panels.num_vectors
        and _MIN_PREFETCH_BYTES <= steps * panels.width * plan.dtype.size_bytes <= isa.caches.l2_bytes // 2
    )
    return plan if plan.fetches_ahead == pays else replace(plan, fetches_ahead=pays)


def _has_next_panel(plan: KernelPlan) -> bool:
    return plan.packing == "in constant panels" and plan.panels.num_panels > 1
