"""How the units of a recurrent layer are cut: into tiles for registers, and shares of tiles for threads."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.dtype import DType
from tilewright.targets.cpu.arrangements import COMPACT_BYTES
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import MAX_CHAIN_STEPS
from tilewright.targets.cpu.product.contraction.decisions import MAX_COMPACT_ROWS
from tilewright.targets.cpu.product.integer.dot import Dot, dot_of
from tilewright.targets.cpu.product.tiling import Panels
from tilewright.targets.cpu.recurrent.match import StepsProblem
from tilewright.targets.cpu.recurrent.share import MAX_SHARES
from tilewright.targets.cpu.template import CACHED_SHARE

# Less than this of a phase is not worth a thread that waits for the others at its end. To take a share is to
# wait for all that the core has begun.
_MIN_SHARE_MACS = 24 * 1024
# Vectors of weights that a term of the sum reads: wider tiles waste more units at the end of a layer.
_MAX_TILE_VECTORS = 8
_MIN_PART_TERMS = 32


@dataclass(frozen=True, slots=True)
class Tiling:
    """Panels of units, of each block the same, for `rows` sequences at a time: a tile.

    Rows that take several passes take them for `part_terms` of a sum at a time, whose weights the first cache
    keeps. Where it `is_compact`, weights have 24 bits; those that are bytes are multiplied by `dot`.
    """

    panels: Panels
    rows: int
    tiles_per_share: int
    part_terms: int
    dot: Dot
    is_compact: bool = False

    @property
    def num_shares(self) -> int:
        """Of a direction, for one thread each."""
        return -(-self.panels.num_panels // self.tiles_per_share)

    @property
    def weight_bytes(self) -> int:
        """Of one weight."""
        return COMPACT_BYTES if self.is_compact else DType.FLOAT32.size_bytes


def tiling_of(problem: StepsProblem, isa: Isa, *, may_round: bool) -> Tiling:
    """One pass over the rows if that can be, as each reads the weights again; then few loads, then many rows.

    Weights that `may_round` do so where few rows share them and no private cache keeps them.
    """
    lanes, blocks = isa.lanes(), max(phase.blocks for phase in problem.phases)

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

    def cycles_of(vectors: int) -> float:
        """Of a unit's vector and row, for a term of each phase: as many loads as multiply-adds at once."""
        rows = -(-problem.batch // passes_of(vectors))
        counts = [phase.blocks * vectors for phase in problem.cells[0]]
        return sum(max(count * rows, count + rows) for count in counts) / (vectors * rows)

    vectors = min(widths, key=lambda v: (passes_of(v) > 1, cycles_of(v), passes_of(v), -v))
    passes = passes_of(vectors)
    panels = Panels(lanes, vectors, problem.size)
    turn_macs = problem.step_macs // len(problem.phases)
    most_shares = max(1, min(panels.num_panels, MAX_SHARES, turn_macs // _MIN_SHARE_MACS))
    tiles_per_share = -(-panels.num_panels // most_shares)
    is_cached = problem.weight_bytes / len(problem.cells) <= CACHED_SHARE * isa.caches.l2_bytes
    is_real = all(phase.state_bytes is None for phase in problem.phases)
    is_compact = is_real and may_round and problem.batch <= MAX_COMPACT_ROWS and not is_cached
    rows = -(-problem.batch // passes)
    term_bytes = DType.FLOAT32.size_bytes * blocks * lanes * vectors
    part_terms = max(_MIN_PART_TERMS, min(MAX_CHAIN_STEPS, isa.caches.l1_bytes // 2 // term_bytes))
    dot = dot_of(isa, lanes)
    return Tiling(panels, rows, tiles_per_share, part_terms, dot, is_compact)


def _fits(rows: int, num_vectors: int, isa: Isa) -> bool:
    """Whether totals stay in registers, beside the factors of a term or its rows' values, and one more."""
    used = rows * num_vectors + min(rows, num_vectors) + 1
    return used <= isa.num_vector_registers - isa.num_spare_registers
