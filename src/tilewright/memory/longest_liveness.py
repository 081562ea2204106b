"""What is needed last leaves a level that is too small."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.memory.base import MemoryPlan, MemoryProblem
from tilewright.memory.levels import place_levels
from tilewright.memory.packing import packer_of
from tilewright.memory.spill import longest_liveness
from tilewright.planning import Budget, Infeasible, Spec, option


@dataclass(frozen=True, slots=True)
class LongestLiveness:
    """What is needed longest leaves a level that is too small."""

    pack: Spec = option(Spec("first-fitting"), "The planner that finds the offsets.")
    without: tuple[str, ...] = option((), "Levels that nothing may live in, innermost first.")
    most_bytes: tuple[int, ...] = option((), "The most that levels may hold, innermost first.")
    name: ClassVar[str] = "longest-liveness"

    def solve(self, problem: MemoryProblem, budget: Budget) -> MemoryPlan | Infeasible:
        """What does not fit a level goes to the next outer one for its whole life."""
        packer = packer_of(self.pack)
        return place_levels(
            problem,
            budget,
            packer,
            longest_liveness,
            name=self.name,
            without=self.without,
            most_bytes=self.most_bytes,
        )
