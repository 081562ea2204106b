"""The template of loop nests: everything affine that no other template computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from tilewright.ir.nest import Nest
from tilewright.records import dataclass
from tilewright.targets.cpu.kernel import Declined
from tilewright.targets.cpu.loopnest.choose import TEMPLATE
from tilewright.targets.cpu.loopnest.estimate import loop_cycles
from tilewright.targets.cpu.loopnest.lower import loop_nest_supports, lower_nests
from tilewright.targets.cpu.template import Context, Estimate, Kernels
from tilewright.tuning import Choice

Nests = Sequence[Nest]


@dataclass(frozen=True, slots=True)
class LoopNestTemplate:
    """Nests in order, explicitly vectorised; those that share outer loops, or are independent, in one kernel.

    Condition of use: elements and functions that have instructions. Parameters: see `choose.py`.
    """

    name: ClassVar[str] = TEMPLATE

    def match(self, work: Nests, context: Context) -> Nests | Declined:
        """The nests, if they can be lowered."""
        return loop_nest_supports(work, context.layouts) or work

    def algorithms(self, problem: Nests, context: Context) -> tuple[Choice, ...]:
        """One."""
        return (Choice(self.name),)

    def estimate(self, problem: Nests, choice: Choice, context: Context) -> Estimate:
        """Operations over lanes, loads, and the bytes of all operands."""
        return Estimate(loop_cycles(problem, context.layouts, context.isa).total)

    def lower(self, problem: Nests, choice: Choice, context: Context) -> Kernels | Declined:
        """The kernels; each carries the estimate of its nests."""
        return lower_nests(problem, context.layouts, context.isa, lambda nests: choice)


LOOP_NEST = LoopNestTemplate()
