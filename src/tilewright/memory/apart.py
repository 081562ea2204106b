"""Buffers of groups of cores: each group has its part of the innermost level, and shares the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.memory.base import MemoryLevel, MemoryPlan, MemoryPlanner, MemoryProblem
from tilewright.memory.levels import measured
from tilewright.planning import Budget, Infeasible, Status


@dataclass(frozen=True, slots=True)
class Space:
    """A part of a level."""

    offset_bytes: int
    capacity_bytes: int


def place_apart(
    planner: MemoryPlanner,
    problem: MemoryProblem,
    groups: Sequence[int],
    spaces: Sequence[Space],
    budget: Budget,
) -> MemoryPlan | Infeasible:
    """The plan in which `groups[i]` is the part of the innermost level, by its place among `spaces`, that the
    `i`-th buffer may live in.

    The planner fills each part, then what all parts leave goes to the outer levels together.
    """
    levels: dict[str, int] = {}
    plans: list[MemoryPlan] = []
    offsets: dict[str, int] = {}
    inner, *outer = problem.levels
    unlimited = tuple(MemoryLevel(level.name) for level in outer)
    for number, space in enumerate(spaces):
        of_group = {
            b.name: b for b, g in zip(problem.buffers, groups, strict=True) if (g, b.level) == (number, 0)
        }
        buffers = tuple(
            replace(b, may_reuse=tuple(name for name in b.may_reuse if name in of_group))
            for b in of_group.values()
        )
        part = MemoryProblem(buffers, (MemoryLevel(inner.name, space.capacity_bytes), *unlimited))
        plan = planner.solve(part, budget)
        if isinstance(plan, Infeasible):
            return plan
        plans.append(plan)
        levels |= plan.levels
        for name in (name for name in of_group if plan.levels[name] == 0):
            offsets[name] = space.offset_bytes + plan.offsets[name]
    left = [replace(b, level=levels.get(b.name, b.level)) for b in problem.buffers if b.name not in offsets]
    names = {b.name for b in left}
    rest = tuple(replace(b, may_reuse=tuple(n for n in b.may_reuse if n in names)) for b in left)
    plan = planner.solve(replace(problem, buffers=rest), budget)
    if isinstance(plan, Infeasible):
        return plan
    offsets |= plan.offsets
    levels |= plan.levels
    in_order = [b.name for b in problem.buffers]
    return measured(
        problem,
        {name: levels[name] for name in in_order},
        {name: offsets[name] for name in in_order},
        plan.provenance,
        cut_off=any(part.quality.status is Status.CUT_OFF for part in (*plans, plan)),
    )
