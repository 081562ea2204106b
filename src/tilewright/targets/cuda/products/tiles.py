"""How a product is cut: tiles of blocks, warps and threads, stages, and splits of its depth."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Literal

import numpy as np

from tilewright.arrays import distinct
from tilewright.ir.dtype import DType
from tilewright.records import dataclass
from tilewright.targets.cuda.device import MOST_BLOCKS
from tilewright.targets.cuda.emitter import WARP
from tilewright.targets.cuda.loopnest.plan import aligned_lanes
from tilewright.targets.cuda.products.match import Product, Side
from tilewright.targets.cuda.rates import BYTE_KINDS, Kind, Rates, resident_blocks
from tilewright.targets.llvm.exprgen import storage_type
from tilewright.targets.llvm.values import FLOAT, I8, I16, Type

ROW_BYTES = 64
"""Bytes of a row of a tile in shared memory, along the depth."""
PITCH_BYTES = ROW_BYTES + 16
"""Bytes from row to row: eight rows of sixteen bytes then lie in different banks."""
MAX_SHARED_BYTES = 48 * 1024
MAX_STAGES = 4
_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16)
_BLOCKS_AT_ONCE = 2
"""Blocks that hide each other's waiting: a multiprocessor with one runs at half its rate."""
_STEP_NS = 70.0
"""What a step along the depth takes beside its work, in ns: a barrier, what is left of waiting. Assumed."""
JOIN_NS = 1000.0
"""What the last block of a split sum waits, in ns: for its stores, a counter, others' sums. Assumed."""
_MIN_SPLIT_STEPS = 2
"""Tiles along the depth that each part of a split has at least."""
CHUNK_BYTES = 16
_MMA_BYTES = 32
Way = Literal["packed", "asynchronous", "converted", "elements"]
"""How a factor comes to shared memory: see `copies.py`."""


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
    Tile(128, 128, (4, 2)),
    Tile(128, 96, (4, 2)),
    Tile(128, 64, (4, 2)),
    Tile(64, 128, (2, 2)),
    Tile(64, 96, (2, 2)),
    Tile(64, 64, (2, 2)),
    Tile(32, 64, (1, 4)),
    Tile(64, 32, (4, 1)),
    Tile(32, 32, (2, 2)),
    Tile(16, 32, (1, 2)),
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


def element_of(kind: Kind, dtype: DType) -> Type:
    """How what multiplies takes its factors."""
    if kind == "fma":
        return storage_type(dtype)
    return FLOAT if kind == "tf32" else I8 if kind in BYTE_KINDS else I16


def way_of(product: Product, number: int, kind: Kind) -> tuple[Way, int]:
    """How a factor comes to shared memory, and how many of its steps at once."""
    element, side = element_of(kind, product.dtype), product.sides[number]
    if product.is_packed[number]:
        return "packed", CHUNK_BYTES // element.element_bytes
    ref, innermost = side.ref, product.depth[-1]
    lanes = CHUNK_BYTES // element.element_bytes
    has_fill = bool(ref.guards and ref.fill)
    is_guarded = any(innermost.name in guard.form.dims() for guard in ref.guards)
    if is_guarded or has_fill or innermost.extent % lanes:
        lanes = 1  # one guard does not hold for all
    stored = storage_type(ref.operand.dtype)
    if side.is_plain and stored.element == element.element:
        if lanes > 1 and num_aligned(product, number, lanes) == lanes:
            return "asynchronous", lanes
        if stored.element_bytes >= 4 and not has_fill:
            return "asynchronous", 1
    return ("converted", lanes) if side.is_plain and lanes > 1 else ("elements", 1)


def num_aligned(product: Product, number: int, lanes: int) -> int:
    """Of so many steps of a row, how many neighbours lie side by side at a multiple of their size."""
    ref, innermost = product.sides[number].ref, product.depth[-1].name
    return aligned_lanes(ref, innermost, lanes) if ref.coefficient(innermost) == 1 else 1


