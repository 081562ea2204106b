"""The kernel of a plan of byte products, by the dot that it names."""

from __future__ import annotations

from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import Kernel
from tilewright.targets.cpu.product.integer.depthwise import generate_by_column
from tilewright.targets.cpu.product.integer.tiles import generate_tiles
from tilewright.targets.cpu.product.integer.vectors import generate_words
from tilewright.targets.cpu.product.plan import KernelPlan


def generate_integer(plan: KernelPlan, isa: Isa) -> Kernel:
    """The kernel of a plan of byte products."""
    if plan.dot == "byte tiles":
        return generate_tiles(plan, isa)
    return (generate_by_column if plan.dot.endswith("by column") else generate_words)(plan, isa)
