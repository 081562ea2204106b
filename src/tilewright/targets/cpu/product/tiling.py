"""Sizes of the register tile and of the pieces a contraction is cut into.

The tile is chosen by counting, for one step of the summed loop, the issue slots its FMAs and its loads
take; tail vectors and tail rows count in full. Two FMAs and two loads a cycle describe every core this
target generates for closely enough to rank tiles; `benchmarks/micro_contraction.py` measures them. A core
that takes one FMA ranks them alike, but needs more time beside what it reads.
"""

from __future__ import annotations

import functools
from collections import Counter

from tilewright.records import dataclass
from tilewright.targets.cpu.isa import L1_WAY_BYTES, CacheSizes, Isa
from tilewright.targets.llvm.values import vec

FMAS_PER_CYCLE = 2.0
LOADS_PER_CYCLE = 2.0
# Latency of an FMA: fewer independent accumulators than this times the FMAs per cycle leave slots empty.
FMA_LATENCY_CYCLES = 4.0
LOOP_OVERHEAD_CYCLES = 1.0
# Start, initial values, epilogue and stores of one tile, per accumulator and per tile.
TILE_OVERHEAD_CYCLES = 8.0
STORE_CYCLES = 1.0
# Every step reads a line of each row. Where more of them share a set of the first cache than it keeps beside
# one of B, each comes from the second cache at each step: with 12 ways and rows 12 KiB apart 10 rows by 2
# vectors reach 92 % of peak, 14 by 2 89 %, 20 by one 38 % and 28 by one 9 %; 64 bytes further
# apart they reach 94, 93, 87 and 85 %.
_WAYS_OF_B = 1
# Where A does not stay in the second cache beside the panels, such lines come from beyond it at times: with
# 196 rows 4 KiB apart 14 x 2 vectors take 1 to 5 % longer than 11 x 2 or 9 x 3.
_FAR_FILL = 1.1
# A panel that a cache does not keep beside what else is there is read from beyond for every tile: from the
# second cache 2 x 5 vectors of 32 bytes over 384 sums take 6.5 cycles a step, not 5.
_KEPT_SHARE = 0.9
_SECOND_BYTES_PER_CYCLE, _BEYOND_BYTES_PER_CYCLE = 25.0, 10.0
_FLOAT_BYTES = 4
# Rows of a tile that picks lanes. At the edges of an image more of them spill: 128 channels in 32 groups at
# 56 pixels reach 44 % of peak with 8 rows, 30 % with 10, 27 % with 14.
_SPREAD_ROWS = 8
# Narrower vectors than these are never shared by two rows: it takes an instruction more for each pair.
LEAST_SHARED_LANES = 8
# Of panels that few rows and many read. Of a single row four vectors take 4.5 cycles a step of 256 bytes,
# which is faster than they come from memory; 64 rows take half a percent longer than with the best width.
_SHARED_VECTORS, _MANY_ROWS, _NEAR_FASTEST = 4, 64, 1.02
MAX_TILE_VECTORS = 8
MAX_TILE_SIZE = 28
FLOATS = ("float", "double")


