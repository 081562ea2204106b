"""The template of fused kernels: the operators of a group block by block, as the partition recorded."""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar

from tilewright.ir.fuse import NestGroup
from tilewright.partition.form import Blocking
from tilewright.records import dataclass
from tilewright.targets.cpu.fused.generate import FusedProblem, generate_fused, match_fused
from tilewright.targets.cpu.kernel import Declined, Kernel
from tilewright.targets.cpu.product.select import nest_cycles
from tilewright.targets.cpu.template import Context, Estimate, Kernels, lower_with
from tilewright.tuning import NO_CHOICES, Choice, Choices


@dataclass(frozen=True, slots=True, eq=False)
class BlockedGroup:
    """Nests of several operators and the blocks of their result in which they are to be computed.

    `choices` say how products among them are made: see `generate.inner_product`.
    """

    group: NestGroup
    blocking: Blocking
    choices: Choices = field(default_factory=lambda: NO_CHOICES)


@dataclass(frozen=True, slots=True)
class FusedTemplate:
    """One kernel that runs a block's kernels for each block; conditions of use are in `generate.py`.

    The blocks are part of the work: `choose.py` chooses them before anything is lowered. No parameters.
    """

    name: ClassVar[str] = "fused"

    def match(self, work: BlockedGroup, context: Context) -> FusedProblem | Declined:
        """What each block computes."""
        return match_fused(work.group, work.blocking, context.layouts, work.choices)

    def algorithms(self, problem: FusedProblem, context: Context) -> tuple[Choice, ...]:
        """One."""
        return (Choice(self.name),)

    def estimate(self, problem: FusedProblem, choice: Choice, context: Context) -> Estimate:
        """The nests of all blocks, each as the template takes them that would compute it."""
        cycles = 0.0
        for number, count in problem.block_counts.items():
            variant = problem.work.variants[number]
            here = problem.on_windows(variant, context)
            cycles += count * sum(nest_cycles(nest, here) for nest in variant.part.nests)
        return Estimate(cycles)

    def lower(self, problem: FusedProblem, choice: Choice, context: Context) -> Kernels | Declined:
        """The kernel."""
        kernel = generate_fused(problem, context)
        return kernel if isinstance(kernel, Declined) else (kernel,)


FUSED = FusedTemplate()


def lower_fused(
    group: NestGroup, blocking: Blocking, context: Context, choices: Choices = NO_CHOICES
) -> Kernel | Declined:
    """The kernel that computes a group block by block, or why there is none."""
    kernels = lower_with(FUSED, BlockedGroup(group, blocking, choices), context)
    return kernels if isinstance(kernels, Declined) else kernels[-1]
