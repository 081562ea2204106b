"""What the kernel of a recurrent layer gets: operands in memory, and weights as its tiles read them."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.fields import Signed
from tilewright.ir.nest import Access, Operand
from tilewright.targets.cpu.arrangements import (
    COMPACT_BEHIND_BYTES,
    STEPS_PER_WORD,
    PanelOrder,
    window,
)
from tilewright.targets.cpu.integer_arrangements import (
    ColumnSums,
    IntegerWords,
    SignedBytes,
)
from tilewright.targets.cpu.kernel import KernelArg, OperandKey, Packed
from tilewright.targets.cpu.recurrent.match import Before, Phase, StepsProblem
from tilewright.targets.cpu.recurrent.tiling import Tiling
from tilewright.targets.llvm.values import Val


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
