"""How a product is cut for the matrix unit: blocks, panels, chunks, the scratch area, and what it costs.

A chunk takes some positions and some panels of columns. It first splits the inputs of its positions into
bfloat16 pieces in its scratch area (from L2 they feed the unit at full rate), then multiplies panel by panel.
Costs are estimated cycles of one core: they rank plans, and the matrix unit against the other templates.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from math import prod

from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import Declined
from tilewright.targets.cpu.product.amx import TILE_BYTES_PER_ROW, TILE_ROWS
from tilewright.targets.cpu.product.contraction import CONTRACTION
from tilewright.targets.cpu.product.contraction.choose import contraction_cycles, plan_of
from tilewright.targets.cpu.product.loops import WindowLoop
from tilewright.targets.cpu.product.matrix.match import MatrixLoops, MatrixProblem, matrix_loops
from tilewright.targets.cpu.product.matrix.tiles import (
    PRODUCTS,
    TILE_BYTES,
    TILE_COLUMNS,
    TILE_DEPTH,
    Block,
    num_pieces,
)
from tilewright.targets.cpu.product.plan import Dot, KernelPlan
from tilewright.targets.cpu.product.tiling import Cut, Panels, Tile
from tilewright.targets.cpu.template import COLD_BYTES_PER_CYCLE, Context, chunks_waited
from tilewright.tuning import Choice

TEMPLATE = "matrix"
DOTS: dict[int, Dot] = {1: "1 bfloat16 product", 3: "3 bfloat16 products", 6: "6 bfloat16 products"}
_BLOCKS = (Block(2, 2), Block(1, 4), Block(4, 1), Block(1, 3), Block(3, 1))
_MAX_NEIGHBOURS = 8
# Weights that stay in the L1 cache while blocks of inputs pass.
_L1_WEIGHT_BYTES = 24 * 1024
_ENOUGH_BLOCKS = 4
# Longer sums of six products are cut into passes that start from zero and are added up in float32: every
# product of tiles rounds the sum once. As one chain, 3,072 terms err three times as much as plain kernels,
# 9,216 four to eight times; as passes, less than twice.
_MAX_CHAIN_STEPS = 32
_FLOAT32_PRODUCTS = 6
# Share of the L2 cache for the split inputs: a panel of weights and the result need the rest.
_SCRATCH_SHARE = 0.6
# A product of tiles with the loads of its factors, by the number of products. The unit takes 16 cycles; on an
# Emerald Rapids server that others share, a core takes 19 or 66 for seconds at a time, whatever the loads.
# Six count as the mean, which explains the speed of networks there (docs/benchmarks_amx.md): the default must
# not lose by them. Fewer count as in the fast state, since the choices that come of that gained there.
_PRODUCT_CYCLES = {1: 20.0, 3: 20.0, 6: 42.0}
# Bringing a tile of weights to the L1 cache, for all blocks that use it there.
_TILE_LOAD_CYCLES = 24.0
# Splitting 32 elements and storing the pieces.
_SPLIT_CYCLES = {1: 5.0, 2: 11.0, 3: 18.0}
# Adding a vector of a pass to its total.
_ADD_CYCLES = 1.5
# Finishing and storing a vector of the result; fixed cost of a block, of a chunk.
_VECTOR_CYCLES = 4.5
_BLOCK_CYCLES = 60.0
_CHUNK_CYCLES = 700.0
# Weights from a private cache.
_AGAIN_BYTES_PER_CYCLE = 30.0
_MAX_PARTS = 32
_USUAL_THREADS = (1, 2, 4)
# On a busy machine a thread is late with a chunk: small ones make that cheap.
_LATE_SHARE = 0.2


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

    num_products: int
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

    @property
    def num_pieces(self) -> int:
        """Pieces of each factor."""
        return num_pieces(self.num_products)

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
        return self.batch_parts * self.unit_parts * self.panel_parts

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
        if self.adds_passes:
            most = max(1, min(most, _MAX_CHAIN_STEPS // row_taps))
        return -(-self.num_steps // -(-self.num_steps // most))

    @property
    def adds_passes(self) -> bool:
        """Whether each pass starts from zero and is added to the total, so that no chain of sums is long."""
        num_taps = self.grid.line.num_taps * self.grid.row.num_taps
        return self.num_products == _FLOAT32_PRODUCTS and num_taps * self.num_steps > _MAX_CHAIN_STEPS

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
        """Sums, those of the pass that is added to them, and planes."""
        return self.planes_offset + self.planes_bytes * (1 if self.grid.has_window else self.num_blocks)

    @property
    def planes_offset(self) -> int:
        """From the start of the scratch area to the planes: the sums lie before them."""
        return self.sums_bytes + (self.block_sums_bytes if self.adds_passes else 0)


@dataclass(frozen=True, slots=True)
class _Shape:
    """The numbers that decide a plan."""

    num_products: int
    grid: Grid
    depth: int
    columns: int
    taps: int

    @property
    def num_steps(self) -> int:
        return -(-self.depth // TILE_DEPTH)

    @property
    def weight_bytes(self) -> int:
        tiles = -(-self.columns // TILE_COLUMNS)
        return num_pieces(self.num_products) * self.taps * self.num_steps * tiles * TILE_BYTES


def choose_plan(problem: MatrixProblem, num_products: int, isa: Isa) -> MatrixPlan:
    """The cut with the least estimated time over a few usual numbers of threads; the work alone decides."""
    shape = _shape(problem, num_products)
    return _ranked(shape, _block(shape), isa.caches.l2_bytes)[0]


def matrix_gain(problem: MatrixProblem, num_products: int, context: Context) -> float:
    """Estimated time of the direct kernel over that of the matrix unit, both reading their weights cold."""
    direct = contraction_cycles(problem.contraction, Choice(CONTRACTION.name), context)
    return direct / matrix_cycles(problem, choose_plan(problem, num_products, context.isa), context)


def _shape(problem: MatrixProblem, num_products: int) -> _Shape:
    return _shape_of(problem.loops, problem.work.vector.extent, num_products)


def _shape_of(loops: MatrixLoops, columns: int, num_products: int) -> _Shape:
    return _Shape(num_products, Grid.of(loops), loops.depth.extent, columns, loops.num_taps)


def plan_matrix(problem: MatrixProblem, sizes: MatrixPlan) -> KernelPlan:
    """The plan of a kernel cut like this."""
    block = sizes.block
    return plan_of(
        problem.work,
        Tile(Panels(TILE_COLUMNS, block.columns, sizes.num_columns), block.num_positions),
        dot=DOTS[sizes.num_products],
        staging="in bfloat16 planes",
        units="lines" if sizes.grid.has_window else "blocks",
        cut=Cut(sizes.unit_parts, sizes.panel_parts),
    )


def sizes_of(plan: KernelPlan) -> MatrixPlan:
    """The sizes that a kernel's plan gives."""
    num_products = next(number for number, dot in DOTS.items() if dot == plan.dot)
    shape = _shape_of(plan_loops(plan), plan.vector.extent, num_products)
    block = Block(plan.max_rows // TILE_ROWS, plan.panels.num_vectors)
    cut = plan.cut
    return _plan(shape, block, _num_units(shape, block), cut.num_row_parts, cut.num_panel_parts)


def plan_loops(plan: KernelPlan) -> MatrixLoops:
    """The loops of a kernel's plan."""
    return matrix_loops((*plan.outer, plan.row), plan.summed, plan.windows, plan.a.offset)


def matrix_neighbours(problem: MatrixProblem, num_products: int, isa: Isa) -> tuple[Choice, ...]:
    """Ways to cut a problem, the estimate's first: other numbers of chunks, then other blocks."""
    shape, l2_bytes = _shape(problem, num_products), isa.caches.l2_bytes
    usual = _block(shape)
    plans: dict[tuple[Block, int], MatrixPlan] = {}
    for block in (usual, *(x for x in _BLOCKS if x != usual and _is_useful(x, shape))):
        for plan in _ranked(shape, block, l2_bytes):
            # Of plans that differ by less than twice the chunks the best; one of each unusual block.
            plans.setdefault((block, plan.num_chunks.bit_length() if block == usual else 0), plan)
    return tuple(_choice(plan) for plan in list(plans.values())[:_MAX_NEIGHBOURS])


def matrix_cycles(problem: MatrixProblem, plan: MatrixPlan, context: Context) -> float:
    """Estimated cycles of a plan on one thread, weights cold."""
    shape = _shape(problem, plan.num_products)
    return _chunk_cycles(shape, plan, context.cold_bytes_per_cycle) * plan.num_chunks


def undivided_plan(problem: MatrixProblem, num_products: int, isa: Isa) -> MatrixPlan | None:
    """All work in one chunk, for a caller that cuts it up itself; None where it outgrows the cache."""
    shape = _shape(problem, num_products)
    block = _block(shape)
    plan = _plan(shape, block, _num_units(shape, block), 1, 1)
    return plan if plan.scratch_bytes <= _SCRATCH_SHARE * isa.caches.l2_bytes else None


def chosen_plan(problem: MatrixProblem, num_products: int, choice: Choice, isa: Isa) -> MatrixPlan | Declined:
    """The plan of a choice; what it leaves open the estimate decides."""
    shape = _shape(problem, num_products)
    names = ("block_rows", "block_columns", "unit_parts", "panel_parts")
    rows, columns, unit_parts, panel_parts = (choice.get(name) for name in names)
    if rows is None or columns is None or unit_parts is None or panel_parts is None:
        return choose_plan(problem, num_products, isa)
    block = Block(rows, columns)
    if block not in _BLOCKS or not _is_useful(block, shape):
        return Declined(f"a block of {rows}x{columns} tiles is of no use here")
    num_units = _num_units(shape, block)
    if not 1 <= unit_parts <= min(num_units, _MAX_PARTS):
        return Declined(f"{unit_parts} parts of {num_units} units")
    plan = _plan(shape, block, num_units, unit_parts, panel_parts)
    if not 1 <= panel_parts <= plan.num_panels:
        return Declined(f"{panel_parts} parts of {plan.num_panels} panels")
    return plan


def _choice(plan: MatrixPlan) -> Choice:
    return Choice.of(
        TEMPLATE,
        products=plan.num_products,
        block_rows=plan.block.rows,
        block_columns=plan.block.columns,
        unit_parts=plan.unit_parts,
        panel_parts=plan.panel_parts,
    )


@functools.lru_cache(maxsize=1024)
def _ranked(shape: _Shape, block: Block, l2_bytes: int) -> tuple[MatrixPlan, ...]:
    """Plans with a block, the least estimated time over the usual numbers of threads first."""
    num_units = _num_units(shape, block)
    found: list[tuple[float, int, int, MatrixPlan]] = []
    for unit_parts in range(1, min(num_units, _MAX_PARTS) + 1):
        first = _plan(shape, block, num_units, unit_parts, 1)
        if first.scratch_bytes > _SCRATCH_SHARE * l2_bytes and unit_parts < num_units:
            continue
        for panel_parts in range(1, min(first.num_panels, _MAX_PARTS // unit_parts) + 1):
            plan = _plan(shape, block, num_units, unit_parts, panel_parts)
            waits = chunks_waited(plan.num_chunks, _USUAL_THREADS)
            cycles = _chunk_cycles(shape, plan) * (waits + _LATE_SHARE)
            found.append((cycles, unit_parts, panel_parts, plan))
    if not found:  # more units than parts, each too large: as small as the limit allows
        return (_plan(shape, block, num_units, min(num_units, _MAX_PARTS), 1),)
    return tuple(plan for *_, plan in sorted(found, key=lambda x: x[:3]))


def _num_units(shape: _Shape, block: Block) -> int:
    if shape.grid.has_window:
        return shape.grid.line.extent
    return -(-shape.grid.row.extent // block.num_positions)


def _block(shape: _Shape) -> Block:
    """Four accumulating tiles, as near a square as the product's own shape lets them be used."""
    if shape.columns <= TILE_COLUMNS:
        return Block(4, 1)
    positions = shape.grid.line.extent * shape.grid.row.extent
    return Block(1, 4) if positions <= TILE_ROWS and shape.columns > 2 * TILE_COLUMNS else Block(2, 2)


def _is_useful(block: Block, shape: _Shape) -> bool:
    """Whether the product has as many column tiles as the block."""
    return (block.columns - 1) * TILE_COLUMNS < shape.columns


def _plan(shape: _Shape, block: Block, num_units: int, unit_parts: int, panel_parts: int) -> MatrixPlan:
    grid = shape.grid
    units = -(-num_units // unit_parts)
    planes_per_step = num_pieces(shape.num_products)
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
        num_products=shape.num_products,
        block=block,
        grid=grid,
        num_units=num_units,
        num_steps=shape.num_steps,
        num_columns=shape.columns,
        unit_parts=unit_parts,
        panel_parts=panel_parts,
        num_blocks=blocks,
        plane_positions=positions,
        planes_per_step=planes_per_step,
    )


def _num_computed(grid: Grid, num_lines: int) -> int:
    """Positions from the first of the first line to the last of the last."""
    return (num_lines - 1) * grid.pitch + grid.row.extent


def _chunk_cycles(shape: _Shape, plan: MatrixPlan, cold_rate: float = COLD_BYTES_PER_CYCLE) -> float:
    """The largest chunk's time; `cold_rate` is that of weights, in bytes per cycle."""
    grid, block = plan.grid, plan.block
    units = -(-plan.num_units // plan.unit_parts)
    panels = -(-plan.num_panels // plan.panel_parts)
    blocks = plan.num_blocks
    if grid.has_window:
        read = grid.num_lines_read(units) * grid.width * len(grid.line_phases) * len(grid.row_phases)
    else:
        read = min(units * block.num_positions, grid.row.extent)
    split = read * plan.num_steps * _SPLIT_CYCLES[plan.num_pieces]
    tiles = block.rows * min(panels * block.columns, plan.num_columns_tiles)
    products = len(PRODUCTS[plan.num_products]) * _PRODUCT_CYCLES[plan.num_products]
    compute = blocks * tiles * shape.taps * plan.num_steps * products
    compute += tiles / block.rows * shape.taps * plan.num_steps * plan.num_pieces * _TILE_LOAD_CYCLES
    share = min(1.0, panels / plan.num_panels)
    parts = plan.unit_parts * plan.batch_parts
    cold = shape.weight_bytes * share / (cold_rate * parts)
    again = shape.weight_bytes * share * (1 - 1 / parts) / _AGAIN_BYTES_PER_CYCLE
    finish = blocks * (tiles * TILE_ROWS * _VECTOR_CYCLES + _BLOCK_CYCLES * panels)
    if plan.adds_passes:
        finish += blocks * tiles * TILE_ROWS * _ADD_CYCLES * (plan.num_passes - 1)
    return split + max(compute, cold + again) + 0.3 * min(compute, cold + again) + finish + _CHUNK_CYCLES
