"""The whole flow on one screen: bytes → graph → passes → partition → schedule → program → executable.

Each step is one call with a typed result that can be printed; this is the only place where they meet.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tilewright.errors import BudgetExceeded, InfeasibleMapping, InternalError
from tilewright.ir.graph import Graph
from tilewright.options import AUTO, Options
from tilewright.partition import PARTITIONERS, PartitionProblem, check_partition
from tilewright.partition.base import Partition
from tilewright.passes import PassReport, run_passes
from tilewright.planning import Infeasible
from tilewright.program import Program
from tilewright.schedule import SCHEDULERS, ScheduleProblem, check_schedule
from tilewright.schedule.base import Schedule
from tilewright.steps import StepInfo, planned_steps
from tilewright.targets import TARGETS
from tilewright.targets.base import Code, Executable, GeneratingTarget

Progress = Callable[[str, int, int], None]  # what is being done, how much of it is done, how much there is

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
    clock = _Clock(options.timeout_s, progress)
    planned = plan(graph, options, clock)
    target = TARGETS.get(options.target)
    code, executable = None, None
    with clock.phase("generate"):
        if isinstance(target, GeneratingTarget):
            code = target.generate(planned.program, progress=clock.report)
        else:
            executable = target.compile(planned.program)
    return Compilation(planned.program, planned.passes, code, executable, clock.phase_s)


def plan(graph: Graph, options: Options, clock: _Clock | None = None) -> Planned:
    """Optimise, cut and order a graph. The graph given is not changed.

    Raises:
        InfeasibleMapping: a planner found no solution; says what is too small.
        InternalError: a planner's answer failed its independent check.
    """
    clock = clock or _Clock(options.timeout_s, None)
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


class _Clock:
    """Times the steps, tells who watches, and ends a compilation that takes longer than it may."""

    def __init__(self, timeout_s: float | None, progress: Progress | None) -> None:
        self.phase_s: dict[str, float] = {}
        self._timeout_s = timeout_s
        self._progress = progress
        self._start_s = time.monotonic()

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """One step of the flow."""
        self.report(name, 0, 1)
        start_s = time.monotonic()
        yield
        self.phase_s[name] = time.monotonic() - start_s

    def report(self, what: str, done: int, total: int) -> None:
        """Called between pieces of work, however small."""
        passed_s = time.monotonic() - self._start_s
        if self._timeout_s is not None and passed_s > self._timeout_s:
            raise BudgetExceeded(
                f"compiling took longer than {self._timeout_s:g} s (stopped at {what}, {done} of {total}); "
                "give a longer --timeout, or less effort (-O0)."
            )
        if self._progress is not None:
            self._progress(what, done, total)
