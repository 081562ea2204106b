"""The kernel of an integer product: a register tile of int32 sums over words of four summed steps."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilewright.targets.cpu.arrangements import STEPS_PER_WORD
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.product.contraction.frame import Panel
from tilewright.targets.cpu.product.contraction.tiling import Tile, split_rows
from tilewright.targets.cpu.product.integer.dot import dot_of
from tilewright.targets.cpu.product.integer.frame import IntegerGenerator, Position
from tilewright.targets.cpu.product.integer.match import IntegerProblem
from tilewright.targets.cpu.product.loops import StridedLoop
from tilewright.targets.llvm.values import I32, Int, Val


class VectorGenerator(IntegerGenerator):
    """Words of A broadcast, vectors of B, sums in registers."""

    products_per_operation = 4

    def __init__(self, problem: IntegerProblem, tile: Tile, isa: Isa) -> None:
        super().__init__(problem, tile.panels, isa)
        self.dot = dot_of(isa, tile.panels.lanes)
        self.template = f"integer-{self.dot.name}"
        self.row_tiles = split_rows(self.contraction.row.extent, tile.max_rows)
        self.num_tiles = sum(t.count for t in self.row_tiles)
        self.loops = _word_loops(problem)

    @property
    def num_units(self) -> int:
        """Row tiles at every combination of the outer loops."""
        return prod(x.extent for x in self.contraction.outer) * self.num_tiles

    @property
    def sums_rows(self) -> bool:
        """Whether the sums of A's rows are needed, for B's zero point."""
        return self.problem.b_zero != 0

    @property
    def tile_note(self) -> str:
        """What a tile holds."""
        return f"tile {max(t.rows for t in self.row_tiles)}x{self.panels.width}"

    def units(self, index: Int, panel: Panel, first: Int, last: Int) -> None:
        """One panel of columns for the row tiles in `[first, last)`."""
        e = self.emitter
        b, column = e.mul(index, self.factor.panel_stride), e.mul(index, self.panels.width)

        def unit(number: Int, _: Sequence[Val]) -> None:
            position = self.at_outer(e.udiv(number, self.num_tiles), b, column)
            self._tile_number(e.urem(number, self.num_tiles), position, panel)

        e.loop(first, last, 1, unit)

    def _tile_number(self, number: Int, position: Position, panel: Panel) -> None:
        """The `number`-th row tile, whose size depends on where it lies."""
        e, first = self.emitter, self.row_tiles[0]
        if len(self.row_tiles) == 1:
            self._tile(first.rows, self.at_row(position, e.mul(number, first.rows)), panel)
            return
        second = self.row_tiles[1]
        at = e.add(e.mul(e.sub(number, first.count), second.rows), second.start)
        e.if_(
            e.compare("slt", number, first.count),
            lambda: self._tile(first.rows, self.at_row(position, e.mul(number, first.rows)), panel),
            lambda: self._tile(second.rows, self.at_row(position, at), panel),
        )

    # One register tile.

    def _tile(self, num_rows: int, at: Position, panel: Panel) -> None:
        e = self.emitter
        vectors = panel.num_vectors
        sums = self.initial(num_rows, at, panel)
        if self.sums_rows:
            sums += [e.zero(self.type)] * num_rows
        sums = self._words(0, at.a, at.b, 0, num_rows, panel, sums)
        if self.sums_rows:
            of_rows = sums[num_rows * vectors :]
            sums = [
                e.isub(total, e.imul(of_rows[number // vectors], self.problem.b_zero))
                for number, total in enumerate(sums[: num_rows * vectors])
            ]
        self.finish(num_rows, at, panel, sums)

    def _words(
        self, depth: int, a: Int, b: Int, word: Int, num_rows: int, panel: Panel, sums: Sequence[Val]
    ) -> list[Val]:
        """The loops over words from `depth` on; `word` counts them all."""
        e = self.emitter
        if depth == len(self.loops):
            return self._multiply(a, b, word, num_rows, panel, sums)
        loop = self.loops[depth]
        inner = prod(x.extent for x in self.loops[depth + 1 :])
        row_bytes = STEPS_PER_WORD * panel.num_vectors * self.panels.lanes
        is_innermost = depth == len(self.loops) - 1
        unroll = self._unroll(loop.extent, len(sums)) if is_innermost else 1

        def body(index: Int, values: Sequence[Val]) -> Sequence[Val]:
            for step in range(unroll):
                at = e.add(index, step)
                values = self._words(
                    depth + 1,
                    e.add(a, e.mul(at, loop.a)),
                    e.add(b, e.mul(at, inner * row_bytes)),
                    e.add(word, e.mul(at, inner)),
                    num_rows,
                    panel,
                    values,
                )
            return values

        return e.loop(0, loop.extent, unroll, body, [(self.type, v) for v in sums], nonempty=True)

    def _unroll(self, extent: int, num_sums: int) -> int:
        for unroll in (4, 2):
            if num_sums * unroll <= 64 and extent % unroll == 0:
                return unroll
        return 1

    def _multiply(
        self, a: Int, b: Int, word: Int, num_rows: int, panel: Panel, sums: Sequence[Val]
    ) -> list[Val]:
        """One word: the panel's vectors of B, and for each row one word of A times them."""
        e, lanes, problem = self.emitter, self.panels.lanes, self.problem
        at_b = e.gep(self.pointers["b"], b)
        words = [e.load(self.type, e.gep(at_b, 4 * lanes * j)) for j in range(panel.num_vectors)]
        vectors = [self.dot.widen_b(e, w) for w in words]
        at_a = e.gep(self.pointers["a"], a)
        ones = None
        if self.sums_rows:
            loaded = e.load(I32, e.gep(self.pointers["ones"], word, "i32"))
            ones = self.dot.widen_b(e, e.splat(loaded, lanes))
        result = list(sums)
        for r in range(num_rows):
            loaded = e.load(I32, e.gep(at_a, r * self.contraction.row.a), align_bytes=1)
            spread = self.dot.spread_a(e, loaded, lanes, flips=problem.flips_a)
            for j, vector in enumerate(vectors):
                at = r * len(vectors) + j
                result[at] = self.dot.step(e, spread, vector, result[at])
            if ones is not None:
                at = num_rows * len(vectors) + r
                result[at] = self.dot.step(e, spread, ones, result[at])
        return result


def _word_loops(problem: IntegerProblem) -> tuple[StridedLoop, ...]:
    """Loops over all words, neighbours merged where A walks on evenly."""
    loops = [StridedLoop(x.extent, x.a) for x in problem.outer_steps]
    loops.append(StridedLoop(problem.run_words, STEPS_PER_WORD))
    merged: list[StridedLoop] = []
    for x in loops:
        if merged and x.collapses_into(merged[-1]):
            merged[-1] = StridedLoop(merged[-1].extent * x.extent, x.a)
        elif x.extent > 1 or not merged:
            merged.append(x)
    return tuple(merged)
