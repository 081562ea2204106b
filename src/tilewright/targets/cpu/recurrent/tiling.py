"""How the units of a recurrent layer are cut: into tiles for registers, and shares of tiles for threads."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.recurrent.match import StepsProblem
from tilewright.targets.cpu.recurrent.share import MAX_SHARES

# Less than this of a step is not worth a thread that waits for the others at its end. To take a share is to
# wait for all that the core has begun.
_MIN_SHARE_MACS = 24 * 1024
# Vectors of weights that a term of the sum reads: wider tiles waste more units at the end of a layer.
_MAX_TILE_VECTORS = 8


@dataclass(frozen=True, slots=True)
class Tiling:
    """Tiles of `vectors` of `lanes` units, for `rows` sequences at a time; a direction has `per_cell`."""

    lanes: int
    vectors: int
    rows: int
    per_cell: int
    tiles_per_share: int

    @property
    def num_shares(self) -> int:
        """Of a direction, for one thread each."""
        return -(-self.per_cell // self.tiles_per_share)

    @property
    def width(self) -> int:
        """Units of a tile."""
        return self.lanes * self.vectors


def tiling_of(problem: StepsProblem, isa: Isa) -> Tiling:
    """Many rows before many vectors: each pass over the rows reads the weights again."""
    lanes, blocks = isa.lanes(), max(cell.blocks for cell in problem.cells)

    def rows_of(vectors: int) -> int:
        fits = (r for r in range(1, problem.batch + 1) if _fits(r, blocks * vectors, isa))
        return max(fits, default=0)

    def passes_of(vectors: int) -> int:
        return -(-problem.batch // max(1, rows_of(vectors)))

    most = -(-problem.size // lanes)
    widths = [
        v
        for v in (1, 2, 4)
        if v <= max(1, most) and blocks * v <= _MAX_TILE_VECTORS and (v == 1 or rows_of(v))
    ]
    vectors = min(widths, key=lambda v: (passes_of(v), -v))
    passes = passes_of(vectors)
    per_cell = -(-problem.size // (lanes * vectors))
    cell_macs = problem.step_macs // len(problem.cells)
    most_shares = max(1, min(per_cell, MAX_SHARES, cell_macs // _MIN_SHARE_MACS))
    tiles_per_share = -(-per_cell // most_shares)
    return Tiling(lanes, vectors, -(-problem.batch // passes), per_cell, tiles_per_share)


def _fits(rows: int, num_vectors: int, isa: Isa) -> bool:
    """Whether totals stay in registers, beside the factors of a term or its rows' values, and one more."""
    used = rows * num_vectors + min(rows, num_vectors) + 1
    return used <= isa.num_vector_registers - isa.num_spare_registers
