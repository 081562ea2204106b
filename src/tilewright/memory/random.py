"""Random valid plans: what a test or a comparison uses where any plan must do."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tilewright.memory.base import Buffer, MemoryPlan, MemoryProblem
from tilewright.memory.levels import place_levels
from tilewright.memory.packing import Packing
from tilewright.memory.placement import Placer
from tilewright.planning import Budget, Infeasible, Meter, option


@dataclass(frozen=True, slots=True)
class RandomPlanner:
    """Places the buffers in a random order, each at the lowest gap."""

    seed: int = option(0, "Seed of the order.")
    name: ClassVar[str] = "random"

    def solve(self, problem: MemoryProblem, budget: Budget) -> MemoryPlan | Infeasible:
        """One placement of each level, as long as that fits."""
        return place_levels(problem, budget, self, seed=self.seed)

    def pack_level(self, buffers: Sequence[Buffer], capacity_bytes: int | None, meter: Meter) -> Packing:
        """One placement."""
        placer = Placer(buffers)
        order = list(range(len(placer.items)))
        random.Random(self.seed).shuffle(order)
        meter.spend()
        return Packing(placer.by_buffer(placer.place(order)))
