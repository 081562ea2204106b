"""The whole flow on one screen: bytes → graph → passes → partition → schedule → program → executable.

Each step is one call with a typed result that can be printed; this is the only place where they meet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.errors import InfeasibleMapping, InternalError
from tilewright.ir.graph import Graph
from tilewright.options import AUTO, Options
from tilewright.partition import PARTITIONERS, PartitionProblem, check_partition
from tilewright.partition.base import Partition
from tilewright.passes import PassReport, run_passes
from tilewright.planning import Infeasible
from tilewright.program import Program
from tilewright.progress import PhaseClock, Progress
from tilewright.schedule import SCHEDULERS, ScheduleProblem, check_schedule
from tilewright.schedule.base import Schedule
from tilewright.steps import StepInfo, planned_steps
from tilewright.targets import TARGETS
from tilewright.targets.base import Code, Executable, GeneratingTarget

DEFAULT_PARTITION = "layerwise"
DEFAULT_SCHEDULE = "sequential"
# Groups of a stage share one pool of threads: a few suffice to fill it, more only lengthen live ranges. A
# constant, so that the schedule does not depend on the machine that compiles.
MAX_GROUPS = 4


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """A program with the report of the passes that led to it."""

    program: Program
    passes: PassReport


@dataclass(frozen=True, slots=True, eq=False)
class Compilation:
    """A program and what its target made of it.

    `code` is there for targets that generate code, which loads into an executable; other targets give the
    executable itself. `phase_s` holds the time of each step of the flow.
    """

    program: Program
    passes: PassReport
    code: Code | None
    executable: Executable | None
    phase_s: Mapping[str, float]

    @property
    def steps(self) -> tuple[StepInfo, ...]:
        """What runs, in order."""
        if self.code is not None:
            return self.code.steps
        return planned_steps(self.program.schedule, self.program.options.target)


def compile_graph(graph: Graph, options: Options, progress: Progress | None = None) -> Compilation:
    """The whole flow. The graph given is not changed.

    Raises:
        UnsupportedOp: a node that the target declines.
        InfeasibleMapping: a planner found no solution; says what is too small.
        BudgetExceeded: `options.timeout_s` or `options.max_memory_bytes` would be passed.
    """
    clock = PhaseClock(options.timeout_s, progress)
    planned = plan(graph, options, clock)
    target = TARGETS.get(options.target)
    code, executable = None, None
    with clock.phase("generate"):
        if isinstance(target, GeneratingTarget):
            code = target.generate(planned.program, progress=clock.report)
        else:
            executable = target.compile(planned.program)
    return Compilation(planned.program, planned.passes, code, executable, clock.phase_s)


def plan(graph: Graph, options: Options, clock: PhaseClock | None = None) -> Planned:
    """Optimise, cut and order a graph. The graph given is not changed.

    Raises:
        InfeasibleMapping: a planner found no solution; says what is too small.
        InternalError: a planner's answer failed its independent check.
    """
    clock = clock or PhaseClock(options.timeout_s, None)
    with clock.phase("passes"):
        graph = graph.clone()
        report = run_passes(graph, disabled=options.disabled_passes, dump_after=options.dump_after)
    with clock.phase("partition"):
        partition = _partition(graph, options)
    with clock.phase("schedule"):
        schedule = _schedule(partition, options)
    return Planned(Program(graph, partition, schedule, options), report)


def _partition(graph: Graph, options: Options) -> Partition:
    name = DEFAULT_PARTITION if options.partition == AUTO else options.partition
    problem = PartitionProblem(graph)
    solution = PARTITIONERS.get(name).solve(problem, options.search_budget)
    if isinstance(solution, Infeasible):
        raise InfeasibleMapping(str(solution))
    violations = check_partition(problem, solution)
    if violations:
        raise InternalError(f"partitioner {name!r}: {violations[0]}")
    return solution


def _schedule(partition: Partition, options: Options) -> Schedule:
    name = DEFAULT_SCHEDULE if options.schedule == AUTO else options.schedule
    problem = ScheduleProblem(partition, max_groups=MAX_GROUPS)
    solution = SCHEDULERS.get(name).solve(problem, options.search_budget)
    if isinstance(solution, Infeasible):
        raise InfeasibleMapping(str(solution))
    violations = check_schedule(problem, solution)
    if violations:
        raise InternalError(f"scheduler {name!r}: {violations[0]}")
    return solution
