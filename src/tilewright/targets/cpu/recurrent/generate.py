"""The kernel of a recurrent layer: in each step, tile by tile of units, a sum in registers and what follows.

A tile is some vectors of units with all their blocks (gates), for some rows (sequences) at a time. Its
weights lie in the order in which the sum reads them. Behind the sum the elementwise nests run on the tile's
totals, so that nothing but the state leaves a step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Expr
from tilewright.ir.nest import Access, Affine, Nest, Operand, affine
from tilewright.targets.cpu.contraction.lanes import load_compact
from tilewright.targets.cpu.emitter import Emitter, Param
from tilewright.targets.cpu.exprgen import emit_expr, from_storage, storage_type
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import (
    SYMBOL_PLACEHOLDER,
    Kernel,
    Layout,
    OperandKey,
    name_by_content,
)
from tilewright.targets.cpu.recurrent.arguments import arguments_of, pointers_of
from tilewright.targets.cpu.recurrent.match import Before, Cell, Phase, StepsProblem, before_of
from tilewright.targets.cpu.recurrent.share import SHARE_FUNCTION, Sharing, participant_ir, sync_bytes
from tilewright.targets.cpu.recurrent.tiling import MAX_CHAIN_STEPS, Tiling, tiling_of
from tilewright.targets.cpu.values import I64, PTR, Bool, Int, Val, vec

TEMPLATE = "recurrent"


def generate_steps(
    problem: StepsProblem, isa: Isa, next_local: int, *, may_round: bool = False
) -> tuple[Kernel, ...]:
    """The kernel, and before it one that clears the words by which threads share it, if they do."""
    tiling = tiling_of(problem, isa, may_round=may_round)
    emitter = Emitter(attributes=isa.function_attributes)
    args = arguments_of(problem, tiling)
    num_cells, num_phases, sync = len(problem.cells), problem.num_phases, None
    if tiling.num_shares > 1:
        size_bytes = sync_bytes(num_cells, tiling.num_shares)
        sync = Operand("local", next_local, DType.INT64, (size_bytes // DType.INT64.size_bytes,))
        args.append(sync)
    if sync is not None:
        params = (Param("args", PTR), Param("share", I64), Param("turn", I64))
        with emitter.function(SHARE_FUNCTION, params, linkage="internal") as (block, share, turn):
            steps = _Steps(emitter, problem, tiling, pointers_of(emitter, block, args))
            if num_phases > 1:
                steps.share(share, emitter.udiv(turn, num_phases), emitter.urem(turn, num_phases))
            else:
                steps.share(share, turn, 0)
        text = emitter.text() + participant_ir(
            Sharing(num_cells, tiling.num_shares, problem.steps, num_phases),
            len(args) - 1,
            SYMBOL_PLACEHOLDER,
            isa.triple,
        )
    else:
        params = (Param("args", PTR), Param("chunk", I64), Param("scratch", PTR))
        with emitter.function(SYMBOL_PLACEHOLDER.removeprefix("@"), params) as (block, chunk, _):
            steps = _Steps(emitter, problem, tiling, pointers_of(emitter, block, args))
            cell = chunk if num_cells > 1 else 0

            def step(t: Int, _: list[Val]) -> None:
                for phase in range(num_phases):
                    steps.share(cell, t, phase)

            emitter.loop(0, problem.steps, 1, step)
        text = emitter.text()
    symbol, text = name_by_content(text, TEMPLATE)
    kernel = Kernel(
        symbol=symbol,
        text=text,
        num_chunks=num_cells * tiling.num_shares,
        args=tuple(args),
        template=TEMPLATE,
        macs=problem.steps * problem.step_macs,
        notes=(
            f"{problem.steps} steps",
            f"tile {tiling.rows}x{tiling.width}",
            f"{num_cells}x{tiling.num_shares} shares of units",
            *(["weights of 24 bits"] if tiling.is_compact else []),
        ),
    )
    return (kernel,) if sync is None else (_clear(sync, isa), kernel)


def _clear(sync: Operand, isa: Isa) -> Kernel:
    """Zeros in every word."""
    e = Emitter(attributes=isa.function_attributes)
    params = (Param("args", PTR), Param("chunk", I64), Param("scratch", PTR))
    with e.function(SYMBOL_PLACEHOLDER.removeprefix("@"), params) as (block, _, _):
        pointer = e.load(PTR, block)
        zero = e.constant(I64, 0)

        def clear(word: Int, _: list[Val]) -> None:
            e.store(zero, e.gep(pointer, word, "i64"))

        e.loop(0, sync.num_elements, 1, clear)
    symbol, text = name_by_content(e.text(), f"{TEMPLATE}_clear")
    return Kernel(symbol=symbol, text=text, num_chunks=1, args=(sync,), template=TEMPLATE)


@dataclass(slots=True)
class _Steps:
    """Emits the work of one share in one phase of a step."""

    e: Emitter
    problem: StepsProblem
    tiling: Tiling
    pointers: dict[OperandKey, Val]
    strides: dict[OperandKey, tuple[int, ...]] = field(default_factory=dict)

    def share(self, share: Int, t: Int, phase: Int) -> None:
        """All tiles of a share; shares are numbered direction by direction."""
        e, tiling, num_shares = self.e, self.tiling, self.tiling.num_shares
        number = e.udiv(share, num_shares) if len(self.problem.cells) > 1 else 0
        low = e.mul(e.sub(share, e.mul(number, num_shares)), tiling.tiles_per_share)
        high = e.min(e.add(low, tiling.tiles_per_share), tiling.per_cell)
        for position, cell in enumerate(self.problem.cells):
            first = position * tiling.per_cell

            def phases(cell: Cell = cell, first: int = first) -> None:
                for place in range(len(cell)):

                    def tiles(place: int = place) -> None:
                        self._tiles(cell[place], place, first, low, high, t)

                    e.if_(e.compare("eq", phase, place), tiles)

            e.if_(e.compare("eq", number, position), phases)

    def _tiles(self, phase: Phase, place: int, first_tile: int, low: Int, high: Int, t: Int) -> None:
        """Some tiles of a phase, which is the `place`-th of its cell: all sums, and then all that follows.

        What follows of one tile waits long for little, so it goes on beside that of others.
        """
        e, tiling, problem = self.e, self.tiling, self.problem
        row_totals = phase.blocks * tiling.width
        tile_elements = problem.size * row_totals
        totals = e.alloca(vec("float", row_totals), tiling.tiles_per_share * problem.batch)

        def tile(index: Int, first: Int, count: int) -> _Tile:
            row = e.add(e.mul(e.sub(index, low), problem.batch), first)
            own = e.gep(totals, e.mul(row, row_totals), "float")
            return _Tile(self, phase, t, first, count, e.mul(index, tiling.width), own)

        def rows(index: Int, work: Callable[[_Tile], None]) -> None:
            """All rows of a tile, as many at a time as fit registers."""
            whole = problem.batch // tiling.rows * tiling.rows
            e.loop(0, whole, tiling.rows, lambda first, _: work(tile(index, first, tiling.rows)))
            if whole < problem.batch:
                work(tile(index, whole, problem.batch - whole))

        def sums(number: Int, _: list[Val]) -> None:
            # Every other step goes through the tiles from the last one, whose weights caches have kept.
            is_odd = e.compare("ne", e.urem(t, 2), 0)
            index = e.select_index(is_odd, e.sub(e.sub(e.add(low, high), 1), number), number)
            offset = e.mul(e.add(index, first_tile), tile_elements)
            weights = e.gep(self.pointers["weights", place], e.mul(offset, tiling.weight_bytes))
            if problem.batch == tiling.rows:
                tile(index, 0, tiling.rows).sum(weights)
                return
            rows(index, _Tile.begin)

            def part(low_term: Int, _: list[Val]) -> None:
                high_term = e.min(e.add(low_term, tiling.part_terms), problem.size)
                rows(index, lambda some: some.add(weights, low_term, high_term))

            def parts() -> None:
                e.loop(0, problem.size, tiling.part_terms, part)

            if phase.starts_empty:
                e.if_(e.compare("ne", t, 0), parts)
            else:
                parts()

        e.loop(low, high, 1, sums)
        e.loop(low, high, 1, lambda index, _: rows(index, _Tile.finish))

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
class _Tile:
    """One tile of one phase: some rows from `first` on, units from `unit` on."""

    steps: _Steps
    phase: Phase
    t: Int
    first: Int
    rows: int
    unit: Int
    totals: Val
    is_first: Bool = field(init=False)

    def __post_init__(self) -> None:
        self.is_first = self.steps.e.compare("eq", self.t, 0)

    @property
    def _lanes(self) -> int:
        return self.steps.tiling.lanes

    def _active(self, vector: int) -> Int | None:
        """Units of a vector that there are; None for all."""
        size, tiling = self.steps.problem.size, self.steps.tiling
        if size % tiling.width == 0:
            return None
        e = self.steps.e
        return e.sub(size - vector * tiling.lanes, self.unit)

    def _load(self, pointer: Val, vector: int, dtype: DType = DType.FLOAT32) -> Val:
        e, active = self.steps.e, self._active(vector)
        type = storage_type(dtype, self._lanes)
        return e.load(type, pointer) if active is None else e.masked_load(type, pointer, active)

    def _slot(self, row: Int, block: int, vector: int) -> Val:
        e, tiling = self.steps.e, self.steps.tiling
        number = e.add(e.mul(row, self.phase.blocks * tiling.vectors), block * tiling.vectors + vector)
        return e.gep(self.totals, e.mul(number, self._lanes), "float")

    # The sum.

    def sum(self, weights: Val) -> None:
        """Totals of the tile, on the stack."""
        e, problem, tiling, phase = self.steps.e, self.steps.problem, self.steps.tiling, self.phase
        type = vec("float", tiling.lanes)
        count = self.rows * phase.blocks * tiling.vectors
        slots = self._slots
        given = [self._given(*slot) for slot in slots]
        states = [self._state(row) for row in range(self.rows)]
        num_parts = -(-problem.size // MAX_CHAIN_STEPS)
        bounds = [problem.size * part // num_parts for part in range(num_parts + 1)]

        def summed() -> list[Val]:
            totals = given
            for part, (low, high) in enumerate(pairwise(bounds)):
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
        blocks, vectors = range(self.phase.blocks), range(self.steps.tiling.vectors)
        return [(row, block, vector) for row in range(self.rows) for block in blocks for vector in vectors]

    def begin(self) -> None:
        """Totals that are what sums start from."""
        for slot in self._slots:
            self.steps.e.store(self._given(*slot), self._slot(*slot))

    def add(self, weights: Val, low: Int, high: Int) -> None:
        """Add the terms from `low` to `high` to the totals."""
        e, slots = self.steps.e, self._slots
        type = vec("float", self._lanes)
        states = [self._state(row) for row in range(self.rows)]
        made = self._chain(weights, states, low, high, [e.zero(type)] * len(slots))
        for slot, value in zip(slots, made, strict=True):
            place = self._slot(*slot)
            e.store(e.fadd(e.load(type, place), value), place)

    def _given(self, row: int, block: int, vector: int) -> Val:
        e, given = self.steps.e, self.phase.given
        if given is None:
            return e.zero(vec("float", self._lanes))
        return self._load(self._given_pointer(given, row, block, vector), vector)

    def _given_pointer(self, given: Access, row: int, block: int, vector: int) -> Val:
        e, steps = self.steps.e, self.steps
        column = e.add(self.unit, block * steps.problem.size + vector * self._lanes)
        rows, columns, _ = self.phase.dims
        return steps.address(
            given, {steps.problem.dim: self.t, rows: e.add(self.first, row), columns: column}
        )

    def _state(self, row: int) -> Val:
        steps = self.steps
        rows, _, summed = self.phase.dims
        at: dict[str, Int] = {steps.problem.dim: self.t, rows: steps.e.add(self.first, row), summed: 0}
        state = self.phase.state
        if isinstance(state, Before):
            return steps.before(state, at, self.is_first)
        return steps.address(steps.problem.place(state), at)

    def _chain(self, weights: Val, states: list[Val], low: Int, high: Int, start: list[Val]) -> list[Val]:
        """Terms from `low` to `high` added to totals."""
        e, tiling, blocks = self.steps.e, self.steps.tiling, self.phase.blocks
        type = vec("float", tiling.lanes)

        count = blocks * tiling.vectors

        def term(k: Int, totals: list[Val]) -> list[Val]:
            base = e.mul(k, blocks * tiling.width)
            places = [e.add(base, number * tiling.lanes) for number in range(count)]

            def factor(number: int) -> Val:
                place = e.gep(weights, e.mul(places[number], tiling.weight_bytes))
                return load_compact(e, place, tiling.lanes) if tiling.is_compact else e.load(type, place)

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

    # The elementwise nests.

    def finish(self) -> None:
        """What follows from the totals, row by row."""
        e, tiling = self.steps.e, self.steps.tiling

        def row(number: Int, _: list[Val]) -> None:
            for vector in range(tiling.vectors):
                made: dict[tuple[OperandKey, int], Val] = {}
                for block in range(self.phase.blocks):
                    slot = self._slot(number, block, vector)
                    made[self.phase.total.key, block] = e.load(vec("float", tiling.lanes), slot)
                for nest in self.phase.rest:
                    self._nest(nest, number, vector, made)
                self._keep(number, vector, made)

        e.loop(0, self.rows, 1, row)

    def _nest(self, nest: Nest, row: Int, vector: int, made: dict[tuple[OperandKey, int], Val]) -> None:
        steps = self.steps
        e, problem = steps.e, steps.problem
        unit = nest.dims[2].name
        at: dict[str, Int] = {
            problem.dim: self.t,
            nest.dims[1].name: e.add(self.first, row),
            unit: e.add(self.unit, vector * self._lanes),
        }
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

        def known(expr: Expr) -> Val | None:
            before = before_of(nest, expr, problem.dim)
            return None if before is None or before.first is None else self._before(before, at, vector)

        value = emit_expr(e, nest.body, read, lanes=self._lanes, known=known)
        written = nest.write
        if written.operand.kind == "local":
            made[written.operand.key, 0] = value
            if written.operand.key not in problem.homes:
                return
        self._store(value, steps.address(problem.place(written), at), vector)

    def _store(self, value: Val, pointer: Val, vector: int) -> None:
        e, active = self.steps.e, self._active(vector)
        if active is None:
            e.store(value, pointer)
        else:
            e.masked_store(value, pointer, active)

    def _keep(self, row: Int, vector: int, made: dict[tuple[OperandKey, int], Val]) -> None:
        """Store the totals that a later phase reads."""
        steps, phase = self.steps, self.phase
        home = steps.problem.homes.get(phase.total.key)
        if home is None:
            return
        rows, columns, _ = phase.dims
        place = home.at(Access(phase.total, (affine(steps.problem.dim), affine(rows), affine(columns))))
        for block in range(phase.blocks):
            column = steps.e.add(self.unit, block * steps.problem.size + vector * self._lanes)
            pointer = steps.address(place, {rows: steps.e.add(self.first, row), columns: column})
            self._store(made[phase.total.key, block], pointer, vector)

    def _read(self, access: Access, unit: str, at: dict[str, Int], vector: int) -> Val:
        """An operand's element in each lane."""
        e, dtype = self.steps.e, access.operand.dtype
        pointer = self.steps.address(access, at)
        if unit in access.dims():
            return from_storage(e, self._load(pointer, vector, dtype), dtype)
        return e.splat(from_storage(e, e.load(storage_type(dtype), pointer), dtype), self._lanes)

    def _before(self, before: Before, at: dict[str, Int], vector: int) -> Val:
        """A state before this step, zero in the first one if there is none before that."""
        e, steps = self.steps.e, self.steps
        if before.first is None and self.is_first is True:
            return e.zero(vec("float", self._lanes))
        pointer = steps.before(before, at, self.is_first)
        if before.first is not None:
            return self._load(pointer, vector)
        key = before.access.operand.key
        if key not in steps.problem.homes:
            # In the first step there is no place before: what is read is not used.
            nests = (nest for phase in steps.problem.phases for nest in phase.rest)
            written = next(nest.write for nest in nests if nest.write.operand.key == key)
            pointer = e.select(self._first_value, steps.address(written, at), pointer)
        value = self._load(pointer, vector)
        return e.select(self._first_value, e.zero(value.type), value)

    @property
    def _first_value(self) -> Val:
        assert isinstance(self.is_first, Val)
        return self.is_first
