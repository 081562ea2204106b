"""The kernel of an integer product on the matrix unit: tiles of 16 rows by 16 columns by 64 steps.

Condition of use: a processor with tiles of bytes (AMX), no groups, symmetric weights (a zero point of B would
need the sums of A's rows), and enough rows to fill more than a corner of a tile. It beats words in vectors by
the unit's rate, eight times theirs; what remains is finishing the sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilewright.records import dataclass
from tilewright.targets.cpu.arrangements import STEPS_PER_WORD
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import TARGET_CHUNKS, choose_num_chunks
from tilewright.targets.cpu.product import amx
from tilewright.targets.cpu.product.amx import TILE_ROWS
from tilewright.targets.cpu.product.contraction.frame import Panel
from tilewright.targets.cpu.product.contraction.row_units import asked_units
from tilewright.targets.cpu.product.contraction.tiling import Cut, Panels, RowTile
from tilewright.targets.cpu.product.integer.frame import IntegerGenerator, Position
from tilewright.targets.cpu.product.integer.match import IntegerProblem
from tilewright.targets.cpu.product.loops import StridedLoop
from tilewright.targets.llvm.values import Int, Val

TILE_COLUMNS = 16
_ROW_TILES, _COLUMN_TILES = 2, 2
# Registers: four of sums, two of A, two of B.
_FIRST_A, _FIRST_B = 4, 6
# With fewer rows in all the weights are read for little work, at the speed of memory either way.
_MIN_ROWS = 4
_MIN_COLUMNS = 8
_LINE_BYTES = 64
# Pairs of tiles that together fetch the next panel.
_SHARES = 4
# Rows finished together: they share what varies by column only.
_ROWS_TOGETHER = 4


def tiles_suit(problem: IntegerProblem, isa: Isa) -> bool:
    """Whether the matrix unit computes this product, and faster than vectors do."""
    features = isa.features.split(",")
    if "+amx-int8" not in features or "+amx-tile" not in features or isa.lanes("i32") != TILE_COLUMNS:
        return False
    contraction = problem.contraction
    if problem.b_zero or any(x.b for x in contraction.outer) or contraction.vector.extent < _MIN_COLUMNS:
        return False
    return contraction.row.extent * prod(x.extent for x in contraction.outer) >= _MIN_ROWS


@dataclass(frozen=True, slots=True)
class _Tile:
    """Rows that one register holds: where they begin, and how many of them another tile has done already."""

    at: Position
    skipped: Int


class TileGenerator(IntegerGenerator):
    """Two tiles of rows by two of columns, multiplied together; rows finished one by one from scratch."""

    template = "integer-tiles"
    products_per_operation = 24  # of a tile instruction per cycle, in those of one fused multiply-add

    def __init__(self, problem: IntegerProblem, isa: Isa) -> None:
        if problem.flips_a:  # signed bytes need no flipping here
            problem = problem.with_signed_a()
        columns = problem.contraction.vector.extent
        panels = Panels(TILE_COLUMNS, min(_COLUMN_TILES, -(-columns // TILE_COLUMNS)), columns)
        super().__init__(problem, panels, isa)
        extent = self.contraction.row.extent
        self.tiles_per_line = -(-extent // TILE_ROWS)
        self.rows = -(-extent // self.tiles_per_line)
        self.row_tiles = (RowTile(0, self.tiles_per_line, self.rows),)
        self.num_tiles = self.tiles_per_line * prod(x.extent for x in self.contraction.outer)
        self.share: Int | None = None
        self.operation = "tdpbssd" if problem.a_is_signed else "tdpbusd"

    @property
    def num_units(self) -> int:
        """Pairs of tiles."""
        return -(-self.num_tiles // _ROW_TILES)

    def asked_units(self, loop: StridedLoop, num_rows: Int) -> Int:
        """Pairs of tiles of as many rows as a run has."""
        e, outer = self.emitter, self.contraction.outer
        asked = asked_units(e, loop, num_rows, outer, self.row_tiles, self.num_tiles)
        return e.udiv(e.add(asked, _ROW_TILES - 1), _ROW_TILES)

    @property
    def cut(self) -> Cut:
        """How the kernel is cut into chunks: by rows alone while all of B stays in a private cache."""
        operations = self.contraction.num_macs // self.products_per_operation
        wanted = choose_num_chunks(TARGET_CHUNKS, operations)
        if self.walks_panels and self.num_units >= 2 * wanted:
            return Cut(num_row_parts=wanted, num_panel_parts=1)
        return super().cut

    @property
    def walks_panels(self) -> bool:
        """Whether a pair of tiles meets all panels before the next pair: results are written line by line."""
        return self.factor.bytes.size_bytes <= self.isa.caches.l2_bytes // 3

    @property
    def tile_note(self) -> str:
        """What a block of tiles holds."""
        return f"tile {_ROW_TILES}x{self.rows}x{self.panels.width}x{self.problem.step_bytes}"

    @property
    def scratch_bytes(self) -> int:
        """The sums of a block."""
        return _ROW_TILES * TILE_ROWS * 4 * TILE_COLUMNS * _COLUMN_TILES

    def prologue(self) -> None:
        """Say how many rows and bytes each register holds."""
        step_bytes = self.problem.step_bytes
        sums, a = (self.rows, 4 * TILE_COLUMNS), (self.rows, step_bytes)
        b = (step_bytes // STEPS_PER_WORD, 4 * TILE_COLUMNS)
        registers = (sums,) * _FIRST_A + (a,) * (_FIRST_B - _FIRST_A) + (b,) * (amx.NUM_TILES - _FIRST_B)
        amx.configure(self.emitter, registers)

    def closing(self) -> None:
        """Hand the registers back, so that switching threads need not save them."""
        amx.release(self.emitter)

    def units(self, index: Int, panel: Panel, first: Int, last: Int) -> None:
        """One panel of columns for the pairs of tiles in `[first, last)`."""
        self.emitter.loop(first, last, 1, lambda number, _: self._pair(number, index, panel))

    def panels_of(self, panels: Sequence[tuple[Int, Int, Panel]], first: Int, last: Int) -> None:
        """Ranges of panels for units of rows: panel by panel, or row by row."""
        e = self.emitter
        if not self.walks_panels:
            super().panels_of(panels, first, last)
            return

        def unit(number: Int, _: Sequence[Val]) -> None:
            for low, high, panel in panels:

                def one(index: Int, _: Sequence[Val], panel: Panel = panel) -> None:
                    self._pair(number, index, panel)

                e.loop(low, high, 1, one)

        e.loop(first, last, 1, unit)

    def _pair(self, number: Int, index: Int, panel: Panel) -> None:
        e = self.emitter
        b, column = e.mul(index, self.factor.panel_stride), e.mul(index, self.panels.width)
        tiles = [self._tile_at(e.add(e.mul(number, _ROW_TILES), i), b, column) for i in range(_ROW_TILES)]
        self.share = e.urem(number, _SHARES) if self.prefetches else None
        self._block(tiles, b, panel)

    @property
    def prefetches(self) -> bool:
        """Whether the next panel is fetched meanwhile, a share of it by each of a few pairs."""
        return not self.walks_panels and self.panels.num_panels > 1 and self.num_units >= _SHARES

    def _tile_at(self, number: Int, b: Int, column: Int) -> _Tile:
        """A tile by number; one behind the last is the last again, all of it skipped."""
        e, extent = self.emitter, self.contraction.row.extent
        inside = number if self.num_tiles % _ROW_TILES == 0 else e.min(number, self.num_tiles - 1)
        line, place = e.udiv(inside, self.tiles_per_line), e.urem(inside, self.tiles_per_line)
        wanted = e.mul(place, self.rows)
        start = e.min(wanted, extent - self.rows)
        skipped = e.sub(wanted, start)
        if inside is not number:
            skipped = e.select_index(e.compare("slt", number, self.num_tiles), skipped, self.rows)
        return _Tile(self.at_row(self.at_outer(line, b, column), start), skipped)

    def _block(self, tiles: Sequence[_Tile], b: Int, panel: Panel) -> None:
        e, problem = self.emitter, self.problem
        vectors = panel.num_vectors
        for i in range(_ROW_TILES):
            for j in range(vectors):
                amx.clear(e, i * _COLUMN_TILES + j)
        row_bytes = STEPS_PER_WORD * TILE_COLUMNS * vectors
        self._runs(0, [t.at.a for t in tiles], b, problem.outer_steps, panel, row_bytes)
        for i in range(_ROW_TILES):
            for j in range(vectors):
                pointer = e.gep(self.pointers["scratch"], i * self.rows * row_bytes + j * 4 * TILE_COLUMNS)
                amx.store(e, i * _COLUMN_TILES + j, pointer, row_bytes)
        for i, tile in enumerate(tiles):
            self._finish_rows(i, tile, panel, row_bytes)

    def _runs(
        self, depth: int, a: Sequence[Int], b: Int, loops: Sequence[StridedLoop], panel: Panel, row_bytes: int
    ) -> None:
        """The summed loops around runs from `depth` on, then the tiles of a run."""
        e, problem = self.emitter, self.problem
        run_bytes = problem.run_words * row_bytes
        if depth < len(loops):
            inner = prod(x.extent for x in loops[depth + 1 :])
            loop = loops[depth]

            def turn(index: Int, _: Sequence[Val]) -> None:
                moved = [e.add(x, e.mul(index, loop.a)) for x in a]
                at_b = e.add(b, e.mul(index, inner * run_bytes))
                self._runs(depth + 1, moved, at_b, loops, panel, row_bytes)

            e.loop(0, loop.extent, 1, turn)
            return
        last = problem.filled_length - problem.step_bytes
        step_bytes = problem.step_bytes // STEPS_PER_WORD * row_bytes

        def step(number: Int, _: Sequence[Val]) -> None:
            ahead = e.mul(number, problem.step_bytes)
            ahead = ahead if last % problem.step_bytes == 0 else e.min(ahead, last)
            self._multiply(
                [e.add(x, ahead) for x in a], e.add(b, e.mul(number, step_bytes)), panel, row_bytes
            )

        e.loop(0, problem.steps_per_run, 1, step)

    def _multiply(self, a: Sequence[Int], b: Int, panel: Panel, row_bytes: int) -> None:
        e = self.emitter
        at_b = e.gep(self.pointers["b"], b)
        if self.share is not None:
            lines = self.problem.step_bytes // STEPS_PER_WORD * row_bytes // _LINE_BYTES
            ahead = e.gep(
                at_b, e.add(e.mul(self.share, lines // _SHARES * _LINE_BYTES), self.factor.panel_stride)
            )
            for line in range(lines // _SHARES):
                e.prefetch(e.gep(ahead, line * _LINE_BYTES), locality=2)
        for i, offset in enumerate(a):
            amx.load(e, _FIRST_A + i, e.gep(self.pointers["a"], offset), self.contraction.row.a)
            for j in range(panel.num_vectors):
                if i == 0:
                    amx.load(e, _FIRST_B + j, e.gep(at_b, j * 4 * TILE_COLUMNS), row_bytes)
                amx.dot(e, self.operation, i * _COLUMN_TILES + j, _FIRST_A + i, _FIRST_B + j)

    def _finish_rows(self, number: int, tile: _Tile, panel: Panel, row_bytes: int) -> None:
        e = self.emitter
        sums = e.gep(self.pointers["scratch"], number * self.rows * row_bytes)

        def rows(first: Int, count: int) -> None:
            at = self.at_row(tile.at, first)
            here = e.gep(sums, e.mul(first, row_bytes))
            start = self.initial(count, at, panel)
            values = [
                e.iadd(e.load(self.type, e.gep(here, 4 * TILE_COLUMNS * position)), value)
                for position, value in enumerate(start)
            ]
            self.finish(count, at, panel, values)

        def whole() -> None:
            together = min(_ROWS_TOGETHER, self.rows)
            groups, rest = divmod(self.rows, together)
            e.loop(0, groups, 1, lambda group, _: rows(e.mul(group, together), together))
            if rest:
                rows(groups * together, rest)

        def single() -> None:
            e.loop(tile.skipped, self.rows, 1, lambda row, _: rows(row, 1))

        e.if_(e.compare("eq", tile.skipped, 0), whole, single)
