"""How the work is cut: tiles per block, register tile, panels per chunk; and what all that costs.

A block's transformed inputs V and products M stay in the L2 cache. Larger blocks read the weights less
often; more panel groups give more chunks, but each transforms the inputs again. Costs are estimated cycles
of one core: they rank plans and, roughly, Winograd against the direct kernel.
"""

from __future__ import annotations

import functools
from dataclasses import replace

from tilewright.records import dataclass
from tilewright.targets.cpu.arrangements import NUM_TAPS
from tilewright.targets.cpu.cut import Cut, cut_cycles
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import Declined
from tilewright.targets.cpu.product.contraction import CONTRACTION
from tilewright.targets.cpu.product.contraction.choose import contraction_cycles, finish_cycles, plan_of
from tilewright.targets.cpu.product.integer.dot import dot_of
from tilewright.targets.cpu.product.integer.template import INTEGER
from tilewright.targets.cpu.product.loops import Window
from tilewright.targets.cpu.product.plan import KernelPlan, Staging
from tilewright.targets.cpu.product.tiling import (
    FMAS_PER_CYCLE,
    Panels,
    RowTile,
    Tile,
    split_rows,
    step_cycles,
)
from tilewright.targets.cpu.product.winograd.match import WinogradLoops, WinogradProblem
from tilewright.targets.cpu.template import Context, operand_bytes, overlapped, transfer_cycles
from tilewright.tuning import Choice

TEMPLATE = "winograd"
STAGINGS: dict[int, Staging] = {2: "in Winograd tiles of 2", 4: "in Winograd tiles of 4"}
_MAX_BLOCKS = 5
_MAX_OTHERS = 12
_FLOAT_BYTES = 4
_LINE_FLOATS = 16
# Share of the L2 cache for V and M: the weights in flight, the image and the result need the rest.
_SCRATCH_SHARE = 0.6
_MAX_BLOCK_TILES = 128
_MAX_VECTORS = 6
_MAX_ACCUMULATORS = 28
# Measured cycles (AVX-512, one core) of transforming a line of channels of one tile: edges included, and what
# storing V costs, which grows with the block. Narrower vectors take as much less: with AVX2 half a line takes
# 0.47 to 0.63 of it.
_INPUT_CYCLES = {2: 90.0, 4: 250.0}
_OUTPUT_CYCLES = {2: 45.0, 4: 150.0}
# The same of bytes, whose arithmetic is that of integers: 260 and 200 instructions, two a cycle.
_BYTE_INPUT_CYCLES, _BYTE_OUTPUT_CYCLES = 130.0, 100.0
_MIN_STEP_CYCLES = 4.0
_TILE_CYCLES = 24.0
# When the next block reads weights again they are not far, if all of them are no more than a part of the last
# cache.
_AGAIN_BYTES_PER_CYCLE = 24.0
_NEAR_SHARE = 0.5
# While one matrix is multiplied the weights of the next are fetched: 512 channels at 7 x 7 with 17 MB of them
# take as long where these come from memory as where they do not.
_SHARE_NOT_HIDDEN = 0.1


@dataclass(frozen=True, slots=True)
class WinogradSizes:
    """Sizes of one way to cut a problem. Strides and offsets are floats, or words of two numbers of 16 bits,
    in the scratch area."""

    tile: int
    num_tiles: int
    num_groups: int
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
        """Blocks times groups of channels times panel groups."""
        return self.num_blocks * self.num_groups * self.panel_parts


@dataclass(frozen=True, slots=True)
class Shape:
    """The numbers that decide a plan; channels are those of one group, `steps` those of a sum over them.

    A step of bytes takes `instructions`; 0 for floats, whose step is one multiply-add.
    """

    tile: int
    num_tiles: int
    num_groups: int
    steps: int
    outputs: int
    instructions: int = 0

    @classmethod
    def of(cls, loops: WinogradLoops, tile: int, isa: Isa | None = None) -> Shape:
        """The numbers of a problem."""
        tiles, instructions = loops.num_tiles(tile), 0
        if loops.zeros is not None and isa is not None:
            instructions = 1 if dot_of(isa, isa.lanes("i32")).name == "vnni" else 2
        return cls(tile, tiles, loops.num_groups, loops.num_steps, loops.outputs.extent, instructions)

    @property
    def num_matrices(self) -> int:
        """Products of one tile and pair of channels."""
        return (self.tile + NUM_TAPS - 1) ** 2


