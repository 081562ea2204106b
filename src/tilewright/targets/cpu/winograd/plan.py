"""How the work is cut: tiles per block, register tile, panels per chunk; and what all that costs.

A block's transformed inputs V and products M stay in the L2 cache. Larger blocks read the weights less
often; more panel groups give more chunks, but each transforms the inputs again. Costs are estimated cycles
of one core: they rank plans and, roughly, Winograd against the direct kernel.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from tilewright.targets.cpu.contraction.tiling import Panels, RowTile, choose_tile, split_rows
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.winograd.match import ImageAxis, WinogradProblem
from tilewright.targets.cpu.winograd.transform import NUM_TAPS

_FLOAT_BYTES = 4
_LINE_FLOATS = 16
# Share of the L2 cache for V and M: the weights in flight, the image and the result need the rest.
_SCRATCH_SHARE = 0.6
_MAX_BLOCK_TILES = 128
# Cycles of the transforms of one vector of channels of one tile, loads, stores and epilogue included.
_INPUT_CYCLES = {2: 36.0, 4: 130.0}
_OUTPUT_CYCLES = {2: 36.0, 4: 130.0}
_ACCUMULATORS_PER_CYCLE = 2.0
_MIN_STEP_CYCLES = 4.0
_TILE_CYCLES = 24.0
# Weights that come from a shared cache or memory, and from the core's own L2.
_COLD_BYTES_PER_CYCLE = 4.0
_L2_BYTES_PER_CYCLE = 24.0
_CHUNK_CYCLES = 600.0
_USUAL_THREADS = (1, 2, 4)
# On a busy machine somebody is late with a chunk: small ones make that cheap.
_LATE_SHARE = 0.25
# What a direct kernel reaches of the FMA peak.
_DIRECT_EFFICIENCY = 0.93


@dataclass(frozen=True, slots=True)
class Plan:
    """One way to cut a problem. Strides and offsets are floats in the scratch area."""

    tile: int
    num_tiles: int
    num_blocks: int
    block_tiles: int
    panel_parts: int
    panels: Panels
    row_tiles: tuple[RowTile, ...]
    v_row: int
    v_matrix: int
    m_matrix: int
    m_offset: int
    patch_offset: int
    scratch_bytes: int

    @property
    def num_chunks(self) -> int:
        """Blocks times panel groups."""
        return self.num_blocks * self.panel_parts


@dataclass(frozen=True, slots=True)
class _Shape:
    """The numbers that decide a plan."""

    tile: int
    num_tiles: int
    inputs: int
    outputs: int

    @property
    def num_matrices(self) -> int:
        return (self.tile + NUM_TAPS - 1) ** 2


def choose_plan(problem: WinogradProblem, tile: int, isa: Isa) -> Plan:
    """The cut with the least estimated time over a few usual numbers of threads; the work alone decides."""
    shape = _Shape(tile, problem.num_tiles(tile), problem.inputs.extent, problem.outputs.extent)
    return _choose(shape, isa)[1]


def winograd_gain(problem: WinogradProblem, tile: int, isa: Isa) -> float:
    """Estimated time of the direct kernel over that of F(tile, 3), both reading their weights cold.

    It counts the products (clipped tiles in full, the direct kernel without its padding taps), both
    transforms, and the bytes of weights: (tile + 2)² against 9 per pair of channels. One thread.
    """
    shape = _Shape(tile, problem.num_tiles(tile), problem.inputs.extent, problem.outputs.extent)
    return _direct_cycles(problem, isa) / _choose(shape, isa)[0]


@functools.lru_cache(maxsize=1024)
def _choose(shape: _Shape, isa: Isa) -> tuple[float, Plan]:
    """(Cycles on one thread with cold weights, the plan)."""
    best: tuple[float, int, int] | None = None
    found: tuple[float, Plan] | None = None
    limit = int(_SCRATCH_SHARE * isa.caches.l2_bytes)
    for num_blocks in _block_counts(shape.num_tiles):
        plan = _plan(shape, num_blocks, 1, isa)
        if plan.scratch_bytes > limit and plan.block_tiles > 4:
            continue
        for parts in range(1, min(plan.panels.num_panels, 16) + 1):
            chunk = _chunk_cycles(shape, plan, parts, isa)
            chunks = num_blocks * parts
            waits = [-(-chunks // p) * p for p in _USUAL_THREADS]
            cycles = chunk * (sum(waits) / len(waits) + _LATE_SHARE) + chunks * _CHUNK_CYCLES
            key = (cycles, num_blocks, parts)
            if best is None or key < best:
                best = key
                found = chunk * chunks, _plan(shape, num_blocks, parts, isa)
    assert found is not None
    return found


def _block_counts(num_tiles: int) -> list[int]:
    """Numbers of blocks worth trying: one for each size of the largest block."""
    sizes = [s for s in range(1, _MAX_BLOCK_TILES + 1) if s <= 16 or s % 2 == 0]
    counts = {-(-num_tiles // s) for s in sizes if s >= min(num_tiles, 4)}
    return sorted(counts)


def _plan(shape: _Shape, num_blocks: int, panel_parts: int, isa: Isa) -> Plan:
    block = -(-shape.num_tiles // num_blocks)
    tile = choose_tile(isa, "float", block, shape.outputs, shape.inputs)
    lanes = isa.lanes("float")
    if tile.panels.lanes != lanes:  # a narrow remainder still computes whole vectors: M's rows are ours
        tile = choose_tile(isa, "float", block, lanes, shape.inputs)
        panels = Panels(lanes, 1, shape.outputs)
    else:
        panels = tile.panels
    v_row = _spread(-(-shape.inputs // lanes) * lanes)
    v_matrix = _spread(block * v_row)
    m_matrix = _spread(block * panels.width)
    m_offset = shape.num_matrices * v_matrix
    patch_offset = m_offset + shape.num_matrices * m_matrix
    floats = patch_offset + shape.num_matrices * lanes
    return Plan(
        tile=shape.tile,
        num_tiles=shape.num_tiles,
        num_blocks=num_blocks,
        block_tiles=block,
        panel_parts=panel_parts,
        panels=panels,
        row_tiles=split_rows(block, tile.max_rows),
        v_row=v_row,
        v_matrix=v_matrix,
        m_matrix=m_matrix,
        m_offset=m_offset,
        patch_offset=patch_offset,
        scratch_bytes=_FLOAT_BYTES * floats,
    )


def _spread(floats: int) -> int:
    """At least `floats`, an odd number of cache lines: strides by it visit every set of a cache."""
    return _LINE_FLOATS * (-(-floats // _LINE_FLOATS) | 1)


def _chunk_cycles(shape: _Shape, plan: Plan, parts: int, isa: Isa) -> float:
    """The largest chunk's time when the panels are cut into `parts`."""
    lanes, panels = plan.panels.lanes, plan.panels
    num_panels = -(-panels.num_panels // parts)
    columns = min(num_panels * panels.width, panels.padded_extent)
    transforms = plan.block_tiles * (
        _INPUT_CYCLES[shape.tile] * -(-shape.inputs // lanes) + _OUTPUT_CYCLES[shape.tile] * columns / lanes
    )
    product = 0.0
    for rows in plan.row_tiles:
        for vectors, count in ((panels.num_vectors, num_panels), (panels.tail_vectors, 0)):
            step = max(
                rows.rows * vectors / _ACCUMULATORS_PER_CYCLE,
                (rows.rows + vectors) / 2,
                _MIN_STEP_CYCLES,
            )
            product += rows.count * count * (shape.inputs * (step + 0.5) + _TILE_CYCLES)
    product *= shape.num_matrices * columns / (num_panels * panels.width)
    weight_bytes = _FLOAT_BYTES * shape.num_matrices * shape.inputs * columns
    all_bytes = _FLOAT_BYTES * shape.num_matrices * shape.inputs * panels.padded_extent
    # The first block finds them cold; later ones in L2 if all of them fit beside the scratch.
    stays = all_bytes + plan.scratch_bytes <= isa.caches.l2_bytes
    cold = weight_bytes * (1 / plan.num_blocks if stays else 1.0) / _COLD_BYTES_PER_CYCLE
    return transforms + _overlap(product, cold) + weight_bytes / _L2_BYTES_PER_CYCLE


def _overlap(compute: float, fetch: float) -> float:
    """Time of arithmetic with prefetched operands: the longer of both, and a quarter of the shorter."""
    return max(compute, fetch) + 0.25 * min(compute, fetch)


def _direct_cycles(problem: WinogradProblem, isa: Isa) -> float:
    taps = _taps_inside(problem.rows) * _taps_inside(problem.columns)
    pairs = problem.inputs.extent * problem.outputs.extent
    lanes = isa.lanes("float")
    padded = -(-problem.outputs.extent // lanes) * lanes
    fmas = problem.num_batch * taps * problem.inputs.extent * padded / lanes
    compute = fmas / (_ACCUMULATORS_PER_CYCLE * _DIRECT_EFFICIENCY)
    return _overlap(compute, _FLOAT_BYTES * NUM_TAPS**2 * pairs / _COLD_BYTES_PER_CYCLE)


def _taps_inside(axis: ImageAxis) -> int:
    """Taps of all positions that read inside the image: the direct kernel skips the others."""
    return sum(
        0 <= position + tap + axis.offset < axis.size
        for position in range(axis.extent)
        for tap in range(NUM_TAPS)
    )
