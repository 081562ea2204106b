"""How a product is cut: tiles of blocks, warps and threads, stages, and splits of its depth."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from tilewright.records import dataclass
from tilewright.targets.cuda.device import MOST_BLOCKS
from tilewright.targets.cuda.emitter import WARP
from tilewright.targets.cuda.products.match import Product
from tilewright.targets.cuda.rates import Kind, Rates

ROW_BYTES = 64
"""Bytes of a row of a tile in shared memory, along the depth."""
PITCH_BYTES = ROW_BYTES + 16
"""Bytes from row to row: eight rows of sixteen bytes then lie in different banks."""
MAX_SHARED_BYTES = 48 * 1024
_MAX_STAGES = 4
_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16)
_BLOCKS_AT_ONCE = 2
"""Blocks that hide each other's waiting: a multiprocessor with one runs at half its rate."""
_STEP_NS = 100.0
"""Least time of a step along the depth, in ns: a barrier, and what is left of waiting for copies. Assumed."""
_JOIN_NS = 1000.0
"""What the last block of a split sum waits, in ns: for its stores, a counter, others' sums. Assumed."""
_FULL_REUSE = 32.0
"""Rows times columns over their sum from which on a tile's arithmetic takes longer than its copies."""
_ELEMENT_BYTES: dict[Kind, int] = {"tf32": 4, "bf16": 2, "f16": 2}
"""Of a factor on tensor cores; of bytes 1."""
_MIN_SPLIT_STEPS = 8
"""Tiles along the depth that each part of a split has at least."""


@dataclass(frozen=True, slots=True)
class Tile:
    """A tile of the result of so many rows and columns, and the grid of warps that compute it."""

    rows: int
    columns: int
    warps: tuple[int, int]

    @property
    def num_threads(self) -> int:
        """Threads of a block."""
        return WARP * self.warps[0] * self.warps[1]


TILES = (
    Tile(128, 64, (4, 2)),
    Tile(64, 64, (2, 2)),
    Tile(32, 64, (1, 4)),
    Tile(64, 32, (4, 1)),
    Tile(32, 32, (2, 2)),
)

_WIDE_TILES = (Tile(32, 128, (1, 4)), Tile(32, 256, (1, 8)))
"""Where one tile has all columns."""


@dataclass(frozen=True, slots=True)
class ProductPlan:
    """What a kernel is generated from; `depth` are the steps of a tile in elements of `element_bytes`."""

    kind: Kind
    tile: Tile
    element_bytes: int
    num_stages: int
    num_splits: int
    num_steps: int

    @property
    def depth(self) -> int:
        """Steps of a sum that a tile holds."""
        return ROW_BYTES // self.element_bytes

    @property
    def padded_steps(self) -> int:
        """Steps of a sum in whole tiles of every part."""
        return self.steps_per_split * self.num_splits * self.depth

    @property
    def steps_per_split(self) -> int:
        """Tiles along the depth that each part adds up."""
        return ceil(ceil(self.num_steps / self.depth) / self.num_splits)

    @property
    def stage_bytes(self) -> int:
        """Bytes of both tiles in shared memory."""
        return (self.tile.rows + self.tile.columns) * PITCH_BYTES

    @property
    def shared_bytes(self) -> int:
        """Bytes of all stages."""
        return self.num_stages * self.stage_bytes

    def __str__(self) -> str:
        split = f", depth in {self.num_splits} parts" if self.num_splits > 1 else ""
        return f"{self.kind} {self.tile.rows} x {self.tile.columns}, {self.num_stages} stages{split}"


@dataclass(frozen=True, slots=True)
class Choice:
    """A plan, its blocks, and the estimated time of its kernels beside their launch, in ns."""

    plan: ProductPlan
    num_blocks: int
    time_ns: float


def plan_product(product: Product, kind: Kind, rates: Rates) -> Choice:
    """The cut that is estimated to be fastest: large tiles read less, small ones and splits fill the machine.

    Of cuts that take as long, the one with the fewest blocks.
    """
    element_bytes = product.dtype.size_bytes if kind == "fma" else _ELEMENT_BYTES.get(kind, 1)
    choices = (
        _choice(product, ProductPlan(kind, tile, element_bytes, 1, splits, product.num_steps), rates)
        for tile in TILES
        for splits in _SPLITS
    )
    best = min((c for c in choices if c is not None), key=lambda c: (c.time_ns, c.num_blocks))
    plan = best.plan
    stages = min(_MAX_STAGES, MAX_SHARED_BYTES // plan.stage_bytes, plan.steps_per_split + 1)
    return replace(best, plan=replace(plan, num_stages=max(2, stages)))


def plan_made(product: Product, kind: Kind, rates: Rates) -> Choice | None:
    """The cut of a product one of whose factors is made by its kernel: once, as one tile has all rows of the
    other. None if no tile has; `time_ns` is with what makes it."""
    element_bytes = product.dtype.size_bytes if kind == "fma" else _ELEMENT_BYTES.get(kind, 1)
    made = next(i for i, side in enumerate(product.sides) if side.is_made)
    choices = []
    for tile in (*TILES, *_WIDE_TILES):
        if (tile.rows if made else tile.columns) < product.sides[1 - made].num_rows:
            continue
        choice = _choice(product, ProductPlan(kind, tile, element_bytes, 1, 1, product.num_steps), rates)
        if choice is not None:
            busy = min(choice.num_blocks, rates.num_multiprocessors)
            own_ns = product.made_macs / (rates.macs_per_ns["fma"] * busy)
            choices.append(replace(choice, time_ns=choice.time_ns + own_ns))
    best = min(choices, key=lambda c: (c.time_ns, c.num_blocks), default=None)
    return None if best is None else replace(best, plan=replace(best.plan, num_stages=2))


def _choice(product: Product, plan: ProductPlan, rates: Rates) -> Choice | None:
    tile, steps = plan.tile, plan.steps_per_split
    is_last_empty = steps * (plan.num_splits - 1) * plan.depth >= plan.num_steps
    if plan.num_splits > 1 and (steps < _MIN_SPLIT_STEPS or is_last_empty):
        return None
    rows, columns = (side.num_rows for side in product.sides)
    num_tiles = product.num_batch * ceil(rows / tile.rows) * ceil(columns / tile.columns)
    num_blocks = num_tiles * plan.num_splits
    if plan.num_splits > 1 and product.num_batch * plan.num_splits > MOST_BLOCKS[2]:
        return None
    rounds = ceil(num_blocks / rates.num_multiprocessors)
    reuse = tile.rows * tile.columns / (tile.rows + tile.columns)
    rate = rates.macs_per_ns[plan.kind] * min(1.0, reuse / _FULL_REUSE)
    step_ns = max(
        max(rounds, _BLOCKS_AT_ONCE) * tile.rows * tile.columns * plan.depth / rate,
        ceil(rounds / _BLOCKS_AT_ONCE) * _STEP_NS,
    )
    time_ns = steps * step_ns
    if plan.num_splits > 1:
        part_bytes = tile.rows * tile.columns * product.dtype.size_bytes
        time_ns += _JOIN_NS + (rounds + plan.num_splits) * part_bytes / rates.loaded_bytes_per_ns
    return Choice(plan, num_blocks, time_ns)