def loaded_bytes(product: Product, plan: ProductPlan) -> float:
    """Bytes of a step of a block that come from the second cache.

    What a window meets again is in the first: all its places come one step after another.
    """
    total = 0.0
    for number, rows in enumerate((plan.tile.rows, plan.tile.columns)):
        if product.is_packed[number]:
            total += rows * ROW_BYTES
            continue
        side = product.sides[number]
        stored_bytes = storage_type(side.ref.operand.dtype).element_bytes
        total += rows * plan.depth * stored_bytes * _fresh_share(product, side, rows)
    return total


def _fresh_share(product: Product, side: Side, num_rows: int) -> float:
    """Of what so many rows in the middle read at all places of a window, how much differs."""
    places = np.zeros((1, 1), np.int64)
    window = [d for d in product.depth[:-1] if side.ref.coefficient(d.name)]
    first = max(0, side.num_rows - num_rows) // 2
    numbers = np.arange(first, first + num_rows) % side.num_rows
    for dim in reversed(side.rows):
        places = places + (numbers % dim.extent * side.ref.coefficient(dim.name))[:, None]
        numbers = numbers // dim.extent
    for dim in window:
        steps = np.arange(dim.extent) * side.ref.coefficient(dim.name)
        places = (places[:, :, None] + steps).reshape(num_rows, -1)
    return len(distinct(places)) / places.size


def num_slots(product: Product, plan: ProductPlan) -> float:
    """Warp instructions of a step of a block. Counts of what multiplies and copies are exact; what they take
    besides was counted in code that was assembled for sm_90."""
    tile = plan.tile
    num_warps = tile.num_threads // WARP
    slots = 10.0
    if plan.kind == "fma":
        across = tile.num_threads // num_down(tile)
        rows, columns = tile.rows // num_down(tile), tile.columns // across
        slots += plan.depth * (rows * columns + (rows + columns) * plan.element_bytes / CHUNK_BYTES)
    else:
        rows, columns = tile.rows // tile.warps[0] // 16, tile.columns // tile.warps[1] // 8
        slots += ROW_BYTES // _MMA_BYTES * (rows * columns + rows + columns / 2)
    for number, num_rows in enumerate((tile.rows, tile.columns)):
        way, lanes = way_of(product, number, plan.kind)
        pieces = ceil(num_rows * plan.depth / lanes / tile.num_threads)
        if way == "converted":
            together = num_aligned(product, number, min(lanes, 4))
            slots += (7 if pieces == 1 else 34) + pieces * (lanes / together + lanes + 1)
        elif way == "packed":
            slots += 2 * pieces
        else:
            slots += 20 + pieces * (3 if way == "asynchronous" else 14)
    return num_warps * slots


def num_registers(plan: ProductPlan, *, is_whole: bool) -> int:
    """Registers of a thread, nearly as ptxas takes them for sm_90; `is_whole`: whether channels fill tiles.

    Sums, and on tensor cores what `ldmatrix` brings of both factors, take their share; blocks of 256 threads
    share a multiprocessor's, loops that are written out four times hold addresses for each. Fitted to float32
    and bfloat16: 133 of 140 convolutions within a tenth, the others within a fifth.
    """
    tile = plan.tile
    threads = tile.num_threads
    sums = tile.rows * tile.columns / threads
    if plan.kind == "fma":
        return round(69 + 1.39 * sums + (14.3 if plan.num_splits > 1 else 0))
    factors = (tile.rows / tile.warps[0] + tile.columns / tile.warps[1]) / 4
    number = 6.13 * factors - 0.15 * sums - 13.8 + (0 if is_whole else 2.3)
    number += 0.32 * sums - 16 if threads >= 256 else 18.6 if threads < 128 else 0
    return round(number + (13.7 if plan.num_stages == MAX_STAGES else 0))


def num_down(tile: Tile) -> int:
    """Of the threads of a tile on cores, how many are below each other."""
    return tile.num_threads // (16 if tile.num_threads >= 256 else 8)


