"""The innermost loops of a contraction: summed steps around the FMAs of one register tile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

from tilewright.ir.dtype import DType
from tilewright.targets.cpu.arrangements import COMPACT_BYTES
from tilewright.targets.cpu.few_bits import FewBits
from tilewright.targets.cpu.kernel import BLOCK_STEPS, MAX_CHAIN_STEPS
from tilewright.targets.cpu.product.contraction.pack import FactorB
from tilewright.targets.cpu.product.frame import Frame, Panel
from tilewright.targets.cpu.product.lanes import load_compact, load_lanes
from tilewright.targets.cpu.product.loops import Spread, StridedLoop
from tilewright.targets.cpu.product.tiling import LEAST_SHARED_LANES
from tilewright.targets.llvm.emitter import Emitter
from tilewright.targets.llvm.values import Int, Val, vec

Body = Callable[[Int, Sequence[Val], Sequence[Val]], Sequence[Val]]


def widen_panel(frame: Frame, few: FewBits, num_steps: int, b: Int, panel: Panel, target: Val) -> None:
    """Emit a panel of B, whose numbers begin at `b`, as floats, step after step."""
    e, lanes = frame.emitter, frame.plan.panels.lanes
    words, line = few.words_per_block * panel.num_vectors * lanes, panel.num_vectors * lanes

    def block(number: Int, _: Sequence[Val]) -> None:
        first = e.mul(number, few.block)

        def store(step: Int, vectors: Sequence[Val], _: Sequence[Val]) -> Sequence[Val]:
            at = e.mul(e.add(first, step), line)
            for j, vector in enumerate(vectors):
                e.store(vector, e.moved(target, e.add(at, j * lanes), DType.FLOAT32.size_bytes))
            return ()

        _each_step(frame, few, e.add(b, e.mul(number, words)), panel, store, ())

    e.loop(0, num_steps // few.block, 1, block)


def widen_half(frame: Frame, half: DType, num_steps: int, b: Int, panel: Panel, target: Val) -> None:
    """Emit a panel of B of a half type, which begins at `b`, as floats."""
    e, lanes = frame.emitter, frame.plan.panels.lanes

    def step(number: Int, _: Sequence[Val]) -> None:
        for j in range(panel.num_vectors):
            at = e.add(e.mul(number, panel.num_vectors * lanes), j * lanes)
            found = load_lanes(e, half, frame.pointer("b", e.add(b, at), half.size_bytes), lanes)
            e.store(found, e.moved(target, at, DType.FLOAT32.size_bytes))

    e.loop(0, num_steps, 1, step)


def _each_step(
    frame: Frame, few: FewBits, b: Int, panel: Panel, body: Body, accumulators: Sequence[Val]
) -> list[Val]:
    """Emit the steps of a block of B at `b`: `body` has the number of each, and its weights as floats.

    Steps whose numbers a word of B holds are emitted together.
    """
    e, lanes, word = frame.emitter, frame.plan.panels.lanes, DType.INT32.size_bytes
    at_b, line = frame.pointer("b", b, word), panel.num_vectors * lanes * word
    places = [j * lanes * word for j in range(panel.num_vectors)]
    scales = [e.load(frame.type, e.gep(at_b, place)) for place in places]
    zeros = [e.load(frame.type, e.gep(at_b, line + place)) for place in places if few.has_zeros]

    def numbers(number: Int, sums: Sequence[Val]) -> Sequence[Val]:
        words = e.gep(at_b, e.mul(e.add(number, few.first_word), line))
        loaded = [e.load(vec("i32", lanes), e.gep(words, place)) for place in places]
        for step in range(few.per_word):
            vectors = []
            for j, (x, scale) in enumerate(zip(loaded, scales, strict=True)):
                above = 32 - few.bits * (step + 1)
                whole = e.cast("sitofp", e.ashr(e.shl(x, above) if above else x, 32 - few.bits), "float")
                vectors.append(e.fmul(e.fsub(whole, zeros[j]) if zeros else whole, scale))
            sums = body(e.add(e.mul(number, few.per_word), step), vectors, sums)
        return sums

    carried = [(frame.type, value) for value in accumulators]
    return list(e.loop(0, few.block // few.per_word, 1, numbers, carried, nonempty=True))


@dataclass(frozen=True, slots=True)
class RowPairs:
    """Accumulators of a tile whose last vectors are half empty: one vector holds those of two rows.

    A step then takes a multiply-add less for each of `num_pairs` pairs. Vectors that lie apart are row by
    row; together, those of all rows without the last come first, then the shared ones, then an odd row's.
    """

    num_rows: int
    num_vectors: int
    num_pairs: int
    lanes: int

    @property
    def num_whole(self) -> int:
        """Vectors that each row has of its own while they are together."""
        return self.num_vectors - (1 if self.num_pairs else 0)

    @property
    def num_sums(self) -> int:
        """Accumulators while they are together."""
        return self.num_rows * self.num_vectors - self.num_pairs

    @property
    def groups(self) -> list[range]:
        """Rows that share accumulators: pairs, and an odd one; without pairs every row alone."""
        size = 2 if self.num_pairs else 1
        return [range(r, min(r + size, self.num_rows)) for r in range(0, self.num_rows, size)]

    def join(self, e: Emitter, low: Val, high: Val | None = None) -> Val:
        """The lower half of one row's vector, behind it that of the other's; an odd row's as it is."""
        half = self.lanes // 2
        lanes = [*range(half), *range(self.lanes, self.lanes + half)]
        return low if high is None else e.shuffle(low, high, lanes)

    def together(self, e: Emitter, sums: Sequence[Val]) -> list[Val]:
        """Accumulators that lie apart, joined."""
        if not self.num_pairs:
            return list(sums)
        last = self.num_vectors - 1
        whole = [x for number, x in enumerate(sums) if number % self.num_vectors != last]
        return [
            *whole,
            *(self.join(e, *sums[last :: self.num_vectors][g.start : g.stop]) for g in self.groups),
        ]

    def apart(self, e: Emitter, sums: Sequence[Val]) -> list[Val]:
        """Accumulators that are together, row by row; upper halves of last vectors hold anything."""
        if not self.num_pairs:
            return list(sums)
        last, half = self.num_vectors - 1, self.lanes // 2
        upper = [*range(half, self.lanes)] * 2
        shared: list[Val] = []
        for number, x in enumerate(sums[self.num_rows * last :]):
            shared += [x, e.shuffle(x, None, upper)] if number < self.num_pairs else [x]
        return [x for r in range(self.num_rows) for x in (*sums[r * last : (r + 1) * last], shared[r])]


