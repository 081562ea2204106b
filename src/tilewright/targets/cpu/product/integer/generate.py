"""The kernel of a plan of byte products, by the dot that it names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from tilewright.targets.cpu.arrangements import STEPS_PER_WORD
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import Kernel
from tilewright.targets.cpu.product.epilogue import store_tile
from tilewright.targets.cpu.product.frame import Frame, Panel, Position
from tilewright.targets.cpu.product.integer.depthwise import generate_by_column
from tilewright.targets.cpu.product.integer.dot import planned_dot
from tilewright.targets.cpu.product.integer.frame import ByteWalk, byte_kernel, sums_rows
from tilewright.targets.cpu.product.integer.pack import PackedBytes, flips_a
from tilewright.targets.cpu.product.integer.panels import pack_panels
from tilewright.targets.cpu.product.integer.tiles import generate_tiles
from tilewright.targets.cpu.product.integer.words import Words
from tilewright.targets.cpu.product.loops import StridedLoop
from tilewright.targets.cpu.product.plan import KernelPlan
from tilewright.targets.cpu.product.walk import Range
from tilewright.targets.llvm.values import I32, Int, Val


def generate_integer(plan: KernelPlan, isa: Isa) -> Kernel:
    """The kernel of a plan of byte products, of which B is packed already."""
    if plan.dot == "byte tiles":
        return generate_tiles(plan, isa)
    return (generate_by_column if plan.dot.endswith("by column") else generate_words)(plan, isa)


def byte_kernels(plan: KernelPlan, isa: Isa, next_local: int) -> tuple[Kernel, ...]:
    """The kernels of a plan: where B is no constant it is packed first, into locals from that number on."""
    if plan.packing != "in panels" or (plan.zeros is not None and plan.zeros.b_sums is not None):
        return (generate_integer(plan, isa),)
    packing, packed = pack_panels(plan, next_local, isa)
    return packing, replace(generate_integer(packed, isa), plan=plan)


def generate_words(plan: KernelPlan, isa: Isa) -> Kernel:
    """The kernel of a plan that multiplies words of four bytes."""
    name = planned_dot(plan).name
    note = f"tile {max(t.rows for t in plan.row_tiles)}x{plan.panels.width}"
    return byte_kernel(plan, isa, _WordTiles, f"integer-{name}", note)


ONES = 0x01010101


class _WordTiles(ByteWalk):
    """Words of A broadcast, vectors of B, sums in registers."""

    def __init__(self, frame: Frame, factor: PackedBytes, isa: Isa) -> None:
        super().__init__(frame, factor, isa)
        self.dot = planned_dot(self.plan)
        self.loops = _word_loops(self.words)
        self.sums_rows = sums_rows(self.plan)
        self.next_panel: Int = 0  # bytes from a word of this panel to what is fetched of the next

    def units(self, index: Int, panel: Panel, panels: Range, units: Range) -> None:
        """One panel of columns for a chunk's row tiles."""
        e = self.emitter
        b, column = self.panel_start(index)

        def unit(number: Int, _: Sequence[Val]) -> None:
            if self.plan.fetches_ahead:
                # Each unit fetches one of the vectors of every word of the next panel.
                vector = e.urem(number, self.panels.num_vectors)
                self.next_panel = e.add(e.mul(vector, self.type.size_bytes), self.factor.panel_stride)
            position = self.at_outer(e.udiv(number, self.num_tiles), b, column)
            tile = e.urem(number, self.num_tiles)
            self.tile_number(tile, position, lambda rows, at: self._tile(rows, at, panel))

        e.loop(*units, 1, unit)

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
                e.isub(total, e.imul(of_rows[number // vectors], self.b_zero))
                for number, total in enumerate(sums[: num_rows * vectors])
            ]
        store_tile(self.frame, num_rows, at, panel, sums)

    def _words(
        self, depth: int, a: Int, b: Int, word: Int, num_rows: int, panel: Panel, sums: Sequence[Val]
    ) -> list[Val]:
        """The loops over words from `depth` on; `word` counts them all."""
        e = self.emitter
        if depth == len(self.loops):
            return self._multiply(a, b, word, num_rows, panel, sums)
        loop = self.loops[depth]
        inner = prod(x.extent for x in self.loops[depth + 1 :])
        row_bytes = self.word_bytes(panel)
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
        e, lanes, flips = self.emitter, self.panels.lanes, flips_a(self.plan)
        at_b = e.gep(self.pointers["b"], b)
        words = [e.load(self.type, e.gep(at_b, 4 * lanes * j)) for j in range(panel.num_vectors)]
        vectors = [self.dot.widen_b(e, w) for w in words]
        if self.plan.fetches_ahead:
            e.prefetch(e.gep(at_b, self.next_panel))
        at_a = e.gep(self.pointers["a"], a)
        ones = None
        if self.sums_rows:
            ones = self.dot.widen_b(e, e.splat(self._ones(word), lanes))
        result = list(sums)
        for r in range(num_rows):
            loaded = e.load(I32, e.gep(at_a, r * self.plan.row.a), align_bytes=1)
            spread = self.dot.spread_a(e, loaded, lanes, flips=flips)
            for j, vector in enumerate(vectors):
                at = r * len(vectors) + j
                result[at] = self.dot.step(e, spread, vector, result[at])
            if ones is not None:
                at = num_rows * len(vectors) + r
                result[at] = self.dot.step(e, spread, ones, result[at])
        return result

    def _ones(self, word: Int) -> Val:
        """A byte of one for each step of a word that exists: times A they give its sums."""
        e, words = self.emitter, self.words
        if self.packed.ones is not None:
            return e.load(I32, e.gep(self.pointers["ones"], word, "i32"))
        last = (1 << 8 * ((words.run_length - 1) % STEPS_PER_WORD + 1)) - 1
        is_last = e.compare("eq", e.urem(word, words.run_words), words.run_words - 1)
        ones = e.select_index(is_last, ONES & last, ONES) if last < ONES else ONES
        return e.cast("trunc", e.index(ones), "i32")


def _word_loops(words: Words) -> tuple[StridedLoop, ...]:
    """Loops over all words, neighbours merged where A walks on evenly."""
    loops = [StridedLoop(x.extent, x.a) for x in words.outer]
    loops.append(StridedLoop(words.run_words, STEPS_PER_WORD))
    merged: list[StridedLoop] = []
    for x in loops:
        if merged and x.collapses_into(merged[-1]):
            merged[-1] = StridedLoop(merged[-1].extent * x.extent, x.a)
        elif x.extent > 1 or not merged:
            merged.append(x)
    return tuple(merged)