def plan_product(product: Product, kind: Kind, rates: Rates) -> Choice:
    """The cut that is estimated to be fastest: large tiles read less, small ones and splits fill the machine.

    Of cuts that take as long, the one with the fewest blocks.
    """
    element_bytes = element_of(kind, product.dtype).element_bytes
    wholes = [ProductPlan(kind, tile, element_bytes, 1, 1, product.num_steps) for tile in TILES]
    choices = (
        _choice(product, replace(whole, num_splits=splits), step_ns, rates)
        for whole, step_ns in [(whole, _step_ns(product, whole, rates)) for whole in wholes]
        for splits in _SPLITS
    )
    return min((c for c in choices if c is not None), key=lambda c: (c.time_ns, c.num_blocks))


def plan_made(product: Product, kind: Kind, rates: Rates) -> Choice | None:
    """The cut of a product one of whose factors is made by its kernel: once, as one tile has all rows of the
    other. None if no tile has; `time_ns` is with what makes it."""
    element_bytes = element_of(kind, product.dtype).element_bytes
    made = next(i for i, side in enumerate(product.sides) if side.is_made)
    choices = []
    for tile in (*TILES, *_WIDE_TILES):
        if (tile.rows if made else tile.columns) < product.sides[1 - made].num_rows:
            continue
        plan = ProductPlan(kind, tile, element_bytes, 1, 1, product.num_steps)
        choice = _choice(product, plan, _step_ns(product, plan, rates), rates)
        if choice is not None:
            busy = min(choice.num_blocks, rates.num_multiprocessors)
            own_ns = product.made_macs / (rates.macs_per_ns["fma"] * busy)
            choices.append(replace(choice, time_ns=choice.time_ns + own_ns))
    best = min(choices, key=lambda c: (c.time_ns, c.num_blocks), default=None)
    return None if best is None else replace(best, plan=replace(best.plan, num_stages=2))


def _step_ns(product: Product, plan: ProductPlan, rates: Rates) -> float:
    """Time of a step of a block, beside others on its multiprocessor."""
    return max(
        plan.tile.rows * plan.tile.columns * plan.depth / rates.macs_per_ns[plan.kind],
        num_slots(product, plan) / rates.slots_per_ns,
        loaded_bytes(product, plan) / rates.loaded_bytes_per_ns,
    )


def _choice(product: Product, plan: ProductPlan, step_ns: float, rates: Rates) -> Choice | None:
    tile, steps = plan.tile, plan.steps_per_split
    is_last_empty = steps * (plan.num_splits - 1) * plan.depth >= plan.num_steps
    if plan.num_splits > 1 and (steps < _MIN_SPLIT_STEPS or is_last_empty):
        return None
    rows, columns = (side.num_rows for side in product.sides)
    num_tiles = product.num_batch * ceil(rows / tile.rows) * ceil(columns / tile.columns)
    num_blocks = num_tiles * plan.num_splits
    if plan.num_splits > 1 and product.num_batch * plan.num_splits > MOST_BLOCKS[2]:
        return None
    if not any(side.is_made for side in product.sides):
        stages = min(MAX_STAGES, MAX_SHARED_BYTES // plan.stage_bytes, steps + 1)
        plan = replace(plan, num_stages=max(2, stages))
    rounds = ceil(num_blocks / rates.num_multiprocessors)
    is_whole = product.depth[-1].extent % plan.depth == 0
    registers = num_registers(plan, is_whole=is_whole)
    at_once = min(_BLOCKS_AT_ONCE, resident_blocks(registers, plan.shared_bytes, tile.num_threads))
    waiting_ns = ceil(rounds / at_once) * (_STEP_NS + step_ns)
    step_ns = max(max(rounds, _BLOCKS_AT_ONCE) * step_ns, waiting_ns)
    time_ns = steps * step_ns
    if plan.num_splits > 1:
        part_bytes = tile.rows * tile.columns * product.dtype.size_bytes
        time_ns += JOIN_NS + plan.num_splits * part_bytes / rates.loaded_bytes_per_ns
        time_ns += 2 * num_blocks * part_bytes / rates.bytes_per_ns
    return Choice(plan, num_blocks, time_ns)
