"""The whole flow on one screen: bytes → graph → passes → partition → schedule → program → executable.

Each step is one call with a typed result that can be printed; this is the only place where they meet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from tilewright.errors import InfeasibleMapping, InternalError
from tilewright.ir.bounds import require_bounded_graph
from tilewright.ir.graph import Graph
from tilewright.options import AUTO, Options
from tilewright.partition import PARTITIONERS, PartitionProblem, check_partition
from tilewright.partition.base import Partition
from tilewright.passes import PassReport, run_passes
from tilewright.planning import Infeasible, Limits
from tilewright.program import Program
from tilewright.progress import PhaseClock, Progress
from tilewright.schedule import SCHEDULERS, ScheduleProblem, check_schedule
from tilewright.schedule.base import Schedule
from tilewright.steps import StepInfo, TuningInfo, planned_steps
from tilewright.targets import TARGETS
from tilewright.targets.base import Code, Executable, GeneratingTarget, RefiningTarget, TuningTarget

Tuning = Literal["stored", "anew", "afresh"]

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
    executable itself. `tuning` says how kernels were chosen, where measurements had a say. `phase_s` holds
    the time of each step of the flow.
    """

    program: Program
    passes: PassReport
    code: Code | None
    executable: Executable | None
    phase_s: Mapping[str, float]
    tuning: TuningInfo | None = None

    @property
    def steps(self) -> tuple[StepInfo, ...]:
        """What runs, in order."""
        if self.code is not None:
            return self.code.steps
        return planned_steps(self.program.schedule, self.program.options.target)


def compile_graph(
    graph: Graph, options: Options, progress: Progress | None = None, *, tuning: Tuning = "stored"
) -> Compilation:
    """The whole flow. The graph given is not changed.

    `tuning` says which measurements choose kernels: those that are `stored`, or without them those that the
    budget allows; `anew` searches in any case, from the stored ones on, `afresh` from nothing.

    Raises:
        UnsupportedOp: a node that the target declines.
        InfeasibleMapping: a planner found no solution; says what is too small.
        BudgetExceeded: `options.timeout_s` or `options.max_memory_bytes` would be passed.
    """
    clock = PhaseClock(options.timeout_s, progress)
    planned = plan(graph, options, clock)
    target = TARGETS.get(options.target)
    program, code, executable, info = planned.program, None, None, None
    with clock.phase("generate"):
        if isinstance(target, GeneratingTarget):
            code = target.generate(program, progress=clock.report)
            program = code.program
        else:
            executable = target.compile(program)
    if isinstance(target, TuningTarget):
        with clock.phase("tune"):
            info = target.tune(code, anew=tuning == "anew", afresh=tuning == "afresh", progress=clock.report)
            if info is not None and info.choices:
                program = replace(program, choices=info.choices)
                code = target.generate(program, progress=clock.report)
                program = code.program
    return Compilation(program, planned.passes, code, executable, clock.phase_s, info)


def plan(graph: Graph, options: Options, clock: PhaseClock | None = None) -> Planned:
    """Optimise, cut and order a graph. The graph given is not changed.

    Raises:
        InfeasibleMapping: a planner found no solution; says what is too small.
        InternalError: a planner's answer failed its independent check.
    """
    clock = clock or PhaseClock(options.timeout_s, None)
    with clock.phase("passes"):
        graph = graph.clone()
        report = run_passes(
            graph,
            disabled=options.disabled_passes,
            dump_after=options.dump_after,
            accuracy=options.accuracy,
        )
        require_bounded_graph(graph, "the passes")
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
    target = TARGETS.get(options.target)
    if not isinstance(target, RefiningTarget):
        return solution
    refined = target.refine(problem, solution, options)
    violations = check_partition(problem, refined)
    if violations:
        raise InternalError(f"target {options.target!r} refined the partition: {violations[0]}")
    return refined


def _schedule(partition: Partition, options: Options) -> Schedule:
    name = DEFAULT_SCHEDULE if options.schedule == AUTO else options.schedule
    problem = ScheduleProblem(partition, limits=Limits(MAX_GROUPS))
    solution = SCHEDULERS.get(name).solve(problem, options.search_budget)
    if isinstance(solution, Infeasible):
        raise InfeasibleMapping(str(solution))
    violations = check_schedule(problem, solution)
    if violations:
        raise InternalError(f"scheduler {name!r}: {violations[0]}")
    return solution
