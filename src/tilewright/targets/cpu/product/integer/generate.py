"""The kernel of a plan of byte products, by the dot that it names."""

from __future__ import annotations

from dataclasses import replace

from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import Kernel
from tilewright.targets.cpu.product.integer.depthwise import generate_by_column
from tilewright.targets.cpu.product.integer.panels import pack_panels
from tilewright.targets.cpu.product.integer.tiles import generate_tiles
from tilewright.targets.cpu.product.integer.vectors import generate_words
from tilewright.targets.cpu.product.plan import KernelPlan


def generate_integer(plan: KernelPlan, isa: Isa) -> Kernel:
    """The kernel of a plan of byte products, of which B is packed already."""
    if plan.dot == "byte tiles":
        return generate_tiles(plan, isa)
    return (generate_by_column if plan.dot.endswith("by column") else generate_words)(plan, isa)


def byte_kernels(plan: KernelPlan, isa: Isa, next_local: int) -> tuple[Kernel, ...]:
    """The kernels of a plan: where B is no constant it is packed first, into locals from that number on."""
    if plan.packing != "in panels" or (plan.zeros is not None and plan.zeros.b_sums is not None):
        return (generate_integer(plan, isa),)
    packing, packed = pack_panels(plan, next_local, isa)
    return packing, replace(generate_integer(packed, isa), plan=plan)
