"""The whole flow on one screen: graph → optimise → partition → schedule → place → generate, for every target.

Each step is one call with a typed result that can be printed; this is the only place where they meet. What
work costs, and what memory there is, says the target, which is made for a machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from tilewright.errors import InfeasibleMapping, InternalError
from tilewright.garbage import collected_rarely
from tilewright.ir.bounds import require_bounded_graph
from tilewright.ir.graph import Graph
from tilewright.ir.verify import require_valid
from tilewright.options import AUTO, Options
from tilewright.partition import PARTITIONERS, check_partition
from tilewright.partition.base import Partition
from tilewright.passes import PassReport, run_passes
from tilewright.planning import UNLIMITED, Budget, Infeasible
from tilewright.planning.portfolio import Attempt, Best, Recipe, best_of
from tilewright.program import Program
from tilewright.progress import PhaseClock, Progress
from tilewright.schedule import SCHEDULERS, ScheduleProblem, check_schedule
from tilewright.schedule.base import Schedule
from tilewright.schedule.merge import apply_merges, merge_remarks
from tilewright.steps import DEFAULT_SEARCH, SearchName, StepInfo, TuningInfo
from tilewright.targets import find_target
from tilewright.targets.base import Backend, Code, Target

Tuning = Literal["stored", "anew", "afresh"]

WHOLE_PORTFOLIO = Budget(UNLIMITED)
"""Tries every recipe."""
LEFT_OPEN = Recipe(AUTO, AUTO, AUTO)
"""What asks for the best of what a target finds worth trying."""


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """A program for a target, the report of the passes that led to it, all plans that were compared, and how
    many a budget left untried."""

    target: Target
    program: Program
    passes: PassReport
    attempts: tuple[Attempt, ...]
    num_untried: int
    backend: Backend


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
    tuning: Tuning = "stored",
    search: SearchName = DEFAULT_SEARCH,
) -> Compilation:
    """The whole flow. The graph given is not changed.

    `tuning` says which measurements choose kernels: those that are `stored`, or without them those that the
    budget allows; `anew` searches in any case, from the stored ones on, `afresh` from nothing. `search` says
    what is searched.

    Raises:
        UnsupportedOp: a node that the target declines.
        InfeasibleMapping: a planner found no solution; says what is too small.
        BudgetExceeded: `options.timeout_s` or `options.max_memory_bytes` would be passed.
    """
    clock = PhaseClock(options.timeout_s, progress)
    target = find_target(options.target)
    planned = plan(graph, options, clock, target=target)
    backend, program, info = planned.backend, planned.program, None
    with clock.phase("generate"):
        code = backend.generate(program, progress=clock.report)
        program = code.program
    if target.is_measurable:
        with clock.phase("tune"):
            anew, afresh = tuning == "anew", tuning == "afresh"
            info = backend.tune(code, anew=anew, afresh=afresh, search=search, progress=clock.report)
            if info is not None and info.changes:
                code = backend.generate(_tuned(program, info), progress=clock.report)
                program = code.program
    return Compilation(planned, program, code, clock.phase_s, info)


def _tuned(program: Program, info: TuningInfo) -> Program:
    """The program with what measurements chose, and a remark for each subgraph whose form was searched."""
    remarks = (*program.remarks, *map(str, info.subgraphs))
    return replace(program.with_forms(info.forms), choices=info.choices, remarks=remarks)


def plan(
    graph: Graph, options: Options, clock: PhaseClock | None = None, *, target: Target | None = None
) -> Planned:
    """Optimise, cut, order and place a graph, as the options say or as is best. The graph is not changed.

    Raises:
        InfeasibleMapping: a planner found no solution; says what is too small.
        InternalError: a planner's answer failed its independent check.
    """
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
    portfolio: Budget = WHOLE_PORTFOLIO,
) -> Planned:
    """The same of a graph that stays as it is; `portfolio` is as for `Planner.best`.

    Raises:
        InfeasibleMapping: a planner found no solution; says what is too small.
        InternalError: a planner's answer failed its independent check.
    """
    clock = clock or PhaseClock(options.timeout_s, None)
    target = target or find_target(options.target)
    backend = target.backend(graph, options)
    asked = Recipe(options.partition, options.schedule, options.memory)
    with collected_rarely():
        planner = Planner(graph, target, backend, options, clock, only_better=asked == LEFT_OPEN)
    best = planner.best(asked, portfolio)
    return Planned(target, best.plan, passes or PassReport(), best.attempts, best.num_untried, backend)


def optimise(graph: Graph, options: Options) -> tuple[Graph, PassReport]:
    """The graph after the passes, and what they did. The graph given is not changed."""
    graph = graph.clone()
    report = run_passes(
        graph,
        disabled=options.disabled_passes,
        extra=options.passes,
        dump_after=options.dump_after,
        accuracy=options.accuracy,
    )
    require_bounded_graph(graph, "the passes")
    return graph, report


class Planner:
    """Plans of one graph on one target. What recipes have in common is done once.

    `only_better`: only the best plan is wanted, so what is seen to be worse need not be priced.
    """

    def __init__(
        self,
        graph: Graph,
        target: Target,
        backend: Backend,
        options: Options,
        clock: PhaseClock,
        *,
        only_better: bool = False,
    ) -> None:
        self.graph = graph
        self.target = target
        self.backend = backend
        self.options = options
        self.clock = clock
        self.only_better = only_better
        self._partitions: dict[str, Partition] = {}

    def best(self, asked: Recipe, portfolio: Budget = WHOLE_PORTFOLIO) -> Best[Program]:
        """The plan of a recipe, the target's default in place of what it leaves open.

        Where it leaves all open, the best that the target finds worth trying, as far as `portfolio` goes: a
        budget whose evaluations are recipes, of which the first is always tried. With `options.budget` that
        is improved, in the time that a deadline of the portfolio leaves.

        Raises:
            InfeasibleMapping: a planner found no solution; says what is too small.
            InternalError: a planner's answer failed its independent check.
        """
        if asked != LEFT_OPEN:
            default = self.backend.default_recipe
            recipe = Recipe(
                default.partition if asked.partition == AUTO else asked.partition,
                default.schedule if asked.schedule == AUTO else asked.schedule,
                default.memory if asked.memory == AUTO else asked.memory,
            )
            return Best(self.program(recipe), recipe)
        meter = portfolio.start()
        recipes = tuple(self.backend.recipes(self.partition))
        best = best_of(recipes, self.program, _cost, self.clock.report, spend=meter.spend)
        for _ in range(_MAX_ROUNDS):
            last, variants = best.recipe, tuple(self.backend.variants(best.recipe))
            best = best_of(variants, self.program, _cost, incumbent=best, spend=meter.spend)
            if best.recipe == last:
                break
        budget, left_s = self.options.budget, meter.left_s
        if budget is None or (left_s is not None and left_s <= 0):
            return best
        if left_s is not None:
            budget = replace(budget, deadline_s=left_s)
        with self.clock.phase("improve"):
            improved = self.backend.improve(best.plan, self.ordered, budget, progress=self.clock.report)
        return replace(best, plan=improved.program, attempts=(*best.attempts, *improved.attempts))

    def program(self, recipe: Recipe) -> Program:
        """Every decision of a recipe."""
        return self.ordered(self.partition(recipe.partition), recipe)

    def ordered(self, partition: Partition, recipe: Recipe) -> Program:
        """A partition, ordered and placed as a recipe says."""
        with self.clock.phase("schedule"):
            schedule = self.schedule(partition, recipe)
            remarks = merge_remarks(schedule)
            if remarks:
                schedule = self.merged(schedule, recipe)
        partition = schedule.partition
        program = Program(partition.graph, partition, schedule, self.options, remarks=remarks, recipe=recipe)
        with self.clock.phase("place"):
            placement = self.backend.place(program, progress=self.clock.report)
        if placement is None:
            return program
        return replace(program, memory=placement.plan, memory_problem=placement.problem)

    def partition(self, name: str) -> Partition:
        """What a partitioner makes of the graph, with what the target decides about it."""
        if name not in self._partitions:
            with self.clock.phase("partition"):
                self._partitions[name] = self._new_partition(name)
        return self._partitions[name]

    def _new_partition(self, name: str) -> Partition:
        problem = self.backend.partition_problem
        solution = PARTITIONERS.get(name).solve(problem, self.options.search_budget)
        if isinstance(solution, Infeasible):
            raise InfeasibleMapping(str(solution))
        violations = check_partition(problem, solution)
        if violations:
            raise InternalError(f"partitioner {name!r}: {violations[0]}")
        refined = self.backend.refine(problem, solution, progress=self.clock.report)
        violations = () if refined is solution else check_partition(problem, refined)
        if violations:
            raise InternalError(f"target {self.target.name!r} refined the partition: {violations[0]}")
        return refined

    def merged(self, schedule: Schedule, recipe: Recipe) -> Schedule:
        """The schedule of a graph in which the subgraphs of each stage that merges are one operator.

        Its costs, and those of its partition, are stated anew: of what really runs.
        """
        graph, partition, schedule = apply_merges(self.schedule_problem(schedule.partition, recipe), schedule)
        require_valid(graph, after="merging")
        require_bounded_graph(graph, "merging")
        asked = replace(self.backend.partition_problem, graph=graph, known=None)
        partition = self.backend.rewritten(asked, partition, progress=self.clock.report)
        problem = self.schedule_problem(partition, recipe)
        quality = problem.quality_of(schedule.stages, schedule.splits)
        schedule = replace(schedule, partition=partition, quality=quality)
        violations = (*check_partition(asked, partition), *check_schedule(problem, schedule))
        if violations:
            raise InternalError(f"merging as scheduler {recipe.schedule!r} asks: {violations[0]}")
        return schedule

    def schedule(self, partition: Partition, recipe: Recipe) -> Schedule:
        """A partition in order."""
        problem = self.schedule_problem(partition, recipe)
        solution = SCHEDULERS.get(recipe.schedule).solve(problem, self.options.schedule_budget)
        if isinstance(solution, Infeasible):
            raise InfeasibleMapping(str(solution))
        violations = check_schedule(problem, solution)
        if violations:
            raise InternalError(f"scheduler {recipe.schedule!r}: {violations[0]}")
        return solution

    def schedule_problem(self, partition: Partition, recipe: Recipe) -> ScheduleProblem:
        """What schedulers are asked about a partition."""
        return ScheduleProblem(
            partition,
            machine=self.target.machine,
            cost=self.backend.costs,
            objective=self.options.objective,
            limits=self.backend.limits,
            seed=self.options.seed,
            price=self.backend.price(recipe, only_better=self.only_better),
            allows_slices=self.target.runs_slices,
            maps=self.backend.partition_problem.analysis.maps,
            pads_kernels=self.options.accuracy != "strict",
        )


_MAX_ROUNDS = 3
"""How often variants of the best recipe so far are tried: a better one may have better ones, too."""


def _cost(program: Program) -> float:
    return program.schedule.quality.cost
