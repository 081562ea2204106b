"""Long sums in blocks that the second cache holds.

Every panel reads all rows of a chunk. Where their whole length does not stay in the second cache beside the
panels, each panel fetches it from beyond; so all panels go through a part of the summed steps before any goes
on, and the tiles' totals wait in memory meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.targets.cpu.emit.values import vec
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import BLOCK_STEPS, MAX_CHAIN_STEPS
from tilewright.targets.cpu.product.contraction.choose import ELEMENT, Design
from tilewright.targets.cpu.product.contraction.tiling import split_rows
from tilewright.targets.cpu.product.loops import StridedLoop

# Of the second cache, for totals, a block of the rows, and of the panel that is multiplied and the next one.
_SHARE = 0.75


@dataclass(frozen=True, slots=True)
class StepBlocks:
    """`count` blocks of `num_parts` parts of `BLOCK_STEPS` steps, the last with what is left.

    `most_units` of a chunk's rows have a total of `tile_bytes` each for every one of `most_panels`.
    """

    count: int
    num_parts: int
    most_units: int
    most_panels: int
    tile_bytes: int

    @property
    def num_steps(self) -> int:
        """Steps of a whole block."""
        return self.num_parts * BLOCK_STEPS

    @property
    def scratch_bytes(self) -> int:
        """Memory for the totals of a chunk."""
        return self.most_panels * self.most_units * self.tile_bytes


def step_blocks(design: Design, order: Sequence[StridedLoop], isa: Isa) -> StepBlocks | None:
    """The blocks of a product by constant panels; None where rows stay in the second cache as they are."""
    problem, panels, cut = design.problem, design.tile.panels, design.cut
    is_plain = design.cuts_tiles and not problem.windows and problem.spread is None and len(order) == 1
    if not is_plain or order[0].extent <= MAX_CHAIN_STEPS:
        return None
    size_bytes, num_steps = problem.dtype.size_bytes, order[0].extent
    most_rows = max(t.rows for t in split_rows(problem.row.extent, design.tile.max_rows))
    most_units = -(-design.num_units // cut.num_row_parts)
    step_bytes = (most_units * most_rows + 2 * panels.width) * size_bytes
    if num_steps * step_bytes <= isa.caches.l2_bytes:
        return None
    tile_bytes = most_rows * panels.num_vectors * vec(ELEMENT[size_bytes], panels.lanes).size_bytes
    most_panels = -(-panels.num_panels // cut.num_panel_parts)
    free_bytes = int(_SHARE * isa.caches.l2_bytes) - most_panels * most_units * tile_bytes
    most_parts = free_bytes // (step_bytes * BLOCK_STEPS)
    if most_parts <= 0:
        return None
    parts = -(-num_steps // BLOCK_STEPS)
    num_parts = -(-parts // -(-parts // most_parts))
    return StepBlocks(-(-parts // num_parts), num_parts, most_units, most_panels, tile_bytes)
