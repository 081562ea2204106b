"""The kernel that packs B where it is no constant: panels of words as signed bytes, and sums per column.

For each of B's outer positions and each panel it reads four summed steps of a vector of columns at a time:
rows of columns that lie side by side, or the word of each column.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import prod

from tilewright.ir.dtype import DType
from tilewright.ir.nest import Operand
from tilewright.targets.cpu.arrangements import STEPS_PER_WORD
from tilewright.targets.cpu.cut import choose_num_chunks
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import Kernel
from tilewright.targets.cpu.kernel_function import kernel_function
from tilewright.targets.cpu.product.integer.dot import FLIP, dot_of
from tilewright.targets.cpu.product.integer.match import signed_zero
from tilewright.targets.cpu.product.integer.pack import packed_bytes, unsigned_zero
from tilewright.targets.cpu.product.integer.words import Words, words_of
from tilewright.targets.cpu.product.loops import StridedLoop, digits
from tilewright.targets.cpu.product.plan import KernelPlan, Strided
from tilewright.targets.llvm.emitter import Emitter
from tilewright.targets.llvm.values import Int, Val, vec

_ONES = 0x01010101
# Of a word of each of a vector's columns: loads, interleaving, the sum, the store; where columns lie side by
# side, where steps do, where neither.
_COLUMNS_CYCLES, _STEPS_CYCLES, _BYTES_CYCLES = 6.0, 20.0, 80.0


def packing_cycles(plan: KernelPlan) -> float:
    """Estimated cycles of one core for packing B."""
    words, outer = words_of(plan.summed, plan.dot), prod(x.extent for x in plan.outer if x.b)
    vectors = plan.panels.num_panels * plan.panels.num_vectors
    rest = _STEPS_CYCLES if words.run[0].b == 1 else _BYTES_CYCLES
    cycles = _COLUMNS_CYCLES if plan.vector.b == 1 else rest
    return outer * vectors * words.num_words * cycles


def pack_panels(plan: KernelPlan, local_position: int, isa: Isa) -> tuple[Kernel, KernelPlan]:
    """The kernel that packs B into two new locals, and the plan of the product that reads them."""
    words = words_of(plan.summed, plan.dot)
    assert plan.zeros is not None
    padded = plan.panels.num_panels * plan.panels.width
    outer = [x for x in plan.outer if x.b]
    positions = prod(x.extent for x in outer)
    packed = Operand("local", local_position, DType.INT8, (packed_bytes(plan),))
    sums = Operand("local", local_position + 1, DType.INT32, (positions * padded,))
    zeros = replace(plan.zeros, b=signed_zero(plan.zeros, plan.b.operand), b_sums=sums)
    product = replace(plan, b=Strided(packed), zeros=zeros)
    return _Packing(plan, outer, words, isa).kernel(packed, sums), product


class _Packing:
    """Emits the kernel."""

    def __init__(self, plan: KernelPlan, outer: Sequence[StridedLoop], words: Words, isa: Isa) -> None:
        self.plan, self.outer, self.words = plan, outer, words
        self.emitter = Emitter(attributes=isa.function_attributes)
        self.lanes = plan.panels.lanes
        self.type = vec("i32", self.lanes)
        self.dot = dot_of(isa, self.lanes)
        self.flips = plan.b.operand.dtype is DType.UINT8

    def kernel(self, packed: Operand, sums: Operand) -> Kernel:
        """The whole kernel: a chunk is some panels of some outer positions."""
        e, panels = self.emitter, self.plan.panels
        num_pieces = prod(x.extent for x in self.outer) * panels.num_panels
        num_chunks = choose_num_chunks(num_pieces, packed.num_elements // STEPS_PER_WORD)
        loop = next((x for x in self.outer[:1] if x.rows is not None), None)
        operands = (self.plan.b.operand, packed, sums)
        with kernel_function(e, operands, has_rows=loop is not None) as function:
            num_rows = function.num_rows()
            asked: Int = num_pieces
            if loop is not None and loop.rows is not None and num_rows is not None:
                asked = e.mul(e.iterations(loop.rows, num_rows), num_pieces // loop.extent)
            low, high = e.piece(function.chunk, num_chunks, asked)
            e.loop(low, high, 1, lambda number, _: self._panel(number, *function.pointers))
        return function.kernel(
            "pack",
            num_chunks=num_chunks,
            template="integer-panels",
            notes=(f"{num_pieces} panels of {self.words.num_words} words",),
            estimate_cycles=packing_cycles(self.plan),
        )

    def _panel(self, number: Int, source: Val, packed: Val, sums: Val) -> None:
        e, plan, panels = self.emitter, self.plan, self.plan.panels
        panel, at = e.urem(number, panels.num_panels), e.add(plan.b.offset, 0)
        for x, index in digits(e, e.udiv(number, panels.num_panels), self.outer):
            at = e.add(at, e.mul(index, x.b))
        at = e.add(at, e.mul(panel, panels.width * plan.vector.b))
        word_bytes = STEPS_PER_WORD * panels.width
        target = e.gep(packed, e.mul(number, self.words.num_words * word_bytes))
        totals = e.gep(sums, e.mul(number, panels.width), "i32")

        def vectors(columns: int) -> None:
            for j in range(panels.num_vectors):
                active = max(0, min(self.lanes, columns - j * self.lanes))
                shift = j * self.lanes
                here = e.gep(source, e.add(at, shift * plan.vector.b))
                self._vector(here, e.gep(target, STEPS_PER_WORD * shift), e.gep(totals, 4 * shift), active)

        if not panels.tail:
            vectors(panels.width)
        elif not panels.num_full:
            vectors(panels.tail)
        else:
            is_full = e.compare("slt", panel, panels.num_full)
            e.if_(is_full, lambda: vectors(panels.width), lambda: vectors(panels.tail))

    def _vector(self, source: Val, target: Val, totals: Val, active: int) -> None:
        """All words of some columns, of which the first are `active`."""
        e, plan, words = self.emitter, self.plan, self.words
        (run,) = words.run
        word_bytes = STEPS_PER_WORD * plan.panels.width
        zero = unsigned_zero(plan)
        assert plan.zeros is not None

        def run_at(depth: int, source: Val, target: Val, total: Sequence[Val]) -> list[Val]:
            if depth < len(words.outer):
                loop = words.outer[depth]
                inner = words.run_words * prod(x.extent for x in words.outer[depth + 1 :])

                def turn(index: Int, carried: Sequence[Val]) -> list[Val]:
                    here = e.gep(source, e.mul(index, loop.b))
                    return run_at(depth + 1, here, e.gep(target, e.mul(index, inner * word_bytes)), carried)

                return e.loop(0, loop.extent, 1, turn, [(self.type, v) for v in total])

            def word(
                number: Int, carried: Sequence[Val], steps: int = STEPS_PER_WORD, behind: int = 0
            ) -> list[Val]:
                here = e.gep(source, e.mul(number, STEPS_PER_WORD * run.b))
                value = self._word(here, run.b, steps, active)
                e.store(value, e.gep(target, e.mul(e.add(number, behind), word_bytes)))
                ones = self.dot.spread_a(e, e.constant(vec("i32"), _ONES), self.lanes, flips=False)
                return [self.dot.step(e, ones, self.dot.widen_b(e, value), carried[0])]

            whole, rest = divmod(words.run_length, STEPS_PER_WORD)
            first, repeated = words.repeated_words
            for number in range(first, first + repeated):
                e.store(e.zero(self.type), e.gep(target, number * word_bytes))
            first = min(first, whole) if repeated else whole
            carried = [(self.type, v) for v in total]
            total = e.loop(0, first, 1, word, carried)
            if first < whole:
                moved = partial(word, behind=repeated)
                total = e.loop(first, whole, 1, moved, [(self.type, v) for v in total])
            return word(whole, total, rest, repeated) if rest else list(total)

        (total,) = run_at(0, source, target, [e.zero(self.type)])
        if plan.zeros.a_operand is None:
            # As constants' sums: times minus A's zero point, plus what both zero points make of every step.
            constant = words.num_steps * zero * signed_zero(plan.zeros, plan.b.operand)
            total = e.iadd(e.imul(total, -zero), constant)
        e.store(total, totals)

    def _word(self, source: Val, step: int, num_steps: int, active: int) -> Val:
        """`num_steps` steps of each column as signed bytes of one word; zero where there is none."""
        e, lanes, columns = self.emitter, self.lanes, self.plan.vector.b
        if active == 0:
            return e.zero(self.type)
        if columns != 1:
            value = e.zero(self.type)
            for lane in range(active):
                value = e.insert(value, self._column(e.gep(source, lane * columns), step, num_steps), lane)
            return value
        narrow = vec("i8", lanes)
        rows: list[Val] = []
        for number in range(STEPS_PER_WORD):
            if number >= num_steps:
                rows.append(e.zero(narrow))
                continue
            pointer = e.gep(source, number * step)
            row = e.load(narrow, pointer) if active == lanes else e.masked_load(narrow, pointer, active)
            rows.append(e.xor(row, -128) if self.flips else row)
        pairs = [i // 2 + i % 2 * lanes for i in range(2 * lanes)]
        low, high = (e.shuffle(rows[i], rows[i + 1], pairs) for i in (0, 2))
        fours = [i // 4 * 2 + i % 2 + (i % 4 // 2) * 2 * lanes for i in range(4 * lanes)]
        return e.bitcast(e.shuffle(low, high, fours), self.type)

    def _column(self, source: Val, step: int, num_steps: int) -> Val:
        """A word of one column: loaded whole where its steps lie side by side, else byte by byte."""
        e = self.emitter
        if step == 1 and num_steps == STEPS_PER_WORD:
            loaded = e.load(vec("i32"), source, align_bytes=1)
            return e.xor(loaded, FLIP) if self.flips else loaded
        word = e.zero(vec("i8", STEPS_PER_WORD))
        for number in range(num_steps):
            loaded = e.load(vec("i8"), e.gep(source, number * step))
            word = e.insert(word, e.xor(loaded, -128) if self.flips else loaded, number)
        return e.bitcast(word, vec("i32"))
