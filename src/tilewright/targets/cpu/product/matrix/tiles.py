"""Blocks of tiles on the matrix unit: the order in which they are loaded and multiplied, and the pieces.

Of the unit's eight registers the first of a block accumulate, the others hold pieces of the factors. How many
tiles are loaded decides the speed as much as how many are multiplied: each is kept while it is used.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from tilewright.ir.dtype import DType
from tilewright.records import dataclass
from tilewright.targets.cpu.arrangements import TILE_BYTES as TILE_BYTES
from tilewright.targets.cpu.arrangements import TILE_COLUMNS as TILE_COLUMNS
from tilewright.targets.cpu.arrangements import TILE_DEPTH as TILE_DEPTH
from tilewright.targets.cpu.product import amx
from tilewright.targets.cpu.product.amx import NUM_TILES, TILE_BYTES_PER_ROW, TILE_ROWS
from tilewright.targets.cpu.product.lanes import load_lanes
from tilewright.targets.cpu.product.plan import Dot
from tilewright.targets.llvm.emitter import Emitter
from tilewright.targets.llvm.values import Int, Val, vec

SPLIT_CYCLES = {1: 5.0, 2: 11.0, 3: 18.0}
"""Cycles to split 32 elements into bfloat16 pieces and to store them, by their number."""


@dataclass(frozen=True, slots=True)
class Terms:
    """How float32 factors are written as sums of pieces, and which products (of A, of B) of those are added.

    Pieces are counted from the largest. Tiles of bytes hold integers: products of one order, the sum of both
    numbers, have a sum of their own, or two (`orders`), so that none is rounded. Products of bfloat16 all
    have one.
    """

    products: tuple[tuple[int, int], ...]
    orders: tuple[int, ...] = ()

    @property
    def is_bytes(self) -> bool:
        """Whether pieces are bytes of fixed-point numbers."""
        return bool(self.orders)

    @property
    def num_products(self) -> int:
        """Products of tiles for one of the plain product."""
        return len(self.products)

    @property
    def num_pieces(self) -> int:
        """Pieces that each factor is split into."""
        return 1 + max(a for a, _ in self.products)

    @property
    def num_sums(self) -> int:
        """Accumulating tiles for one of the result."""
        return max(1, len(self.orders))

    @property
    def tile_depth(self) -> int:
        """Summed elements in a row of a tile."""
        return TILE_BYTES_PER_ROW if self.is_bytes else TILE_DEPTH

    @property
    def operation(self) -> str:
        """The instruction that multiplies."""
        return "tdpbssd" if self.is_bytes else "tdpbf16ps"

    def sums(self) -> list[int]:
        """The accumulating tile of each product: of those of its order each in turn."""
        taken: dict[int, int] = {}
        found: list[int] = []
        for a, b in self.products:
            own = [i for i, order in enumerate(self.orders) if order == a + b] or [0]
            turn = taken[a + b] = taken.get(a + b, -1) + 1
            found.append(own[turn % len(own)])
        return found


# A float32 is the sum of its bfloat16 pieces up to 2^-8 of it for one, 2^-17 for two, 2^-26 for three;
# products below that are left out. The small ones come first, each with a factor of the one before. Of the
# nine products of three bytes each, six leave out what is 2^-23 of the largest, eight 2^-32. They come in an
# order in which no sum waits for the product before, and each tile is loaded once.
TERMS: dict[Dot, Terms] = {
    "1 bfloat16 product": Terms(((0, 0),)),
    "3 bfloat16 products": Terms(((1, 0), (0, 0), (0, 1))),
    "6 bfloat16 products": Terms(((2, 0), (1, 0), (1, 1), (0, 1), (0, 2), (0, 0))),
    "6 int8 products": Terms(((0, 2), (1, 1), (0, 1), (1, 0), (2, 0), (0, 0)), (0, 1, 2, 2)),
    "8 int8 products": Terms(((1, 2), (0, 2), (2, 1), (1, 1), (0, 1), (1, 0), (2, 0), (0, 0)), (0, 1, 2, 3)),
}


@dataclass(frozen=True, slots=True)
class Block:
    """Tiles of sums that are computed together: `rows` of positions by `columns` of outputs."""

    rows: int
    columns: int

    @property
    def num_positions(self) -> int:
        """Positions of the block."""
        return TILE_ROWS * self.rows


def load_sums(e: Emitter, block: Block, pointer: Val) -> None:
    """The block's sums as `store_sums` left them."""
    _move_sums(e, amx.load, block, pointer)


def store_sums(e: Emitter, block: Block, pointer: Val, pitch_bytes: int | None = None) -> None:
    """The block's sums as one row-major float32 matrix, or in rows `pitch_bytes` apart."""
    _move_sums(e, amx.store, block, pointer, pitch_bytes)


def _move_sums(
    e: Emitter,
    move: Callable[[Emitter, int, Val, int], None],
    block: Block,
    pointer: Val,
    pitch_bytes: int | None = None,
) -> None:
    pitch = block.columns * TILE_BYTES_PER_ROW if pitch_bytes is None else pitch_bytes
    for i in range(block.rows):
        for j in range(block.columns):
            at = e.gep(pointer, i * TILE_ROWS * pitch + j * TILE_BYTES_PER_ROW)
            move(e, i * block.columns + j, at, pitch)


