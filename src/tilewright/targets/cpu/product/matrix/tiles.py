"""Blocks of tiles on the matrix unit: the order in which they are loaded and multiplied, and bfloat16 pieces.

Of the unit's eight registers the first `rows * columns` of a block accumulate, the
others hold pieces of the factors. One product takes 16 cycles and a load at least 8, so the schedule keeps
loads at less than half of the products' time.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.records import dataclass
from tilewright.targets.cpu.arrangements import TILE_BYTES as TILE_BYTES
from tilewright.targets.cpu.arrangements import TILE_COLUMNS as TILE_COLUMNS
from tilewright.targets.cpu.arrangements import TILE_DEPTH as TILE_DEPTH
from tilewright.targets.cpu.product import amx
from tilewright.targets.cpu.product.amx import NUM_TILES, TILE_BYTES_PER_ROW, TILE_ROWS
from tilewright.targets.llvm.emitter import Emitter
from tilewright.targets.llvm.values import Int, Val, vec

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


def load_sums(e: Emitter, block: Block, pointer: Val) -> None:
    """The block's sums as `store_sums` left them."""
    _move_sums(e, amx.load, block, pointer)


def store_sums(e: Emitter, block: Block, pointer: Val) -> None:
    """The block's sums as one row-major float32 matrix."""
    _move_sums(e, amx.store, block, pointer)


def _move_sums(
    e: Emitter, move: Callable[[Emitter, int, Val, int], None], block: Block, pointer: Val
) -> None:
    pitch = block.columns * TILE_BYTES_PER_ROW
    for i in range(block.rows):
        for j in range(block.columns):
            at = e.gep(pointer, i * TILE_ROWS * pitch + j * TILE_BYTES_PER_ROW)
            move(e, i * block.columns + j, at, pitch)


def clear_sums(e: Emitter, block: Block) -> None:
    """Zero in every sum."""
    for tile in range(block.rows * block.columns):
        amx.clear(e, tile)


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
            amx.load(e, register, pointer, TILE_BYTES_PER_ROW)
        a, b = (next(r for r, tile in held.items() if tile == wanted) for wanted in needed)
        sums = needed[0][2] * block.columns + needed[1][2]
        amx.dot(e, "tdpbf16ps", sums, a, b)


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
