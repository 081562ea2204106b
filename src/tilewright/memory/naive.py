"""Every buffer has its own place for the whole run: what reuse is measured against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tilewright.memory.base import Buffer, MemoryPlan, MemoryProblem, aligned
from tilewright.memory.levels import place_levels
from tilewright.memory.packing import Packing
from tilewright.planning import Budget, Infeasible, Meter


@dataclass(frozen=True, slots=True)
class NaivePlanner:
    """One buffer behind another."""

    name: ClassVar[str] = "naive"

    def solve(self, problem: MemoryProblem, budget: Budget) -> MemoryPlan | Infeasible:
        """No reuse, and so much spilling."""
        return place_levels(problem, budget, self)

    def pack_level(self, buffers: Sequence[Buffer], capacity_bytes: int | None, meter: Meter) -> Packing:
        """Offsets in the order of the buffers."""
        meter.spend()
        offsets: dict[str, int] = {}
        end = 0
        for buffer in buffers:
            offsets[buffer.name] = aligned(end, buffer.alignment_bytes)
            end = offsets[buffer.name] + buffer.size_bytes
        return Packing(offsets)