def choose_plan(problem: WinogradProblem, tile: int, isa: Isa) -> WinogradSizes:
    """The cut with the least estimated time over a few usual numbers of threads; the work alone decides."""
    return _choose(Shape.of(problem, tile, isa), isa)


def winograd_gain(problem: WinogradProblem, tile: int, context: Context) -> float:
    """Estimated time of the direct kernel over that of F(tile, 3), both reading their weights cold.

    It counts the products (clipped tiles in full, the direct kernel without its padding taps), both
    transforms, and beside them the bytes of weights: (tile + 2)² against 9 per pair of channels. One thread.
    """
    plan = choose_plan(problem, tile, context.isa)
    if problem.zeros is None:
        direct = contraction_cycles(problem.contraction, Choice(CONTRACTION.name), context)
    else:
        bytes_ = INTEGER.match(problem.nest, context)
        assert not isinstance(bytes_, Declined)
        direct = INTEGER.estimate(bytes_, Choice(INTEGER.name), context).cycles
    return direct / winograd_cycles(problem, plan, context)


def winograd_cycles(problem: WinogradProblem, plan: WinogradSizes, context: Context) -> float:
    """Estimated cycles of a plan on one thread with cold weights."""
    isa, contraction = context.isa, problem.contraction
    shape = Shape.of(problem, plan.tile, isa)
    compute = (
        _compute_cycles(shape, plan, plan.panel_parts, isa.rates.private_bytes_per_cycle, isa.fmas_per_cycle)
        * plan.num_chunks
    )
    compute += finish_cycles(contraction, isa)
    moved = (operand_bytes(contraction.a.operand), operand_bytes(contraction.nest.write.operand))
    weights = _weight_cycles(shape, plan, plan.panel_parts, context.cold_bytes_per_cycle, isa)
    weights *= plan.num_chunks
    return overlapped(compute, weights + transfer_cycles(moved, isa), _SHARE_NOT_HIDDEN)


def winograd_neighbours(problem: WinogradProblem, tile: int, isa: Isa) -> tuple[Choice, ...]:
    """Cuts of a problem: for each size of a block the best groups, then others, the least time first."""
    ranked = [
        Choice.of(TEMPLATE, tile=tile, num_blocks=num_blocks, panel_parts=parts)
        for _, num_blocks, parts in _ranked(Shape.of(problem, tile, isa), isa)
    ]
    best: dict[int | None, Choice] = {}
    for choice in ranked:
        best.setdefault(choice.get("num_blocks"), choice)
    first = tuple(best.values())[:_MAX_BLOCKS]
    return tuple(dict.fromkeys((*first, *ranked)))[: _MAX_BLOCKS + _MAX_OTHERS]


