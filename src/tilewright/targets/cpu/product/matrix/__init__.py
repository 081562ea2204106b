"""Products on the matrix unit (AMX): float32 factors as sums of bfloat16 pieces, multiplied tile by tile."""

from tilewright.targets.cpu.product.matrix.match import MatrixProblem, match_matrix
from tilewright.targets.cpu.product.matrix.template import MATRIX, unit_pays

__all__ = ["MATRIX", "MatrixProblem", "match_matrix", "unit_pays"]
