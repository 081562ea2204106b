"""The choice of an attention's tiles: rows, panels and parts with the fewest estimated cycles.

One tile of queries runs through both products: its rows are those with which both take the fewest cycles.
"""

from __future__ import annotations

import functools
from dataclasses import replace

from tilewright.targets.cpu.attention.plan import ELEMENT_BYTES, AttentionPlan
from tilewright.targets.cpu.cut import Cut, choose_num_chunks
from tilewright.targets.cpu.isa import Isa, MatrixRates, UnitState
from tilewright.targets.cpu.kernel import MAX_CHAIN_STEPS, Declined
from tilewright.targets.cpu.product.amx import TILE_ROWS
from tilewright.targets.cpu.product.matrix.choose import SCRATCH_SHARE
from tilewright.targets.cpu.product.matrix.cycles import VECTOR_CYCLES, step_cycles
from tilewright.targets.cpu.product.matrix.plan import FLOAT32_PRODUCTS, MAX_TILE_CHAIN
from tilewright.targets.cpu.product.matrix.tiles import SPLIT_CYCLES, TERMS, TILE_COLUMNS, TILE_DEPTH, Block
from tilewright.targets.cpu.product.plan import Dot
from tilewright.targets.cpu.product.tiling import (
    MAX_TILE_SIZE,
    MAX_TILE_VECTORS,
    Panels,
    Rows,
    Tile,
    choose_lanes,
    fits_registers,
    split_rows,
    tile_cycles,
)

# Keys and values of a head stay in the second cache beside what comes and goes.
_PACKED_SHARE = 0.5
# Fewer rows that use them do not pay for packing keys and values.
_MIN_ROWS = 4
# More rows than this do not read keys and values where they lie: each row reads them again from the caches.
_MAX_ROWS_IN_PLACE = 8
# A key's vectors are multiplied with those of a query in straight code.
_MAX_DEPTH_IN_PLACE = 256
# More keys than this behind the last whole vector fill another.
_MAX_SINGLES = 2
# A head is cut into parts where heads are few; each part of its queries packs keys and values again.
_ENOUGH_UNITS = 8
_MIN_PART_ROWS = 32
# Cycles of the softmax per vector of scores and per row; of packing a vector.
_POWER_CYCLES = 9.0
_ROW_CYCLES = 14.0
_PACK_CYCLES = 3.0
# Cycles to add the lanes of one key's products up, among those of a vector of keys.
_COMBINE_CYCLES = 2.0
# Fewer keys and values than this are not worth a span of their own.
_MIN_SPAN_BYTES = 128 << 10


def plan_attention(problem: AttentionPlan, isa: Isa, *, divides: bool) -> AttentionPlan | Declined:
    """The plan with the fewest estimated cycles of a problem, whose tile is open; or why there is none."""
    rows, columns = problem.num_rows, problem.num_columns
    depth, channels = problem.depth, problem.num_channels
    if reads_in_place(problem, isa):
        return _plan_in_place(problem, isa, divides=divides)
    if rows < _MIN_ROWS:
        return Declined(f"keys and values are packed for {rows} queries alone")
    if depth > MAX_CHAIN_STEPS:
        return Declined(f"scores are sums of {depth} products: they are cut into blocks")
    packed_bytes = _head_bytes(problem)
    if packed_bytes > _PACKED_SHARE * isa.caches.l2_bytes:
        return Declined(f"keys and values of a head take {packed_bytes} bytes: they leave the second cache")
    stride_bytes = abs(problem.scores.row.a) * ELEMENT_BYTES
    singles = _num_singles(problem, isa)
    tile, key_panels, channel_panels, _ = _best_tile(
        isa, Rows(rows, stride_bytes), columns - singles, depth, channels
    )
    parts = _num_parts(problem, sum(t.count for t in split_rows(rows, tile))) if divides else 1
    return _tiled(problem, tile, key_panels, channel_panels, parts, divides=divides)


