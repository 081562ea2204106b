"""The kernel of attention: a block's queries stay, keys and values come step by step, sums are rescaled.

A softmax over keys that come one tile after another needs the largest score so far: where a later tile has a
larger one, what was summed up is scaled down to it (Milakov and Gimelshein, 2018; Dao et al., 2022).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf

from tilewright.ir.dtype import DType
from tilewright.ir.nest import Nest, Operand, operands_of
from tilewright.options import Accuracy
from tilewright.targets.cuda.attention.decode import DecodeAttention
from tilewright.targets.cuda.attention.plan import AttentionPlan, DecodePlan, find_attention, plan_attention
from tilewright.targets.cuda.attention.scores import HeadCode, reading
from tilewright.targets.cuda.emitter import CudaEmitter
from tilewright.targets.cuda.kernel import CountersOperand, Kernel, KernelArg
from tilewright.targets.cuda.products.multiply import multiplier
from tilewright.targets.cuda.products.tiles import PITCH_BYTES
from tilewright.targets.cuda.rates import Rates
from tilewright.targets.llvm.attention import CHANNEL, DEPTH, AttentionProblem, Walked
from tilewright.targets.llvm.exprgen import emit_expr
from tilewright.targets.llvm.layout import Declined, OperandKey
from tilewright.targets.llvm.module_text import name_by_content
from tilewright.targets.llvm.values import FLOAT, Bool, Int, Type, Val
from tilewright.targets.llvm.vecmath32 import exp_nonpositive

_LANES = 4
"""float32 that are copied at once."""


def lower_attention(
    nests: Sequence[Nest], accuracy: Accuracy, rates: Rates, position: int = 0
) -> Kernel | Declined:
    """The kernel of six nests that are one attention; `position` is that of the next temporary."""
    problem = find_attention(nests)
    if isinstance(problem, Declined):
        return problem
    plan = plan_attention(problem, accuracy, rates)
    if isinstance(plan, Declined):
        return plan
    keys = {walked.operand.key for walked in problem.operands}
    operands = tuple(o for o in operands_of(nests) if o.key in keys)
    args: list[KernelArg] = [*operands]
    written = [problem.result.operand.key]
    if isinstance(plan, DecodePlan) and plan.num_parts > 1:
        shape = (plan.num_blocks, plan.rows, plan.channels + 2)
        args += [Operand("local", position, DType.FLOAT32, shape), CountersOperand(problem.num_heads)]
        written.append(("local", position))
    emitter = CudaEmitter()
    with emitter.kernel(len(args), plan.num_threads, takes_all_registers=True) as pointers:
        by_key = {o.key: p for o, p in zip(operands, pointers, strict=False)}
        if isinstance(plan, DecodePlan):
            DecodeAttention(emitter, problem, plan, by_key, pointers[len(operands) :]).emit()
        else:
            _TiledAttention(emitter, problem, plan, by_key).emit()
    symbol, text = name_by_content(emitter.text(), "attention")
    return Kernel(
        symbol,
        text,
        (plan.num_blocks // problem.num_heads, problem.num_heads, 1),
        (plan.num_threads, 1, 1),
        tuple(args),
        tuple(written),
        "attention",
        macs=problem.num_macs,
        shared_bytes=plan.shared_bytes,
        notes=(str(plan),),
    )


class _TiledAttention(HeadCode):
    def __init__(
        self,
        e: CudaEmitter,
        problem: AttentionProblem,
        plan: AttentionPlan,
        pointers: Mapping[OperandKey, Val],
    ) -> None:
        super().__init__(e, problem, pointers)
        self.plan = plan
        self.first_row = e.mul(e.block("x"), plan.rows)
        self.first = multiplier(e, plan.scores, problem.query.operand.dtype)
        self.second = multiplier(e, plan.values, problem.query.operand.dtype)
        self.shared = e.shared_array(plan.shared_bytes)
        self.keys_at = plan.query_bytes
        self.values_at = self.keys_at + plan.key_bytes

    def emit(self) -> None:
        """All threads of the grid."""
        e, plan, problem = self.e, self.plan, self.problem
        depth = problem.extents[DEPTH]
        self._fill(0, plan.rows, problem.query, problem.row, self.first_row, self.num_rows, depth)
        score_places, result_places = self.first.places(self.thread), self.second.places(self.thread)
        rows = list(dict.fromkeys(key for key, _, _ in score_places))
        row_of = {key: row for key, row, _ in score_places}

        def step(number: Int, carried: list[Val]) -> Sequence[Val]:
            tops = dict(zip(rows, carried, strict=False))
            totals = dict(zip(rows, carried[len(rows) :], strict=False))
            results = carried[2 * len(rows) :]
            key = e.mul(number, plan.keys)
            e.barrier()  # powers and values of the step before are multiplied
            self._fill(self.keys_at, plan.keys, problem.key, problem.column, key, self.num_keys, depth)
            self._fill_values(key)
            e.barrier()
            scores = self._scores(score_places, key)
            e.barrier()  # keys are multiplied; powers lie in their place
            scales: dict[int, Val] = {}
            for row in rows:
                own = [s for s, (at, _, _) in zip(scores, score_places, strict=True) if at == row]
                top = e.maximum(tops[row], self._over_row(_folded(own, e.maximum), e.maximum))
                shift = e.select(e.fcmp("oeq", top, -inf), 0.0, top)
                scales[row] = exp_nonpositive(e, e.fsub(tops[row], shift))
                tops[row] = top
                powers = [exp_nonpositive(e, e.fsub(s, shift)) for s in own]
                totals[row] = e.fma(totals[row], scales[row], _folded(powers, e.fadd))
                columns = [column for at, _, column in score_places if at == row]
                for power, column in zip(powers, columns, strict=True):
                    self._store_power(power, row_of[row], column)
            results = [
                e.fmul(result, scales[at]) for result, (at, _, _) in zip(results, result_places, strict=True)
            ]
            e.barrier()
            for chunk in range(plan.key_chunks):
                powers_at = e.shared_gep(self.shared, self.keys_at + chunk * plan.rows * PITCH_BYTES)
                offset = chunk * plan.padded_channels * PITCH_BYTES
                values = e.shared_gep(self.shared, self.values_at + offset)
                results = self.second.tile(powers_at, values, self.thread, results)
            return [*tops.values(), *totals.values(), *results]

        carried: list[tuple[Type, Val | int]] = [(FLOAT, e.constant(FLOAT, -inf))] * len(rows)
        carried += [(FLOAT, 0)] * len(rows)
        carried += [(type, 0) for type in self.second.sums]
        made = e.loop(0, -(-self.num_keys // plan.keys), 1, step, carried)
        totals = dict(zip(rows, made[len(rows) :], strict=False))
        self._store(totals, result_places, made[2 * len(rows) :])

    # Tiles.

    def _fill(
        self, at: int, num_rows: int, walked: Walked, loop: str, first: Int, limit: int, depth: int
    ) -> None:
        """Rows of queries or keys to shared memory, chunk after chunk of their depth; zeros beyond."""
        e, plan = self.e, self.plan
        base, down, right = self.base(walked), walked.step(loop), walked.step(DEPTH)
        steps = [step for name, step in walked.steps.items() if name != DEPTH]
        is_whole = all(step % _LANES == 0 for step in (*steps, walked.start, depth))
        lanes = _LANES if right == 1 and is_whole else 1
        groups = plan.depth_chunks * plan.per_chunk // lanes

        def copy(number: Int, _: list[Val]) -> None:
            if right == 1 or down != 1:
                row, group = e.udiv(number, groups), e.urem(number, groups)
            else:
                row, group = e.urem(number, num_rows), e.udiv(number, num_rows)
            column, place = e.mul(group, lanes), e.add(first, row)
            is_row, is_column = (
                self._below(place, limit, num_rows),
                self._below(column, depth, plan.per_chunk),
            )
            source = e.gep(base, e.add(e.mul(place, down), e.mul(column, right)), "float")
            target = self._place(at, num_rows, row, column)
            self._move(source, self.e.both(is_row, is_column), target, lanes)

        e.loop(self.thread, num_rows * groups, plan.scores.tile.num_threads, copy)

    def _fill_values(self, first: Int) -> None:
        """Values of a step to shared memory, a row a channel: a warp takes eight channels of four keys, whose
        words lie in different banks."""
        e, plan, value = self.e, self.plan, self.problem.value
        base, down = self.base(value), value.step(self.problem.column)
        channels = self.problem.extents[CHANNEL]

        def copy(number: Int, _: list[Val]) -> None:
            key, rest = e.urem(number, 4), e.udiv(number, 4)
            channel, rest = e.urem(rest, plan.padded_channels), e.udiv(rest, plan.padded_channels)
            key = e.add(key, e.mul(rest, 4))
            place = e.add(first, key)
            is_key, is_channel = (
                self._below(place, self.num_keys, plan.keys),
                self._below(channel, channels, 16),
            )
            source = e.gep(base, e.add(e.mul(place, down), channel), "float")
            target = self._place(self.values_at, plan.padded_channels, channel, key)
            self._move(source, self.e.both(is_key, is_channel), target, 1)

        e.loop(self.thread, plan.padded_channels * plan.keys, plan.scores.tile.num_threads, copy)

    def _move(self, source: Val, is_there: Bool, target: Val, lanes: int) -> None:
        """float32 from memory to shared memory, as they are multiplied."""
        e = self.e
        type = FLOAT.with_lanes(lanes)
        (value,) = e.if_(
            is_there, lambda: [e.load(type, source, align_bytes=4 * lanes)], lambda: [e.zero(type)], [type]
        )
        parts = [self.first.as_element(e.extract(value, lane)) for lane in range(lanes)] if lanes > 1 else []
        stored = self.first.element.with_lanes(lanes)
        made = e.zero(stored) if parts else self.first.as_element(value)
        for lane, part in enumerate(parts):
            made = e.insert(made, part, lane)
        e.shared_store(made, target, align_bytes=stored.size_bytes)

    def _place(self, at: int, num_rows: int, row: Int, column: Int) -> Val:
        """Where an element lies: rows of 64 bytes, chunk after chunk."""
        e, plan = self.e, self.plan
        chunk, inside = e.udiv(column, plan.per_chunk), e.urem(column, plan.per_chunk)
        row_at = e.mul(e.add(e.mul(chunk, num_rows), row), PITCH_BYTES)
        return e.shared_gep(self.shared, e.add(e.add(row_at, e.mul(inside, plan.element_bytes)), at))

    def _below(self, place: Int, limit: int, unit: int) -> Bool:
        """Whether there is an element; known where whole units fill what there is."""
        return True if limit % unit == 0 else self.e.compare("slt", place, limit)

    # Scores.

    def _scores(self, places: Sequence[tuple[int, Int, Int]], first_key: Int) -> list[Val]:
        """The finished scores of a step; of keys that are not there the least."""
        e, plan = self.e, self.plan
        sums = [e.zero(type) for type in self.first.sums]
        for chunk in range(plan.depth_chunks):
            queries = e.shared_gep(self.shared, chunk * plan.rows * PITCH_BYTES)
            keys = e.shared_gep(self.shared, self.keys_at + chunk * plan.keys * PITCH_BYTES)
            sums = self.first.tile(queries, keys, self.thread, sums)
        bases = self.mask_bases()
        found: list[Val] = []
        for value, (_, row, column) in zip(sums, places, strict=True):
            key = e.add(first_key, column)
            score = self._finished(value, e.add(self.first_row, row), key, bases)
            is_there = self._below(key, self.num_keys, plan.keys)
            found.append(score if isinstance(is_there, bool) else e.select(is_there, score, -inf))
        return found

    def _finished(self, value: Val, row: Int, key: Int, bases: Mapping[int, Val]) -> Val:
        e, plan = self.e, self.plan
        # Masks of what is not there are those of the last that is.
        if self.num_rows % plan.rows:
            row = e.min(row, self.num_rows - 1)
        if self.num_keys % plan.keys:
            key = e.min(key, self.num_keys - 1)
        return self.finished(value, row, key, bases)

    def _over_row(self, value: Val, combine: Callable[[Val, Val], Val]) -> Val:
        """One value from the lanes that have a row."""
        distance = self.first.row_lanes // 2
        while distance:
            value = combine(value, self.e.from_lane(value, distance))
            distance //= 2
        return value

    def _store_power(self, power: Val, row: Int, column: Int) -> None:
        element = self.first.as_element(power)
        self.e.shared_store(element, self._place(self.keys_at, self.plan.rows, row, column))

    # The end.

    def _store(
        self, totals: Mapping[int, Val], places: Sequence[tuple[int, Int, Int]], sums: Sequence[Val]
    ) -> None:
        """Divide, finish and store every element that there is."""
        e, problem, plan = self.e, self.problem, self.plan
        base, down = self.base(problem.result), problem.result.step(problem.row)
        channels = problem.extents[CHANNEL]
        divisors = {}
        for row, own in totals.items():
            total = self._over_row(own, e.fadd)
            divisors[row] = emit_expr(e, problem.divisor, reading(total))
        by_row: dict[int, list[tuple[Int, Int, Val]]] = {}
        for (key, at, column), value in zip(places, sums, strict=True):
            by_row.setdefault(key, []).append((at, column, value))

        def store(key: int, place: Int) -> None:
            for _, column, value in by_row[key]:
                made = e.fdiv(value, divisors[key])
                if problem.result_finish is not None:
                    made = emit_expr(e, problem.result_finish, reading(made), made)
                target = e.gep(base, e.add(e.mul(place, down), column), "float")
                e.if_(self._below(column, channels, 16), partial(e.store, made, target))

        for key in by_row:
            place = e.add(self.first_row, by_row[key][0][0])
            e.if_(self._below(place, self.num_rows, plan.rows), partial(store, key, place))


def _folded(values: Sequence[Val], combine: Callable[[Val, Val], Val]) -> Val:
    """One value from several, by pairs: short chains."""
    found = list(values)
    while len(found) > 1:
        found = [
            combine(found[i], found[i + 1]) if i + 1 < len(found) else found[i]
            for i in range(0, len(found), 2)
        ]
    return found[0]
