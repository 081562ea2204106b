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
from tilewright.targets.cpu.product.contraction.tiling import Panels, Rows, Tile, choose_tile
from tilewright.targets.cpu.product.integer.depthwise import DepthwiseGenerator
from tilewright.targets.cpu.product.integer.dot import PAIRS_TILE, dot_of
from tilewright.targets.cpu.product.integer.frame import IntegerGenerator
from tilewright.targets.cpu.product.integer.generate import VectorGenerator
from tilewright.targets.cpu.product.integer.match import (
    IntegerProblem,
    match_depthwise,
    match_integer,
    product_of,
)
from tilewright.targets.cpu.product.integer.stage import lower_staging
from tilewright.targets.cpu.product.integer.tiles import TILE_COLUMNS, TileGenerator, tiles_suit
from tilewright.targets.cpu.template import (
    COLD_BYTES_PER_CYCLE,
    Context,
    Estimate,
    Kernels,
    operand_bytes,
    overlapped,
    transfer_cycles,
)
from tilewright.tuning import Choice

# Cycles of one register of four byte products per lane, loads included; of finishing a register of sums.
_DOT_CYCLES = {"vnni": 0.5, "pairs": 2.0, "widened": 10.0}
_FINISH_CYCLES = 4.0
# Of a tap of a depthwise window on one register of channels: widening its inputs is shared by few outputs.
_TAP_CYCLES = {"vnni": 0.5, "pairs": 0.8, "widened": 1.5}
# Of one product of tiles, with loads.
_TILE_CYCLES = 20.0


@dataclass(frozen=True, slots=True)
class IntegerTemplate:
    """Byte products on vectors or on the matrix unit, and sums per channel.

    Condition of use: bytes less their zero points, one factor constant. No parameters.
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
        problem = match_integer(work, context.layouts, constants=constants, next_local=next_local)
        if not isinstance(problem, Declined) and tiles_suit(problem, context.isa):
            return replace(problem, in_tiles=True)
        return problem

    def ways(self, problem: IntegerProblem, context: Context) -> tuple[Choice, ...]:
        """One: sums of integers are exact."""
        return (Choice(self.name),)

    def estimate(self, problem: IntegerProblem, choice: Choice, context: Context) -> Estimate:
        """Instructions that multiply, finishing, and the bytes of all operands; without the copy of A."""
        isa, contraction = context.isa, problem.contraction
        lanes = isa.lanes("i32")
        positions = contraction.row.extent * prod(x.extent for x in contraction.outer)
        vectors = -(-contraction.vector.extent // lanes)
        dot = dot_of(isa, lanes).name
        if problem.is_depthwise:
            compute = positions * vectors * prod(x.extent for x in problem.outer_steps) * _TAP_CYCLES[dot]
        elif problem.in_tiles:
            tiles = -(-positions // TILE_ROWS) * -(-contraction.vector.extent // TILE_COLUMNS)
            steps = problem.steps_per_run * prod(x.extent for x in problem.outer_steps)
            compute = tiles * steps * _TILE_CYCLES
        else:
            compute = positions * vectors * problem.num_words * _DOT_CYCLES[dot]
        compute += positions * vectors * _FINISH_CYCLES
        moved = (operand_bytes(contraction.a.operand), operand_bytes(contraction.nest.write.operand))
        weights = operand_bytes(contraction.b.operand) / COLD_BYTES_PER_CYCLE
        return Estimate(overlapped(compute, weights + transfer_cycles(moved, isa)))

    def candidates(self, problem: IntegerProblem, way: Choice, context: Context) -> tuple[Choice, ...]:
        """Nothing to choose between."""
        return ()

    def variations(self, problem: IntegerProblem, way: Choice, context: Context) -> tuple[Choice, ...]:
        """No more than the candidates."""
        return ()

    def lower(self, problem: IntegerProblem, choice: Choice, context: Context) -> Kernels | Declined:
        """Where padding or its layout asks for it a copy of A, a new local operand, then the product."""
        kernel = _generator(problem, context.isa).kernel()
        if problem.staging is None:
            return (kernel,)
        return (*lower_staging(problem.staging, context.layouts, context.isa), kernel)


def _generator(problem: IntegerProblem, isa: Isa) -> IntegerGenerator:
    if problem.is_depthwise:
        return DepthwiseGenerator(problem, isa)
    if problem.in_tiles:
        return TileGenerator(problem, isa)
    rows, columns = problem.contraction.row.extent, problem.contraction.vector.extent
    tile = choose_tile(isa, "i32", Rows(rows), columns, problem.num_words)
    lanes = tile.panels.lanes
    if dot_of(isa, lanes).name == "pairs":
        most_rows, most_vectors = PAIRS_TILE[isa.num_vector_registers]
        vectors = min(most_vectors, -(-columns // lanes))
        tile = Tile(Panels(lanes, vectors, columns), most_rows * most_vectors // vectors)
    return VectorGenerator(problem, tile, isa)


INTEGER = IntegerTemplate()