@dataclass(frozen=True, slots=True)
class Panels:
    """The vector dim cut into panels of `num_vectors` vectors; the last may be narrower.

    >>> Panels(lanes=16, num_vectors=3, extent=64).tail_vectors
    1
    """

    lanes: int
    num_vectors: int
    extent: int

    @property
    def width(self) -> int:
        """Elements of a full panel."""
        return self.lanes * self.num_vectors

    @property
    def num_full(self) -> int:
        """Full panels."""
        return self.extent // self.width

    @property
    def tail(self) -> int:
        """Elements left after the full panels."""
        return self.extent - self.num_full * self.width

    @property
    def tail_vectors(self) -> int:
        """Vectors that hold the tail."""
        return -(-self.tail // self.lanes)

    @property
    def is_tail_half_empty(self) -> bool:
        """Whether the last vector of the tail holds so little that a pair of rows may share it.

        >>> [Panels(16, 2, extent).is_tail_half_empty for extent in (20, 24, 25, 32)]
        [True, True, False, False]
        """
        return self.lanes >= LEAST_SHARED_LANES and 0 < self.tail % self.lanes <= self.lanes // 2

    @property
    def num_panels(self) -> int:
        """Panels, the tail one included."""
        return self.num_full + bool(self.tail)

    @property
    def padded_extent(self) -> int:
        """Elements of all panels, the tail rounded up to whole vectors."""
        return self.num_full * self.width + self.tail_vectors * self.lanes


@dataclass(frozen=True, slots=True)
class RowTile:
    """`count` tiles of `rows` rows, the first of them starting at row `start`."""

    start: int
    count: int
    rows: int


def split_rows(extent: int, max_rows: int) -> tuple[RowTile, ...]:
    """Cover `extent` rows with tiles of at most two sizes that differ by one, larger ones first.

    >>> split_rows(197, 14)
    (RowTile(start=0, count=2, rows=14), RowTile(start=28, count=13, rows=13))
    """
    tiles = -(-extent // max_rows)
    small, larger = divmod(extent, tiles)
    parts = [RowTile(0, larger, small + 1)] if larger else []
    return (*parts, RowTile(larger * (small + 1), tiles - larger, small))


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a contraction: how many, and how many bytes one lies behind the other in A."""

    extent: int
    stride_bytes: int = 0

    def most_in_one_set(self, num_rows: int, caches: CacheSizes) -> int:
        """Of `num_rows` lines, one in each row, those that share a set of the first cache.

        >>> from tilewright.targets.cpu.isa import CacheSizes
        >>> [Rows(196, stride).most_in_one_set(14, CacheSizes()) for stride in (4096, 2048, 3072, 4160, 16)]
        [14, 7, 4, 1, 1]
        """
        return _most_in_one_set(num_rows, self.stride_bytes, caches.line_bytes)


@functools.lru_cache(maxsize=4096)
def _most_in_one_set(num_rows: int, stride_bytes: int, line_bytes: int) -> int:
    lines = {row * stride_bytes // line_bytes for row in range(num_rows)}
    return max(Counter(line % (L1_WAY_BYTES // line_bytes) for line in lines).values())


@dataclass(frozen=True, slots=True)
class Tile:
    """A register tile: at most `max_rows` rows by `panels.num_vectors` vectors."""

    panels: Panels
    max_rows: int


def choose_lanes(extent: int, element: str, isa: Isa) -> int:
    """The widest vectors, or the narrowest that still hold the whole vector dim."""
    choices = isa.lane_choices(element)
    return min((n for n in choices if n >= extent), default=choices[0])


def choose_tile(
    isa: Isa, element: str, rows: Rows, num_columns: int, num_steps: int, *, is_shared: bool = False
) -> Tile:
    """The tile with the fewest estimated cycles for `rows` x `num_columns` over `num_steps` sums.

    `is_shared`: of those whose panels serve any number of rows, as they have one width.
    """
    ranked = rank_tiles(isa, element, rows, num_columns, num_steps)
    if not is_shared:
        return ranked[0]
    width = _shared_vectors(isa, element, num_columns, num_steps)
    return next(tile for tile in ranked if tile.panels.num_vectors == width)


@functools.lru_cache(maxsize=4096)
def _shared_vectors(isa: Isa, element: str, num_columns: int, num_steps: int) -> int:
    """Vectors of a panel that serves few rows and many: so many that a single row has several sums at a time,
    among those that many rows take hardly longer with."""
    least: dict[int, float] = {}
    many = Rows(_MANY_ROWS, num_steps * vec(element, 1).size_bytes)
    for tile in rank_tiles(isa, element, many, num_columns, num_steps):
        cycles = tile_cycles(tile, many, num_steps, isa.caches)
        least.setdefault(tile.panels.num_vectors, cycles)
    fastest = min(least.values())
    near = [n for n, cycles in least.items() if n <= _SHARED_VECTORS and cycles <= _NEAR_FASTEST * fastest]
    return max(near, default=min(least, key=lambda n: least[n]))


def rank_tiles(isa: Isa, element: str, rows: Rows, num_columns: int, num_steps: int) -> tuple[Tile, ...]:
    """Every tile worth considering, the fewest estimated cycles first."""
    # mypy takes any arguments for those of a cached function.
    return _ranked_tiles(isa, element, rows, num_columns, num_steps)


@functools.lru_cache(maxsize=4096)
def _ranked_tiles(isa: Isa, element: str, rows: Rows, num_columns: int, num_steps: int) -> tuple[Tile, ...]:
    lanes = choose_lanes(num_columns, element, isa)
    found: list[tuple[float, int, int]] = []
    most_vectors = min(-(-num_columns // lanes), MAX_TILE_VECTORS)
    for num_vectors in range(1, most_vectors + 1):
        panels = Panels(lanes, num_vectors, num_columns)
        fitting = [r for r in range(1, MAX_TILE_SIZE + 1) if fits_registers(isa, r, num_vectors)]
        for max_rows in fitting:
            if max_rows > rows.extent and max_rows != fitting[0]:
                continue
            pairs_rows = element in FLOATS
            cycles = tile_cycles(Tile(panels, max_rows), rows, num_steps, isa.caches, pairs_rows=pairs_rows)
            found.append((cycles, num_vectors, -max_rows))
    return tuple(Tile(Panels(lanes, vectors, num_columns), -most) for _, vectors, most in sorted(found))


def fits_registers(isa: Isa, max_rows: int, num_vectors: int) -> bool:
    """Whether a tile neither spills nor makes too much code.

    >>> from tilewright.targets.cpu.isa import isa_by_name
    >>> [fits_registers(isa_by_name("avx512"), rows, 3) for rows in (0, 8, 10)]
    [False, True, False]
    """
    return (
        max_rows >= 1
        and 1 <= num_vectors <= MAX_TILE_VECTORS
        and max_rows * num_vectors <= MAX_TILE_SIZE
        and isa.fits(max_rows, num_vectors)
    )


def spread_tile(isa: Isa, element: str, num_columns: int, size: int) -> Tile:
    """The tile for small groups side by side: beside the sums it holds B's vectors of `size` steps."""
    free = isa.num_vector_registers - isa.num_spare_registers - size - 2
    return Tile(Panels(isa.lanes(element), 1, num_columns), min(free, _SPREAD_ROWS))


def step_cycles(rows: int, vectors: int, fmas_per_cycle: float = FMAS_PER_CYCLE, num_pairs: int = 0) -> float:
    """Cycles in which a step of a register tile is issued: its FMAs, or its loads.

    `num_pairs` pairs of rows share their last vector.
    """
    return max((rows * vectors - num_pairs) / fmas_per_cycle, (rows + vectors) / LOADS_PER_CYCLE)


def tile_cycles(
    register_tile: Tile,
    rows: Rows,
    num_steps: int,
    caches: CacheSizes,
    fmas_per_cycle: float = FMAS_PER_CYCLE,
    *,
    pairs_rows: bool = False,
) -> float:
    """Estimated cycles of all rows and panels over `num_steps` sums; operands are in the second cache.

    With `pairs_rows` two rows share the last vector of a tail that fills at most half of it.
    """
    panels = register_tile.panels
    total = 0.0
    is_far = rows.extent * rows.stride_bytes > caches.l2_bytes // 2
    fill_cycles = caches.l1_fill_cycles * (_FAR_FILL if is_far else 1)
    for tile in split_rows(rows.extent, register_tile.max_rows):
        kept = max(1, caches.l1_ways - _WAYS_OF_B)
        in_one_set = rows.most_in_one_set(tile.rows, caches)
        misses = in_one_set if in_one_set > kept else 0
        num_pairs = tile.rows // 2 if pairs_rows and panels.is_tail_half_empty else 0
        for vectors, count, pairs in (
            (panels.num_vectors, panels.num_full, 0),
            (panels.tail_vectors, 1, num_pairs),
        ):
            if vectors and count:
                issue = max(step_cycles(tile.rows, vectors, fmas_per_cycle, pairs), FMA_LATENCY_CYCLES)
                load = misses * fill_cycles
                if rows.extent > tile.rows:
                    step_bytes = vectors * panels.lanes * _FLOAT_BYTES
                    load = max(load, _again_cycles(step_bytes, num_steps, caches))
                step = max(issue, load) + LOOP_OVERHEAD_CYCLES / 2
                once = TILE_OVERHEAD_CYCLES + STORE_CYCLES * tile.rows * vectors
                total += tile.count * count * (num_steps * step + once)
    return total


def _again_cycles(step_bytes: int, num_steps: int, caches: CacheSizes) -> float:
    """Cycles in which a step of a panel comes that each tile reads."""
    panel_bytes = step_bytes * num_steps
    if panel_bytes <= _KEPT_SHARE * caches.l1_bytes:
        return 0.0
    is_near = panel_bytes <= _KEPT_SHARE * caches.l2_bytes
    return step_bytes / (_SECOND_BYTES_PER_CYCLE if is_near else _BEYOND_BYTES_PER_CYCLE)
