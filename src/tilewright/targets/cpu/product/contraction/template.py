"""The template of contractions: the direct kernel, beside which others must win."""

from __future__ import annotations

from typing import ClassVar

from tilewright.ir.nest import Nest
from tilewright.records import dataclass
from tilewright.targets.cpu.kernel import Declined
from tilewright.targets.cpu.product.contraction.choose import (
    contraction_candidates,
    contraction_cycles,
    contraction_problem,
    contraction_variations,
    design_contraction,
)
from tilewright.targets.cpu.product.contraction.generate import generate_contraction
from tilewright.targets.cpu.product.contraction.match import Contraction
from tilewright.targets.cpu.template import Context, Estimate, Kernels
from tilewright.tuning import Choice


@dataclass(frozen=True, slots=True)
class ContractionTemplate:
    """Register tiles over nested summed loops: GEMM, convolutions, products of attention on their own.

    Condition of use: float32 or float64, one dim of the result contiguous and moving one factor alone.
    Parameters: `rows` and `vectors` of the register tile, `row_parts` and `panel_parts` of the cut.
    """

    name: ClassVar[str] = "contraction"

    def match(self, work: Nest, context: Context) -> Contraction | Declined:
        """The nest as a contraction under its layouts."""
        return contraction_problem(work, context)

    def ways(self, problem: Contraction, context: Context) -> tuple[Choice, ...]:
        """One."""
        return (Choice(self.name),)

    def estimate(self, problem: Contraction, choice: Choice, context: Context) -> Estimate:
        """Issue slots of the register tiles, and the bytes of weights."""
        return Estimate(contraction_cycles(problem, choice, context))

    def candidates(self, problem: Contraction, way: Choice, context: Context) -> tuple[Choice, ...]:
        """Register tiles with the cut estimated for them, the best tile also with other numbers of chunks."""
        return contraction_candidates(problem, context.isa)

    def variations(self, problem: Contraction, way: Choice, context: Context) -> tuple[Choice, ...]:
        """More register tiles in more cuts."""
        return contraction_variations(problem, context.isa)

    def lower(self, problem: Contraction, choice: Choice, context: Context) -> Kernels | Declined:
        """The packing of the second factor where that must happen at run time, then the product."""
        design = design_contraction(problem, choice, context.isa)
        return design if isinstance(design, Declined) else generate_contraction(design, context)


CONTRACTION = ContractionTemplate()
