"""How a product is cut for the matrix unit, by the least estimate or as a choice says."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from tilewright.options import Accuracy
from tilewright.targets.cpu.cut import cut_cycles
from tilewright.targets.cpu.isa import Isa, UnitState
from tilewright.targets.cpu.kernel import Declined
from tilewright.targets.cpu.product.contraction import CONTRACTION
from tilewright.targets.cpu.product.contraction.choose import contraction_cycles
from tilewright.targets.cpu.product.matrix.cycles import chunk_parts
from tilewright.targets.cpu.product.matrix.match import MatrixProblem
from tilewright.targets.cpu.product.matrix.plan import MatrixPlan, Shape, packed_factor, plan_matrix
from tilewright.targets.cpu.product.matrix.tiles import TERMS, Block, Terms
from tilewright.targets.cpu.product.plan import Dot
from tilewright.targets.cpu.template import START_CYCLES, Context
from tilewright.tuning import Choice

TEMPLATE = "matrix"
_MAX_NEIGHBOURS = 8
# Share of the L2 cache for the split inputs: a panel of weights and the result need the rest.
SCRATCH_SHARE = 0.6
_MAX_PARTS = 32
STATES: dict[Accuracy, UnitState] = {"strict": "worse", "default": "worse", "relaxed": "mean", "fast": "mean"}
"""The state of the unit that choices are made for: `default` promises not to be slower than other code, and
counts on the worse one; `relaxed` and `fast` gain where the unit is in either for half of the time."""


def choose_plan(problem: MatrixProblem, terms: Terms, isa: Isa) -> MatrixPlan:
    """The cut with the least estimated time over a few usual numbers of threads; the work alone decides."""
    shape = Shape.of(problem, terms)
    return _ranked(shape, shape.blocks[0], isa)[0]


def matrix_gain(problem: MatrixProblem, terms: Terms, context: Context) -> float:
    """Estimated time of the direct kernel over that of the matrix unit, both reading their weights cold."""
    direct = contraction_cycles(problem.contraction, Choice(CONTRACTION.name), context)
    return direct / matrix_cycles(problem, choose_plan(problem, terms, context.isa), context)


def state_of(context: Context) -> UnitState:
    """The state of the unit that choices are made for."""
    return STATES[context.accuracy]


def matrix_cycles(problem: MatrixProblem, plan: MatrixPlan, context: Context) -> float:
    """Estimated cycles of a plan on one thread, weights cold."""
    shape, rates = Shape.of(problem, plan.terms), context.isa.matrix_rates
    if not problem.packs:
        parts = chunk_parts(shape, plan, rates, state_of(context), context.cold_bytes_per_cycle)
        return parts.total * plan.num_chunks
    parts = chunk_parts(shape, plan, rates, state_of(context), context.isa.rates.private_bytes_per_cycle)
    packing = packed_factor(plan_matrix(problem, plan)).packing_cycles
    return parts.total * plan.num_chunks + START_CYCLES + plan.num_heads * packing


def figures(problem: MatrixProblem, dots: Sequence[Dot], context: Context) -> tuple[str, ...]:
    """What the model says of each way on the unit and of multiply-adds, in cycles of one core."""
    isa = context.isa
    direct = contraction_cycles(problem.contraction, Choice(CONTRACTION.name), context)
    limit = problem.num_macs / (isa.lanes() * isa.fmas_per_cycle)
    told = [f"multiply-adds: {_kilo(direct)} kcycles, their limit {_kilo(limit)}"]
    for dot in dots:
        shape = Shape.of(problem, TERMS[dot])
        plan = choose_plan(problem, TERMS[dot], isa)
        states: tuple[UnitState, ...] = ("better", "worse")
        of_chunks = (
            chunk_parts(shape, plan, isa.matrix_rates, state, context.cold_bytes_per_cycle)
            for state in states
        )
        better, worse = (parts.times(plan.num_chunks) for parts in of_chunks)
        told.append(
            f"{dot} on the unit: {_kilo(better.total)} kcycles, {_kilo(worse.total)} in its worse state; "
            f"products {_kilo(better.products)} (its limit), loads {_kilo(better.loads)} to "
            f"{_kilo(worse.loads)}, splitting {_kilo(better.split)}, finishing {_kilo(better.finish)}, "
            f"weights {_kilo(better.weights)}"
        )
    return tuple(told)


def _kilo(cycles: float) -> str:
    return f"{cycles / 1e3:,.1f}" if cycles < 1e5 else f"{cycles / 1e3:,.0f}"


def undivided_plan(problem: MatrixProblem, terms: Terms, isa: Isa) -> MatrixPlan | None:
    """All work in one chunk, for a caller that cuts it up itself; None where it outgrows the cache."""
    shape = Shape.of(problem, terms)
    plan = shape.plan(shape.blocks[0], 1, 1)
    return plan if plan.scratch_bytes <= SCRATCH_SHARE * isa.caches.l2_bytes else None


def matrix_neighbours(problem: MatrixProblem, terms: Terms, isa: Isa) -> tuple[Choice, ...]:
    """Ways to cut a problem, the estimate's first: other numbers of chunks, then other blocks."""
    shape = Shape.of(problem, terms)
    usual = shape.blocks[0]
    plans: dict[tuple[Block, int], MatrixPlan] = {}
    for block in shape.blocks:
        for plan in _ranked(shape, block, isa):
            # Of plans that differ by less than twice the chunks the best; one of each unusual block.
            plans.setdefault((block, plan.num_chunks.bit_length() if block == usual else 0), plan)
    return tuple(_choice(plan) for plan in list(plans.values())[:_MAX_NEIGHBOURS])


