"""Generic lowering of loop nests to kernels: everything affine, explicitly vectorised."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.nest import Nest
from tilewright.targets.cpu.exprgen import STORAGE_ELEMENTS, unsupported_function
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import Declined, Kernel, Layouts
from tilewright.targets.cpu.loopnest.groups import form_groups, fused_region
from tilewright.targets.cpu.loopnest.refs import linearise, simplify
from tilewright.targets.cpu.loopnest.region import region_kernel, single_region

__all__ = ["loop_nest_supports", "lower_nests"]


def loop_nest_supports(nests: Sequence[Nest], layouts: Layouts | None = None) -> Declined | None:
    """Why the nests cannot be lowered, or None if they can."""
    for nest in nests:
        for access in (*nest.reads, nest.write):
            if access.operand.dtype not in STORAGE_ELEMENTS:
                return Declined(f"elements of type {access.operand.dtype} have no machine form")
        for expr in (nest.body, nest.init, nest.finish):
            reason = None if expr is None else unsupported_function(expr)
            if reason is not None:
                return Declined(f"no instructions for {reason}")
        made = linearise(nest, layouts or {})
        if isinstance(made, Declined):
            return made
    return None


def lower_nests(nests: Sequence[Nest], layouts: Layouts, isa: Isa) -> tuple[Kernel, ...]:
    """Kernels that run the nests, in order. Nests that share outer loops become one kernel.

    Temporaries between nests of one kernel live in its scratch; the others are arguments of kind "local",
    which the caller allocates. Ask `loop_nest_supports` first.
    """
    work = [n for n in nests if all(d.extent for d in n.parallel_dims)]
    kernels = []
    for group in form_groups(work):
        members = [work[i] for i in group]
        region = None
        if len(members) > 1:
            others = [n for i, n in enumerate(work) if i not in group]
            region = fused_region(members, others, layouts, isa)
        if region is not None:
            kernels.append(region_kernel(region, isa))
            continue
        for nest in members:
            linear = linearise(nest, layouts)
            assert not isinstance(linear, Declined), linear.reason
            kernels.append(region_kernel(single_region(simplify(linear), isa), isa))
    return tuple(kernels)
