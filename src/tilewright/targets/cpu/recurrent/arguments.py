"""What the kernel of a recurrent layer gets: operands in memory, and weights as its tiles read them."""

from __future__ import annotations

from tilewright.ir.nest import Access, Operand
from tilewright.targets.cpu.arrangements import COMPACT_BEHIND_BYTES, PanelOrder, window
from tilewright.targets.cpu.emitter import Emitter
from tilewright.targets.cpu.kernel import KernelArg, OperandKey, Packed
from tilewright.targets.cpu.recurrent.match import Before, Phase, StepsProblem
from tilewright.targets.cpu.recurrent.tiling import Tiling
from tilewright.targets.cpu.values import PTR, Val


def arguments_of(problem: StepsProblem, tiling: Tiling) -> list[KernelArg]:
    """All operands that lie in memory, each once, and the weights of each phase, of all cells."""
    return [*_operands(problem), *(_packed(problem, tiling, phase) for phase in problem.cells[0])]


def pointers_of(e: Emitter, block: Val, args: list[KernelArg]) -> dict[OperandKey, Val]:
    """Where arguments lie: operands by their keys, weights by the number of their phase."""
    pointers: dict[OperandKey, Val] = {}
    num_weights = 0
    for position, arg in enumerate(args):
        key = ("weights", num_weights) if isinstance(arg, Packed) else arg.key
        num_weights += isinstance(arg, Packed)
        pointers[key] = e.load(PTR, e.gep(block, 8 * position))
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
        for nest in phase.rest:
            accesses += [*nest.reads, nest.write]
    return [access for access in accesses if access is not None]


def _packed(problem: StepsProblem, tiling: Tiling, phase: Phase) -> Packed:
    """Of each tile, for each term of the sum, the vectors of every block."""
    size, num_cells, blocks = problem.size, len(problem.cells), phase.blocks
    operand, width = phase.weight.operand, tiling.width
    strides = (operand.shape[1] * size, 1, size * size, size)
    rows = window((num_cells, size, blocks, size), strides, phase.first_block * size * size)
    arrangement = PanelOrder(rows, num_cells, width, width, operand.dtype, tiling.is_compact)
    num_elements = num_cells * size * blocks * tiling.per_cell * width
    behind = COMPACT_BEHIND_BYTES if tiling.is_compact else 0
    return Packed(operand, arrangement, num_elements * tiling.weight_bytes + behind)
