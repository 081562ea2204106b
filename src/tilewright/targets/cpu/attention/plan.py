"""Sizes of an attention's register tile, what a kernel keeps in its scratch, how it is cut into chunks.

One tile of queries runs through everything: its scores by panels of keys, their softmax, the weighted sums by
panels of channels. Its rows are those with which both products take the fewest cycles.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from math import prod

from tilewright.memory.base import aligned
from tilewright.targets.cpu.attention.match import CHANNEL, DEPTH, AttentionProblem
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import MAX_CHAIN_STEPS, MIN_CHUNK_OPERATIONS, TARGET_CHUNKS, Declined
from tilewright.targets.cpu.product.tiling import (
    MAX_TILE_SIZE,
    MAX_TILE_VECTORS,
    Panels,
    Rows,
    RowTile,
    Tile,
    choose_lanes,
    fits_registers,
    split_rows,
    tile_cycles,
)

ELEMENT_BYTES = 4
_ALIGNMENT_BYTES = 64
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
_MAX_CHUNKS = 2 * TARGET_CHUNKS
# Cycles of the softmax per vector of scores and per row; of packing a vector.
_POWER_CYCLES = 9.0
_ROW_CYCLES = 14.0
_PACK_CYCLES = 3.0
# Cycles to add the lanes of one key's products up, among those of a vector of keys.
_COMBINE_CYCLES = 2.0
# Fewer keys and values than this are not worth a span of their own.
_MIN_SPAN_BYTES = 128 << 10


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """How an attention is computed: panels of keys and of channels, tiles of queries, parts of each head.

    Parts are some of the tiles, or of few queries spans of `keys`, the last of which may have less.

    The last few keys may stand alone, behind the panels: their scores lie row by row in vectors.
    Keys and values of few queries are read where they lie, once, unless it `packs`; what is put together of
    them `bypasses` the caches or not. Offsets are bytes in the scratch area; rows of scores are one vector
    longer than they need be, so that those of a tile never share a set of the first cache.
    """

    keys: Panels
    num_singles: int
    channels: Panels
    tiles: tuple[RowTile, ...]
    num_parts: int
    num_chunks: int
    depth: int
    num_heads: int
    packs: bool = True
    bypasses: bool = False

    @property
    def most_rows(self) -> int:
        """Rows of the largest tile."""
        return max(t.rows for t in self.tiles)

    @property
    def num_tiles(self) -> int:
        """Tiles of a head."""
        return sum(t.count for t in self.tiles)

    @property
    def num_keys(self) -> int:
        """All keys of a head."""
        return self.keys.extent + self.num_singles

    @property
    def score_stride(self) -> int:
        """Elements from a row of scores to the next."""
        return self.keys.padded_extent + self.keys.lanes

    @property
    def values_offset(self) -> int:
        """Where the packed values begin, behind the keys."""
        return _bytes(self.keys.padded_extent * self.depth) if self.packs else 0

    @property
    def scores_offset(self) -> int:
        """Where the scores of a tile begin."""
        return self.values_offset + (_bytes(self.num_keys * self.channels.padded_extent) if self.packs else 0)

    @property
    def padded_rows(self) -> int:
        """Lanes of whole vectors that have one for each row of a tile."""
        return -(-self.most_rows // self.keys.lanes) * self.keys.lanes

    @property
    def rows_offset(self) -> int:
        """Where the two numbers of each row begin: what is taken off its scores, the inverse of their sum."""
        return self.scores_offset + _bytes(self.most_rows * self.score_stride)

    @property
    def lanes_offset(self) -> int:
        """Where a vector of each row begins whose lanes are still to be combined."""
        return self.rows_offset + _bytes(2 * self.padded_rows)

    @property
    def singles_offset(self) -> int:
        """Where the scores of keys that stand alone begin."""
        return self.lanes_offset + _bytes(self.padded_rows * self.keys.lanes)

    @property
    def totals_offset(self) -> int:
        """Where the sums of earlier keys begin, if they are many: of a panel, without packing of all."""
        return self.singles_offset + _bytes(self.padded_rows * self.num_singles)

    @property
    def scratch_bytes(self) -> int:
        """All of it."""
        channels = self.channels.width if self.packs else self.channels.padded_extent
        return self.totals_offset + _bytes(self.most_rows * channels)


def _bytes(num_elements: int) -> int:
    return aligned(num_elements * ELEMENT_BYTES, _ALIGNMENT_BYTES)


def plan_attention(problem: AttentionProblem, isa: Isa, *, divides: bool) -> AttentionPlan | Declined:
    """The plan with the fewest estimated cycles, or why there is none."""
    rows, columns = problem.extents[problem.row], problem.extents[problem.column]
    depth, channels = problem.extents[DEPTH], problem.extents[CHANNEL]
    if reads_in_place(problem, isa):
        return _plan_in_place(problem, isa, divides=divides)
    if rows < _MIN_ROWS:
        return Declined(f"keys and values are packed for {rows} queries alone")
    if depth > MAX_CHAIN_STEPS:
        return Declined(f"scores are sums of {depth} products: they are cut into blocks")
    packed_bytes = _head_bytes(problem)
    if packed_bytes > _PACKED_SHARE * isa.caches.l2_bytes:
        return Declined(f"keys and values of a head take {packed_bytes} bytes: they leave the second cache")
    stride_bytes = abs(problem.query.step(problem.row)) * ELEMENT_BYTES
    singles = _num_singles(problem, isa)
    tile, key_panels, channel_panels, _ = _best_tile(
        isa, Rows(rows, stride_bytes), columns - singles, depth, channels
    )
    tiles = split_rows(rows, tile)
    parts = _num_parts(problem, sum(t.count for t in tiles)) if divides else 1
    units = problem.num_heads * parts
    chunks = _num_chunks(problem, units) if divides else 1
    return AttentionPlan(key_panels, singles, channel_panels, tiles, parts, chunks, depth, problem.num_heads)


def _num_chunks(problem: AttentionProblem, units: int) -> int:
    """Chunks of so many heads or parts of heads, each worth a thread's while."""
    most = max(1, problem.num_macs // MIN_CHUNK_OPERATIONS)
    return min(most, units if units <= _MAX_CHUNKS else TARGET_CHUNKS)


def _head_bytes(problem: AttentionProblem) -> int:
    """Keys and values of a head."""
    num_keys = problem.extents[problem.column]
    return num_keys * (problem.extents[DEPTH] + problem.extents[CHANNEL]) * ELEMENT_BYTES


def reads_in_place(problem: AttentionProblem, isa: Isa) -> bool:
    """Whether keys and values are read where they lie: few queries, and packing them would not pay."""
    rows, depth = problem.extents[problem.row], problem.extents[DEPTH]
    is_far = _head_bytes(problem) > _PACKED_SHARE * isa.caches.l2_bytes
    most = _MAX_ROWS_IN_PLACE if is_far or problem.grows else _MIN_ROWS - 1
    keys = [problem.key, *(part.walked for part in problem.key_parts)]
    is_along = all(walked.step(DEPTH) == 1 for walked in (problem.query, *keys))
    is_along &= all(part.walked.step(CHANNEL) == 1 for part in problem.value_parts)
    return rows <= most and is_along and depth <= _MAX_DEPTH_IN_PLACE


def _plan_in_place(problem: AttentionProblem, isa: Isa, *, divides: bool) -> AttentionPlan:
    """One tile of all queries for each head."""
    extents = problem.extents
    rows, columns = extents[problem.row], extents[problem.column]
    found = _best_panels(isa, rows, Rows(rows), extents[CHANNEL], columns)
    assert found is not None, "tiles of one vector fit the registers"
    lanes = choose_lanes(columns, "float", isa)
    spans, extent = _spans(problem, lanes) if divides else (1, columns)
    chunks = _num_chunks(problem, spans * problem.num_heads) if divides else 1
    tiles, heads = (RowTile(0, 1, rows),), problem.num_heads
    keys = Panels(lanes, 1, extent)
    return AttentionPlan(keys, 0, found[1], tiles, spans, chunks, extents[DEPTH], heads, packs=False)


def _spans(problem: AttentionProblem, lanes: int) -> tuple[int, int]:
    """Spans of keys of each head, where heads are few, and the keys of all of them but the last."""
    columns = problem.extents[problem.column]
    most = min(-(-_ENOUGH_UNITS // problem.num_heads), _head_bytes(problem) // _MIN_SPAN_BYTES)
    if most < 2 or problem.row_loop is not None or problem.most_past is not None:
        return 1, columns
    extent = -(-columns // (most * lanes)) * lanes
    spans = -(-columns // extent)
    # All but the last lie in what came first.
    firsts = [parts[0].count for parts in (problem.key_parts, problem.value_parts) if parts]
    return (spans, extent) if (spans - 1) * extent <= min(firsts, default=columns) else (1, columns)


def _num_singles(problem: AttentionProblem, isa: Isa) -> int:
    """Keys behind the last whole vector that stand alone: few of them would fill little of another.

    Their products are summed along the depth, so queries and keys must lie so.
    """
    columns, depth = problem.extents[problem.column], problem.extents[DEPTH]
    lanes = choose_lanes(columns, "float", isa)
    rest = columns % lanes
    is_along = problem.query.step(DEPTH) == 1 and problem.key.step(DEPTH) == 1
    return rest if columns > lanes and rest <= _MAX_SINGLES and is_along and depth % lanes == 0 else 0


def _num_parts(problem: AttentionProblem, num_tiles: int) -> int:
    """Parts into which each head is cut, so that a few threads find enough to do."""
    most = min(num_tiles, max(1, problem.extents[problem.row] // _MIN_PART_ROWS))
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


def attention_cycles(problem: AttentionProblem, isa: Isa) -> float:
    """Estimated cycles of one core for all heads."""
    rows, columns = problem.extents[problem.row], problem.extents[problem.column]
    depth, channels = problem.extents[DEPTH], problem.extents[CHANNEL]
    stride_bytes = abs(problem.query.step(problem.row)) * ELEMENT_BYTES
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


def operand_sizes(problem: AttentionProblem) -> list[int]:
    """Bytes of what is read and written."""
    operands = (walked.operand for walked in problem.operands.values())
    return [prod(operand.shape) * operand.dtype.size_bytes for operand in operands]
