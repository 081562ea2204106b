"""From a nest to kernels of the integer templates."""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir.nest import Nest
from tilewright.targets.cpu.contraction.tiling import Panels, Tile, choose_tile
from tilewright.targets.cpu.integer.depthwise import DepthwiseGenerator
from tilewright.targets.cpu.integer.dot import PAIRS_TILE, dot_of
from tilewright.targets.cpu.integer.frame import IntegerGenerator
from tilewright.targets.cpu.integer.generate import VectorGenerator
from tilewright.targets.cpu.integer.match import IntegerProblem, match_depthwise, match_integer, product_of
from tilewright.targets.cpu.integer.stage import lower_staging
from tilewright.targets.cpu.integer.tiles import TileGenerator, tiles_suit
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import Declined, Kernel, Layouts, OperandKey


def lower_integer(
    nest: Nest,
    layouts: Layouts,
    isa: Isa,
    *,
    constants: frozenset[OperandKey],
    next_local: int,
) -> tuple[Kernel, ...] | Declined:
    """Kernels of one sum of byte products: where padding or its layout asks for it a copy of A, the product.

    The copy is a new local operand numbered `next_local`.
    """
    if product_of(nest) is None:
        return Declined("not a sum of products of bytes")
    generator: IntegerGenerator
    problem = match_depthwise(nest, layouts, constants=constants, next_local=next_local)
    if not isinstance(problem, Declined):
        return _with_staging(problem, DepthwiseGenerator(problem, isa), layouts)
    problem = match_integer(nest, layouts, constants=constants, next_local=next_local)
    if isinstance(problem, Declined):
        return problem
    contraction = problem.contraction
    if tiles_suit(problem, isa):
        generator = TileGenerator(replace(problem, in_tiles=True), isa)
    else:
        rows, columns = contraction.row.extent, contraction.vector.extent
        tile = choose_tile(isa, "i32", rows, columns, problem.num_words)
        lanes = tile.panels.lanes
        if dot_of(isa, lanes).name == "pairs":
            most_rows, most_vectors = PAIRS_TILE[isa.num_vector_registers]
            vectors = min(most_vectors, -(-columns // lanes))
            tile = Tile(Panels(lanes, vectors, columns), most_rows * most_vectors // vectors)
        generator = VectorGenerator(problem, tile, isa)
    return _with_staging(problem, generator, layouts)


def _with_staging(
    problem: IntegerProblem, generator: IntegerGenerator, layouts: Layouts
) -> tuple[Kernel, ...]:
    kernel = generator.kernel()
    if problem.staging is None:
        return (kernel,)
    return (*lower_staging(problem.staging, layouts, generator.isa), kernel)
