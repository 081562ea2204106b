"""Random valid schedules: what a test or a comparison uses where any schedule must do."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import ClassVar

from tilewright.planning import Budget, Provenance, option
from tilewright.progress import checkpoint
from tilewright.schedule.base import Group, Instance, Schedule, ScheduleProblem, Stage, build_schedule


@dataclass(frozen=True, slots=True)
class RandomScheduler:
    """Each stage takes some ready subgraphs; a group may go on with successors that nothing else delays."""

    seed: int = option(0, "Seed of the choices.")
    name: ClassVar[str] = "random"

    def solve(self, problem: ScheduleProblem, budget: Budget) -> Schedule:
        """One random schedule."""
        rng = random.Random(self.seed)
        partition = problem.partition
        waiting = {s.id: len(partition.predecessors(s)) for s in partition.subgraphs}
        ready = [i for i, count in waiting.items() if count == 0]
        stages: list[Stage] = []
        while ready:
            checkpoint()
            heads = rng.sample(ready, rng.randint(1, min(len(ready), problem.limits.num_groups)))
            ready = [i for i in ready if i not in heads]
            groups: list[Group] = []
            freed: list[int] = []
            in_other_groups: set[int] = set()
            for head in heads:
                chain = [head]
                for done in chain:
                    for successor in partition.successors(partition.subgraphs[done]):
                        waiting[successor.id] -= 1
                        if waiting[successor.id] > 0:
                            continue
                        sources = {p.id for p in partition.predecessors(successor)}
                        extends = not sources & in_other_groups and rng.random() < 0.5
                        (chain if extends else freed).append(successor.id)
                in_other_groups.update(chain)
                groups.append(Group(tuple(Instance(i) for i in chain)))
            ready += freed
            stages.append(Stage(tuple(groups)))
        return build_schedule(problem, tuple(stages), Provenance(self.name, self.seed, 1))