def plan_tiles(problem: AttentionPlan, dot: Dot, isa: Isa, *, divides: bool) -> AttentionPlan | Declined:
    """The plan on the matrix unit, of products of bfloat16 pieces; or why there is none."""
    rows, columns = problem.num_rows, problem.num_columns
    if reads_in_place(problem, isa) or problem.grows:
        return Declined("keys and values are read where they lie")
    if problem.scores.summed[0].a != 1:
        return Declined("the elements of a query do not lie side by side")
    num_steps = -(-max(problem.depth, columns) // TILE_DEPTH)
    if TERMS[dot].num_products == FLOAT32_PRODUCTS and num_steps > MAX_TILE_CHAIN:
        return Declined("sums as exact as float32 are cut into passes")
    tile_rows, tile_columns = (2, 2) if rows > TILE_ROWS else (1, 4)
    keys, channels = (
        Panels(TILE_COLUMNS, min(tile_columns, -(-extent // TILE_COLUMNS)), extent)
        for extent in (columns, problem.num_channels)
    )
    most = TILE_ROWS * tile_rows
    parts = _num_parts(problem, -(-rows // most)) if divides else 1
    scores, sums = (
        replace(product, dot=dot, staging="in bfloat16 planes") for product in (problem.scores, problem.sums)
    )
    made = _tiled(
        replace(problem, scores=scores, sums=sums), min(most, rows), keys, channels, parts, divides=divides
    )
    if made.scratch_bytes > SCRATCH_SHARE * isa.caches.l2_bytes:
        return Declined(f"tiles of a head take {made.scratch_bytes} bytes: they leave the second cache")
    return made


def tiles_cycles(plan: AttentionPlan, rates: MatrixRates, state: UnitState) -> float:
    """Estimated cycles of one core for all heads, on the matrix unit."""
    assert plan.terms is not None
    keys, values = plan.tiled_keys, plan.tiled_values
    cycles = 0.0
    for tile in plan.scores.row_tiles:
        for factor in (keys, values):
            block = Block(-(-tile.rows // TILE_ROWS), factor.panel_tiles)
            step = sum(step_cycles(block, plan.terms, rates, state))
            cycles += tile.count * factor.num_steps * factor.num_tiles / factor.panel_tiles * step
    cycles += plan.num_rows * (keys.num_steps + values.num_steps) * SPLIT_CYCLES[plan.num_pieces]
    cycles += plan.num_rows * (keys.num_tiles + values.num_tiles) * VECTOR_CYCLES
    cycles += plan.num_rows * (keys.num_tiles * _POWER_CYCLES + _ROW_CYCLES)
    cycles += plan.num_parts * (keys.packing_cycles + values.packing_cycles)
    return plan.num_heads * cycles


def _tiled(
    problem: AttentionPlan, num_rows: int, keys: Panels, channels: Panels, num_parts: int, *, divides: bool
) -> AttentionPlan:
    """The problem with tiles of so many rows and such panels, in chunks of heads or their parts."""
    chunks = choose_num_chunks(num_parts * problem.num_heads, problem.num_macs) if divides else 1
    scores, sums = (
        replace(product, max_rows=num_rows, panels=panels, cut=Cut(chunks, 1))
        for product, panels in ((problem.scores, keys), (problem.sums, channels))
    )
    pitch = score_stride(keys)
    scores = replace(scores, row=replace(scores.row, c=pitch))
    sums = replace(sums, row=replace(sums.row, a=pitch))
    return replace(problem, scores=scores, sums=sums, num_parts=num_parts)


def score_stride(keys: Panels) -> int:
    """Elements from a row of scores to the next."""
    return keys.padded_extent + keys.lanes


def _head_bytes(problem: AttentionPlan) -> int:
    """Keys and values of a head."""
    return problem.num_columns * (problem.depth + problem.num_channels) * ELEMENT_BYTES


def reads_in_place(problem: AttentionPlan, isa: Isa) -> bool:
    """Whether keys and values are read where they lie: few queries, and packing them would not pay."""
    rows, depth = problem.num_rows, problem.depth
    is_far = _head_bytes(problem) > _PACKED_SHARE * isa.caches.l2_bytes
    most = _MAX_ROWS_IN_PLACE if is_far or problem.grows else _MIN_ROWS - 1
    deeper, wider = problem.scores.summed[0], problem.sums.vector
    is_along = deeper.a == 1 and deeper.b == 1
    is_along &= all(deeper.extras[part.extra] == 1 for part in problem.key_parts)
    is_along &= all(wider.extras[part.extra] == 1 for part in problem.value_parts)
    return rows <= most and is_along and depth <= _MAX_DEPTH_IN_PLACE


def _plan_in_place(problem: AttentionPlan, isa: Isa, *, divides: bool) -> AttentionPlan:
    """One tile of all queries for each head."""
    rows, columns = problem.num_rows, problem.num_columns
    found = _best_panels(isa, rows, Rows(rows), problem.num_channels, columns)
    assert found is not None, "tiles of one vector fit the registers"
    lanes = choose_lanes(columns, "float", isa)
    spans, extent = _spans(problem, lanes) if divides else (1, columns)
    scores, sums = (replace(product, packing="in place") for product in (problem.scores, problem.sums))
    in_place = replace(problem, scores=scores, sums=sums)
    return _tiled(in_place, rows, Panels(lanes, 1, extent), found[1], spans, divides=divides)


def _spans(problem: AttentionPlan, lanes: int) -> tuple[int, int]:
    """Spans of keys of each head, where heads are few, and the keys of all of them but the last."""
    columns = problem.num_columns
    most = min(-(-_ENOUGH_UNITS // problem.num_heads), _head_bytes(problem) // _MIN_SPAN_BYTES)
    if most < 2 or problem.row_loop is not None or problem.most_past is not None:
        return 1, columns
    extent = -(-columns // (most * lanes)) * lanes
    spans = -(-columns // extent)
    # All but the last lie in what came first.
    firsts = [parts[0].count for parts in (problem.key_parts, problem.value_parts) if parts]
    return (spans, extent) if (spans - 1) * extent <= min(firsts, default=columns) else (1, columns)


def _num_singles(problem: AttentionPlan, isa: Isa) -> int:
    """Keys behind the last whole vector that stand alone: few of them would fill little of another.

    Their products are summed along the depth, so queries and keys must lie so.
    """
    columns, depth = problem.num_columns, problem.depth
    lanes = choose_lanes(columns, "float", isa)
    rest = columns % lanes
    (deeper,) = problem.scores.summed
    is_along = deeper.a == 1 and deeper.b == 1
    return rest if columns > lanes and rest <= _MAX_SINGLES and is_along and depth % lanes == 0 else 0


def _num_parts(problem: AttentionPlan, num_tiles: int) -> int:
    """Parts into which each head is cut, so that a few threads find enough to do."""
    most = min(num_tiles, max(1, problem.num_rows // _MIN_PART_ROWS))
    return min(most, -(-_ENOUGH_UNITS // problem.num_heads))


@functools.lru_cache(maxsize=1024)
def _best_tile(
    isa: Isa, rows: Rows, columns: int, depth: int, channels: int
) -> tuple[int, Panels, Panels, float]:
    """Rows of a tile, the panels of both products, and the cycles that these take for one head."""
    found: list[tuple[float, int, Panels, Panels]] = []
    for num_rows in range(1, min(MAX_TILE_SIZE, rows.extent) + 1):
        scores = _best_panels(isa, num_rows, rows, columns, depth)
        sums = _best_panels(isa, num_rows, Rows(rows.extent), channels, columns)
        if scores is not None and sums is not None:
            found.append((scores[0] + sums[0], num_rows, scores[1], sums[1]))
    cycles, num_rows, keys, values = min(found, key=lambda made: made[:2])
    return num_rows, keys, values, cycles


def _best_panels(
    isa: Isa, num_rows: int, rows: Rows, num_columns: int, num_steps: int
) -> tuple[float, Panels] | None:
    """The panels for a tile of so many rows with the fewest cycles; None where none fit the registers."""
    lanes = choose_lanes(num_columns, "float", isa)
    most = min(-(-num_columns // lanes), MAX_TILE_VECTORS)
    fitting = [Panels(lanes, n, num_columns) for n in range(1, most + 1) if fits_registers(isa, num_rows, n)]
    priced = [(tile_cycles(Tile(p, num_rows), rows, num_steps, isa.caches), p) for p in fitting]
    return min(priced, key=lambda made: made[0], default=None)


def attention_cycles(problem: AttentionPlan, isa: Isa) -> float:
    """Estimated cycles of one core for all heads."""
    rows, columns = problem.num_rows, problem.num_columns
    depth, channels = problem.depth, problem.num_channels
    stride_bytes = abs(problem.scores.row.a) * ELEMENT_BYTES
    lanes = choose_lanes(columns, "float", isa)
    if reads_in_place(problem, isa):
        vectors = columns * (-(-depth // lanes) + -(-channels // lanes))
        softmax = -(-columns // lanes) * (_POWER_CYCLES + lanes * _COMBINE_CYCLES) + _ROW_CYCLES
        return problem.num_heads * rows * (vectors + softmax)
    singles = _num_singles(problem, isa)
    *_, products = _best_tile(isa, Rows(rows, stride_bytes), columns - singles, depth, channels)
    vectors = -(-(columns - singles) // lanes)
    products += singles * rows * (depth + channels) / lanes
    softmax = rows * (vectors * _POWER_CYCLES + _ROW_CYCLES)
    packing = columns * (depth + channels) / lanes * _PACK_CYCLES
    return problem.num_heads * (products + softmax + packing)
