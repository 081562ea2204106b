"""Every buffer has its own place for the whole run: what reuse is measured against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.memory.base import MemoryPlan, MemoryProblem, aligned, finish
from tilewright.memory.bound import lower_bound_bytes
from tilewright.planning import Budget, Infeasible, Provenance


@dataclass(frozen=True, slots=True)
class NaivePlanner:
    """One buffer behind another."""

    name: ClassVar[str] = "naive"

    def solve(self, problem: MemoryProblem, budget: Budget) -> MemoryPlan | Infeasible:
        """No reuse."""
        offsets: dict[str, int] = {}
        end = 0
        for buffer in problem.buffers:
            offsets[buffer.name] = aligned(end, buffer.alignment_bytes)
            end = offsets[buffer.name] + buffer.size_bytes
        return finish(problem, offsets, lower_bound_bytes(problem), Provenance(self.name, num_evaluations=1))
