"""The template of the matrix unit."""

from __future__ import annotations

from typing import ClassVar

from tilewright.ir.nest import Nest
from tilewright.options import Accuracy
from tilewright.records import dataclass
from tilewright.targets.cpu.kernel import Declined
from tilewright.targets.cpu.product.matrix.generate import generate_matrix
from tilewright.targets.cpu.product.matrix.match import MatrixProblem, match_matrix
from tilewright.targets.cpu.product.matrix.plan import (
    MatrixPlan,
    chosen_plan,
    matrix_cycles,
    matrix_gain,
    matrix_neighbours,
    plan_matrix,
    undivided_plan,
)
from tilewright.targets.cpu.template import MIN_GAIN, Context, Estimate, Kernels
from tilewright.tuning import Choice

# Products of bfloat16 pieces by accuracy: six leave 2^-26 of each factor out, three 2^-17, one 2^-8.
_PRODUCTS: dict[Accuracy, int | None] = {"strict": None, "default": 6, "relaxed": 3, "fast": 1}
# Six products must gain so much by estimate, so that they lose nothing while the unit is slow: then a product
# takes 66 cycles where 42 are estimated. Networks ran on an Emerald Rapids server (two threads) at 0.80 to
# 1.00 of the speed of our AVX-512 code with six, at 1.10 to 1.52 with three, of which no more is asked than
# of other templates.
_MIN_GAIN: dict[Accuracy, float] = {"default": 1.6}


@dataclass(frozen=True, slots=True)
class MatrixTemplate:
    """float32 factors as sums of bfloat16 pieces; conditions of use are in `generate.py`.

    Parameters: `products` of pieces, `block_rows` and `block_columns` of tiles, `unit_parts` and
    `panel_parts` of the cut into chunks.
    """

    name: ClassVar[str] = "matrix"

    def match(self, work: Nest, context: Context) -> MatrixProblem | Declined:
        """The nest as a product with constant weights, where there is a matrix unit."""
        if not context.isa.has_matrix_unit:
            return Declined(f"{context.isa.name} here has no matrix unit")
        problem = match_matrix(work, context.layouts)
        if not isinstance(problem, Declined) and problem.contraction.b.operand.key not in context.constants:
            return Declined("weights that are computed at run time")
        return problem

    def algorithms(self, problem: MatrixProblem, context: Context) -> tuple[Choice, ...]:
        """As many products as the accuracy asks for."""
        num_products = _PRODUCTS[context.accuracy]
        return () if num_products is None else (Choice.of(self.name, products=num_products),)

    def estimate(self, problem: MatrixProblem, choice: Choice, context: Context) -> Estimate:
        """Products of tiles, splitting, finishing, and the bytes of weights."""
        plan = self._plan(problem, choice, context)
        assert not isinstance(plan, Declined)
        cycles, gain = matrix_cycles(problem, plan, context), matrix_gain(problem, plan.num_products, context)
        return Estimate(cycles, gain, min_gain=_MIN_GAIN.get(context.accuracy, MIN_GAIN))

    def neighbours(self, problem: MatrixProblem, algorithm: Choice, context: Context) -> tuple[Choice, ...]:
        """Other numbers of chunks, then other blocks."""
        num_products = algorithm.get("products")
        assert num_products is not None
        return matrix_neighbours(problem, num_products, context.isa)

    def lower(self, problem: MatrixProblem, choice: Choice, context: Context) -> Kernels | Declined:
        """The kernel."""
        plan = self._plan(problem, choice, context)
        return (
            plan
            if isinstance(plan, Declined)
            else (generate_matrix(plan_matrix(problem, plan), context.isa),)
        )

    def _plan(self, problem: MatrixProblem, choice: Choice, context: Context) -> MatrixPlan | Declined:
        num_products = choice.get("products")
        if num_products is None or num_products != _PRODUCTS[context.accuracy]:
            return Declined(f"{choice} is not {context.accuracy}")
        leaves_cut_open = choice.get("unit_parts") is None
        whole = None
        if leaves_cut_open and not context.divides:
            whole = undivided_plan(problem, num_products, context.isa)
        return whole or chosen_plan(problem, num_products, choice, context.isa)


MATRIX = MatrixTemplate()
