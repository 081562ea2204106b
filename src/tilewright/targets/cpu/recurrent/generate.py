"""The kernel of a recurrent layer: in each step, tile by tile of units, a sum in registers and what follows.

A tile is some vectors of units with all their blocks (gates), for some rows (sequences) at a time. Its
weights lie in the order in which the sum reads them. Behind the sum the elementwise nests run on the tile's
totals, so that nothing but the state leaves a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.fields import Signed
from tilewright.ir.dtype import DType
from tilewright.ir.nest import Access, Operand
from tilewright.targets.cpu.arrangements import COMPACT_BEHIND_BYTES, STEPS_PER_WORD, PanelOrder, window
from tilewright.targets.cpu.integer_arrangements import ColumnSums, IntegerWords, SignedBytes
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import Kernel, KernelArg, OperandKey, Packed
from tilewright.targets.cpu.kernel_function import kernel_function
from tilewright.targets.cpu.recurrent.match import Before, Cell, Phase, StepsProblem
from tilewright.targets.cpu.recurrent.plan import StepsPlan
from tilewright.targets.cpu.recurrent.share import SHARE_FUNCTION, Sharing, participant_ir, sync_bytes
from tilewright.targets.cpu.recurrent.tile import Memory, Tile, quantised_state
from tilewright.targets.cpu.recurrent.tiling import Tiling, tiling_of
from tilewright.targets.llvm.emitter import Emitter, Param
from tilewright.targets.llvm.module_text import SYMBOL_PLACEHOLDER
from tilewright.targets.llvm.values import I64, PTR, Int, Val, vec

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
    text = None
    if sync is not None:
        params = (Param("args", PTR), Param("share", I64), Param("turn", I64))
        with kernel_function(emitter, args, name=SHARE_FUNCTION, params=params) as function:
            share, turn = function.chunk, function.scratch
            steps = _Steps(emitter, problem, tiling, pointers_of(args, function.pointers))
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
        with kernel_function(emitter, args) as function:
            steps = _Steps(emitter, problem, tiling, pointers_of(args, function.pointers))
            cell = function.chunk if num_cells > 1 else 0

            def step(t: Int, _: list[Val]) -> None:
                for phase in range(num_phases):
                    steps.share(cell, t, phase)

            emitter.loop(0, problem.steps, 1, step)
    kernel = function.kernel(
        TEMPLATE,
        num_chunks=num_cells * tiling.num_shares,
        template=TEMPLATE,
        macs=problem.steps * problem.step_macs,
        notes=(
            f"{problem.steps} steps",
            f"tile {tiling.rows}x{tiling.panels.width}",
            f"{num_cells}x{tiling.num_shares} shares of units",
            *(["weights of 24 bits"] if tiling.is_compact else []),
        ),
        text=text,
        plan=StepsPlan(problem, tiling),
    )
    return (kernel,) if sync is None else (_clear(sync, isa), kernel)


def _clear(sync: Operand, isa: Isa) -> Kernel:
    """Zeros in every word."""
    e = Emitter(attributes=isa.function_attributes)
    with kernel_function(e, (sync,)) as function:
        (pointer,) = function.pointers
        zero = e.constant(I64, 0)

        def clear(word: Int, _: list[Val]) -> None:
            e.store(zero, e.gep(pointer, word, "i64"))

        e.loop(0, sync.num_elements, 1, clear)
    return function.kernel(f"{TEMPLATE}_clear", num_chunks=1, template=TEMPLATE)


@dataclass(slots=True)
class _Steps(Memory):
    """Emits the work of one share in one phase of a step."""

    def share(self, share: Int, t: Int, phase: Int) -> None:
        """All tiles of a share; shares are numbered direction by direction."""
        e, tiling, num_shares = self.e, self.tiling, self.tiling.num_shares
        number = e.udiv(share, num_shares) if len(self.problem.cells) > 1 else 0
        low = e.mul(e.sub(share, e.mul(number, num_shares)), tiling.tiles_per_share)
        high = e.min(e.add(low, tiling.tiles_per_share), tiling.panels.num_panels)
        for position, cell in enumerate(self.problem.cells):
            first = position * tiling.panels.num_panels

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
        tile_elements = problem.size * phase.blocks * tiling.panels.width
        if phase.state_bytes is not None:
            self._tiles_of_bytes(phase, place, first_tile, low, high, t)
            return
        tile, rows = self._rows(phase, low, t)

        def sums(number: Int, _: list[Val]) -> None:
            # Every other step goes through the tiles from the last one, whose weights caches have kept.
            is_odd = e.compare("ne", e.urem(t, 2), 0)
            index = e.select_index(is_odd, e.sub(e.sub(e.add(low, high), 1), number), number)
            offset = e.mul(e.add(index, first_tile), tile_elements)
            weights = e.gep(self.pointers["weights", place], e.mul(offset, tiling.weight_bytes))
            if problem.batch == tiling.rows:
                tile(index, 0, tiling.rows).sum(weights)
                return
            rows(index, Tile.begin)

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
        e.loop(low, high, 1, lambda index, _: rows(index, Tile.finish))

    def _rows(
        self, phase: Phase, low: Int, t: Int
    ) -> tuple[Callable[[Int, Int, int], Tile], Callable[[Int, Callable[[Tile], None]], None]]:
        """What makes a tile of some rows, and what goes through all rows of one, whose totals lie side by
        side on the stack."""
        e, tiling, problem = self.e, self.tiling, self.problem
        row_totals = phase.blocks * tiling.panels.width
        totals = e.alloca(vec("float", row_totals), tiling.tiles_per_share * problem.batch)

        def tile(index: Int, first: Int, count: int) -> Tile:
            row = e.add(e.mul(e.sub(index, low), problem.batch), first)
            own = e.gep(totals, e.mul(row, row_totals), "float")
            return Tile(self, phase, t, first, count, e.mul(index, tiling.panels.width), own)

        def rows(index: Int, work: Callable[[Tile], None]) -> None:
            """All rows of a tile, as many at a time as fit registers."""
            whole = problem.batch // tiling.rows * tiling.rows
            e.loop(0, whole, tiling.rows, lambda first, _: work(tile(index, first, tiling.rows)))
            if whole < problem.batch:
                work(tile(index, whole, problem.batch - whole))

        return tile, rows

    def _tiles_of_bytes(self, phase: Phase, place: int, first_tile: int, low: Int, high: Int, t: Int) -> None:
        """Some tiles of a phase whose state becomes bytes: every share makes all of them for itself."""
        e, tiling, problem = self.e, self.tiling, self.problem
        _, rows = self._rows(phase, low, t)
        tile_words = -(-problem.size // STEPS_PER_WORD) * tiling.panels.width
        blocks = [
            (first_tile * phase.blocks) + block * tiling.panels.num_panels for block in range(phase.blocks)
        ]

        state = quantised_state(self, phase, t)

        def sums(index: Int, _: list[Val]) -> None:
            words = [
                e.gep(self.pointers["weights", place], e.mul(e.add(index, block), tile_words), "i32")
                for block in blocks
            ]
            totals = [
                e.gep(self.pointers["sums", place], block * tiling.panels.width, "i32") for block in blocks
            ]
            rows(index, lambda tile: tile.sum_bytes(state, words, totals))

        e.loop(low, high, 1, sums)
        e.loop(low, high, 1, lambda index, _: rows(index, Tile.finish))


def arguments_of(problem: StepsProblem, tiling: Tiling) -> list[KernelArg]:
    """All operands that lie in memory, each once, and the weights of each phase, of all cells."""
    return [
        *_operands(problem),
        *(part for phase in problem.cells[0] for part in _weights(problem, tiling, phase)),
    ]


def pointers_of(args: Sequence[KernelArg], loaded: Sequence[Val]) -> dict[OperandKey, Val]:
    """Where arguments lie: operands by their keys, weights and their sums by the number of their phase."""
    pointers: dict[OperandKey, Val] = {}
    num_weights = num_sums = 0
    for arg, pointer in zip(args, loaded, strict=True):
        if not isinstance(arg, Packed):
            key = arg.key
        elif isinstance(arg.arrangement, ColumnSums):
            key, num_sums = ("sums", num_sums), num_sums + 1
        else:
            key, num_weights = ("weights", num_weights), num_weights + 1
        pointers[key] = pointer
    return pointers


def _operands(problem: StepsProblem) -> list[Operand]:
    """All that lie in memory, each once, but the weights."""
    found: dict[OperandKey, Operand] = {}
    for access in _accesses(problem):
        operand = problem.place(access).operand
        if operand.kind != "local" or operand is not access.operand:
            found[operand.key] = operand
    return list(found.values())


def _accesses(problem: StepsProblem) -> list[Access]:
    accesses: list[Access | None] = []
    for phase in problem.phases:
        state = phase.state
        accesses += [state.access, state.first] if isinstance(state, Before) else [state]
        accesses.append(phase.given)
        if phase.state_bytes is not None:
            accesses += phase.state_bytes.accesses
        for nest in phase.rest:
            accesses += [*nest.reads, nest.write]
    return [access for access in accesses if access is not None]


def _weights(problem: StepsProblem, tiling: Tiling, phase: Phase) -> list[Packed]:
    """What the sums of a phase read: weights, and of bytes their sums."""
    if phase.state_bytes is None:
        return [_packed(problem, tiling, phase)]
    size, num_cells, blocks, width = problem.size, len(problem.cells), phase.blocks, tiling.panels.width
    operand = phase.weight.operand
    strides = (operand.shape[1] * size, size * size, 1, size)
    num_outer, num_words = num_cells * blocks, -(-size // STEPS_PER_WORD)
    rows = window((num_cells, blocks, size, size), strides, phase.first_block * size * size)
    given = SignedBytes(rows, num_outer, 1, size, False)
    steps = tuple(step if step < size else -1 for step in range(num_words * STEPS_PER_WORD))
    columns = tiling.panels.num_panels * width
    words = IntegerWords(given, tuple(map(Signed, steps)), width, width)
    sums = ColumnSums(given, width, Signed(1), Signed(0))
    return [
        Packed(operand, words, num_outer * num_words * columns * STEPS_PER_WORD),
        Packed(operand, sums, 4 * num_outer * columns),
    ]


def _packed(problem: StepsProblem, tiling: Tiling, phase: Phase) -> Packed:
    """Of each tile, for each term of the sum, the vectors of every block."""
    size, num_cells, blocks = problem.size, len(problem.cells), phase.blocks
    operand, width = phase.weight.operand, tiling.panels.width
    strides = (operand.shape[1] * size, 1, size * size, size)
    rows = window((num_cells, size, blocks, size), strides, phase.first_block * size * size)
    arrangement = PanelOrder(rows, num_cells, width, width, operand.dtype, tiling.is_compact)
    num_elements = num_cells * size * blocks * tiling.panels.num_panels * width
    behind = COMPACT_BEHIND_BYTES if tiling.is_compact else 0
    return Packed(operand, arrangement, num_elements * tiling.weight_bytes + behind)
