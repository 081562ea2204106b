"""Planners of several levels: what does not fit one goes to the next outer one for its whole life."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.memory.base import Buffer, MemoryPlan, MemoryProblem
from tilewright.memory.levels import place_levels
from tilewright.memory.packing import packer_of
from tilewright.memory.spill import largest_size, longest_liveness
from tilewright.planning import Budget, Infeasible, Spec, option


@dataclass(frozen=True, slots=True)
class LongestLiveness:
    """What is needed longest leaves a level that is too small."""

    pack: Spec = option(Spec("first-fitting"), "The planner that finds the offsets.")
    without: tuple[str, ...] = option((), "Levels that nothing may live in, innermost first.")
    most_bytes: tuple[int, ...] = option((), "The most that levels may hold, innermost first.")
    name: ClassVar[str] = "longest-liveness"

    def blame(self, buffer: Buffer) -> tuple[int, int]:
        """How soon a buffer leaves."""
        return longest_liveness(buffer)

    def solve(self, problem: MemoryProblem, budget: Budget) -> MemoryPlan | Infeasible:
        """What does not fit a level goes to the next outer one for its whole life."""
        packer = packer_of(self.pack)
        return place_levels(
            problem,
            budget,
            packer,
            self.blame,
            name=self.name,
            without=self.without,
            most_bytes=self.most_bytes,
        )


@dataclass(frozen=True, slots=True)
class LargestSize(LongestLiveness):
    """The largest buffer leaves a level that is too small."""

    name: ClassVar[str] = "largest-size"

    def blame(self, buffer: Buffer) -> tuple[int, int]:
        """How soon a buffer leaves."""
        return largest_size(buffer)
