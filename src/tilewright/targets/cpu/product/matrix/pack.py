"""Weights split into pieces and arranged for the matrix unit: see `MatrixTiles`."""

from __future__ import annotations

from tilewright.targets.cpu.arrangements import TILE_BYTES, TILE_COLUMNS, MatrixTiles, window
from tilewright.targets.cpu.kernel import Packed
from tilewright.targets.cpu.product.matrix.match import MatrixProblem
from tilewright.targets.cpu.product.matrix.plan import MatrixPlan


def pack_weights(problem: MatrixProblem, plan: MatrixPlan) -> Packed:
    """The constant factor as the kernel reads it."""
    line, row = plan.grid.line, plan.grid.row
    shape = (line.num_taps, row.num_taps, problem.depth, problem.columns)
    strides = (line.tap_b, row.tap_b, problem.depth_b, problem.columns_b)
    pieces = plan.num_pieces
    num_tiles = -(-problem.columns // TILE_COLUMNS)
    size_bytes = pieces * problem.num_taps * plan.num_steps * num_tiles * TILE_BYTES
    arrangement = MatrixTiles(window(shape, strides, problem.b_offset), pieces, plan.block.columns)
    return Packed(problem.contraction.b.operand, arrangement, size_bytes)
