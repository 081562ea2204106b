"""A second factor that is no constant, packed by a kernel: tiles of bfloat16 pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.ir.dtype import DType
from tilewright.targets.cpu.loopnest.transpose import transpose
from tilewright.targets.cpu.product.amx import TILE_BYTES_PER_ROW
from tilewright.targets.cpu.product.lanes import load_lanes
from tilewright.targets.cpu.product.matrix.tiles import (
    SPLIT_CYCLES,
    TILE_BYTES,
    TILE_COLUMNS,
    TILE_DEPTH,
    split,
    split_row,
)
from tilewright.targets.llvm.emitter import Emitter
from tilewright.targets.llvm.values import Int, Val, vec

_HALF = TILE_DEPTH // 2
# Turning a tile of words, one piece of it: four exchanges of half of its sixteen rows by the others.
_TURN_CYCLES = 64.0


@dataclass(frozen=True, slots=True)
class TiledFactor:
    """A matrix of `depth` by `columns` floats, the elements from one to the next along both, its tiles.

    They lie as `MatrixTiles` has those of constants: panels are `panel_tiles` wide, the last may be narrower;
    what lies behind the depth and the columns is zero.
    """

    depth: int
    columns: int
    depth_step: int
    column_step: int
    num_pieces: int
    panel_tiles: int
    dtype: DType = DType.FLOAT32
    """As it is stored."""

    @property
    def num_steps(self) -> int:
        """Tiles along the depth."""
        return -(-self.depth // TILE_DEPTH)

    @property
    def num_tiles(self) -> int:
        """Tiles along the columns."""
        return -(-self.columns // TILE_COLUMNS)

    @property
    def panel_bytes(self) -> int:
        """From one panel to the next."""
        return self.num_steps * self.num_pieces * self.panel_tiles * TILE_BYTES

    @property
    def size_bytes(self) -> int:
        """Of all tiles."""
        return self.num_steps * self.num_pieces * self.num_tiles * TILE_BYTES

    @property
    def is_turned(self) -> bool:
        """Whether elements lie side by side along the depth."""
        return self.depth_step == 1

    @property
    def packing_cycles(self) -> float:
        """Estimated cycles of one core for all tiles."""
        each = SPLIT_CYCLES[self.num_pieces] + (0 if self.is_turned else self.num_pieces)
        turning = self.num_pieces * _TURN_CYCLES if self.is_turned else 0.0
        return self.num_steps * self.num_tiles * (_HALF * each + turning)

    def pack(self, e: Emitter, source: Val, target: Val, first: Int, last: Int) -> None:
        """Emit the packing of the tiles of columns from `first` to `last`, which is at most all."""
        num_full = self.columns // TILE_COLUMNS
        rest = self.columns - num_full * TILE_COLUMNS
        e.loop(
            first,
            e.min(last, num_full) if rest else last,
            1,
            lambda tile, _: self._column(e, source, target, tile, TILE_COLUMNS),
        )
        if rest:
            is_last = e.compare("eq", last, self.num_tiles)
            e.if_(is_last, lambda: self._column(e, source, target, num_full, rest))

    def _column(self, e: Emitter, source: Val, target: Val, tile: Int, active: int) -> None:
        """All tiles of some columns, of which so many exist."""
        panel, place = e.udiv(tile, self.panel_tiles), e.urem(tile, self.panel_tiles)
        count: Int = e.min(self.panel_tiles, e.sub(self.num_tiles, e.mul(panel, self.panel_tiles)))
        start = e.gep(target, e.add(e.mul(panel, self.panel_bytes), e.mul(place, TILE_BYTES)))
        columns = e.gep(source, e.mul(tile, TILE_COLUMNS * self.column_step * self.dtype.size_bytes))
        piece_bytes = e.mul(count, TILE_BYTES)
        num_full = self.depth // TILE_DEPTH

        def step(number: Int, depth: int) -> None:
            at = e.gep(columns, e.mul(number, TILE_DEPTH * self.depth_step * self.dtype.size_bytes))
            to = e.gep(start, e.mul(e.mul(number, self.num_pieces), piece_bytes))
            (self._turned if self.is_turned else self._by_rows)(e, at, to, piece_bytes, depth, active)

        e.loop(0, num_full, 1, lambda number, _: step(number, TILE_DEPTH))
        if self.depth % TILE_DEPTH:
            step(num_full, self.depth % TILE_DEPTH)

    def _by_rows(
        self, e: Emitter, source: Val, target: Val, piece_bytes: Int, depth: int, active: int
    ) -> None:
        """A tile whose rows of columns are loaded two at a time."""
        pairs = [i // 2 + i % 2 * TILE_COLUMNS for i in range(TILE_DEPTH)]

        def load(row: Int, exists: bool) -> Val:
            if not exists:
                return e.zero(vec("float", TILE_COLUMNS))
            at = e.gep(source, e.mul(row, self.depth_step * self.dtype.size_bytes))
            return load_lanes(e, self.dtype, at, TILE_COLUMNS, stride=self.column_step, active=active)

        def pair(number: Int, both: bool = True, exists: bool = True) -> None:
            first = e.mul(number, 2)
            pieces = split(e, load(first, exists), load(e.add(first, 1), both), self.num_pieces)
            at = e.gep(target, e.mul(number, TILE_BYTES_PER_ROW))
            for piece, value in enumerate(pieces):
                place = e.gep(at, e.mul(piece_bytes, piece))
                e.store(e.shuffle(value, None, pairs), place, align_bytes=64)

        e.loop(0, depth // 2, 1, lambda number, _: pair(number))
        if depth % 2:
            pair(depth // 2, both=False)
        e.loop(-(-depth // 2), _HALF, 1, lambda number, _: pair(number, both=False, exists=False))

    def _turned(
        self, e: Emitter, source: Val, target: Val, piece_bytes: Int, depth: int, active: int
    ) -> None:
        """A tile whose columns are loaded one after the other, and turned in words of two elements."""
        words = vec("i32", TILE_COLUMNS)
        columns: list[Sequence[Val]] = []
        for column in range(active):
            at = e.gep(source, column * self.column_step * self.dtype.size_bytes)
            columns.append(split_row(e, at, self.dtype, depth, self.num_pieces))
        zeros = [e.zero(vec("i16", TILE_DEPTH))] * self.num_pieces
        columns += [zeros] * (TILE_COLUMNS - active)
        for piece in range(self.num_pieces):
            rows = transpose(e, [e.bitcast(column[piece], words) for column in columns])
            at = e.gep(target, e.mul(piece_bytes, piece))
            for number, row in enumerate(rows):
                e.store(row, e.gep(at, number * TILE_BYTES_PER_ROW), align_bytes=64)
