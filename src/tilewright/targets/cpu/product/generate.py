"""The kernel of a plan, whichever generator its dot asks for."""

from __future__ import annotations

from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import Kernel
from tilewright.targets.cpu.product.contraction.generate import generate_kernel
from tilewright.targets.cpu.product.integer.generate import byte_kernels, generate_integer
from tilewright.targets.cpu.product.matrix.generate import generate_matrix
from tilewright.targets.cpu.product.plan import KernelPlan
from tilewright.targets.cpu.product.winograd.generate import generate_winograd


def generate_plan(plan: KernelPlan, isa: Isa) -> Kernel:
    """The kernel of a plan."""
    if plan.dot == "fma":
        return (generate_winograd if plan.units == "image tiles" else generate_kernel)(plan, isa)
    return (generate_matrix if "bfloat16" in plan.dot else generate_integer)(plan, isa)


def plan_kernels(plan: KernelPlan, isa: Isa, next_local: int = 0) -> tuple[Kernel, ...]:
    """The kernels of a plan, of which those before the last prepare operands: locals from that number on."""
    is_bytes = plan.zeros is not None
    return byte_kernels(plan, isa, next_local) if is_bytes else (generate_plan(plan, isa),)
