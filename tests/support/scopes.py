"""Scope plans on levels of any capacity."""

from collections.abc import Sequence

from tilewright.memory import MEMORY_PLANNERS, MemoryLevel, MemoryPlan
from tilewright.memory.instances import expand
from tilewright.memory.scopes import ScopePlan
from tilewright.planning import UNLIMITED, Budget
from tilewright.schedule.binding import Bindings
from tilewright.schedule.instances import InstanceGraph


def levels(local: int | None, shared: int | None, main: int | None = None) -> tuple[MemoryLevel, ...]:
    """The scopes with these capacities; None without a limit."""
    names = ("local", "shared", "main")
    return tuple(MemoryLevel(*level) for level in zip(names, (local, shared, main), strict=True))


def placed_in(
    there: Sequence[MemoryLevel],
    graph: InstanceGraph,
    order: Sequence[int],
    bindings: Bindings,
    planner: str = "longest-liveness",
) -> ScopePlan:
    """The plan of a planner for these levels."""
    timeline = expand(graph, order, bindings, there)
    memory = MEMORY_PLANNERS.get(planner).solve(timeline.problem, Budget(UNLIMITED))
    assert isinstance(memory, MemoryPlan), memory
    return ScopePlan(timeline, memory)
