"""Long sums in blocks that the second cache holds.

Every panel reads all rows of a chunk. Where their whole length does not stay in the second cache beside the
panels, each panel fetches it from beyond; so all panels go through a part of the summed steps before any goes
on, and the tiles' totals wait in memory meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import BLOCK_STEPS, MAX_CHAIN_STEPS
from tilewright.targets.cpu.product.contraction.choose import ELEMENT
from tilewright.targets.cpu.product.plan import KernelPlan
from tilewright.targets.llvm.values import vec

# Of the second cache, for totals, a block of the rows, and of the panel that is multiplied and the next one.
_SHARE = 0.75
# Blocks that a search may try.
_BLOCK_COUNTS = (2, 3, 4)


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


def step_blocks(plan: KernelPlan) -> StepBlocks | None:
    """The blocks that a plan asks for."""
    if plan.block_parts is None:
        return None
    most_units, most_panels, tile_bytes = _most(plan)
    count = -(-_num_parts(plan) // plan.block_parts)
    return StepBlocks(count, plan.block_parts, most_units, most_panels, tile_bytes)


def best_block_parts(plan: KernelPlan, isa: Isa) -> int | None:
    """Parts of a block for a product by constant panels; None where rows stay in the second cache as they
    are."""
    if not _has_blocks(plan):
        return None
    size_bytes, num_steps = plan.dtype.size_bytes, plan.summed[0].extent
    most_units, most_panels, tile_bytes = _most(plan)
    most_rows = max(t.rows for t in plan.row_tiles)
    step_bytes = (most_units * most_rows + 2 * plan.panels.width) * size_bytes
    if num_steps * step_bytes <= isa.caches.l2_bytes:
        return None
    free_bytes = int(_SHARE * isa.caches.l2_bytes) - most_panels * most_units * tile_bytes
    most_parts = free_bytes // (step_bytes * BLOCK_STEPS)
    if most_parts <= 0:
        return None
    parts = _num_parts(plan)
    return -(-parts // -(-parts // most_parts))


def possible_block_parts(plan: KernelPlan, isa: Isa) -> tuple[int, ...]:
    """Parts of a block in a few equal blocks whose totals the second cache holds, the most first."""
    if not _has_blocks(plan):
        return ()
    most_units, most_panels, tile_bytes = _most(plan)
    parts, best = _num_parts(plan), best_block_parts(plan, isa)
    found = [-(-parts // count) for count in _BLOCK_COUNTS if count < parts]
    fits = most_units * most_panels * tile_bytes <= isa.caches.l2_bytes
    return tuple(dict.fromkeys((*(found if fits else ()), *([] if best is None else [best]))))


def _has_blocks(plan: KernelPlan) -> bool:
    """Whether a sum can go through its steps in blocks."""
    is_plain = plan.cuts_tiles and not plan.windows and plan.spread is None and len(plan.summed) == 1
    is_long = is_plain and plan.summed[0].extent > MAX_CHAIN_STEPS
    return is_long and plan.packing == "in constant panels"


def _num_parts(plan: KernelPlan) -> int:
    return -(-plan.summed[0].extent // BLOCK_STEPS)


def _most(plan: KernelPlan) -> tuple[int, int, int]:
    """Units of rows and panels of the largest chunk, and bytes of the totals of a unit and a panel."""
    panels, cut = plan.panels, plan.cut
    most_rows = max(t.rows for t in plan.row_tiles)
    element = vec(ELEMENT[plan.dtype.size_bytes], panels.lanes)
    return (
        -(-plan.num_units // cut.num_row_parts),
        -(-panels.num_panels // cut.num_panel_parts),
        most_rows * panels.num_vectors * element.size_bytes,
    )
