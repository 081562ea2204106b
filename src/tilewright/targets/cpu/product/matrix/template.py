"""The template of the matrix unit."""

from __future__ import annotations

from math import prod
from typing import ClassVar

from tilewright.ir.nest import Nest
from tilewright.options import Accuracy
from tilewright.records import dataclass
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import Declined
from tilewright.targets.cpu.product.amx import TILE_ROWS
from tilewright.targets.cpu.product.matrix.choose import (
    STATES,
    TEMPLATE,
    algorithm,
    chosen_plan,
    figures,
    matrix_cycles,
    matrix_gain,
    matrix_neighbours,
    terms_of,
    undivided_plan,
)
from tilewright.targets.cpu.product.matrix.cycles import step_cycles
from tilewright.targets.cpu.product.matrix.generate import matrix_kernels
from tilewright.targets.cpu.product.matrix.match import MatrixProblem, match_matrix
from tilewright.targets.cpu.product.matrix.plan import MatrixPlan, plan_matrix
from tilewright.targets.cpu.product.matrix.tiles import TERMS, TILE_COLUMNS, Block, Terms
from tilewright.targets.cpu.product.plan import Dot
from tilewright.targets.cpu.template import MIN_GAIN, Context, Estimate, Kernels
from tilewright.tuning import Choice

# What products may be made of by accuracy. Eight products of bytes err no more than float32 on any data, by
# their row's largest product; six bfloat16 products leave 2^-26 of each factor out, three 2^-17, one 2^-8.
DOTS_BY_ACCURACY: dict[Accuracy, tuple[Dot, ...]] = {
    "strict": (),
    "default": ("8 int8 products", "6 bfloat16 products"),
    "relaxed": ("3 bfloat16 products",),
    "fast": ("1 bfloat16 product",),
}
# Shorter sums err less in float32, while what fixed point loses is relative to the largest product: with
# digits in all sums a trained detector with weights from 1e-7 to 20 erred 5.8 times as much as onnxruntime,
# and 3.9 times with digits in these.
_LEAST_DIGIT_TERMS = 256


def unit_pays(isa: Isa, accuracy: Accuracy) -> bool:
    """Whether large products of float32 take less on the unit than in vectors, by its rates alone."""
    if not isa.has_matrix_unit:
        return False
    gains = []
    for dot in DOTS_BY_ACCURACY[accuracy]:
        terms = TERMS[dot]
        block = Block(1, 1) if terms.is_bytes else Block(2, 2)
        macs = block.rows * block.columns * TILE_ROWS * TILE_COLUMNS * terms.tile_depth
        cycles = sum(step_cycles(block, terms, isa.matrix_rates, STATES[accuracy]))
        gains.append(macs / (isa.lanes() * isa.fmas_per_cycle) / cycles)
    return max(gains, default=0.0) >= MIN_GAIN


@dataclass(frozen=True, slots=True)
class MatrixTemplate:
    """float32 factors as sums of bfloat16 pieces or of digits; conditions of use are in `generate.py`.

    Parameters: `products` of bfloat16 pieces or `slices`, products of digits; `block_rows` and
    `block_columns` of tiles, `unit_parts` and `panel_parts` of the cut into chunks.
    """

    name: ClassVar[str] = TEMPLATE

    def match(self, work: Nest, context: Context) -> MatrixProblem | Declined:
        """The nest as a product of float32, where there is a matrix unit."""
        if not context.isa.has_matrix_unit:
            return Declined(f"{context.isa.name} here has no matrix unit")
        return match_matrix(work, context.layouts, context.constants)

    def algorithms(self, problem: MatrixProblem, context: Context) -> tuple[Choice, ...]:
        """What the accuracy allows."""
        return tuple(algorithm(TERMS[dot]) for dot in self._dots(problem, context))

    def _dots(self, problem: MatrixProblem, context: Context) -> tuple[Dot, ...]:
        """What products may be made of; digits are of constant weights alone, in sums that are not short."""
        takes_digits = not problem.packs and prod(x.extent for x in problem.work.inner) >= _LEAST_DIGIT_TERMS
        return tuple(d for d in DOTS_BY_ACCURACY[context.accuracy] if takes_digits or not TERMS[d].is_bytes)

    def estimate(self, problem: MatrixProblem, choice: Choice, context: Context) -> Estimate:
        """Products and loads of tiles, splitting, finishing, and the bytes of weights."""
        terms = self._terms(problem, choice, context)
        assert not isinstance(terms, Declined)
        plan = self._plan(problem, terms, choice, context)
        assert not isinstance(plan, Declined)
        return Estimate(matrix_cycles(problem, plan, context), matrix_gain(problem, terms, context))

    def notes(self, problem: MatrixProblem, context: Context) -> tuple[str, ...]:
        """The model's figures of every way that the accuracy allows, whichever is taken."""
        return figures(problem, self._dots(problem, context), context)

    def neighbours(self, problem: MatrixProblem, algorithm: Choice, context: Context) -> tuple[Choice, ...]:
        """Other numbers of chunks, then other blocks."""
        terms = terms_of(algorithm)
        assert terms is not None
        return matrix_neighbours(problem, terms, context.isa)

    def lower(self, problem: MatrixProblem, choice: Choice, context: Context) -> Kernels | Declined:
        """The kernel."""
        terms = self._terms(problem, choice, context)
        plan = terms if isinstance(terms, Declined) else self._plan(problem, terms, choice, context)
        if isinstance(plan, Declined):
            return plan
        return matrix_kernels(plan_matrix(problem, plan), context.isa, context.next_local)

    def _terms(self, problem: MatrixProblem, choice: Choice, context: Context) -> Terms | Declined:
        terms = terms_of(choice)
        allowed = [TERMS[dot] for dot in self._dots(problem, context)]
        if terms is None or terms not in allowed:
            return Declined(f"{choice} is not {context.accuracy}")
        return terms

    def _plan(
        self, problem: MatrixProblem, terms: Terms, choice: Choice, context: Context
    ) -> MatrixPlan | Declined:
        leaves_cut_open = choice.get("unit_parts") is None
        whole = None
        if leaves_cut_open and not context.divides:
            whole = undivided_plan(problem, terms, context.isa)
        return whole or chosen_plan(problem, terms, choice, context.isa)


MATRIX = MatrixTemplate()
