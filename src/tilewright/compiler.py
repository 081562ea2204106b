"""The whole flow on one screen: graph → optimise → partition → schedule → place → generate, for every target.

Each step is one call with a typed result that can be printed; this is the only place where they meet. What
work costs, and what memory there is, says the target, which is made for a machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING

from tilewright.comparison import best_plan
from tilewright.ir.bounds import require_bounded_graph
from tilewright.ir.graph import Graph
from tilewright.options import Options
from tilewright.passes import PassReport, run_passes
from tilewright.planner import LEFT_OPEN, WHOLE_PORTFOLIO, Planner
from tilewright.planning import Budget, Meter, Stopwatch
from tilewright.planning.portfolio import Attempt, Recipe
from tilewright.program import Program
from tilewright.progress import PhaseClock, Progress
from tilewright.records import dataclass
from tilewright.steps import STORED_TUNING, StepInfo, TuningInfo, TuningSettings
from tilewright.system.gc_tuning import collected_rarely
from tilewright.targets import find_target, runs_steps
from tilewright.targets.base import Backend, Code, Target

if TYPE_CHECKING:
    from tilewright.joint.launched.decisions import Decision
    from tilewright.mapping.sweep.answered import TaskSettings


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """A program for a target, the report of the passes that led to it, all plans that were compared, and how
    many a budget left untried.

    `meter` is what is left of the options' budget; `search_time` is its clock. `decisions` are those of a
    joint plan, `num_simulated` how many plans that differ were simulated.
    """

    target: Target
    program: Program
    passes: PassReport
    attempts: tuple[Attempt, ...]
    num_untried: int
    backend: Backend
    meter: Meter | None = None
    search_time: Stopwatch = field(default_factory=Stopwatch)
    decisions: tuple[Decision, ...] = ()
    num_simulated: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Compilation:
    """A program and what its target made of it.

    `tuning` says how kernels were chosen, where measurements had a say. `phase_s` holds the time of each step
    of the flow.
    """

    planned: Planned
    program: Program
    code: Code
    phase_s: Mapping[str, float]
    tuning: TuningInfo | None = None

    @property
    def passes(self) -> PassReport:
        """What the passes did."""
        return self.planned.passes

    @property
    def steps(self) -> tuple[StepInfo, ...]:
        """What runs, in order."""
        return self.code.steps


def compile_graph(
    graph: Graph,
    options: Options,
    progress: Progress | None = None,
    *,
    tuning: TuningSettings = STORED_TUNING,
    target: Target | None = None,
) -> Compilation:
    """The whole flow. The graph given is not changed.

    `tuning` says which measurements choose kernels; `target` is used in place of that of the options.

    Raises:
        UnsupportedOp: a node that the target declines.
        InfeasibleMapping: a planner found no solution; says what is too small.
        BudgetExceeded: `options.timeout_s` or `options.max_memory_bytes` would be passed.
    """
    clock = PhaseClock(options.timeout_s, progress)
    target = target or find_target(options.target)
    planned = plan(graph, options, clock, target=target)
    backend, program, info = planned.backend, planned.program, None
    with clock.phase("generate"):
        code = backend.generate(program, progress=clock.report)
        program = code.program
    if target.is_measurable and not program.schedule.provenance.is_interrupted:
        with clock.phase("tune"), planned.search_time.running():
            info = backend.tune(code, tuning, progress=clock.report, meter=planned.meter)
            if info is not None:
                program = _tuned(program, info)
            if info is not None and info.changes:
                code = backend.generate(program, progress=clock.report)
                program = code.program
    return Compilation(planned, program, code, clock.phase_s, info)


def _tuned(program: Program, info: TuningInfo) -> Program:
    """The program with what measurements chose, and a line for each subgraph whose form was searched.

    Lines before those say where, if not here.
    """
    tuned = (*info.lines()[1:], *map(str, info.subgraphs))
    return replace(program.with_forms(info.forms), tuned=tuned)


def plan(
    graph: Graph, options: Options, clock: PhaseClock | None = None, *, target: Target | None = None
) -> Planned:
    """Optimise, cut, order and place a graph, as the options say or as is best. The graph is not changed.

    Raises:
        InfeasibleMapping: a planner found no solution; says what is too small.
        InternalError: a planner's answer failed its independent check.
        UsageError: the file that constants lie in was written to since it was loaded.
    """
    graph.require_unchanged()
    clock = clock or PhaseClock(options.timeout_s, None)
    with clock.phase("passes"):
        graph, report = optimise(graph, options)
    return plan_optimised(graph, options, clock, target=target, passes=report)


def plan_optimised(
    graph: Graph,
    options: Options,
    clock: PhaseClock | None = None,
    *,
    target: Target | None = None,
    passes: PassReport | None = None,
    portfolio: Budget | Meter = WHOLE_PORTFOLIO,
    prices: TaskSettings | None = None,
) -> Planned:
    """The same of a graph that stays as it is; `portfolio` is as for `best_plan`, `prices` says how blocks
    of a joint plan are priced ahead.

    Raises:
        InfeasibleMapping: a planner found no solution; says what is too small.
        InternalError: a planner's answer failed its independent check.
    """
    clock = clock or PhaseClock(options.timeout_s, None)
    target = target or find_target(options.target)
    backend = target.backend(graph, options)
    asked = Recipe(options.partition, options.schedule, options.memory)
    with collected_rarely():
        only_better = asked == LEFT_OPEN and options.plan == "portfolio"
        planner = Planner(graph, target, backend, options, clock, only_better=only_better)
        is_joint = options.plan == "joint" and asked == LEFT_OPEN and backend.launched_parts is not None
        if is_joint or options.only:
            from tilewright.joint_plan import begun, joint_plan

            best, backend = joint_plan(planner, begun(planner, asked, portfolio), prices)
        else:
            best = best_plan(planner, asked, portfolio)
            backend = planner.planner_of(best.plan.recipe).backend
    return Planned(
        target,
        best.plan,
        passes or PassReport(),
        best.attempts,
        best.num_untried,
        backend,
        planner.meter,
        planner.search_time,
        planner.decisions,
        sum(made.num_simulated for made in planner.backends),
    )


def optimise(graph: Graph, options: Options) -> tuple[Graph, PassReport]:
    """The graph after the passes, and what they did. The graph given is not changed."""
    graph = graph.clone()
    report = run_passes(
        graph,
        disabled=options.disabled_passes,
        extra=options.passes,
        dump_after=options.dump_after,
        accuracy=options.accuracy,
        runs_steps=runs_steps(options.target),
    )
    require_bounded_graph(graph, "the passes")
    return graph, report
