"""Products on the matrix unit (AMX): float32 factors as sums of bfloat16 pieces, multiplied tile by tile."""

from tilewright.targets.cpu.matrix.generate import lower_matrix
from tilewright.targets.cpu.matrix.match import MatrixProblem, match_matrix
from tilewright.targets.cpu.matrix.plan import matrix_candidates, matrix_gain, undivided

__all__ = ["MatrixProblem", "lower_matrix", "match_matrix", "matrix_candidates", "matrix_gain", "undivided"]
