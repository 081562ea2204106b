"""What the matrix unit is estimated to take: products, tile loads, splitting, bytes of weights, finishing.

Cycles of one core. The rates of the unit are the processor's (`Isa.matrix_rates`): each product takes its
time and each load of a tile, on top of it, what the state of the unit says. On servers that others share the
unit has two states, each for seconds at a time; the model gives both, and choices are made for one of them.
"""

from __future__ import annotations

from tilewright.records import dataclass
from tilewright.targets.cpu.isa import MatrixRates, UnitState
from tilewright.targets.cpu.product.amx import TILE_ROWS
from tilewright.targets.cpu.product.matrix.plan import MatrixPlan, Shape
from tilewright.targets.cpu.product.matrix.tiles import SPLIT_CYCLES, Block, Terms, num_loads

# Splitting 32 elements into bytes with the search for the largest, which reads them before, and what each
# position takes besides: its scale.
_SLICE_CYCLES = 12.0
_SCALE_CYCLES = 30.0
_ELEMENTS = 32
# Adding a vector of a pass to its total; of bytes, from the sums of all orders.
_ADD_CYCLES = 1.5
_COMBINE_CYCLES = 11.0
# Finishing and storing a vector of the result; fixed cost of a block, of a chunk.
VECTOR_CYCLES = 4.5
_BLOCK_CYCLES = 60.0
_CHUNK_CYCLES = 700.0
# Weights from a private cache.
_AGAIN_BYTES_PER_CYCLE = 30.0
# Of computing and of the bytes of weights, the shorter hides behind the longer but for this share.
_SHARE_NOT_HIDDEN = 0.3


@dataclass(frozen=True, slots=True)
class Parts:
    """Cycles by what they are spent on; the unit's are those of `products` and `loads`."""

    products: float
    loads: float
    split: float
    finish: float
    weights: float
    start: float

    def times(self, count: int) -> Parts:
        """Of so many chunks."""
        return Parts(*(count * getattr(self, name) for name in Parts.__slots__))

    @property
    def unit(self) -> float:
        """On the unit."""
        return self.products + self.loads

    @property
    def total(self) -> float:
        """All, the bytes of weights beside the unit's work."""
        longer, shorter = max(self.unit, self.weights), min(self.unit, self.weights)
        return self.split + longer + _SHARE_NOT_HIDDEN * shorter + self.finish + self.start


def step_cycles(block: Block, terms: Terms, rates: MatrixRates, state: UnitState) -> tuple[float, float]:
    """Products of one step of the depth for a block of tiles, and what its loads add.

    A sum waits for the product before it: where a block has few sums, that is what products take.
    """
    num_tiles = block.rows * block.columns
    sums = terms.sums()
    chain = max(sums.count(number) for number in sums) * rates.latency_cycles
    products = num_tiles * terms.num_products * rates.product_cycles
    loads = num_loads(block, terms) * rates.load_cycles(state)
    return products, max(loads, chain - products)


def chunk_parts(
    shape: Shape, plan: MatrixPlan, rates: MatrixRates, state: UnitState, cold_rate: float
) -> Parts:
    """The largest chunk's time; `cold_rate` is that of weights, in bytes per cycle."""
    grid, block, terms = plan.grid, plan.block, plan.terms
    units = -(-plan.num_units // plan.unit_parts)
    panels = -(-plan.num_panels // plan.panel_parts)
    blocks = plan.num_blocks
    if grid.has_window:
        read = grid.num_lines_read(units) * grid.width * len(grid.line_phases) * len(grid.row_phases)
    else:
        read = min(units * block.num_positions, grid.row.extent)
    per_elements = _SLICE_CYCLES if terms.is_bytes else SPLIT_CYCLES[terms.num_pieces]
    split = read * plan.num_steps * per_elements * terms.tile_depth / _ELEMENTS
    if terms.is_bytes:
        split += read * _SCALE_CYCLES
    tiles = block.rows * min(panels * block.columns, plan.num_columns_tiles)
    steps = blocks * tiles / (block.rows * block.columns) * shape.taps * plan.num_steps
    products, loads = step_cycles(block, terms, rates, state)
    # Tiles of weights come to the first cache once for all blocks that use them there.
    fetched = tiles / block.rows * shape.taps * plan.num_steps * plan.num_pieces * rates.l2_load_cycles
    share = min(1.0, panels / plan.num_panels)
    parts = plan.unit_parts * plan.batch_parts
    cold = shape.weight_bytes * share / (cold_rate * parts)
    again = shape.weight_bytes * share * (1 - 1 / parts) / _AGAIN_BYTES_PER_CYCLE
    per_vector = VECTOR_CYCLES
    if terms.is_bytes:
        per_vector += _COMBINE_CYCLES * plan.num_passes
    elif plan.adds_passes:
        per_vector += _ADD_CYCLES * (plan.num_passes - 1)
    finish = blocks * (tiles * TILE_ROWS * per_vector + _BLOCK_CYCLES * panels)
    return Parts(steps * products, steps * loads + fetched, split, finish, cold + again, _CHUNK_CYCLES)
