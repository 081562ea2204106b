"""Live ranges → levels and offsets. `MEMORY_PLANNERS` names the members; each is one file here."""

from __future__ import annotations

from tilewright import families
from tilewright.memory.base import Buffer, LevelUse, MemoryLevel, MemoryPlan, MemoryPlanner, MemoryProblem
from tilewright.memory.bound import lower_bound_bytes, spill_bound_bytes
from tilewright.memory.check import check_memory
from tilewright.memory.live import memory_problem
from tilewright.registry import Registry

__all__ = [
    "MEMORY_PLANNERS",
    "Buffer",
    "LevelUse",
    "MemoryLevel",
    "MemoryPlan",
    "MemoryPlanner",
    "MemoryProblem",
    "check_memory",
    "lower_bound_bytes",
    "memory_problem",
    "spill_bound_bytes",
]

MEMORY_PLANNERS: Registry[MemoryPlanner] = families.MEMORY_PLANNERS
