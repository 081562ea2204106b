"""A tile of a recurrent layer's kernel: the sums of some units in registers, and what follows of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Expr
from tilewright.ir.nest import Access, Affine, Nest, affine
from tilewright.records import dataclass
from tilewright.targets.cpu.arrangements import STEPS_PER_WORD
from tilewright.targets.cpu.kernel import MAX_CHAIN_STEPS, Layout, OperandKey
from tilewright.targets.cpu.product.lanes import load_compact
from tilewright.targets.cpu.recurrent.match import Before, Phase, StepsProblem, before_of
from tilewright.targets.cpu.recurrent.tiling import Tiling
from tilewright.targets.llvm.emitter import Emitter
from tilewright.targets.llvm.exprgen import combine_values, convert, emit_expr, from_storage, storage_type
from tilewright.targets.llvm.values import I32, Bool, Int, Val, vec

Made = dict[tuple[OperandKey, int], Val]
"""What a step has made so far: temporaries by their keys and the number of their block."""


@dataclass(slots=True)
class Memory:
    """Where the operands of a layer lie."""

    e: Emitter
    problem: StepsProblem
    tiling: Tiling
    pointers: dict[OperandKey, Val]
    strides: dict[OperandKey, tuple[int, ...]] = field(default_factory=dict)

    def address(self, access: Access, at: dict[str, Int]) -> Val:
        """Where an element lies, its dims at these values."""
        e, operand = self.e, access.operand
        if operand.key not in self.strides:
            layout = Layout.row_major(len(operand.shape))
            self.strides[operand.key] = layout.strides(operand.shape)
        offset: Int = 0
        for index, stride in zip(access.index, self.strides[operand.key], strict=True):
            assert isinstance(index, Affine)
            place: Int = index.offset
            for name, coefficient in index.terms:
                place = e.add(place, e.mul(at[name], coefficient))
            offset = e.add(offset, e.mul(place, stride))
        return e.gep(self.pointers[operand.key], offset, storage_type(operand.dtype).element)

    def before(self, before: Before, at: dict[str, Int], is_first: Bool) -> Val:
        """Where a state before lies, in the first step too; there it is nowhere if it is zero."""
        place = self.address(self.problem.place(before.access), at)
        if before.first is None:
            return place
        first = self.address(before.first, at)
        return first if isinstance(is_first, bool) else self.e.select(is_first, first, place)


@dataclass(slots=True)
class Tile:
    """One tile of one phase: some rows from `first` on, units from `unit` on."""

    memory: Memory
    phase: Phase
    t: Int
    first: Int
    rows: int
    unit: Int
    totals: Val
    is_first: Bool = field(init=False)

    def __post_init__(self) -> None:
        self.is_first = self.memory.e.compare("eq", self.t, 0)

    @property
    def _lanes(self) -> int:
        return self.memory.tiling.panels.lanes

    def _active(self, vector: int) -> Int | None:
        """Units of a vector that there are; None for all."""
        size, tiling = self.memory.problem.size, self.memory.tiling
        if size % tiling.panels.width == 0:
            return None
        e = self.memory.e
        return e.sub(size - vector * tiling.panels.lanes, self.unit)

    def _load(self, pointer: Val, vector: int, dtype: DType = DType.FLOAT32) -> Val:
        e, active = self.memory.e, self._active(vector)
        type = storage_type(dtype, self._lanes)
        return e.load(type, pointer) if active is None else e.masked_load(type, pointer, active)

    def _slot(self, row: Int, block: int, vector: int) -> Val:
        e, tiling = self.memory.e, self.memory.tiling
        number = e.add(
            e.mul(row, self.phase.blocks * tiling.panels.num_vectors),
            block * tiling.panels.num_vectors + vector,
        )
        return e.gep(self.totals, e.mul(number, self._lanes), "float")

    # The sum.

    def sum(self, weights: Val) -> None:
        """Totals of the tile, on the stack."""
        e, problem, tiling, phase = self.memory.e, self.memory.problem, self.memory.tiling, self.phase
        type = vec("float", tiling.panels.lanes)
        count = self.rows * phase.blocks * tiling.panels.num_vectors
        slots = self._slots
        given = [self._given(*slot) for slot in slots]
        states = [self._state(row) for row in range(self.rows)]
        num_parts = -(-problem.size // MAX_CHAIN_STEPS)

        def summed() -> list[Val]:
            totals = given
            for part in range(num_parts):
                low, high = e.piece(part, num_parts, problem.size)
                start = totals if part == 0 else [e.zero(type)] * count
                made = self._chain(weights, states, low, high, start)
                if part:
                    made = [e.fadd(e.load(type, self._slot(*s)), m) for s, m in zip(slots, made, strict=True)]
                if part + 1 < num_parts:
                    for slot, value in zip(slots, made, strict=True):
                        e.store(value, self._slot(*slot))
                totals = made
            return totals

        totals = (
            e.if_(self.is_first, lambda: given, summed, [type] * count) if phase.starts_empty else summed()
        )
        for slot, value in zip(slots, totals, strict=True):
            e.store(value, self._slot(*slot))

    @property
    def _slots(self) -> list[tuple[int, int, int]]:
        """Rows, blocks and vectors of all totals."""
        blocks, vectors = range(self.phase.blocks), range(self.memory.tiling.panels.num_vectors)
        return [(row, block, vector) for row in range(self.rows) for block in blocks for vector in vectors]

    def begin(self) -> None:
        """Totals that are what sums start from."""
        for slot in self._slots:
            self.memory.e.store(self._given(*slot), self._slot(*slot))

    def add(self, weights: Val, low: Int, high: Int) -> None:
        """Add the terms from `low` to `high` to the totals."""
        e, slots = self.memory.e, self._slots
        type = vec("float", self._lanes)
        states = [self._state(row) for row in range(self.rows)]
        made = self._chain(weights, states, low, high, [e.zero(type)] * len(slots))
        for slot, value in zip(slots, made, strict=True):
            place = self._slot(*slot)
            e.store(e.fadd(e.load(type, place), value), place)

    def _given(self, row: int, block: int, vector: int) -> Val:
        e, given = self.memory.e, self.phase.given
        if given is None:
            return e.zero(vec("float", self._lanes))
        return self._load(self._given_pointer(given, row, block, vector), vector)

    def _given_pointer(self, given: Access, row: int, block: int, vector: int) -> Val:
        e, memory = self.memory.e, self.memory
        column = e.add(self.unit, block * memory.problem.size + vector * self._lanes)
        rows, columns, _ = self.phase.dims
        return memory.address(
            given, {memory.problem.dim: self.t, rows: e.add(self.first, row), columns: column}
        )

    def _state(self, row: int) -> Val:
        memory = self.memory
        rows, _, summed = self.phase.dims
        at: dict[str, Int] = {memory.problem.dim: self.t, rows: memory.e.add(self.first, row), summed: 0}
        state = self.phase.state
        if isinstance(state, Before):
            return memory.before(state, at, self.is_first)
        return memory.address(memory.problem.place(state), at)

    def _chain(self, weights: Val, states: list[Val], low: Int, high: Int, start: list[Val]) -> list[Val]:
        """Terms from `low` to `high` added to totals."""
        e, tiling, blocks = self.memory.e, self.memory.tiling, self.phase.blocks
        type = vec("float", tiling.panels.lanes)

        count = blocks * tiling.panels.num_vectors

        def term(k: Int, totals: list[Val]) -> list[Val]:
            base = e.mul(k, blocks * tiling.panels.width)
            places = [e.add(base, number * tiling.panels.lanes) for number in range(count)]

            def factor(number: int) -> Val:
                place = e.gep(weights, e.mul(places[number], tiling.weight_bytes))
                return (
                    load_compact(e, place, tiling.panels.lanes) if tiling.is_compact else e.load(type, place)
                )

            def value(row: int) -> Val:
                return e.broadcast_load(type, e.gep(states[row], k, "float"))

            made = list(totals)

            def add(row: int, number: int, spread: Val, loaded: Val) -> None:
                at = row * count + number
                made[at] = e.fma(spread, loaded, made[at])

            # The fewer of the two wait in registers for the others.
            if len(states) <= count:
                values = [value(row) for row in range(len(states))]
                for number in range(count):
                    loaded = factor(number)
                    for row, spread in enumerate(values):
                        add(row, number, spread, loaded)
            else:
                factors = [factor(number) for number in range(count)]
                for row in range(len(states)):
                    spread = value(row)
                    for number, loaded in enumerate(factors):
                        add(row, number, spread, loaded)
            return made

        # Not unrolled: prefetchers that follow single instructions lose strides of more than a few lines
        # (LSTM, 128 units, Zen 5: 2.6 us a step where this is unrolled by 4, 1.9 us where it is not).
        return e.loop(low, high, 1, term, [(type, value) for value in start])

    def sum_bytes(self, state: StateBytes, words: list[Val], sums: list[Val]) -> None:
        """Totals of the tile by integer products; words and sums of weights are those of each block."""
        e, problem, tiling = self.memory.e, self.memory.problem, self.memory.tiling
        kind, dot = vec("i32", tiling.panels.lanes), tiling.dot
        rows = [state.row(e, e.add(self.first, row)) for row in range(self.rows)]

        def step(word: Int, totals: list[Val]) -> list[Val]:
            values = [
                dot.spread_a(e, e.load(I32, e.gep(row, word, "i32")), tiling.panels.lanes, flips=False)
                for row in rows
            ]
            made = list(totals)
            for number, (_, block, vector) in enumerate(self._slots[: len(totals) // self.rows]):
                place = e.add(e.mul(word, tiling.panels.width), vector * tiling.panels.lanes)
                loaded = dot.widen_b(e, e.load(kind, e.gep(words[block], place, "i32")))
                for row, value in enumerate(values):
                    at = row * len(totals) // self.rows + number
                    made[at] = dot.step(e, value, loaded, made[at])
            return made

        zeros = [e.zero(kind)] * len(self._slots)
        num_words = -(-problem.size // STEPS_PER_WORD)
        totals = e.loop(0, num_words, 1, step, [(kind, value) for value in zeros])
        for slot, total in zip(self._slots, totals, strict=True):
            self.memory.e.store(self._real(state, *slot, total, sums), self._slot(*slot))

    def _real(self, state: StateBytes, row: int, block: int, vector: int, total: Val, sums: list[Val]) -> Val:
        """What a sum of products of bytes stands for, added to what the sum starts from."""
        e, memory, phase = self.memory.e, self.memory, self.phase
        problem, lanes, given = memory.problem, self._lanes, phase.state_bytes
        assert given is not None
        rows, columns, _ = phase.dims
        at: dict[str, Int] = {
            problem.dim: self.t,
            rows: e.add(self.first, row),
            columns: e.add(self.unit, block * problem.size + vector * lanes),
        }
        column = e.add(self.unit, vector * lanes)
        of_weights = e.load(vec("i32", lanes), e.gep(sums[block], column, "i32"))
        zero = convert(e, state.numbers[given.zero.operand.key, 0], given.zero.operand.dtype, DType.INT32)
        total = e.isub(total, e.imul(zero, of_weights))
        if given.weight_zero is not None:
            read = self._read(given.weight_zero, columns, at, vector)
            of_state = e.splat(state.sum_of(e, e.add(self.first, row)), lanes)
            total = e.isub(total, e.imul(convert(e, read, DType.INT8, DType.INT32), of_state))
        assert given.product.finish is not None
        return self.value(given.product, given.product.finish, at, columns, vector, state.numbers, total)

    # The elementwise nests.

    def finish(self) -> None:
        """What follows from the totals, row by row."""
        e, tiling = self.memory.e, self.memory.tiling

        def row(number: Int, _: list[Val]) -> None:
            for vector in range(tiling.panels.num_vectors):
                made: Made = {}
                for block in range(self.phase.blocks):
                    slot = self._slot(number, block, vector)
                    made[self.phase.total.key, block] = e.load(vec("float", tiling.panels.lanes), slot)
                for nest in self.phase.rest:
                    self._nest(nest, number, vector, made)
                self._keep(number, vector, made)

        e.loop(0, self.rows, 1, row)

    def _nest(self, nest: Nest, row: Int, vector: int, made: Made) -> None:
        memory = self.memory
        unit = nest.dims[2].name
        at: dict[str, Int] = {
            memory.problem.dim: self.t,
            nest.dims[1].name: memory.e.add(self.first, row),
            unit: memory.e.add(self.unit, vector * self._lanes),
        }
        value = self.value(nest, nest.body, at, unit, vector, made)
        written = nest.write
        if written.operand.kind == "local":
            made[written.operand.key, 0] = value
            if written.operand.key not in memory.problem.homes:
                return
        self._store(value, memory.address(memory.problem.place(written), at), vector)

    def value(
        self,
        nest: Nest,
        expr: Expr,
        at: dict[str, Int],
        unit: str,
        vector: int,
        made: Made,
        acc: Val | None = None,
    ) -> Val:
        """An expression over a nest's reads for a vector of units, from memory and from what was made."""
        problem = self.memory.problem
        loaded: dict[int, Val] = {}

        def read(position: int) -> Val:
            if position not in loaded:
                access = nest.reads[position]
                last = access.index[-1]
                assert isinstance(last, Affine)
                if access.fill is not None:
                    loaded[position] = self._before(Before(access, None), at, vector)
                elif (access.operand.key, last.offset // problem.size) in made:
                    loaded[position] = made[access.operand.key, last.offset // problem.size]
                else:
                    loaded[position] = self._read(problem.place(access), unit, at, vector)
            return loaded[position]

        def known(part: Expr) -> Val | None:
            before = before_of(nest, part, problem.dim)
            return None if before is None or before.first is None else self._before(before, at, vector)

        return emit_expr(self.memory.e, expr, read, acc, lanes=self._lanes, known=known)

    def _store(self, value: Val, pointer: Val, vector: int) -> None:
        e, active = self.memory.e, self._active(vector)
        if active is None:
            e.store(value, pointer)
        else:
            e.masked_store(value, pointer, active)

    def _keep(self, row: Int, vector: int, made: Made) -> None:
        """Store the totals that a later phase reads."""
        memory, phase = self.memory, self.phase
        home = memory.problem.homes.get(phase.total.key)
        if home is None:
            return
        rows, columns, _ = phase.dims
        place = home.at(Access(phase.total, (affine(memory.problem.dim), affine(rows), affine(columns))))
        for block in range(phase.blocks):
            column = memory.e.add(self.unit, block * memory.problem.size + vector * self._lanes)
            pointer = memory.address(place, {rows: memory.e.add(self.first, row), columns: column})
            self._store(made[phase.total.key, block], pointer, vector)

    def _read(self, access: Access, unit: str, at: dict[str, Int], vector: int) -> Val:
        """An operand's element in each lane."""
        e, dtype = self.memory.e, access.operand.dtype
        pointer = self.memory.address(access, at)
        if unit in access.dims():
            return from_storage(e, self._load(pointer, vector, dtype), dtype)
        return e.splat(from_storage(e, e.load(storage_type(dtype), pointer), dtype), self._lanes)

    def _before(self, before: Before, at: dict[str, Int], vector: int) -> Val:
        """A state before this step, zero in the first one if there is none before that."""
        e, memory = self.memory.e, self.memory
        if before.first is None and self.is_first is True:
            return e.zero(vec("float", self._lanes))
        pointer = memory.before(before, at, self.is_first)
        if before.first is not None:
            return self._load(pointer, vector)
        key = before.access.operand.key
        if key not in memory.problem.homes:
            # In the first step there is no place before: what is read is not used.
            nests = (nest for phase in memory.problem.phases for nest in phase.rest)
            written = next(nest.write for nest in nests if nest.write.operand.key == key)
            pointer = e.select(self._first_value, memory.address(written, at), pointer)
        value = self._load(pointer, vector)
        return e.select(self._first_value, e.zero(value.type), value)

    @property
    def _first_value(self) -> Val:
        assert isinstance(self.is_first, Val)
        return self.is_first


@dataclass(slots=True)
class StateBytes:
    """The state of a step as bytes, on the stack: rows of words, each row with the sum of its bytes less
    their zero point; and the numbers that they are made by.
    """

    bytes: Val
    sums: Val | None
    row_bytes: int
    numbers: Made = field(default_factory=dict)

    def row(self, e: Emitter, number: Int) -> Val:
        """The bytes of a sequence."""
        return e.gep(self.bytes, e.mul(number, self.row_bytes))

    def sum_of(self, e: Emitter, number: Int) -> Val:
        """Their sum."""
        assert self.sums is not None
        return e.load(I32, e.gep(self.sums, number, "i32"))


def quantised_state(memory: Memory, phase: Phase, t: Int) -> StateBytes:
    """The state before a step as bytes: its range over all sequences, scale and zero point, then bytes."""
    e, problem, lanes, given = memory.e, memory.problem, memory.tiling.panels.lanes, phase.state_bytes
    assert given is not None
    row_bytes = -(-problem.size // lanes) * lanes
    stack = e.alloca(vec("i8", row_bytes), problem.batch)
    sums = None if given.weight_zero is None else e.alloca(I32, problem.batch)
    state = StateBytes(stack, sums, row_bytes)

    def value(nest: Nest, row: Int, unit: Int) -> Val:
        tile = Tile(memory, phase, t, row, 1, unit, stack)
        outer = nest.dims[1:] if nest.dims[1:] else ()
        at: dict[str, Int] = {problem.dim: t}
        at.update(zip((d.name for d in outer), (row, unit), strict=False))
        name = outer[-1].name if outer else problem.dim
        return tile.value(nest, nest.body, at, name, 0, state.numbers)

    def over(nests: Sequence[Nest], starts: list[Val]) -> list[Val]:
        def row(number: Int, totals: list[Val]) -> list[Val]:
            def vector(unit: Int, totals: list[Val]) -> list[Val]:
                return [
                    combine_values(e, nest.combine or "", DType.FLOAT32, total, value(nest, number, unit))
                    for nest, total in zip(nests, totals, strict=True)
                ]

            return e.loop(0, row_bytes, lanes, vector, [(total.type, total) for total in totals])

        return e.loop(0, problem.batch, 1, row, [(total.type, total) for total in starts])

    zero = e.zero(vec("float", lanes))
    for nest, found in zip(given.ranges, over(given.ranges, [zero for _ in given.ranges]), strict=True):
        combine, dtype = nest.combine or "", DType.FLOAT32
        one = e.reduce(found, lambda a, b: combine_values(e, combine, dtype, a, b))  # noqa: B023
        state.numbers[nest.write.operand.key, 0] = e.splat(one, lanes)
    for nest in given.numbers:
        state.numbers[nest.write.operand.key, 0] = value(nest, 0, 0)
    wide = vec("i32", lanes)
    zero_point = convert(e, state.numbers[given.zero.operand.key, 0], given.zero.operand.dtype, DType.INT32)

    def bytes_of_row(number: Int, _: list[Val]) -> None:
        def vector(unit: Int, totals: list[Val]) -> list[Val]:
            made = value(given.bytes, number, unit)
            e.store(made, e.gep(state.row(e, number), unit), align_bytes=1)
            if not totals:
                return []
            return [e.iadd(totals[0], e.isub(convert(e, made, DType.UINT8, DType.INT32), zero_point))]

        carried = [] if sums is None else [(wide, e.zero(wide))]
        found = e.loop(0, row_bytes, lanes, vector, carried)
        if sums is not None:
            e.store(e.reduce(found[0], e.iadd), e.gep(sums, number, "i32"))

    e.loop(0, problem.batch, 1, bytes_of_row)
    return state