def store_orders(e: Emitter, terms: Terms, pointer: Val) -> None:
    """The sums of the orders of a block of one tile, one after the other."""
    for number in range(terms.num_sums):
        amx.store(e, number, e.gep(pointer, number * TILE_BYTES), TILE_BYTES_PER_ROW)


def clear_sums(e: Emitter, block: Block, terms: Terms) -> None:
    """Zero in every sum."""
    for tile in range(block.rows * block.columns * terms.num_sums):
        amx.clear(e, tile)


def multiply(
    e: Emitter,
    block: Block,
    terms: Terms,
    a_tile: Callable[[int, int], Val],
    b_tile: Callable[[int, int], Val],
) -> None:
    """Add the products of one step of a tile's depth to the block's sums.

    `a_tile(piece, row)` and `b_tile(piece, column)` say where the tiles of the factors lie.
    """
    for step in schedule(block, terms):
        match step:
            case Load(register, (side, piece, index)):
                pointer = a_tile(piece, index) if side == "a" else b_tile(piece, index)
                amx.load(e, register, pointer, TILE_BYTES_PER_ROW)
            case Multiply(sums, a, b):
                amx.dot(e, terms.operation, sums, a, b)


_Tile = tuple[str, int, int]  # factor, piece, row or column


@dataclass(frozen=True, slots=True)
class Load:
    """A tile of a factor comes into a register."""

    register: int
    tile: _Tile


@dataclass(frozen=True, slots=True)
class Multiply:
    """A product of two registers is added to a third."""

    sums: int
    a: int
    b: int


@functools.cache
def schedule(block: Block, terms: Terms) -> tuple[Load | Multiply, ...]:
    """The loads and products of one step: of registers that hold factors, the one needed last makes room."""
    held: dict[int, _Tile] = {}
    steps: list[Load | Multiply] = []
    sums_of = terms.sums()
    uses = [(("a", p, i), ("b", q, j)) for _, (p, q), i, j in _order(block, terms)]
    numbers = [number for number, *_ in _order(block, terms)]
    free = list(range(block.rows * block.columns * terms.num_sums, NUM_TILES))
    for at, needed in enumerate(uses):
        for wanted in needed:
            if wanted in held.values():
                continue
            if free:
                register = free.pop(0)
            else:
                later = [tile for pair in uses[at:] for tile in pair]
                register = max(held, key=lambda r: _next_use(held[r], later))
            held[register] = wanted
            steps.append(Load(register, wanted))
        a, b = (next(r for r, tile in held.items() if tile == wanted) for wanted in needed)
        tile = needed[0][2] * block.columns + needed[1][2]
        steps.append(Multiply(tile * terms.num_sums + sums_of[numbers[at]], a, b))
    return tuple(steps)


def num_loads(block: Block, terms: Terms) -> int:
    """Tiles that a step loads."""
    return sum(isinstance(step, Load) for step in schedule(block, terms))


def _next_use(tile: _Tile, later: list[_Tile]) -> int:
    return later.index(tile) if tile in later else len(later)


def _order(block: Block, terms: Terms) -> list[tuple[int, tuple[int, int], int, int]]:
    """Products and tiles in the order with the fewest loads: square blocks reuse a piece, others a tile."""
    products = list(enumerate(terms.products))
    tiles = [(i, j) for i in range(block.rows) for j in range(block.columns)]
    if block.rows == block.columns or terms.num_products == 1:
        return [(number, pq, i, j) for number, pq in products for i, j in tiles]
    return [(number, pq, i, j) for i, j in tiles for number, pq in products]


def split(e: Emitter, low: Val, high: Val, count: int) -> list[Val]:
    """`count` bfloat16 pieces of 32 floats, the first half of them in `low`: largest first, as <32 x i16>.

    What is left of an infinity, or of a value that rounds to one, counts as zero.
    """
    pieces: list[Val] = []
    rest = [low, high]
    words = vec("i16", TILE_DEPTH)
    for number in range(count):
        name = "<32 x bfloat> @llvm.x86.avx512bf16.cvtne2ps2bf16.512("
        e.declare(f"declare {name}<16 x float>, <16 x float>)")
        packed = e.op(f"call {name}{rest[1].typed}, {rest[0].typed})", vec("bfloat", TILE_DEPTH))
        piece = e.bitcast(packed, words)
        pieces.append(piece)
        if number + 1 == count:
            break
        for half in (0, 1):
            bits = e.shuffle(piece, None, range(16 * half, 16 * half + 16))
            taken = e.bitcast(e.shl(e.cast("zext", bits, "i32"), 16), rest[half].type)
            left = e.fsub(rest[half], taken)
            rest[half] = e.select(e.fcmp("ord", left, left), left, 0.0)
    return pieces


def split_row(e: Emitter, source: Val, dtype: DType, active: int, count: int) -> list[Val]:
    """Pieces of `active` elements side by side, at most `TILE_DEPTH`; zeros behind them."""
    half = TILE_DEPTH // 2
    low = load_lanes(e, dtype, source, half, active=min(active, half))
    high = e.zero(vec("float", half))
    if active > half:
        behind = e.gep(source, half * dtype.size_bytes)
        high = load_lanes(e, dtype, behind, half, active=active - half)
    return split(e, low, high, count)


def store_pieces(e: Emitter, pieces: list[Val], pointer: Val, piece_bytes: Int) -> None:
    """Each piece to its plane, `piece_bytes` apart."""
    for number, piece in enumerate(pieces):
        e.store(piece, e.gep(pointer, e.mul(number, piece_bytes)), align_bytes=64)