def chosen_plan(problem: WinogradProblem, choice: Choice, isa: Isa) -> WinogradSizes | Declined:
    """The plan of a choice; what it leaves open the estimate decides."""
    tile, num_blocks, parts = (choice.get(name) for name in ("tile", "num_blocks", "panel_parts"))
    assert tile is not None
    if num_blocks is None or parts is None:
        return choose_plan(problem, tile, isa)
    shape = Shape.of(problem, tile, isa)
    if not 1 <= num_blocks <= shape.num_tiles or -(-shape.num_tiles // num_blocks) > _MAX_BLOCK_TILES:
        return Declined(f"{num_blocks} blocks of {shape.num_tiles} tiles")
    plan = plan_with(shape, num_blocks, parts, isa)
    if not 1 <= parts <= plan.panels.num_panels:
        return Declined(f"{parts} groups of {plan.panels.num_panels} panels")
    return plan


def plan_winograd(problem: WinogradProblem, sizes: WinogradSizes, isa: Isa) -> KernelPlan:
    """The plan of a kernel cut like this."""
    rows, columns = problem.rows, problem.columns
    windows = (
        Window(axis.name, 1, tap.name, 1, axis.offset, axis.size)
        for axis, tap in zip((rows, columns), problem.taps, strict=True)
    )
    plan = plan_of(
        problem.contraction,
        Tile(sizes.panels, sizes.row_tiles[0].rows),
        dot="fma" if problem.zeros is None else dot_of(isa, sizes.panels.lanes).name,
        zeros=problem.zeros,
        staging=STAGINGS[sizes.tile],
        units="image tiles",
        cut=Cut(sizes.num_blocks, sizes.panel_parts),
        summed=(*problem.taps, problem.inputs),
    )
    groups = () if problem.groups is None else (problem.groups,)
    matrices = Shape.of(problem, sizes.tile).num_matrices * problem.num_steps
    weights_bytes = _FLOAT_BYTES * matrices * sizes.panels.padded_extent * problem.num_groups
    return replace(
        plan,
        vector=problem.outputs,
        row=columns.by_position,
        outer=(*problem.batch, *groups, rows.by_position),
        windows=tuple(windows),
        spread=None,
        fetches_ahead=weights_bytes > isa.caches.l2_bytes // 4,
    )


def sizes_of(plan: KernelPlan, loops: WinogradLoops) -> WinogradSizes:
    """The sizes that a kernel's plan gives."""
    tile = next(tile for tile, staging in STAGINGS.items() if staging == plan.staging)
    shape, cut = Shape.of(loops, tile), plan.cut
    row_tiles = split_rows(-(-shape.num_tiles // cut.num_row_parts), plan.max_rows)
    return _sized(shape, cut.num_row_parts, cut.num_panel_parts, plan.panels, row_tiles)


@functools.lru_cache(maxsize=1024)
def _choose(shape: Shape, isa: Isa) -> WinogradSizes:
    _, num_blocks, parts = _ranked(shape, isa)[0]
    return plan_with(shape, num_blocks, parts, isa)


@functools.lru_cache(maxsize=1024)
def _ranked(shape: Shape, isa: Isa) -> tuple[tuple[float, int, int], ...]:
    """(Estimated cycles over the usual numbers of threads, blocks, panel groups), the least first."""
    found: list[tuple[float, int, int]] = []
    limit = int(_SCRATCH_SHARE * isa.caches.l2_bytes)
    for num_blocks in _block_counts(shape.num_tiles):
        plan = plan_with(shape, num_blocks, 1, isa)
        if plan.scratch_bytes > limit and plan.block_tiles > 4:
            continue
        for parts in range(1, min(plan.panels.num_panels, 16) + 1):
            # As if nothing hid the weights: cuts that read them less often also leave more to other threads.
            chunk = _compute_cycles(shape, plan, parts, isa.rates.private_bytes_per_cycle)
            chunk += _weight_cycles(shape, plan, parts, isa.rates.cold_bytes_per_cycle, isa)
            chunks = num_blocks * shape.num_groups * parts
            found.append((cut_cycles(chunk * chunks, chunks), num_blocks, parts))
    return tuple(sorted(found))


def _block_counts(num_tiles: int) -> list[int]:
    """Numbers of blocks worth trying: one for each size of the largest block."""
    sizes = [s for s in range(1, _MAX_BLOCK_TILES + 1) if s <= 16 or s % 2 == 0]
    counts = {-(-num_tiles // s) for s in sizes if s >= min(num_tiles, 4)}
    return sorted(counts)


def plan_with(shape: Shape, num_blocks: int, panel_parts: int, isa: Isa) -> WinogradSizes:
    """The sizes with this many blocks and panel groups."""
    panels, row_tiles = _register_tile(shape, -(-shape.num_tiles // num_blocks), isa)
    return _sized(shape, num_blocks, panel_parts, panels, row_tiles)


def _sized(
    shape: Shape, num_blocks: int, panel_parts: int, panels: Panels, row_tiles: tuple[RowTile, ...]
) -> WinogradSizes:
    """The strides that follow from a register tile and a cut."""
    block, lanes = -(-shape.num_tiles // num_blocks), panels.lanes
    v_row = _spread(-(-shape.steps // lanes) * lanes)
    v_matrix = _spread(block * v_row)
    m_matrix = _spread(block * panels.width)
    m_offset = shape.num_matrices * v_matrix
    patch_offset = m_offset + shape.num_matrices * m_matrix
    floats = patch_offset + shape.num_matrices * lanes
    return WinogradSizes(
        tile=shape.tile,
        num_tiles=shape.num_tiles,
        num_groups=shape.num_groups,
        num_blocks=num_blocks,
        block_tiles=block,
        panel_parts=panel_parts,
        panels=panels,
        row_tiles=row_tiles,
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


def _register_tile(shape: Shape, block_tiles: int, isa: Isa) -> tuple[Panels, tuple[RowTile, ...]]:
    """Panels and row tiles with the fewest cycles for one matrix of one block."""
    lanes, rate = isa.lanes("float"), isa.rates.private_bytes_per_cycle
    best: tuple[float, int, int] | None = None
    for num_vectors in range(1, min(-(-shape.outputs // lanes), _MAX_VECTORS) + 1):
        panels = Panels(lanes, num_vectors, shape.outputs)
        if shape.num_groups > 1 and shape.outputs % panels.width:
            continue  # a panel belongs to one group
        for max_rows in range(1, block_tiles + 1):
            if max_rows * num_vectors > _MAX_ACCUMULATORS or not isa.fits(max_rows, num_vectors):
                break
            key = (
                _product_cycles(shape, panels, split_rows(block_tiles, max_rows), rate),
                num_vectors,
                max_rows,
            )
            best = key if best is None else min(best, key)
    assert best is not None
    return Panels(lanes, best[1], shape.outputs), split_rows(block_tiles, best[2])


def _product_cycles(
    shape: Shape,
    panels: Panels,
    row_tiles: tuple[RowTile, ...],
    private_rate: float,
    fmas_per_cycle: float = FMAS_PER_CYCLE,
) -> float:
    """Cycles of one matrix product of a block with all panels."""
    total = 0.0
    for tile in row_tiles:
        for vectors, count in ((panels.num_vectors, panels.num_full), (panels.tail_vectors, 1)):
            if vectors and count:
                # Weights come from the private cache, beside the arithmetic.
                read = vectors * panels.lanes * _FLOAT_BYTES / private_rate
                issued = step_cycles(tile.rows, vectors, fmas_per_cycle / (shape.instructions or 1))
                step = max(issued, read, _MIN_STEP_CYCLES) + 0.5
                total += tile.count * count * (shape.steps * step + _TILE_CYCLES)
    return total


def _compute_cycles(
    shape: Shape, plan: WinogradSizes, parts: int, private_rate: float, fmas_per_cycle: float = FMAS_PER_CYCLE
) -> float:
    """Products and transforms of the largest chunk when the panels are cut into `parts`."""
    panels, columns = plan.panels, _columns(plan, parts)
    if shape.instructions:
        transform = _BYTE_INPUT_CYCLES * -(-shape.steps // panels.lanes)
        transform += _BYTE_OUTPUT_CYCLES * columns / panels.lanes
    else:  # V begins a line for each tile, M is dense.
        transform = _INPUT_CYCLES[shape.tile] * -(-shape.steps // _LINE_FLOATS)
        transform += _OUTPUT_CYCLES[shape.tile] * columns / _LINE_FLOATS
    product = shape.num_matrices * _product_cycles(
        shape, panels, plan.row_tiles, private_rate, fmas_per_cycle
    )
    return plan.block_tiles * transform + product * columns / panels.padded_extent


def _weight_cycles(
    shape: Shape, plan: WinogradSizes, parts: int, cold_bytes_per_cycle: float, isa: Isa
) -> float:
    """The time in which such a chunk's weights come, which each block reads again."""
    row_bytes = _FLOAT_BYTES * shape.num_matrices * shape.steps
    is_near = row_bytes * plan.panels.padded_extent <= _NEAR_SHARE * isa.caches.l3_bytes
    again_rate = max(_AGAIN_BYTES_PER_CYCLE, cold_bytes_per_cycle) if is_near else cold_bytes_per_cycle
    first, again = 1 / plan.num_blocks, 1 - 1 / plan.num_blocks
    return row_bytes * _columns(plan, parts) * (first / cold_bytes_per_cycle + again / again_rate)


def _columns(plan: WinogradSizes, parts: int) -> int:
    """Of the largest chunk."""
    return min(-(-plan.panels.num_panels // parts) * plan.panels.width, plan.panels.padded_extent)
