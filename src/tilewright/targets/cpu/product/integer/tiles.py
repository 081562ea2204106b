"""The kernel of an integer product on the matrix unit: tiles of 16 rows by 16 columns by 64 steps.

Condition of use: a processor with tiles of bytes (AMX), no groups of weights, a symmetric B (a zero point
would need the sums of A's rows), and enough rows to fill more than a corner of a tile. It beats words in
vectors by the unit's rate, eight times theirs; what remains is finishing the sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from tilewright.ir.dtype import DType
from tilewright.records import dataclass
from tilewright.targets.cpu.arrangements import STEPS_PER_WORD
from tilewright.targets.cpu.cut import MAX_CHUNKS, Cut, choose_num_chunks
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import Kernel
from tilewright.targets.cpu.product import amx
from tilewright.targets.cpu.product.amx import TILE_ROWS
from tilewright.targets.cpu.product.contraction import Contraction
from tilewright.targets.cpu.product.epilogue import store_tile
from tilewright.targets.cpu.product.frame import Frame, Panel, Position
from tilewright.targets.cpu.product.integer.frame import ByteWalk, byte_kernel
from tilewright.targets.cpu.product.integer.match import IntegerProblem
from tilewright.targets.cpu.product.integer.pack import PackedBytes, packed_bytes
from tilewright.targets.cpu.product.integer.words import words_of
from tilewright.targets.cpu.product.loops import StridedLoop
from tilewright.targets.cpu.product.plan import TILES_TOGETHER, KernelPlan
from tilewright.targets.cpu.product.tiling import Panels
from tilewright.targets.cpu.product.walk import Range
from tilewright.targets.llvm.values import Int, Val

TILE_COLUMNS = 16
_ROW_TILES, _COLUMN_TILES = TILES_TOGETHER, 2
# Registers: four of sums, two of A, two of B.
_FIRST_A, _FIRST_B = 4, 6
# With fewer rows in all the weights are read for little work, at the speed of memory either way.
_MIN_ROWS = 4
_MIN_COLUMNS = 8
_LINE_BYTES = 64
# Pairs of tiles that together fetch the next panel.
_SHARES = 4
# Products of a tile instruction per cycle, in those of one fused multiply-add.
PRODUCTS_PER_OPERATION = 24
# Rows finished together: they share what varies by column only.
_ROWS_TOGETHER = 4


def tiles_suit(problem: IntegerProblem, isa: Isa) -> bool:
    """Whether the matrix unit computes this product, and faster than vectors do."""
    if not isa.has_matrix_unit or isa.lanes("i32") != TILE_COLUMNS:
        return False
    contraction = problem.contraction
    if (
        problem.by_column
        or problem.b_zero
        or (moves_b(contraction) and not (problem.packs and contraction.row.extent >= TILES_TOGETHER))
        or contraction.vector.extent < _MIN_COLUMNS
    ):
        return False
    return contraction.row.extent * prod(x.extent for x in contraction.outer) >= _MIN_ROWS


@dataclass(frozen=True, slots=True)
class _Tile:
    """Rows that one register holds: where they begin, and how many of them another tile has done already."""

    at: Position
    skipped: Int


def moves_b(contraction: Contraction) -> bool:
    """Whether B differs between outer positions, which a pair of tiles then shares."""
    return any(x.b for x in contraction.outer)


def generate_tiles(plan: KernelPlan, isa: Isa) -> Kernel:
    """The kernel of a plan on the matrix unit."""
    rows, step_bytes = plan.row_tiles[0].rows, words_of(plan.summed, plan.dot).step_bytes
    note = f"tile {_ROW_TILES}x{rows}x{plan.panels.width}x{step_bytes}"
    scratch_bytes = _ROW_TILES * TILE_ROWS * 4 * TILE_COLUMNS * _COLUMN_TILES
    return byte_kernel(plan, isa, _Tiles, "integer-tiles", note, scratch_bytes=scratch_bytes)


def tile_panels(columns: int) -> Panels:
    """Two tiles of columns side by side, where there are so many."""
    return Panels(TILE_COLUMNS, min(_COLUMN_TILES, -(-columns // TILE_COLUMNS)), columns)


def tile_rows(extent: int, *, in_pairs: bool) -> int:
    """Rows of each tile, of so many in all; `in_pairs` for an even number of tiles.

    >>> tile_rows(225, in_pairs=False), tile_rows(225, in_pairs=True)  # 15 tiles, 18 tiles
    (15, 13)
    """
    num_tiles = -(-extent // TILE_ROWS)
    rows = -(-extent // (num_tiles + num_tiles % TILES_TOGETHER * in_pairs))
    while in_pairs and -(-extent // rows) % TILES_TOGETHER:
        rows -= 1
    return rows


def with_order(plan: KernelPlan, isa: Isa) -> KernelPlan:
    """The plan with its cut, and the order of its loops.

    While all of B stays in a private cache, chunks are cut by rows alone, results written line by line.
    """
    operations = plan.num_macs // PRODUCTS_PER_OPERATION
    wanted = choose_num_chunks(MAX_CHUNKS, operations)
    plan = replace(plan, units="pairs of tiles")
    num_units, num_panels = plan.num_units, plan.panels.num_panels
    across = packed_bytes(plan) <= isa.caches.l2_bytes // 3
    if across:
        plan = replace(plan, units="pairs of tiles across panels")
    ahead = not across and num_panels > 1 and num_units >= _SHARES
    if across and num_units >= 2 * wanted:
        cut = Cut(num_row_parts=wanted, num_panel_parts=1)
    else:
        cut = plan.ranked_cuts(isa, PRODUCTS_PER_OPERATION)[0]
    return replace(plan, cut=cut, fetches_ahead=ahead)


class _Tiles(ByteWalk):
    """Two tiles of rows by two of columns, multiplied together; rows finished one by one from scratch."""

    def __init__(self, frame: Frame, factor: PackedBytes, isa: Isa) -> None:
        super().__init__(frame, factor, isa)
        (tiles,) = self.row_tiles
        self.tiles_per_line, self.rows = tiles.count, tiles.rows
        self.num_all_tiles = self.tiles_per_line * prod(x.extent for x in self.plan.outer)
        self.share: Int | None = None
        self.operation = "tdpbssd" if self.plan.a.operand.dtype is DType.INT8 else "tdpbusd"
        self.scratch = frame.function.scratch

    def chunk(self, chunk: Val, num_rows: Val | None) -> None:
        """All tiles of a chunk, with the registers told their shapes before and handed back behind."""
        e, step_bytes = self.emitter, self.words.step_bytes
        sums, a = (self.rows, 4 * TILE_COLUMNS), (self.rows, step_bytes)
        b = (step_bytes // STEPS_PER_WORD, 4 * TILE_COLUMNS)
        registers = (sums,) * _FIRST_A + (a,) * (_FIRST_B - _FIRST_A) + (b,) * (amx.NUM_TILES - _FIRST_B)
        amx.configure(e, registers)
        super().chunk(chunk, num_rows)
        amx.release(e)

    def asked_units(self, num_rows: Val | None) -> Int:
        """Pairs of tiles of as many rows as a run has."""
        asked = self.asked(num_rows, self.num_all_tiles)
        return self.emitter.udiv(self.emitter.add(asked, _ROW_TILES - 1), _ROW_TILES)

    def units(self, index: Int, panel: Panel, panels: Range, units: Range) -> None:
        """One panel of columns for a chunk's pairs of tiles."""
        self.emitter.loop(*units, 1, lambda number, _: self._pair(number, index, panel))

    def products(self, panels: Range, units: Range) -> None:
        """Panel by panel, or row by row."""
        if self.plan.units == "pairs of tiles":
            super().products(panels, units)
            return

        def unit(number: Int, _: Sequence[Val]) -> None:
            self.each_panel(panels, lambda index, panel: self._pair(number, index, panel))

        self.emitter.loop(*units, 1, unit)

    def _pair(self, number: Int, index: Int, panel: Panel) -> None:
        e = self.emitter
        b, column = self.panel_start(index)
        tiles = [self._tile_at(e.add(e.mul(number, _ROW_TILES), i), b, column) for i in range(_ROW_TILES)]
        self.share = e.urem(number, _SHARES) if self.plan.fetches_ahead else None
        self._block(tiles, tiles[0].at.b, panel)

    def _tile_at(self, number: Int, b: Int, column: Int) -> _Tile:
        """A tile by number; one behind the last is the last again, all of it skipped."""
        e, extent = self.emitter, self.plan.row.extent
        inside = number if self.num_all_tiles % _ROW_TILES == 0 else e.min(number, self.num_all_tiles - 1)
        line, place = e.udiv(inside, self.tiles_per_line), e.urem(inside, self.tiles_per_line)
        wanted = e.mul(place, self.rows)
        start = e.min(wanted, extent - self.rows)
        skipped = e.sub(wanted, start)
        if inside is not number:
            skipped = e.select_index(e.compare("slt", number, self.num_all_tiles), skipped, self.rows)
        return _Tile(self.at_row(self.at_outer(line, b, column), start), skipped)

    def _block(self, tiles: Sequence[_Tile], b: Int, panel: Panel) -> None:
        e = self.emitter
        vectors = panel.num_vectors
        for i in range(_ROW_TILES):
            for j in range(vectors):
                amx.clear(e, i * _COLUMN_TILES + j)
        row_bytes = STEPS_PER_WORD * TILE_COLUMNS * vectors
        self._runs(0, [t.at.a for t in tiles], b, self.words.outer, panel, self.word_bytes(panel))
        for i in range(_ROW_TILES):
            for j in range(vectors):
                pointer = e.gep(self.scratch, i * self.rows * row_bytes + j * 4 * TILE_COLUMNS)
                amx.store(e, i * _COLUMN_TILES + j, pointer, row_bytes)
        for i, tile in enumerate(tiles):
            self._finish_rows(i, tile, panel, row_bytes)

    def _runs(
        self, depth: int, a: Sequence[Int], b: Int, loops: Sequence[StridedLoop], panel: Panel, row_bytes: int
    ) -> None:
        """The summed loops around runs from `depth` on, then the tiles of a run."""
        e, words = self.emitter, self.words
        run_bytes = words.run_words * row_bytes
        if depth < len(loops):
            inner = prod(x.extent for x in loops[depth + 1 :])
            loop = loops[depth]

            def turn(index: Int, _: Sequence[Val]) -> None:
                moved = [e.add(x, e.mul(index, loop.a)) for x in a]
                at_b = e.add(b, e.mul(index, inner * run_bytes))
                self._runs(depth + 1, moved, at_b, loops, panel, row_bytes)

            e.loop(0, loop.extent, 1, turn)
            return
        last = words.filled_length - words.step_bytes
        step_bytes = words.step_bytes // STEPS_PER_WORD * row_bytes

        def step(number: Int, _: Sequence[Val]) -> None:
            ahead = e.mul(number, words.step_bytes)
            ahead = ahead if last % words.step_bytes == 0 else e.min(ahead, last)
            self._multiply(
                [e.add(x, ahead) for x in a], e.add(b, e.mul(number, step_bytes)), panel, row_bytes
            )

        e.loop(0, words.steps_per_run, 1, step)

    def _multiply(self, a: Sequence[Int], b: Int, panel: Panel, row_bytes: int) -> None:
        e = self.emitter
        at_b = e.gep(self.pointers["b"], b)
        if self.share is not None:
            lines = self.words.step_bytes // STEPS_PER_WORD * row_bytes // _LINE_BYTES
            ahead = e.gep(
                at_b, e.add(e.mul(self.share, lines // _SHARES * _LINE_BYTES), self.factor.panel_stride)
            )
            for line in range(lines // _SHARES):
                e.prefetch(e.gep(ahead, line * _LINE_BYTES))
        for i, offset in enumerate(a):
            amx.load(e, _FIRST_A + i, e.gep(self.pointers["a"], offset), self.plan.row.a)
            for j in range(panel.num_vectors):
                if i == 0:
                    amx.load(e, _FIRST_B + j, e.gep(at_b, j * 4 * TILE_COLUMNS), row_bytes)
                amx.dot(e, self.operation, i * _COLUMN_TILES + j, _FIRST_A + i, _FIRST_B + j)

    def _finish_rows(self, number: int, tile: _Tile, panel: Panel, row_bytes: int) -> None:
        e = self.emitter
        sums = e.gep(self.scratch, number * self.rows * row_bytes)

        def rows(first: Int, count: int) -> None:
            at = self.at_row(tile.at, first)
            here = e.gep(sums, e.mul(first, row_bytes))
            start = self.initial(count, at, panel)
            values = [
                e.iadd(e.load(self.type, e.gep(here, 4 * TILE_COLUMNS * position)), value)
                for position, value in enumerate(start)
            ]
            store_tile(self.frame, count, at, panel, values)

        def whole() -> None:
            together = min(_ROWS_TOGETHER, self.rows)
            groups, rest = divmod(self.rows, together)
            e.loop(0, groups, 1, lambda group, _: rows(e.mul(group, together), together))
            if rest:
                rows(groups * together, rest)

        def single() -> None:
            e.loop(tile.skipped, self.rows, 1, lambda row, _: rows(row, 1))

        e.if_(e.compare("eq", tile.skipped, 0), whole, single)