def algorithm(terms: Terms) -> Choice:
    """The choice of terms that leaves the cut open."""
    return Choice.of(TEMPLATE, **{"slices" if terms.is_bytes else "products": terms.num_products})


def terms_of(choice: Choice) -> Terms | None:
    """The terms of a choice."""
    return next((t for t in TERMS.values() if algorithm(t).algorithm == choice.algorithm), None)


def chosen_plan(problem: MatrixProblem, terms: Terms, choice: Choice, isa: Isa) -> MatrixPlan | Declined:
    """The plan of a choice; what it leaves open the estimate decides."""
    shape = Shape.of(problem, terms)
    names = ("block_rows", "block_columns", "unit_parts", "panel_parts")
    rows, columns, unit_parts, panel_parts = (choice.get(name) for name in names)
    if rows is None or columns is None or unit_parts is None or panel_parts is None:
        return choose_plan(problem, terms, isa)
    block = Block(rows, columns)
    if block not in shape.blocks:
        return Declined(f"a block of {rows}x{columns} tiles is of no use here")
    num_units = shape.num_units(block)
    if not 1 <= unit_parts <= min(num_units, _MAX_PARTS):
        return Declined(f"{unit_parts} parts of {num_units} units")
    plan = shape.plan(block, unit_parts, panel_parts)
    if not 1 <= panel_parts <= plan.num_panels:
        return Declined(f"{panel_parts} parts of {plan.num_panels} panels")
    return plan


def _choice(plan: MatrixPlan) -> Choice:
    return Choice.of(
        TEMPLATE,
        **dict(algorithm(plan.terms).parameters),
        block_rows=plan.block.rows,
        block_columns=plan.block.columns,
        unit_parts=plan.unit_parts,
        panel_parts=plan.panel_parts,
    )


@functools.lru_cache(maxsize=1024)
def _ranked(shape: Shape, block: Block, isa: Isa) -> tuple[MatrixPlan, ...]:
    """Plans with a block, the least estimated time over the usual numbers of threads first."""
    num_units = shape.num_units(block)
    found: list[tuple[float, int, int, MatrixPlan]] = []
    for unit_parts in range(1, min(num_units, _MAX_PARTS) + 1):
        first = shape.plan(block, unit_parts, 1)
        if first.scratch_bytes > SCRATCH_SHARE * isa.caches.l2_bytes and unit_parts < num_units:
            continue
        for panel_parts in range(1, min(first.num_panels, _MAX_PARTS // unit_parts) + 1):
            plan = shape.plan(block, unit_parts, panel_parts)
            chunk = chunk_parts(shape, plan, isa.matrix_rates, "better", isa.rates.cold_bytes_per_cycle)
            cycles = cut_cycles(chunk.total * plan.num_chunks, plan.num_chunks)
            found.append((cycles, unit_parts, panel_parts, plan))
    if not found:  # more units than parts, each too large: as small as the limit allows
        return (shape.plan(block, min(num_units, _MAX_PARTS), 1),)
    return tuple(plan for *_, plan in sorted(found, key=lambda x: x[:3]))
