"""Everything that is ready runs now: the greedy baseline of IOS (Ding et al., MLSys 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.planning import Budget, Provenance
from tilewright.progress import checkpoint
from tilewright.schedule.base import Group, Instance, Schedule, ScheduleProblem, Stage, build_schedule


@dataclass(frozen=True, slots=True)
class Greedy:
    """All ready subgraphs form the next stage, a group each, no more than the machine runs side by side."""

    name: ClassVar[str] = "greedy"

    def solve(self, problem: ScheduleProblem, budget: Budget) -> Schedule:
        """Stage by stage; where too many are ready, those first in the partition go first."""
        partition = problem.partition
        waiting = {s.id: len(partition.predecessors(s)) for s in partition.subgraphs}
        stages: list[Stage] = []
        ready = [i for i, count in waiting.items() if count == 0]
        while ready:
            checkpoint()
            ready.sort()
            now, ready = ready[: problem.limits.num_groups], ready[problem.limits.num_groups :]
            stages.append(Stage(tuple(Group((Instance(i),)) for i in now)))
            for done in now:
                for successor in partition.successors(partition.subgraphs[done]):
                    waiting[successor.id] -= 1
                    if waiting[successor.id] == 0:
                        ready.append(successor.id)
        return build_schedule(problem, tuple(stages), Provenance(self.name, num_evaluations=1))
