"""Largest buffer first, each at the lowest gap: what TensorFlow Lite and tinygrad do, the baseline here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.memory.base import MemoryPlan, MemoryProblem, finish
from tilewright.memory.bound import lower_bound_bytes
from tilewright.memory.placement import Placer
from tilewright.planning import Budget, Infeasible, Provenance


@dataclass(frozen=True, slots=True)
class GreedyBySize:
    """Largest buffer first, each at the lowest gap.

    Pisarchyk and Lee, "Efficient memory management for deep neural net inference" (2020).
    """

    name: ClassVar[str] = "greedy-by-size"

    def solve(self, problem: MemoryProblem, budget: Budget) -> MemoryPlan | Infeasible:
        """One placement."""
        placer = Placer(problem)
        order = sorted(range(len(placer.items)), key=lambda n: (-placer.items[n].size_bytes, n))
        offsets = placer.by_buffer(placer.place(order))
        provenance = Provenance(self.name, num_evaluations=1)
        return finish(problem, offsets, lower_bound_bytes(problem), provenance)
