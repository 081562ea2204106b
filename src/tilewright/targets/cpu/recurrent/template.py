"""Which kernels compute a loop over the steps of a recurrent layer, and how long they take."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tilewright.ir.fuse import steps_group
from tilewright.ir.graph import Node
from tilewright.ir.nest import Nest, Stepwise
from tilewright.ir.ops import describe
from tilewright.records import dataclass
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import Declined, Kernel, OperandKey
from tilewright.targets.cpu.recurrent.generate import generate_steps
from tilewright.targets.cpu.recurrent.match import StepsProblem, match_steps
from tilewright.targets.cpu.recurrent.tiling import tiling_of
from tilewright.targets.cpu.template import START_CYCLES, transfer_cycles

# A vector of an activation, and a wait for the other threads.
_ACTIVATION_CYCLES = 18.0
_STEP_CYCLES = 300.0


def lower_steps(
    description: Stepwise,
    nests: Sequence[Nest],
    constants: Collection[OperandKey],
    next_local: int,
    isa: Isa,
    *,
    may_round: bool = False,
) -> tuple[Kernel, ...] | Declined:
    """The kernels of nests that run step by step, which carry their estimate, or why there are none.

    `nests` are the description's under the names of a group; `next_local` is the first free temporary. Unless
    weights `may_round` they are read as they are.
    """
    problem = match_steps(description, nests, constants, next_local)
    if isinstance(problem, Declined):
        return problem
    *before, kernel = generate_steps(problem, isa, next_local + len(problem.homes), may_round=may_round)
    return (*before, kernel.estimated(_cycles(problem, isa)))


@dataclass(frozen=True, slots=True)
class StepsEstimate:
    """Cycles of one core for all steps, and how many threads may share them."""

    cycles: float
    num_chunks: int


def estimate_steps(node: Node, isa: Isa) -> StepsEstimate | None:
    """Of a node that works step by step; None where there is no kernel for it."""
    description = describe(node)
    if not isinstance(description, Stepwise):
        return None
    group = steps_group(node)
    constants = {("input", i) for i, value in enumerate(group.inputs) if value.is_constant}
    problem = match_steps(description, group.nests, constants, len(group.locals))
    if isinstance(problem, Declined):
        return None
    num_chunks = len(problem.cells) * tiling_of(problem, isa, may_round=False).num_shares
    return StepsEstimate(_cycles(problem, isa), num_chunks)


def _weight_cycles(size_bytes: int, isa: Isa) -> float:
    """To read the weights of a direction, which stay in a private cache from step to step if they fit."""
    if size_bytes <= isa.caches.l2_bytes:
        return size_bytes / isa.rates.private_bytes_per_cycle
    return transfer_cycles([size_bytes], isa)


def _cycles(problem: StepsProblem, isa: Isa) -> float:
    """Of all steps on one core: multiply-adds or the weights' bytes, and activations."""
    lanes = isa.lanes()
    products = problem.step_macs / (2 * lanes)
    num_cells = len(problem.cells)
    weights = num_cells * _weight_cycles(problem.weight_bytes // num_cells, isa)
    vectors = problem.batch * -(-problem.size // lanes) * sum(phase.blocks + 1 for phase in problem.phases)
    step = max(products, weights) + vectors * _ACTIVATION_CYCLES + problem.num_phases * _STEP_CYCLES
    return START_CYCLES + problem.steps * step
