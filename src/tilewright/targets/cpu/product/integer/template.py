"""The template of byte products: sums of products of centred bytes in int32."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import ClassVar

from tilewright.ir.nest import Nest
from tilewright.records import dataclass
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import Declined
from tilewright.targets.cpu.product.amx import TILE_ROWS
from tilewright.targets.cpu.product.contraction.choose import plan_of
from tilewright.targets.cpu.product.integer.depthwise import MAX_ROWS
from tilewright.targets.cpu.product.integer.dot import PAIRS_TILE, dot_of
from tilewright.targets.cpu.product.integer.generate import byte_kernels
from tilewright.targets.cpu.product.integer.match import IntegerProblem, match_depthwise, match_integer
from tilewright.targets.cpu.product.integer.pack import packed_bytes
from tilewright.targets.cpu.product.integer.panels import packing_cycles
from tilewright.targets.cpu.product.integer.stage import lower_staging
from tilewright.targets.cpu.product.integer.tiles import (
    TILE_COLUMNS,
    tile_panels,
    tile_rows,
    tiles_suit,
    with_order,
)
from tilewright.targets.cpu.product.integer.words import words_of
from tilewright.targets.cpu.product.plan import Dot, KernelPlan, Units
from tilewright.targets.cpu.product.tiling import Panels, Rows, Tile, choose_tile
from tilewright.targets.cpu.template import (
    Context,
    Estimate,
    Kernels,
    operand_bytes,
    overlapped,
    transfer_cycles,
)
from tilewright.targets.llvm.byte_products import product_of
from tilewright.tuning import Choice

# Cycles of one register of four byte products per lane, loads included; of finishing a register of sums.
_DOT_CYCLES = {"vnni": 0.5, "pairs": 2.0, "widened": 10.0}
_FINISH_CYCLES = 4.0
# Of a tap of a depthwise window on one register of channels: widening its inputs is shared by few outputs.
_TAP_CYCLES = {"vnni": 0.5, "pairs": 0.8, "widened": 1.5}


@dataclass(frozen=True, slots=True)
class IntegerTemplate:
    """Byte products on vectors or on the matrix unit, and sums per channel.

    Condition of use: bytes less their zero points, of which B's is a number. No parameters.
    """

    name: ClassVar[str] = "integer"

    def match(self, work: Nest, context: Context) -> IntegerProblem | Declined:
        """The nest as sums per channel, else as sums over words of four steps."""
        if product_of(work) is None:
            return Declined("not a sum of products of bytes")
        constants, next_local = context.constants, context.next_local
        problem = match_depthwise(work, context.layouts, constants=constants, next_local=next_local)
        if not isinstance(problem, Declined):
            return problem
        return match_integer(work, context.layouts, constants=constants, next_local=next_local)

    def algorithms(self, problem: IntegerProblem, context: Context) -> tuple[Choice, ...]:
        """One: sums of integers are exact."""
        return (Choice(self.name),)

    def estimate(self, problem: IntegerProblem, choice: Choice, context: Context) -> Estimate:
        """Instructions that multiply, finishing, and the bytes of all operands; without the copy of A."""
        isa, contraction = context.isa, problem.contraction
        plan = plan_integer(problem, isa)
        words = words_of(plan.summed, plan.dot)
        positions = contraction.row.extent * prod(x.extent for x in contraction.outer)
        vectors = -(-contraction.vector.extent // isa.lanes("i32"))
        name = dot_of(isa, isa.lanes("i32")).name
        if problem.by_column:
            compute = positions * vectors * words.num_runs * _TAP_CYCLES[name]
        elif plan.dot == "byte tiles":
            tile_cycles = isa.matrix_rates.product_cycles + isa.matrix_rates.load_cycles("better")
            tiles = -(-positions // TILE_ROWS) * -(-contraction.vector.extent // TILE_COLUMNS)
            compute = tiles * words.steps_per_run * words.num_runs * tile_cycles
        else:
            compute = positions * vectors * words.num_words * _DOT_CYCLES[name]
        compute += positions * vectors * _FINISH_CYCLES
        if problem.packs:
            compute += packing_cycles(plan)
        moved = (operand_bytes(contraction.a.operand), operand_bytes(contraction.nest.write.operand))
        weights = operand_bytes(contraction.b.operand) / isa.rates.cold_bytes_per_cycle
        return Estimate(overlapped(compute, weights + transfer_cycles(moved, isa)))

    def neighbours(self, problem: IntegerProblem, algorithm: Choice, context: Context) -> tuple[Choice, ...]:
        """Nothing to choose between."""
        return ()

    def lower(self, problem: IntegerProblem, choice: Choice, context: Context) -> Kernels | Declined:
        """A copy of A where padding or its layout asks for it, B packed where it is no constant, the product.

        What the first two write are new local operands.
        """
        plan, isa = plan_integer(problem, context.isa), context.isa
        before: Kernels = ()
        if problem.staging is not None:
            before = lower_staging(problem.staging, context.layouts, isa)
        return (*before, *byte_kernels(plan, isa, context.next_local + len(before)))


INTEGER = IntegerTemplate()


# Byte products of one instruction per product of floats: what a chunk must hold to be worth a region.
_PRODUCTS_PER_WORD = 4


def plan_integer(problem: IntegerProblem, isa: Isa) -> KernelPlan:
    """The plan of a problem; there is one."""
    rows, columns = problem.contraction.row.extent, problem.contraction.vector.extent
    if problem.by_column:
        lanes = next((n for n in reversed(isa.lane_choices("i32")) if n >= columns), isa.lanes("i32"))
        tile = Tile(Panels(lanes, 1, columns), MAX_ROWS[isa.num_vector_registers])
        dot: Dot = f"{dot_of(isa, lanes).name} by column"  # type: ignore[assignment]  # one of them
        return _cut(_planned(problem, tile, dot, "whole rows"), isa, 1)
    if tiles_suit(problem, isa):
        tile = Tile(
            tile_panels(columns), tile_rows(rows, in_pairs=any(x.b for x in problem.contraction.outer))
        )
        return with_order(_planned(problem, tile, "byte tiles", "pairs of tiles"), isa)
    tile = choose_tile(isa, "i32", Rows(rows), columns, problem.words.num_words)
    lanes = tile.panels.lanes
    name = dot_of(isa, lanes).name
    if name == "pairs":
        most_rows, most_vectors = PAIRS_TILE[isa.num_vector_registers]
        vectors = min(most_vectors, -(-columns // lanes))
        tile = Tile(Panels(lanes, vectors, columns), most_rows * most_vectors // vectors)
    plan = _cut(_planned(problem, tile, name, "row tiles"), isa, _PRODUCTS_PER_WORD)
    return replace(plan, fetches_ahead=_fetches_ahead(plan, isa))


def _planned(problem: IntegerProblem, tile: Tile, dot: Dot, units: Units) -> KernelPlan:
    return plan_of(
        problem.contraction,
        tile,
        dot=dot,
        staging="in place" if problem.staging is None else "copied",
        packing="in panels" if problem.packs else "in constant panels",
        zeros=problem.zeros,
        units=units,
    )


def _fetches_ahead(plan: KernelPlan, isa: Isa) -> bool:
    """Whether the next panel is fetched meanwhile: of weights that the first cache does not hold, where the
    units of a chunk are enough to fetch every vector."""
    is_constant, panels = plan.packing == "in constant panels", plan.panels
    is_shared = plan.num_units // plan.cut.num_row_parts >= panels.num_vectors
    return is_constant and panels.num_panels > 1 and is_shared and packed_bytes(plan) > isa.caches.l1_bytes


def _cut(plan: KernelPlan, isa: Isa, products_per_operation: int) -> KernelPlan:
    return replace(plan, cut=plan.ranked_cuts(isa, products_per_operation)[0])