@dataclass(slots=True, eq=False)
class Sums:
    """Emits the sums of tiles; `totals` is memory for those of blocks, where sums are cut into such.

    `next_panel` is where to fetch from meanwhile, None for nothing; `part_range` the parts of `BLOCK_STEPS`
    steps that are summed now, None for all.
    """

    frame: Frame
    factor: FactorB
    totals: Val | None
    next_panel: Val | None = None
    part_range: tuple[Int, Int] | None = None

    @property
    def is_blocked(self) -> bool:
        """Whether totals are in memory, and accumulators start from zero in each block."""
        return self.totals is not None

    def total(self, number: int) -> Val:
        """Where the running total of an accumulator lies between blocks."""
        assert self.totals is not None
        return self.frame.emitter.gep(self.totals, number * self.frame.type.size_bytes)

    def steps(
        self,
        loops: Sequence[StridedLoop],
        rows: Sequence[int],
        a: Int,
        b: Int,
        panel: Panel,
        accumulators: list[Val],
    ) -> list[Val]:
        """The remaining summed loops, neighbours merged where A walks on evenly, around the FMAs."""
        e, few = self.frame.emitter, self.factor.few_bits
        per_step = 1 if few is None else few.block
        local = [replace(x, b=panel.step_strides[x.name], c=0, extras=()) for x in loops]
        if few is not None:
            local = [replace(x, extent=x.extent // per_step, a=x.a * per_step) for x in local]
        merged: list[StridedLoop] = []
        for x in local:
            if merged and x.collapses_into(merged[-1]):
                merged[-1] = replace(x, extent=x.extent * merged[-1].extent)
            else:
                merged.append(x)

        pairs = self._pairs(len(rows), panel)

        def nested(depth: int, a: Int, b: Int, carried: Sequence[Val]) -> list[Val]:
            if depth == len(merged):
                return self._multiply(rows, a, b, panel, carried, pairs)
            loop = merged[depth]
            is_innermost = depth == len(merged) - 1 and per_step == 1
            unroll = self._unroll(loop.extent, len(carried)) if is_innermost else 1
            return counted(depth, a, b, 0, loop.extent, unroll, carried)

        def counted(
            depth: int, a: Int, b: Int, low: Int, high: Int, unroll: int, carried: Sequence[Val]
        ) -> list[Val]:
            loop = merged[depth]

            def body(index: Int, values: Sequence[Val]) -> Sequence[Val]:
                for step in range(unroll):
                    at = e.add(index, step)
                    values = nested(
                        depth + 1, e.add(a, e.mul(at, loop.a)), e.add(b, e.mul(at, loop.b)), values
                    )
                return values

            return e.loop(low, high, unroll, body, [(self.frame.type, v) for v in carried], nonempty=True)

        def blocked(depth: int, a: Int, b: Int) -> None:
            """Run the loops from `depth` on in blocks, each summed from zero and added to the totals."""
            zeros = [e.constant(self.frame.type, 0.0)] * pairs.num_sums
            steps = per_step * prod(x.extent for x in merged[depth:])
            if steps <= MAX_CHAIN_STEPS:
                self._add_to_totals(rows, panel, pairs.apart(e, nested(depth, a, b, zeros)))
                return
            loop = merged[depth]
            inner = steps // loop.extent
            size = 1 if inner >= BLOCK_STEPS // 2 else -(-BLOCK_STEPS // inner)
            parts = -(-loop.extent // size)

            def block(part: Int, _: Sequence[Val]) -> None:
                if size == 1:
                    blocked(depth + 1, e.add(a, e.mul(part, loop.a)), e.add(b, e.mul(part, loop.b)))
                    return
                low = e.mul(part, size)
                high = e.min(e.add(low, size), loop.extent)
                unroll = self._unroll(size, len(zeros)) if loop.extent % size == 0 else 1
                unroll = unroll if depth == len(merged) - 1 and per_step == 1 else 1
                sums = counted(depth, a, b, low, high, unroll, zeros)
                self._add_to_totals(rows, panel, pairs.apart(e, sums))

            first, last = self.part_range or (0, parts)
            e.loop(first, last, 1, block)

        if self.is_blocked:
            blocked(0, a, b)
            return []
        return pairs.apart(e, nested(0, a, b, pairs.together(e, accumulators)))

    def _pairs(self, num_rows: int, panel: Panel) -> RowPairs:
        """How the rows of a tile share the last vectors of a panel whose upper halves are empty."""
        plan, factor, lanes = self.frame.plan, self.factor, self.frame.plan.panels.lanes
        is_plain = not factor.is_compact and factor.few_bits is None and plan.spread is None
        may_share = is_plain and lanes >= LEAST_SHARED_LANES and panel.active <= lanes // 2
        return RowPairs(num_rows, panel.num_vectors, num_rows // 2 if may_share else 0, lanes)

    def _add_to_totals(self, rows: Sequence[int], panel: Panel, sums: Sequence[Val]) -> None:
        e = self.frame.emitter
        for number, value in enumerate(sums):
            row, vector = divmod(number, panel.num_vectors)
            pointer = self.total(rows[row] * panel.num_vectors + vector)
            e.store(e.fadd(e.load(self.frame.type, pointer), value), pointer)

    def _unroll(self, extent: int, num_accumulators: int) -> int:
        """Steps per iteration: one suffices for full tiles, small ones would pay for the loop each step."""
        for unroll in (4, 2):
            if num_accumulators * unroll <= 16 and extent % unroll == 0:
                return unroll
        return 1

    def _multiply(
        self, rows: Sequence[int], a: Int, b: Int, panel: Panel, accumulators: Sequence[Val], pairs: RowPairs
    ) -> list[Val]:
        """One step: the panel's vectors of B, and for each row one scalar of A times them."""
        e, plan = self.frame.emitter, self.frame.plan
        if plan.spread is not None:
            return self._multiply_groups(plan.spread, rows, a, b, panel, accumulators)
        if self.factor.few_bits is not None:
            return self._multiply_block(self.factor.few_bits, rows, a, b, panel, accumulators)
        b_operand, a_operand = plan.b.operand, plan.a.operand
        b_dtype = self.factor.half or (plan.dtype if self.factor.is_packed else b_operand.dtype)
        lanes = self.frame.plan.panels.lanes
        at_b = self.frame.pointer("b", b, b_dtype.size_bytes)
        vectors = self._compact_vectors(b, panel) if self.factor.is_compact else []
        for j in range(panel.num_vectors if not vectors else 0):
            is_last = j == panel.num_vectors - 1
            active = panel.active if is_last and not self.factor.is_packed else lanes
            pointer = e.gep(at_b, j * lanes * b_dtype.size_bytes)
            if is_last and pairs.num_pairs:
                half = load_lanes(e, b_dtype, pointer, lanes // 2, active=active)
                vectors.append(e.shuffle(half, None, [*range(lanes // 2)] * 2))
                continue
            vectors.append(load_lanes(e, b_dtype, pointer, lanes, active=active))
        if self.next_panel is not None:
            ahead = e.moved(self.next_panel, b, b_dtype.size_bytes)
            e.prefetch(ahead)
        at_a = self.frame.pointer("a", a, a_operand.dtype.size_bytes)
        made = list(accumulators)
        for group in pairs.groups:
            spread = []
            for number in group:
                pointer = e.gep(at_a, rows[number] * plan.row.a * a_operand.dtype.size_bytes)
                spread.append(e.splat(load_lanes(e, a_operand.dtype, pointer, 1), lanes))
                for j in range(pairs.num_whole):
                    place = number * pairs.num_whole + j
                    made[place] = e.fma(spread[-1], vectors[j], made[place])
            if pairs.num_pairs:
                place = len(rows) * pairs.num_whole + group[0] // 2
                made[place] = e.fma(pairs.join(e, *spread), vectors[-1], made[place])
        return made

    def _compact_vectors(self, b: Int, panel: Panel) -> list[Val]:
        """A panel's vectors of B, whose elements lack their lowest byte."""
        e, lanes = self.frame.emitter, self.frame.plan.panels.lanes
        at = e.moved(self.frame.pointers["b"], e.mul(b, COMPACT_BYTES), 1)
        places = (e.gep(at, COMPACT_BYTES * lanes * j) for j in range(panel.num_vectors))
        return [load_compact(e, place, lanes) for place in places]

    def _multiply_block(
        self, few: FewBits, rows: Sequence[int], a: Int, b: Int, panel: Panel, accumulators: Sequence[Val]
    ) -> list[Val]:
        """All steps that share a scale, each vector of weights times an element of A for each row."""
        e, plan = self.frame.emitter, self.frame.plan
        a_dtype, (loop,) = plan.a.operand.dtype, plan.summed

        def multiply(step: Int, vectors: Sequence[Val], sums: Sequence[Val]) -> list[Val]:
            at_a = self.frame.pointer("a", e.add(a, e.mul(step, loop.a)), a_dtype.size_bytes)
            made = list(sums)
            for number, r in enumerate(rows):
                pointer = e.gep(at_a, r * plan.row.a * a_dtype.size_bytes)
                spread = e.splat(load_lanes(e, a_dtype, pointer, 1), plan.panels.lanes)
                for j, vector in enumerate(vectors):
                    place = number * len(vectors) + j
                    made[place] = e.fma(spread, vector, made[place])
            return made

        return _each_step(self.frame, few, b, panel, multiply, accumulators)

    def _multiply_groups(
        self, spread: Spread, rows: Sequence[int], a: Int, b: Int, panel: Panel, accumulators: Sequence[Val]
    ) -> list[Val]:
        """All steps within a group: each vector of A once, of which every step picks one element a group."""
        e, plan, lanes = self.frame.emitter, self.frame.plan, self.frame.plan.panels.lanes
        dtype, sums = plan.a.operand.dtype, list(accumulators)
        at_a = self.frame.pointer("a", a, dtype.size_bytes)
        for j in range(panel.num_vectors):
            vectors = []
            for step in range(spread.size):
                at = e.add(b, step * panel.step_strides[spread.loop.name] + j * lanes)
                vectors.append(e.load(self.frame.type, self.frame.pointer("b", at, plan.dtype.size_bytes)))
            for number, r in enumerate(rows):
                shift = r * plan.row.a + j * lanes
                loaded = load_lanes(e, dtype, e.gep(at_a, shift * dtype.size_bytes), lanes)
                position = number * panel.num_vectors + j
                for step, vector in enumerate(vectors):
                    own = [lane // spread.size * spread.size + step for lane in range(lanes)]
                    sums[position] = e.fma(e.shuffle(loaded, None, own), vector, sums[position])
        return sums
