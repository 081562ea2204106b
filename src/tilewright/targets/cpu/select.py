"""Which template computes a contraction: the direct micro-kernel, or Winograd's fewer products.

Only estimates decide, so that a selection takes no time and every machine selects alike.
"""

from __future__ import annotations

from tilewright.ir.nest import Nest
from tilewright.options import Accuracy
from tilewright.targets.cpu.contraction import lower_contraction
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import Declined, Kernel, Layouts, OperandKey
from tilewright.targets.cpu.winograd import lower_winograd, match_winograd, winograd_gain

# Output tiles by accuracy: 2x2 errs as the direct kernel does, 4x4 about three times as much.
WINOGRAD_TILES: dict[Accuracy, tuple[int, ...]] = {"strict": (), "default": (2, 4), "fast": (2, 4)}
# An estimate below this may be wrong about which is faster.
MIN_WINOGRAD_GAIN = 1.15


def lower_product(
    nest: Nest,
    layouts: Layouts,
    isa: Isa,
    *,
    constants: frozenset[OperandKey],
    next_local: int,
    accuracy: Accuracy,
) -> tuple[Kernel, ...] | Declined:
    """Kernels of a contraction nest by the template with the least estimated time, or why it is none."""
    problem = match_winograd(nest, layouts)
    if not isinstance(problem, Declined):
        gains = {tile: winograd_gain(problem, tile, isa) for tile in WINOGRAD_TILES[accuracy]}
        tile = max(gains, key=lambda t: gains[t], default=0)
        if tile and gains[tile] >= MIN_WINOGRAD_GAIN:
            kernels = lower_winograd(nest, layouts, isa, constants=constants, tile=tile)
            if not isinstance(kernels, Declined):
                return kernels
    return lower_contraction(nest, layouts, isa, constants=constants, next_local=next_local)
