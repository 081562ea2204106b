"""The matrix unit's instructions, and the order in which a block's tiles are loaded and multiplied.

Eight tile registers hold 16 rows of 64 bytes each: the first `rows * columns` of a block accumulate, the
others hold pieces of the factors. One product takes 16 cycles and a load at least 8, so the schedule keeps
loads at less than half of the products' time.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilewright.records import dataclass
from tilewright.targets.cpu.arrangements import TILE_BYTES as TILE_BYTES
from tilewright.targets.cpu.arrangements import TILE_COLUMNS as TILE_COLUMNS
from tilewright.targets.cpu.arrangements import TILE_DEPTH as TILE_DEPTH
from tilewright.targets.cpu.emit.emitter import Emitter
from tilewright.targets.cpu.emit.values import Int, Val, vec, vector_literal

NUM_TILES = 8
TILE_ROWS = 16
TILE_BYTES_PER_ROW = 64

# Which pieces of A and B are multiplied, by the number of products: a float32 is the sum of its bfloat16
# pieces up to 2^-8 of it for one, 2^-17 for two, 2^-26 for three; products below that are left out. The
# small ones come first.
PRODUCTS: dict[int, tuple[tuple[int, int], ...]] = {
    1: ((0, 0),),
    3: ((1, 0), (0, 0), (0, 1)),
    6: ((2, 0), (1, 0), (0, 0), (0, 1), (1, 1), (0, 2)),
}


def num_pieces(num_products: int) -> int:
    """Bfloat16 pieces that each factor is split into."""
    return 1 + max(a for a, _ in PRODUCTS[num_products])


@dataclass(frozen=True, slots=True)
class Block:
    """Tiles of sums that are computed together: `rows` of positions by `columns` of outputs."""

    rows: int
    columns: int

    @property
    def num_positions(self) -> int:
        """Positions of the block."""
        return TILE_ROWS * self.rows


def configure(e: Emitter) -> None:
    """Give every tile register 16 rows of 64 bytes. Registers start as zero."""
    palette = np.zeros(64, np.uint8)
    palette[0] = 1
    palette[16 : 16 + 2 * NUM_TILES : 2] = TILE_BYTES_PER_ROW
    palette[48 : 48 + NUM_TILES] = TILE_ROWS
    place = e.alloca(vec("i32", 16))
    e.store(vector_literal("i32", [int(x) for x in palette.view(np.int32)]), place)
    _call(e, "ldtilecfg", f"ptr {place}", "ptr")


def release(e: Emitter) -> None:
    """Hand the tile registers back, so that switching threads need not save them."""
    _call(e, "tilerelease", "", "")


def load_sums(e: Emitter, block: Block, pointer: Val) -> None:
    """The block's sums as `store_sums` left them."""
    _move_sums(e, "tileloadd64", block, pointer)


def store_sums(e: Emitter, block: Block, pointer: Val) -> None:
    """The block's sums as one row-major float32 matrix."""
    _move_sums(e, "tilestored64", block, pointer)


def _move_sums(e: Emitter, name: str, block: Block, pointer: Val) -> None:
    pitch = block.columns * TILE_BYTES_PER_ROW
    for i in range(block.rows):
        for j in range(block.columns):
            at = e.gep(pointer, i * TILE_ROWS * pitch + j * TILE_BYTES_PER_ROW)
            tile = i * block.columns + j
            _call(e, name, f"i8 {tile}, ptr {at}, i64 {pitch}", "i8, ptr, i64")


def clear_sums(e: Emitter, block: Block) -> None:
    """Zero in every sum."""
    for tile in range(block.rows * block.columns):
        _call(e, "tilezero", f"i8 {tile}", "i8")


def multiply(
    e: Emitter,
    block: Block,
    num_products: int,
    a_tile: Callable[[int, int], Val],
    b_tile: Callable[[int, int], Val],
) -> None:
    """Add the products of one step of `TILE_DEPTH` to the block's sums.

    `a_tile(piece, row)` and `b_tile(piece, column)` say where the tiles of the factors lie. Of the registers
    that hold factors, the one needed again last makes room.
    """
    held: dict[int, _Tile] = {}
    uses = [(("a", p, i), ("b", q, j)) for (p, q), i, j in _order(block, num_products)]
    free = list(range(block.rows * block.columns, NUM_TILES))
    for number, needed in enumerate(uses):
        for wanted in needed:
            if wanted in held.values():
                continue
            if free:
                register = free.pop(0)
            else:
                later = [tile for pair in uses[number:] for tile in pair]
                register = max(held, key=lambda r: _next_use(held[r], later))
            held[register] = wanted
            side, piece, index = wanted
            pointer = a_tile(piece, index) if side == "a" else b_tile(piece, index)
            operands = f"i8 {register}, ptr {pointer}, i64 {TILE_BYTES_PER_ROW}"
            _call(e, "tileloadd64", operands, "i8, ptr, i64")
        a, b = (next(r for r, tile in held.items() if tile == wanted) for wanted in needed)
        sums = needed[0][2] * block.columns + needed[1][2]
        _call(e, "tdpbf16ps", f"i8 {sums}, i8 {a}, i8 {b}", "i8, i8, i8")


_Tile = tuple[str, int, int]  # factor, piece, row or column


def _next_use(tile: _Tile, later: list[_Tile]) -> int:
    return later.index(tile) if tile in later else len(later)


def _order(block: Block, num_products: int) -> list[tuple[tuple[int, int], int, int]]:
    """Products and tiles in the order with the fewest loads: square blocks reuse a piece, others a tile."""
    products = PRODUCTS[num_products]
    tiles = [(i, j) for i in range(block.rows) for j in range(block.columns)]
    if block.rows == block.columns or num_products == 1:
        return [(pq, i, j) for pq in products for i, j in tiles]
    return [(pq, i, j) for i, j in tiles for pq in products]


def _call(e: Emitter, name: str, operands: str, types: str) -> None:
    e.declare(f"declare void @llvm.x86.{name}({types})")
    e.line(f"call void @llvm.x86.{name}({operands})")


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


def store_pieces(e: Emitter, pieces: list[Val], pointer: Val, piece_bytes: Int) -> None:
    """Each piece to its plane, `piece_bytes` apart."""
    for number, piece in enumerate(pieces):
        e.store(piece, e.gep(pointer, e.mul(number, piece_bytes)), align_bytes=64)
