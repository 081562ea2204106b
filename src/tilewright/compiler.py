"""The whole flow on one screen: bytes → graph → passes → partition → schedule → program → executable.

Each step is one call with a typed result that can be printed; this is the only place where they meet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.errors import InfeasibleMapping, InternalError
from tilewright.ir.graph import Graph
from tilewright.options import AUTO, Options
from tilewright.partition import PARTITIONERS, PartitionProblem, check_partition
from tilewright.partition.base import Partition
from tilewright.passes import PassReport, run_passes
from tilewright.planning import Infeasible
from tilewright.program import Program
from tilewright.schedule import SCHEDULERS, ScheduleProblem, check_schedule
from tilewright.schedule.base import Schedule

Progress = Callable[[str], None]  # called with what begins

DEFAULT_PARTITION = "layerwise"
DEFAULT_SCHEDULE = "sequential"


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """A program with the report of the passes that led to it."""

    program: Program
    passes: PassReport


def plan(graph: Graph, options: Options, progress: Progress = lambda what: None) -> Planned:
    """Optimise, cut and order a graph. The graph given is not changed.

    Raises:
        InfeasibleMapping: a planner found no solution; says what is too small.
        InternalError: a planner's answer failed its independent check.
    """
    progress("passes")
    graph = graph.clone()
    report = run_passes(graph, disabled=options.disabled_passes, dump_after=options.dump_after)
    progress("partition")
    partition = _partition(graph, options)
    progress("schedule")
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
    problem = ScheduleProblem(partition)
    solution = SCHEDULERS.get(name).solve(problem, options.search_budget)
    if isinstance(solution, Infeasible):
        raise InfeasibleMapping(str(solution))
    violations = check_schedule(problem, solution)
    if violations:
        raise InternalError(f"scheduler {name!r}: {violations[0]}")
    return solution
