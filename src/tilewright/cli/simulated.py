"""A plan of the compiler for an accelerator, as `tilewright simulate` shows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilewright.errors import UsageError

if TYPE_CHECKING:
    from tilewright.compiler import Planned
    from tilewright.planning.portfolio import Attempt
    from tilewright.targets.npu.plan import SimulatedPlan


@dataclass(frozen=True, slots=True, eq=False)
class Simulated:
    """A simulated plan, how it is called, and what it was compared with."""

    plan: SimulatedPlan
    name: str
    attempts: tuple[Attempt, ...]
    num_simulated: int

    @classmethod
    def of(cls, planned: Planned, name: str = "") -> Simulated:
        """What the compiler planned for an accelerator, under a name or that of its recipe.

        Raises:
            UsageError: it planned for something else.
        """
        from tilewright.targets.npu.backend import NpuBackend

        backend, recipe = planned.backend, planned.program.recipe
        if not isinstance(backend, NpuBackend):
            raise UsageError("simulate: takes a machine (stcp920, a YAML file), not a target that runs.")
        priced = [a for a in planned.attempts if a.cost is not None]
        best = min(priced, key=lambda a: a.cost or 0.0, default=None)
        name = name or (str(recipe) if best is None else best.what)
        plan = backend.generate(planned.program).planned
        return cls(plan, name, planned.attempts, backend.num_simulated)
