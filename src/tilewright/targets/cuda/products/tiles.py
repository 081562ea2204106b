"""How a product is cut: tiles of blocks, warps and threads, stages, and splits of its depth."""

from __future__ import annotations

from math import ceil

from tilewright.records import dataclass
from tilewright.targets.cuda.emitter import WARP
from tilewright.targets.cuda.products.match import Kind, Product

ROW_BYTES = 64
"""Bytes of a row of a tile in shared memory, along the depth."""
PITCH_BYTES = ROW_BYTES + 16
"""Bytes from row to row: eight rows of sixteen bytes then lie in different banks."""
_MAX_SHARED_BYTES = 48 * 1024
_MAX_STAGES = 4
_MAX_SPLITS = 16
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


def plan_product(product: Product, kind: Kind, num_multiprocessors: int) -> ProductPlan:
    """The largest tile that still gives every multiprocessor one, else the depth is split."""
    element_bytes = product.dtype.size_bytes if kind == "fma" else 4 if kind == "tf32" else 2
    rows, columns = (side.num_rows for side in product.sides)

    def num_blocks(tile: Tile) -> int:
        return product.num_batch * ceil(rows / tile.rows) * ceil(columns / tile.columns)

    def waste(tile: Tile) -> float:
        return (
            -(-rows // tile.rows) * tile.rows * -(-columns // tile.columns) * tile.columns / (rows * columns)
        )

    tile = next(
        (t for t in TILES if num_blocks(t) >= num_multiprocessors and waste(t) < 1.5),
        min(TILES, key=lambda t: (waste(t) > 1.5, num_blocks(t) > 2 * num_multiprocessors, waste(t))),
    )
    plan = ProductPlan(kind, tile, element_bytes, 1, 1, product.num_steps)
    num_steps = ceil(product.num_steps / plan.depth)
    splits = min(_MAX_SPLITS, num_multiprocessors // num_blocks(tile), num_steps // _MIN_SPLIT_STEPS)
    splits = max(1, splits)
    splits = ceil(num_steps / ceil(num_steps / splits))
    stages = max(2, min(_MAX_STAGES, _MAX_SHARED_BYTES // plan.stage_bytes, num_steps + 1))
    return ProductPlan(kind, tile, element_bytes, stages, splits, product.num_steps)
