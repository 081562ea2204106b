"""Largest buffer first, each at the lowest gap: what TensorFlow Lite and tinygrad do, the baseline here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from tilewright.memory.base import Buffer, MemoryPlan, MemoryProblem
from tilewright.memory.levels import place_levels
from tilewright.memory.packing import Packing
from tilewright.memory.placement import Placer
from tilewright.planning import Budget, Infeasible, Meter
from tilewright.records import dataclass


@dataclass(frozen=True, slots=True)
class GreedyBySize:
    """Largest buffer first, each at the lowest gap.

    Pisarchyk and Lee, "Efficient memory management for deep neural net inference" (2020).
    """

    name: ClassVar[str] = "greedy-by-size"

    def solve(self, problem: MemoryProblem, budget: Budget) -> MemoryPlan | Infeasible:
        """One placement of each level, as long as that fits."""
        return place_levels(problem, budget, self)

    def pack_level(self, buffers: Sequence[Buffer], capacity_bytes: int | None, meter: Meter) -> Packing:
        """One placement."""
        placer = Placer(buffers)
        order = sorted(range(len(placer.items)), key=lambda n: (-placer.items[n].size_bytes, n))
        meter.spend()
        return Packing(placer.by_buffer(placer.place(order)))
