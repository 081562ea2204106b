"""A scheduler of your own: one class, registered under a name, checked like the built-in ones.

Prints:

    31 stages, 8 of them with two kernels side by side
    equal to the sequential schedule: True
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

import tilewright as tw
from tilewright.planning import Budget, Provenance
from tilewright.schedule import SCHEDULERS
from tilewright.schedule.base import Group, Instance, Schedule, ScheduleProblem, Stage, build_schedule


@dataclass(frozen=True, slots=True)
class Pairs:
    """Neighbours in the partition's order run side by side when neither needs the other."""

    name: ClassVar[str] = "pairs"

    def solve(self, problem: ScheduleProblem, budget: Budget) -> Schedule:
        """One look at each subgraph; the budget is not needed."""
        stages: list[list[int]] = []
        for subgraph in problem.partition.subgraphs:
            last = stages[-1] if stages else []
            needs = {p.id for p in problem.partition.predecessors(subgraph)}
            if len(last) == 1 and last[0] not in needs:
                last.append(subgraph.id)
            else:
                stages.append([subgraph.id])
        made = tuple(Stage(tuple(Group((Instance(i),)) for i in ids)) for ids in stages)
        return build_schedule(problem, made, Provenance(self.name, num_evaluations=1))


# A package of yours would name it as an entry point in the group "tilewright.schedule" instead.
SCHEDULERS.add("pairs", Pairs)

model = tw.zoo.build("squeezenet1_1", image=64)
compiled = tw.compile(model, schedule="pairs")
sizes = [len(stage.groups) for stage in compiled.schedule.stages]
print(f"{len(sizes)} stages, {sizes.count(2)} of them with two kernels side by side")

# The compiler checked the schedule with code that knows no scheduler; the results are the same bits.
feed = tw.zoo.example_inputs(model)
(ours,) = compiled.run(None, feed)
(theirs,) = tw.compile(model, schedule="sequential").run(None, feed)
print("equal to the sequential schedule:", np.array_equal(ours, theirs))
