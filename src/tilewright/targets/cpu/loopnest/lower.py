"""From nests to kernels: which nests share loops, and which kernels they share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from tilewright.ir.contraction import contractions
from tilewright.ir.nest import Access, Index, Indirect, Nest
from tilewright.progress import checkpoint
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import Declined, Kernel, Layouts, Loops
from tilewright.targets.cpu.loopnest.choose import TEMPLATE, chosen_of
from tilewright.targets.cpu.loopnest.estimate import loop_cycles
from tilewright.targets.cpu.loopnest.groups import fused_region
from tilewright.targets.cpu.loopnest.region import Region, regions_kernel, single_region
from tilewright.targets.cpu.products import loops_signature
from tilewright.targets.llvm.exprgen import STORAGE_ELEMENTS, unsupported_function
from tilewright.targets.llvm.refs import linearise, simplify
from tilewright.targets.llvm.shared_loops import form_groups
from tilewright.tuning import Choice, Choices

Chooser = Callable[[Sequence[Nest]], Choice | None]
"""How nests that share their outer loops, or one alone, are to run; None leaves it to the rules."""


def chooser_of(choices: Choices, layouts: Layouts) -> Chooser | None:
    """Looks nests up among choices by their signature; None where none of these is for loop nests."""
    if not any(choice.template == TEMPLATE for choice in choices.values()):
        return None
    return lambda nests: choices.get(loops_signature(nests, layouts))


# Regions of one kernel: more would make texts that take long to compile.
_MAX_SIDE_BY_SIDE = 8


def loop_nest_supports(nests: Sequence[Nest], layouts: Layouts | None = None) -> Declined | None:
    """Why the nests cannot be lowered, or None if they can."""
    for nest in nests:
        for access in (*nest.reads, nest.write):
            if access.operand.dtype not in STORAGE_ELEMENTS:
                return Declined(f"elements of type {access.operand.dtype} have no machine form")
            if any(isinstance(i, Indirect) and not size for i, size in _axes(access)):
                return Declined("indices into an axis without elements")
        for expr in (nest.body, nest.init, nest.finish):
            reason = None if expr is None else unsupported_function(expr)
            if reason is not None:
                return Declined(f"no instructions for {reason}")
        made = linearise(nest, layouts or {})
        if isinstance(made, Declined):
            return made
    return None


def _axes(access: Access) -> Iterator[tuple[Index, int]]:
    return zip(access.index, access.shape, strict=True)


def lower_nests(
    nests: Sequence[Nest], layouts: Layouts, isa: Isa, choose: Chooser | None = None
) -> tuple[Kernel, ...]:
    """Kernels that run the nests, in order. Nests that share outer loops, or are independent, are one kernel.

    Temporaries between nests of one kernel live in its scratch; the others are arguments of kind "local",
    which the caller allocates. `choose` overrides the rules. Ask `loop_nest_supports` first.
    """
    work = [n for n in nests if all(d.extent for d in n.parallel_dims)]
    kernels: list[Kernel] = []
    waiting: list[Region] = []
    waiting_nests: list[Sequence[Nest]] = []

    def finish() -> None:
        computed = tuple(nest for own in waiting_nests for nest in own)
        kernels.append(
            replace(
                regions_kernel(waiting, isa),
                nests=computed,
                macs=sum(form.nest.num_iterations for form in contractions(computed)),
                estimate_cycles=loop_cycles(computed, layouts, isa).total,
                loops=tuple(Loops(tuple(own), layouts) for own in waiting_nests),
            )
        )

    for group in form_groups(work):
        checkpoint()
        members = [work[i] for i in group]
        others = [n for i, n in enumerate(work) if i not in group]
        for own, region in _regions(members, others, layouts, isa, choose or _nothing):
            if waiting and not _independent(waiting, region):
                finish()
                waiting, waiting_nests = [], []
            waiting.append(region)
            waiting_nests.append(own)
    if waiting:
        finish()
    return tuple(kernels)


def _nothing(nests: Sequence[Nest]) -> None:
    """Of no nests anything is chosen."""


def _regions(
    members: Sequence[Nest], others: Sequence[Nest], layouts: Layouts, isa: Isa, choose: Chooser
) -> tuple[tuple[Sequence[Nest], Region], ...]:
    """One region for nests that share loops, else one for each, beside what it computes."""
    if len(members) > 1:
        fused = fused_region(members, others, layouts, isa, chosen_of(choose(members)))
        if fused is not None:
            return ((members, fused),)
    made = []
    for nest in members:
        linear = linearise(nest, layouts)
        assert not isinstance(linear, Declined), linear.reason
        simple = simplify(linear)
        made.append(((nest,), single_region(simple, isa, chosen_of(choose((nest,)), simple))))
    return tuple(made)


def _independent(earlier: Sequence[Region], later: Region) -> bool:
    """Whether a region may run beside earlier ones: it reads nothing of theirs and overwrites nothing.

    Regions may write parts of one output, as those of a concatenation do, unless data says which parts.
    """
    nests = [n for region in earlier for n in region.nests]
    written = {n.write.operand.key for n in nests}
    read = {r.operand.key for n in nests for r in n.refs}
    for nest in later.nests:
        if written & {r.operand.key for r in nest.refs} or nest.write.operand.key in read:
            return False
        if nest.write.data and nest.write.operand.key in written:
            return False
    return len(earlier) < _MAX_SIDE_BY_SIDE and not any(n.write.data for n in nests)
