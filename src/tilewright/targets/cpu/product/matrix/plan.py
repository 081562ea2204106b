"""How a product is cut for the matrix unit: blocks, panels, chunks, the scratch area, and what it costs.

A chunk takes some positions and some panels of columns. It first splits the inputs of its positions into
pieces in its scratch area (from L2 they feed the unit at full rate), then multiplies panel by panel. Plans
are ranked by what `cycles.py` estimates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tilewright.errors import UsageError
from tilewright.targets.cpu.cut import Cut
from tilewright.targets.cpu.product.amx import TILE_BYTES_PER_ROW, TILE_ROWS
from tilewright.targets.cpu.product.contraction.choose import plan_of
from tilewright.targets.cpu.product.loops import StridedLoop, WindowLoop
from tilewright.targets.cpu.product.matrix.activations import TiledFactor
from tilewright.targets.cpu.product.matrix.match import MatrixLoops, MatrixProblem, heads_of, matrix_loops
from tilewright.targets.cpu.product.matrix.tiles import TERMS, TILE_BYTES, TILE_COLUMNS, Block, Terms
from tilewright.targets.cpu.product.plan import KernelPlan
from tilewright.targets.cpu.product.tiling import Panels, Tile

_BLOCKS = (Block(2, 2), Block(1, 4), Block(4, 1), Block(1, 3), Block(3, 1))
# Weights that stay in the L1 cache while blocks of inputs pass.
_L1_WEIGHT_BYTES = 24 * 1024
_ENOUGH_BLOCKS = 4
# Longer sums of six products are cut into passes that start from zero and are added up in float32: every
# product of tiles rounds the sum once. As one chain, 3,072 terms err three times as much as plain kernels,
# 9,216 four to eight times; as passes, less than twice.
MAX_TILE_CHAIN = 32
FLOAT32_PRODUCTS = 6
# Bytes are added in int32: three products of the same order, of digits from -128 to 127, in each step of the
# depth. Behind so many tiles the sum might not hold them.
_MAX_EXACT_STEPS = (2**31 - 1) // (3 * 2**14 * TILE_BYTES_PER_ROW)
_FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Grid:
    """The positions of a problem, and the planes in which a chunk holds them.

    Without a window the positions are one row, and units are blocks of it. With one, a unit is a line of
    positions; lines lie `pitch` apart in a plane, long enough for the taps of the last position to stay in
    their line, where the zeros behind one line are those before the next. Steps of more than one give a plane
    for each phase: the inputs a step apart lie side by side in it.
    """

    batch: int
    line: WindowLoop
    row: WindowLoop
    has_window: bool

    @classmethod
    def of(cls, loops: MatrixLoops) -> Grid:
        """The grid of a product's loops."""
        if not loops.has_window:
            unit = WindowLoop(1)
            return cls(1, unit, WindowLoop(loops.num_positions), False)
        axes = loops.axes
        line = axes[-2] if len(axes) > 1 else WindowLoop(1, extras=(0,) * len(axes[0].extras))
        return cls(prod(x.extent for x in axes[:-2]), line, axes[-1], True)

    @property
    def line_phases(self) -> tuple[int, ...]:
        """Phases that taps read, along lines."""
        return phases(self.line)

    @property
    def row_phases(self) -> tuple[int, ...]:
        """Phases that taps read, along rows."""
        return phases(self.row)

    @property
    def pitch(self) -> int:
        """Positions from one line to the next in a plane: each position belongs to one line only."""
        shared = min(min(lead, trail) for lead, _, trail in map(self.columns, self.row_phases))
        return max(self.row.extent, self.width - shared)

    @property
    def width(self) -> int:
        """Positions of a line in a plane, the zeros on both sides included."""
        return self.row.extent + max(shift(self.row, t) for t in range(self.row.num_taps))

    def columns(self, phase: int) -> tuple[int, int, int]:
        """Of the positions of a line in this phase's plane: zeros, inputs, zeros."""
        row = self.row
        first = -((phase + row.offset) // row.step) if row.is_window else 0
        behind = -(-(row.size - phase - row.offset) // row.step) if row.is_window else row.extent
        lead = min(max(first, 0), self.width)
        end = min(max(behind, lead), self.width)
        return lead, end - lead, self.width - end

    def num_lines_read(self, num_lines: int) -> int:
        """Lines of a plane that `num_lines` lines of positions read."""
        return num_lines + max(shift(self.line, t) for t in range(self.line.num_taps))


def phases(axis: WindowLoop) -> tuple[int, ...]:
    """Remainders of input indices by the step that taps read."""
    return tuple(sorted({axis.tap_step * t % axis.step for t in range(axis.num_taps)}))


def shift(axis: WindowLoop, tap: int) -> int:
    """Positions that a tap lies ahead, in its phase's plane."""
    return axis.tap_step * tap // axis.step


@dataclass(frozen=True, slots=True)
class MatrixPlan:
    """One way to cut a problem. A unit is a line of positions, or a block where there is no window."""

    terms: Terms
    block: Block
    grid: Grid
    num_units: int
    num_steps: int
    num_columns: int
    unit_parts: int
    panel_parts: int
    num_blocks: int
    plane_positions: int
    planes_per_step: int
    num_heads: int

    @property
    def num_pieces(self) -> int:
        """Pieces of each factor."""
        return self.terms.num_pieces

    @property
    def panel_width(self) -> int:
        """Columns of a full panel."""
        return TILE_COLUMNS * self.block.columns

    @property
    def num_full_panels(self) -> int:
        """Panels without a missing column tile; the last of them may lack single columns."""
        return self.num_columns_tiles // self.block.columns

    @property
    def num_columns_tiles(self) -> int:
        """Tiles that hold the columns."""
        return -(-self.num_columns // TILE_COLUMNS)

    @property
    def num_tail_tiles(self) -> int:
        """Column tiles of the panel after the full ones; 0 if there is none."""
        return self.num_columns_tiles % self.block.columns

    @property
    def num_panels(self) -> int:
        """Panels, the tail one included."""
        return self.num_full_panels + bool(self.num_tail_tiles)

    @property
    def batch_parts(self) -> int:
        """Images, which a chunk does not span where there is a window."""
        return self.grid.batch

    @property
    def num_chunks(self) -> int:
        """All chunks."""
        return self.num_heads * self.batch_parts * self.unit_parts * self.panel_parts

    @property
    def steps_together(self) -> int:
        """Steps of the depth, all taps along the row in each, whose weights stay in the L1 cache together.

        Meanwhile all blocks of the chunk are multiplied: weights from L2 would halve the unit's rate. A few
        blocks do not pay for storing their sums and loading them again.
        """
        row_taps = self.grid.row.num_taps
        most = self.num_steps
        if self.num_blocks >= _ENOUGH_BLOCKS:
            step_bytes = row_taps * self.num_pieces * self.block.columns * TILE_BYTES
            most = max(1, _L1_WEIGHT_BYTES // step_bytes)
        if self.terms.is_bytes:
            most = max(1, min(most, _MAX_EXACT_STEPS // row_taps))
        elif self.adds_passes:
            most = max(1, min(most, MAX_TILE_CHAIN // row_taps))
        return -(-self.num_steps // -(-self.num_steps // most))

    @property
    def adds_passes(self) -> bool:
        """Whether each pass starts from zero and is added to the total: sums of bytes become float32 then,
        with the scales of their inputs, and of bfloat16 no chain of sums is long."""
        num_taps = self.grid.line.num_taps * self.grid.row.num_taps
        is_long = num_taps * self.num_steps > MAX_TILE_CHAIN
        return self.terms.is_bytes or (self.terms.num_products == FLOAT32_PRODUCTS and is_long)

    @property
    def num_passes(self) -> int:
        """Times the sums of a block are added to before they are finished."""
        return self.grid.line.num_taps * -(-self.num_steps // self.steps_together)

    @property
    def block_sums_bytes(self) -> int:
        """Of the sums of one block."""
        return TILE_BYTES * self.block.rows * self.block.columns

    @property
    def sums_bytes(self) -> int:
        """Of the sums at the start of the scratch area: of all blocks, if they wait for more."""
        return self.block_sums_bytes * (self.num_blocks if self.num_passes > 1 else 1)

    @property
    def plane_bytes(self) -> int:
        """From one plane to the next."""
        return self.plane_positions * TILE_BYTES_PER_ROW

    @property
    def step_bytes(self) -> int:
        """From the planes of one step of the depth to those of the next: an odd number of cache lines, so
        that all steps of a position do not meet in one set of the cache."""
        return (self.planes_per_step * self.plane_positions | 1) * TILE_BYTES_PER_ROW

    @property
    def planes_bytes(self) -> int:
        """Of all planes; those of one block, where there is no window."""
        return self.num_steps * self.step_bytes

    @property
    def scratch_bytes(self) -> int:
        """Sums, those of the pass that is added to them, scales, and planes."""
        return self.planes_offset + self.planes_bytes * (1 if self.grid.has_window else self.num_blocks)

    @property
    def scales_offset(self) -> int:
        """From the start of the scratch area to the scales of positions: the sums lie before them."""
        partial = self.block_sums_bytes * self.terms.num_sums if self.adds_passes else 0
        return self.sums_bytes + partial

    @property
    def scales_per_phase(self) -> int:
        """Scales of positions, as many for each phase along lines; whole cache lines of them."""
        if not self.terms.is_bytes:
            return 0
        positions = self.plane_positions * (1 if self.grid.has_window else self.num_blocks)
        return -(-positions // TILE_COLUMNS) * TILE_COLUMNS

    @property
    def planes_offset(self) -> int:
        """From the start of the scratch area to the planes."""
        scales = self.scales_per_phase * (len(self.grid.line_phases) if self.grid.has_window else 1)
        return self.scales_offset + scales * _FLOAT_BYTES

    @property
    def panel_bytes(self) -> int:
        """Of the weights of a full panel: its tiles, and of bytes the scales of its columns."""
        num_taps = self.grid.line.num_taps * self.grid.row.num_taps
        return self.tiles_bytes(self.block.columns, num_taps) + self.scale_bytes(self.block.columns)

    def tiles_bytes(self, column_tiles: int, num_taps: int) -> int:
        """Of the weights of so many tiles of columns."""
        return num_taps * self.num_steps * self.num_pieces * column_tiles * TILE_BYTES

    def scale_bytes(self, column_tiles: int) -> int:
        """Of the scales of so many tiles of columns."""
        return column_tiles * TILE_COLUMNS * _FLOAT_BYTES if self.terms.is_bytes else 0

    @property
    def factors_bytes(self) -> int:
        """Of the numbers that the depth of A is multiplied by before it is split, before the panels."""
        return self.num_steps * self.terms.tile_depth * _FLOAT_BYTES if self.terms.is_bytes else 0


@dataclass(frozen=True, slots=True)
class Shape:
    """The numbers that decide a plan."""

    terms: Terms
    grid: Grid
    depth: int
    columns: int
    taps: int
    num_heads: int = 1

    @classmethod
    def of(cls, problem: MatrixProblem, terms: Terms) -> Shape:
        """That of a problem."""
        return cls.of_loops(problem.loops, problem.work.vector.extent, terms, problem.heads)

    @classmethod
    def of_loops(
        cls, loops: MatrixLoops, columns: int, terms: Terms, heads: Sequence[StridedLoop] = ()
    ) -> Shape:
        """That of these loops, for each combination of the `heads`."""
        num_heads = prod(x.extent for x in heads)
        return cls(terms, Grid.of(loops), loops.depth.extent, columns, loops.num_taps, num_heads)

    @property
    def num_steps(self) -> int:
        """Tiles along the depth."""
        return -(-self.depth // self.terms.tile_depth)

    @property
    def weight_bytes(self) -> int:
        """Of the packed weights."""
        tiles = -(-self.columns // TILE_COLUMNS)
        return self.terms.num_pieces * self.taps * self.num_steps * tiles * TILE_BYTES

    @property
    def blocks(self) -> tuple[Block, ...]:
        """Those that a plan may have, the usual one first: four accumulating tiles, as near a square as the
        product's own shape lets them be used."""
        if self.terms.is_bytes:
            return (Block(1, 1),)
        positions = self.grid.line.extent * self.grid.row.extent
        usual = Block(2, 2)
        if self.columns <= TILE_COLUMNS:
            usual = Block(4, 1)
        elif positions <= TILE_ROWS and self.columns > 2 * TILE_COLUMNS:
            usual = Block(1, 4)
        useful = (x for x in _BLOCKS if (x.columns - 1) * TILE_COLUMNS < self.columns)
        return (usual, *(x for x in useful if x != usual))

    def num_units(self, block: Block) -> int:
        """Lines of positions, or blocks of them."""
        if self.grid.has_window:
            return self.grid.line.extent
        return -(-self.grid.row.extent // block.num_positions)

    def plan(self, block: Block, unit_parts: int, panel_parts: int) -> MatrixPlan:
        """The plan with a block, cut into these parts."""
        grid, num_units = self.grid, self.num_units(block)
        units = -(-num_units // unit_parts)
        planes_per_step = self.terms.num_pieces
        if grid.has_window:
            planes_per_step *= len(grid.line_phases) * len(grid.row_phases)
            written = grid.num_lines_read(units) * grid.pitch + grid.width - grid.pitch
            blocks = -(-_num_computed(grid, units) // block.num_positions)
            computed = blocks * block.num_positions
            furthest = grid.width - grid.row.extent + (grid.num_lines_read(1) - 1) * grid.pitch
            positions = max(written, computed + furthest) | 1  # an odd number of cache lines visits every set
        else:
            blocks, positions = units, block.num_positions
        return MatrixPlan(
            terms=self.terms,
            block=block,
            grid=grid,
            num_units=num_units,
            num_steps=self.num_steps,
            num_columns=self.columns,
            unit_parts=unit_parts,
            panel_parts=panel_parts,
            num_blocks=blocks,
            plane_positions=positions,
            planes_per_step=planes_per_step,
            num_heads=self.num_heads,
        )


def plan_matrix(problem: MatrixProblem, sizes: MatrixPlan) -> KernelPlan:
    """The plan of a kernel cut like this."""
    block = sizes.block
    return plan_of(
        problem.work,
        Tile(Panels(TILE_COLUMNS, block.columns, sizes.num_columns), block.num_positions),
        dot=next(dot for dot, terms in TERMS.items() if terms == sizes.terms),
        staging="in int8 planes" if sizes.terms.is_bytes else "in bfloat16 planes",
        packing="in panels" if problem.packs else "in constant panels",
        units="lines" if sizes.grid.has_window else "blocks",
        cut=Cut(sizes.unit_parts, sizes.panel_parts),
    )


def sizes_of(plan: KernelPlan) -> MatrixPlan:
    """The sizes that a kernel's plan gives."""
    shape = Shape.of_loops(plan_loops(plan), plan.vector.extent, TERMS[plan.dot], heads_of(plan.outer))
    block = Block(plan.max_rows // TILE_ROWS, plan.panels.num_vectors)
    if block not in shape.blocks:
        known = ", ".join(f"{x.num_positions} rows by {x.columns}" for x in shape.blocks)
        raise UsageError(
            f"kernel plan, at 'tile {plan.max_rows} rows by {plan.panels.num_vectors} vectors': "
            f"by {plan.dot} a tile has {known} vectors."
        )
    return shape.plan(block, plan.cut.num_row_parts, plan.cut.num_panel_parts)


def plan_loops(plan: KernelPlan) -> MatrixLoops:
    """The loops of a kernel's plan."""
    positions = (*(x for x in plan.outer if not x.b), plan.row)
    return matrix_loops(positions, plan.summed, plan.windows, plan.a.offset)


def packed_factor(plan: KernelPlan) -> TiledFactor:
    """The second factor of a combination of the outer loops that move it, where a kernel packs it."""
    (depth,), columns = plan.summed, plan.vector
    num_pieces, panel_tiles = TERMS[plan.dot].num_pieces, plan.panels.num_vectors
    return TiledFactor(
        depth.extent, columns.extent, depth.b, columns.b, num_pieces, panel_tiles, plan.b.operand.dtype
    )


def _num_computed(grid: Grid, num_lines: int) -> int:
    """Positions from the first of the first line to the last of the last."""
    return (num_lines - 1) * grid.pitch + grid.row.extent
