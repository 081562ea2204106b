"""The kernel of attention of few queries over many keys: blocks share the keys, and join what they found.

Lanes of a group hold the channels of a query and take one key at a time, which they read side by side;
groups, warps and blocks take different keys. Each has the largest score, the sum of powers and the weighted
sums of its own keys; two such states are joined by scaling both down to the larger score (Dao et al.,
"Flash-Decoding", 2023), always in the same order, so that equal inputs give equal bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf

from tilewright.records import dataclass
from tilewright.targets.cuda.attention.plan import GROUPED_KEYS, DecodePlan
from tilewright.targets.cuda.attention.scores import HeadCode, reading
from tilewright.targets.cuda.emitter import WARP, CudaEmitter
from tilewright.targets.llvm.attention import CHANNEL, DEPTH, AttentionProblem, Walked
from tilewright.targets.llvm.exprgen import emit_expr
from tilewright.targets.llvm.layout import OperandKey
from tilewright.targets.llvm.values import FLOAT, Bool, Int, Type, Val
from tilewright.targets.llvm.vecmath32 import exp_nonpositive

_Load = Callable[[Int, Int, Int], Val]
"""What a warp or block found for a query: the largest score (0), the sum of powers (1), channels."""


@dataclass(frozen=True, slots=True, eq=False)
class _State:
    """Of one query: the largest score, the sum of powers, and weighted sums of some channels."""

    top: Val
    total: Val
    sums: tuple[Val, ...]

    @property
    def values(self) -> tuple[Val, ...]:
        """All of it."""
        return self.top, self.total, *self.sums


class DecodeAttention(HeadCode):
    """One kernel as it is written; `parts` are where blocks that share keys leave states, and counters."""

    def __init__(
        self,
        e: CudaEmitter,
        problem: AttentionProblem,
        plan: DecodePlan,
        pointers: Mapping[OperandKey, Val],
        parts: Sequence[Val],
    ) -> None:
        super().__init__(e, problem, pointers)
        self.plan, self.parts = plan, parts
        self.lane = e.urem(self.thread, plan.group)
        self.num_channels = problem.extents[CHANNEL]

    def emit(self) -> None:
        """All threads of the grid."""
        e, plan = self.e, self.plan
        self.shared = e.shared_array(plan.shared_bytes)
        states = self._warp_states(self._own_states())
        e.if_(e.compare("slt", e.urem(self.thread, WARP), plan.group), lambda: self._leave(states))
        e.barrier()

        def of_warp(warp: Int, row: Int, place: Int) -> Val:
            return e.shared_load(FLOAT, e.shared_gep(self.shared, e.mul(self._number(warp, row, place), 4)))

        if plan.num_parts == 1:
            self._each(lambda row, channel: self._store(row, channel, of_warp, plan.num_warps))
            return
        planes, counters = self.parts
        head = e.block("y")
        first = e.mul(head, plan.num_parts)

        def of_block(part: Int, row: Int, place: Int) -> Val:
            return e.load(FLOAT, at(part, row, place))

        def at(part: Int, row: Int, place: Int) -> Val:
            return e.gep(planes, self._number(e.add(first, part), row, place), "float")

        def keep(row: Int, channel: Int) -> None:
            top, total, value = self._joined(of_warp, plan.num_warps, row, channel)
            part = e.block("x")

            def both() -> None:
                e.store(top, at(part, row, 0))
                e.store(total, at(part, row, 1))

            e.if_(e.compare("eq", channel, 0), both)
            e.store(value, at(part, row, e.add(channel, 2)))

        def end() -> None:
            self._each(lambda row, channel: self._store(row, channel, of_block, plan.num_parts))

        self._each(keep)
        e.if_(e.is_last_block(e.gep(counters, e.mul(head, 4)), plan.num_parts, self.shared), end)

    def _number(self, owner: Int, row: Int, place: Int) -> Int:
        """Where states of warps or blocks have the largest score (0), the sum of powers (1), and channels."""
        e = self.e
        return e.add(e.mul(e.add(e.mul(owner, self.plan.rows), row), self.num_channels + 2), place)

    def _leave(self, states: Sequence[_State]) -> None:
        """The states of a warp in shared memory."""
        e = self.e
        warp = e.udiv(self.thread, WARP)
        is_first = e.compare("eq", self.lane, 0)
        places = self._places(self.plan.value_lanes, self.num_channels)
        for row, state in enumerate(states):
            all_places: list[tuple[Int, Bool]] = [(0, is_first), (1, is_first)]
            all_places += [(e.add(channel, 2), is_there) for channel, is_there in places]
            for (place, is_there), value in zip(all_places, state.values, strict=True):
                target = e.shared_gep(self.shared, e.mul(self._number(warp, row, place), 4))
                e.if_(is_there, partial(e.shared_store, value, target))

    # Keys.

    def _own_states(self) -> list[_State]:
        """What a group of lanes finds in its keys of the block's part."""
        e, plan, problem = self.e, self.plan, self.problem
        queries = [
            self._row(problem.query, problem.row, row, DEPTH, plan.key_lanes) for row in range(plan.rows)
        ]
        num_sums = len(self._places(plan.value_lanes, self.num_channels))
        base, own = e.mul(e.block("x"), plan.part_keys), e.udiv(self.thread, plan.group)
        apart = plan.num_groups
        bases = self.mask_bases()
        are_all_there = plan.num_keys % plan.part_keys == plan.part_keys % (GROUPED_KEYS * apart) == 0

        def step(start: Int, carried: list[Val]) -> Sequence[Val]:
            keys = [e.add(e.add(e.add(base, own), start), i * apart) for i in range(GROUPED_KEYS)]
            safe = [e.min(key, self.num_keys - 1) for key in keys]
            rows = [self._row(problem.key, problem.column, key, DEPTH, plan.key_lanes) for key in safe]
            values = [
                self._row(problem.value, problem.column, key, CHANNEL, plan.value_lanes) for key in safe
            ]
            end = e.min(e.add(base, plan.part_keys), self.num_keys)
            there: list[Bool] = [are_all_there or e.compare("slt", key, end) for key in keys]
            # Of no weight, but infinity times zero is none.
            values = [
                row if isinstance(is_there, bool) else [e.select(is_there, value, 0.0) for value in row]
                for row, is_there in zip(values, there, strict=True)
            ]
            made: list[Val] = []
            for row, query in enumerate(queries):
                top, total, *sums = carried[row * (2 + num_sums) : (row + 1) * (2 + num_sums)]
                scores: list[Val] = []
                for is_there, place, elements in zip(there, safe, rows, strict=True):
                    product = e.zero(FLOAT)
                    for a, b in zip(query, elements, strict=True):
                        product = e.fma(a, b, product)
                    score = self.finished(self._over_group(product, e.fadd), row, place, bases)
                    scores.append(score if isinstance(is_there, bool) else e.select(is_there, score, -inf))
                largest = top
                for score in scores:
                    largest = e.maximum(largest, score)
                shift = e.select(e.fcmp("oeq", largest, -inf), 0.0, largest)
                scale = exp_nonpositive(e, e.fsub(top, shift))
                total, sums = e.fmul(total, scale), [e.fmul(value, scale) for value in sums]
                for score, elements in zip(scores, values, strict=True):
                    power = exp_nonpositive(e, e.fsub(score, shift))
                    total = e.fadd(total, power)
                    sums = [e.fma(power, value, old) for value, old in zip(elements, sums, strict=True)]
                made += [largest, total, *sums]
            return made

        carried: list[tuple[Type, Val | int]] = []
        for _ in range(plan.rows):
            carried += [(FLOAT, e.constant(FLOAT, -inf)), *[(FLOAT, 0)] * (1 + num_sums)]
        # All lanes of a warp run the same steps: their sums over a group need all of them.
        found = e.loop(0, plan.part_keys, GROUPED_KEYS * apart, step, carried)
        size = 2 + num_sums
        rows = [found[row * size : (row + 1) * size] for row in range(plan.rows)]
        return [_State(row[0], row[1], tuple(row[2:])) for row in rows]

    def _places(self, lanes: int, extent: int) -> list[tuple[Int, Bool]]:
        """Elements of a row that a lane of a group has, and whether they are there."""
        e, group = self.e, self.plan.group
        found: list[tuple[Int, Bool]] = []
        for start in range(0, extent, group * lanes):
            chunk = e.add(e.mul(self.lane, lanes), start)
            is_there = True if start + group * lanes <= extent else e.compare("slt", chunk, extent)
            found += [(e.add(chunk, i), is_there) for i in range(lanes)]
        return found

    def _row(self, walked: Walked, loop: str, place: Int, along: str, lanes: int) -> list[Val]:
        """A lane's elements of a row; zeros where there are none."""
        e = self.e
        base = e.gep(self.base(walked), e.mul(place, walked.step(loop)), "float")
        type = FLOAT.with_lanes(lanes)
        found: list[Val] = []
        for at, is_there in self._places(lanes, self.problem.extents[along])[::lanes]:
            source = e.gep(base, e.mul(at, walked.step(along)), "float")

            def load(source: Val = source) -> list[Val]:
                return [e.load(type, source, align_bytes=type.size_bytes)]

            (value,) = e.if_(is_there, load, lambda: [e.zero(type)], [type])
            found += [e.extract(value, i) for i in range(lanes)] if lanes > 1 else [value]
        return found

    def _over_group(self, value: Val, combine: Callable[[Val, Val], Val]) -> Val:
        """One value from the lanes of a group."""
        distance = self.plan.group // 2
        while distance:
            value = combine(value, self.e.from_lane(value, distance))
            distance //= 2
        return value

    # States.

    def _warp_states(self, states: Sequence[_State]) -> list[_State]:
        """Those of all groups of a warp together."""
        distance, found = self.plan.group, list(states)
        while distance < WARP:
            found = [self._both(s, _State(*self._across(s, distance))) for s in found]
            distance *= 2
        return found

    def _across(self, state: _State, distance: int) -> tuple[Val, Val, tuple[Val, ...]]:
        top, total, *sums = (self.e.from_lane(value, distance) for value in state.values)
        return top, total, tuple(sums)

    def _both(self, a: _State, b: _State) -> _State:
        """Two states as one."""
        e = self.e
        top = e.maximum(a.top, b.top)
        shift = e.select(e.fcmp("oeq", top, -inf), 0.0, top)
        scales = [exp_nonpositive(e, e.fsub(state.top, shift)) for state in (a, b)]

        def join(one: Val, other: Val) -> Val:
            return e.fadd(e.fmul(one, scales[0]), e.fmul(other, scales[1]))

        sums = tuple(join(one, other) for one, other in zip(a.sums, b.sums, strict=True))
        return _State(top, join(a.total, b.total), sums)

    def _joined(self, load: _Load, number: int, row: Int, channel: Int) -> tuple[Val, Val, Val]:
        """Of so many states, one after another: the largest score, the sum of powers, that of a channel."""
        e = self.e

        def add(place: Int, carried: list[Val]) -> Sequence[Val]:
            state = _State(load(place, row, 0), load(place, row, 1), (load(place, row, e.add(channel, 2)),))
            return self._both(_State(carried[0], carried[1], (carried[2],)), state).values

        first: list[tuple[Type, Val | int]] = [(FLOAT, e.constant(FLOAT, -inf)), (FLOAT, 0), (FLOAT, 0)]
        top, total, value = e.loop(0, number, 1, add, first)
        return top, total, value

    # The end.

    def _each(self, do: Callable[[Int, Int], None]) -> None:
        """For each query and channel, by the threads of the block."""
        e, channels = self.e, self.num_channels

        def one(number: Int, _: list[Val]) -> None:
            do(e.udiv(number, channels), e.urem(number, channels))

        e.loop(self.thread, self.plan.rows * channels, self.plan.num_threads, one)

    def _store(self, row: Int, channel: Int, load: _Load, number: int) -> None:
        """Join so many states, divide, finish and store."""
        e, problem = self.e, self.problem
        _, total, value = self._joined(load, number, row, channel)
        made = e.fdiv(value, emit_expr(e, problem.divisor, reading(total)))
        if problem.result_finish is not None:
            made = emit_expr(e, problem.result_finish, reading(made), made)
        result = problem.result
        target = e.gep(self.base(result), e.add(e.mul(row, result.step(problem.row)), channel), "float")
        e.store(made, target)
