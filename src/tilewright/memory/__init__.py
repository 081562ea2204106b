"""Live ranges → offsets. `MEMORY_PLANNERS` names the members; each is one file here."""

from __future__ import annotations

from tilewright.memory.base import Buffer, MemoryPlan, MemoryPlanner, MemoryProblem
from tilewright.memory.bound import lower_bound_bytes
from tilewright.memory.check import check_memory
from tilewright.memory.live import memory_problem
from tilewright.registry import Registry

__all__ = [
    "MEMORY_PLANNERS",
    "Buffer",
    "MemoryPlan",
    "MemoryPlanner",
    "MemoryProblem",
    "check_memory",
    "lower_bound_bytes",
    "memory_problem",
]

MEMORY_PLANNERS: Registry[MemoryPlanner] = Registry(
    "memory planner", entry_point_group="tilewright.memory", protocol="tilewright.memory.base:MemoryPlanner"
)
MEMORY_PLANNERS.add_class("arena", "tilewright.memory.arena:ArenaPlanner")
MEMORY_PLANNERS.add_class("greedy-by-size", "tilewright.memory.greedy_by_size:GreedyBySize")
MEMORY_PLANNERS.add_class("naive", "tilewright.memory.naive:NaivePlanner")
MEMORY_PLANNERS.add_class("random", "tilewright.memory.random:RandomPlanner")
