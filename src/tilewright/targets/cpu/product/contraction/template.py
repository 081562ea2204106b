"""The template of contractions: the direct kernel, beside which others must win."""

from __future__ import annotations

from typing import ClassVar

from tilewright.ir.nest import Nest
from tilewright.records import dataclass
from tilewright.targets.cpu.kernel import Declined
from tilewright.targets.cpu.product.contraction.choose import contraction_cycles, contraction_problem
from tilewright.targets.cpu.product.contraction.decisions import choice_of, neighbours, plan_contraction
from tilewright.targets.cpu.product.contraction.generate import generate_contraction
from tilewright.targets.cpu.product.contraction.match import Contraction
from tilewright.targets.cpu.template import Context, Estimate, Kernels
from tilewright.tuning import Choice


@dataclass(frozen=True, slots=True)
class ContractionTemplate:
    """Register tiles over nested summed loops: GEMM, convolutions, products of attention on their own.

    Condition of use: float32 or float64, one dim of the result contiguous and moving one factor alone.
    Parameters: see `decisions.py`.
    """

    name: ClassVar[str] = "contraction"

    def match(self, work: Nest, context: Context) -> Contraction | Declined:
        """The nest as a contraction under its layouts."""
        return contraction_problem(work, context)

    def algorithms(self, problem: Contraction, context: Context) -> tuple[Choice, ...]:
        """One."""
        return (Choice(self.name),)

    def estimate(self, problem: Contraction, choice: Choice, context: Context) -> Estimate:
        """Issue slots of the register tiles, and the bytes of weights."""
        return Estimate(contraction_cycles(problem, choice, context))

    def neighbours(self, problem: Contraction, algorithm: Choice, context: Context) -> tuple[Choice, ...]:
        """Other register tiles and cuts, packing, blocks of long sums, and what is fetched."""
        plan = plan_contraction(problem, algorithm, context)
        if isinstance(plan, Declined):
            return ()
        return tuple(choice_of(other, context) for other in (plan, *neighbours(plan, context)))

    def lower(self, problem: Contraction, choice: Choice, context: Context) -> Kernels | Declined:
        """The packing of the second factor where that must happen at run time, then the product."""
        plan = plan_contraction(problem, choice, context)
        return plan if isinstance(plan, Declined) else generate_contraction(problem, plan, context)


CONTRACTION = ContractionTemplate()
