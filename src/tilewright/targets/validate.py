"""The checks that every target runs on a program before it believes it."""

from __future__ import annotations

from tilewright.memory.check import check_memory
from tilewright.partition.check import check_cut
from tilewright.planning import Limits, Violation
from tilewright.planning.checking import require_right
from tilewright.program import Program
from tilewright.schedule.base import ScheduleProblem
from tilewright.schedule.check import check_stages


def program_violations(program: Program, *, allows_slices: bool = False) -> tuple[Violation, ...]:
    """Everything wrong with a program's plans, apart from their stated costs.

    `allows_slices` is the target's `runs_slices`; such a target may run lanes, too. Costs are checked against
    the planner's problem, which a program does not carry.
    """
    stages = program.schedule.stages
    max_groups = max((len(stage.groups) for stage in stages), default=1)
    sections = (section for s in stages for g in s.groups for lanes in g.inside for section in lanes)
    max_cores = max((sum(lane.num_cores for lane in section) for section in sections), default=1)
    schedule_problem = ScheduleProblem(
        program.partition,
        limits=Limits(max_groups, num_cores=max_cores),
        allows_slices=allows_slices,
        allows_lanes=allows_slices,
    )
    found = [*check_cut(program.graph, program.partition), *check_stages(schedule_problem, program.schedule)]
    if program.memory is not None and program.memory_problem is not None:
        found += check_memory(program.memory_problem, program.memory)
    return tuple(found)


def require_valid_program(program: Program, *, allows_slices: bool = False) -> None:
    """Raise if a plan is wrong, or has slices where none are allowed.

    Raises:
        InternalError: naming the first violation and how many there are.
    """
    require_right(
        f"the plan of {program.graph.name!r}",
        lambda: program_violations(program, allows_slices=allows_slices),
    )
