"""Random valid plans: what a test or a comparison uses where any plan must do."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import ClassVar

from tilewright.memory.base import MemoryPlan, MemoryProblem, finish
from tilewright.memory.bound import lower_bound_bytes
from tilewright.memory.placement import Placer
from tilewright.planning import Budget, Infeasible, Provenance, option


@dataclass(frozen=True, slots=True)
class RandomPlanner:
    """Places the buffers in a random order, each at the lowest gap."""

    seed: int = option(0, "Seed of the order.")
    name: ClassVar[str] = "random"

    def solve(self, problem: MemoryProblem, budget: Budget) -> MemoryPlan | Infeasible:
        """One placement."""
        placer = Placer(problem)
        order = list(range(len(placer.items)))
        random.Random(self.seed).shuffle(order)
        offsets = placer.by_buffer(placer.place(order))
        return finish(problem, offsets, lower_bound_bytes(problem), Provenance(self.name, self.seed, 1))
