"""Plans of kernels as text, whichever template they are of, and the kernels that they are plans of."""

from __future__ import annotations

from tilewright.targets.cpu.attention import AttentionPlan, attention_kernels, parse_attention
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import Kernel
from tilewright.targets.cpu.product.contraction.generate import generate_kernel
from tilewright.targets.cpu.product.integer.generate import byte_kernels
from tilewright.targets.cpu.product.matrix.generate import matrix_kernels
from tilewright.targets.cpu.product.plan import KernelPlan, parse_product
from tilewright.targets.cpu.product.winograd.generate import generate_winograd

Plan = KernelPlan | AttentionPlan


def parse_plan(text: str) -> Plan:
    """The plan that prints as this text, without lines that begin with `#`.

    Raises:
        UsageError: the text is not that of a plan; names the line.
    """
    text = "\n".join(line for line in text.split("\n") if not line.lstrip().startswith("#"))
    return (parse_attention if text.strip().startswith("attention") else parse_product)(text)


def plan_kernels(plan: Plan, isa: Isa, next_local: int = 0) -> tuple[Kernel, ...]:
    """The kernels of a plan, in the order in which they run; operands between them are locals from
    `next_local` on."""
    if isinstance(plan, AttentionPlan):
        return attention_kernels(plan, isa, next_local)
    if plan.units == "image tiles" and plan.dot in ("fma", "vnni", "pairs"):
        return (generate_winograd(plan, isa),)
    if plan.zeros is not None:
        return byte_kernels(plan, isa, next_local)
    if plan.dot == "fma":
        return (generate_kernel(plan, isa),)
    return matrix_kernels(plan, isa, next_local)
