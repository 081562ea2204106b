"""The whole flow on one screen: graph → optimise → partition → schedule → place → generate, for every target.

Each step is one call with a typed result that can be printed; this is the only place where they meet. What
work costs, and what memory there is, says the target, which is made for a machine.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from math import inf
from typing import TYPE_CHECKING

from tilewright.errors import InfeasibleMapping
from tilewright.garbage import collected_rarely
from tilewright.ir.bounds import require_bounded_graph
from tilewright.ir.graph import Graph
from tilewright.ir.verify import require_valid
from tilewright.options import AUTO, Options
from tilewright.partition import PARTITIONERS, check_partition
from tilewright.partition.base import Partition
from tilewright.passes import PassReport, run_passes
from tilewright.planning import UNLIMITED, Budget, Infeasible, Meter, Provenance, Quality, Status, Stopwatch
from tilewright.planning.checking import require_right
from tilewright.planning.grid import Grid, methods
from tilewright.planning.portfolio import PLAIN_RECIPE, Attempt, Best, Recipe, best_of
from tilewright.program import Program
from tilewright.progress import PhaseClock, Progress
from tilewright.records import dataclass
from tilewright.schedule import SCHEDULERS, ScheduleProblem, check_schedule
from tilewright.schedule.base import Schedule, Stage, build_schedule
from tilewright.schedule.merge import apply_merges, merge_remarks
from tilewright.schedule.space import bounds_with_merges
from tilewright.steps import STORED_TUNING, StepInfo, TuningInfo, TuningSettings
from tilewright.targets import find_target, runs_steps
from tilewright.targets.base import Backend, Code, Target

if TYPE_CHECKING:
    from tilewright.joint.launched.content import Content
    from tilewright.joint.launched.pricer import Machine

WHOLE_PORTFOLIO = Budget(UNLIMITED)
"""Tries every recipe."""
JOINT = Recipe("joint", "joint", AUTO)
"""What a plan of blocks of several recipes is called."""
LEFT_OPEN = Recipe(AUTO, AUTO, AUTO)
"""What asks for the best of what a target finds worth trying."""


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """A program for a target, the report of the passes that led to it, all plans that were compared, and how
    many a budget left untried.

    `meter` is what is left of the options' budget; `search_time` is its clock.
    """

    target: Target
    program: Program
    passes: PassReport
    attempts: tuple[Attempt, ...]
    num_untried: int
    backend: Backend
    meter: Meter | None = None
    search_time: Stopwatch = field(default_factory=Stopwatch)


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
) -> Compilation:
    """The whole flow. The graph given is not changed.

    `tuning` says which measurements choose kernels.

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
    """The program with what measurements chose, and a line for each subgraph whose form was searched."""
    tuned = tuple(map(str, info.subgraphs))
    return replace(program.with_forms(info.forms), choices=info.choices, tuned=tuned)


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
        only_better = asked == LEFT_OPEN and options.plan == "portfolio"
        planner = Planner(graph, target, backend, options, clock, only_better=only_better)
        best = planner.best(asked, portfolio)
    return Planned(
        target,
        best.plan,
        passes or PassReport(),
        best.attempts,
        best.num_untried,
        planner.backend,
        planner.meter,
        planner.search_time,
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
        self.search_time = Stopwatch()
        self.meter: Meter | None = None
        self.seeds: list[Schedule] = []  # of a joint plan: every schedule that was made

    def best(self, asked: Recipe, portfolio: Budget = WHOLE_PORTFOLIO) -> Best[Program]:
        """The plan of a recipe, the target's default in place of what it leaves open.

        Where it leaves all open, the best that the target finds worth trying, or of the grid if the options
        say so, as far as `portfolio` goes: a budget whose evaluations are recipes, of which the first is
        always tried. With `options.budget` the best of the portfolio is improved, in the time that a deadline
        of it leaves.

        Raises:
            InfeasibleMapping: a planner found no solution; says what is too small.
            InternalError: a planner's answer failed its independent check.
        """
        self.meter = None if self.options.budget is None else self.options.budget.start(self.search_time)
        if asked != LEFT_OPEN:
            default = self.backend.default_recipe
            recipe = Recipe(
                default.partition if asked.partition == AUTO else asked.partition,
                default.schedule if asked.schedule == AUTO else asked.schedule,
                default.memory if asked.memory == AUTO else asked.memory,
            )
            return Best(self.program(recipe), recipe)
        meter = portfolio.start()
        if self.options.plan == "grid":
            return best_of(self._grid(), self.program, _cost, self.clock.report, spend=meter.spend)
        recipes = tuple(self.backend.recipes(self.partition))
        best = best_of(recipes, self.program, _cost, self.clock.report, spend=meter.spend)
        best = self._varied(best, meter)
        if self.options.plan == "joint":
            grid = self._grid()
            best = best_of(grid, self.program, _cost, self.clock.report, incumbent=best, spend=meter.spend)
            best = self._varied(best, meter)
        if self.options.plan == "joint" and self.backend.launched_parts is not None:
            return self._joint(best, meter)
        budget, left_s = self.options.budget, meter.left_s
        if budget is None or (left_s is not None and left_s <= 0):
            return best
        own_s = None if self.meter is None else self.meter.left_s
        left_s = min((s for s in (left_s, own_s) if s is not None), default=None)
        if left_s is not None:
            budget = replace(budget, deadline_s=max(left_s, _LEAST_S))
        with self.clock.phase("improve"), self.search_time.running():
            make = functools.partial(self.ordered, share=_SHARE_BESIDE)
            improved = self.backend.improve(best.plan, make, budget, progress=self.clock.report)
        return replace(best, plan=improved.program, attempts=(*best.attempts, *improved.attempts))

    def _varied(self, best: Best[Program], meter: Meter) -> Best[Program]:
        """The best of a plan and variants of it, and of what is better then."""
        for _ in range(_MAX_ROUNDS):
            last, variants = best.recipe, tuple(self.backend.variants(best.recipe))
            best = best_of(variants, self.program, _cost, incumbent=best, spend=meter.spend)
            if best.recipe == last:
                break
        return best

    def _joint(self, best: Best[Program], meter: Meter) -> Best[Program]:
        """The best path through the blocks of all plans, and on from there: on this graph and on those that
        merging made of it. Each better plan is judged as a whole."""
        best = self._blocks(best, meter)
        if meter.left_s is not None and meter.left_s <= 0:
            return best
        priced = [a for a in best.attempts if a.recipe is not None and a.recipe.partition != JOINT.partition]
        cheapest = [a.recipe for a in sorted(priced, key=_attempt_cost) if a.recipe is not None]
        for schedule in self._merging(meter):
            if not meter.spend():
                break
            graph = self.merged(schedule, self.backend.default_recipe).partition.graph
            backend = self.target.backend(graph, self.options)
            other = Planner(graph, self.target, backend, self.options, self.clock)
            again = best_of(cheapest[:_NUM_AGAIN], other.program, _cost, self.clock.report, spend=meter.spend)
            again = other._blocks(again, meter)
            attempts = (*best.attempts, *again.attempts)
            if _cost(again.plan) < _cost(best.plan):
                program = replace(again.plan, remarks=(*again.plan.remarks, *merge_remarks(schedule)))
                best, self.backend = replace(again, plan=program, attempts=attempts), other.backend
            else:
                best = replace(best, attempts=attempts)
        return best

    def _merging(self, meter: Meter) -> list[Schedule]:
        """Schedules that merge siblings, each choice once: what pays within larger kernels, then what
        schedulers chose."""
        from tilewright.joint.launched.merging import merges_within_kernels

        recipe = self.backend.default_recipe
        partition = self.partition(PLAIN_RECIPE.partition)
        problem = self.schedule_problem(partition, recipe)
        stages = merges_within_kernels(partition, self._machine(), meter)
        within = build_schedule(problem, stages, Provenance(JOINT.schedule))
        found: dict[frozenset[str], Schedule] = {}
        for schedule in (within, *self.seeds):
            names = frozenset(merge_remarks(schedule))
            if names and schedule.partition.graph is self.graph:
                found.setdefault(names, schedule)
        return list(found.values())[:_NUM_MERGED]

    def _machine(self) -> Machine:
        """What blocks are priced by."""
        from tilewright.joint.launched.pricer import Machine

        parts = self.backend.launched_parts
        assert parts is not None, "plans cost the sum of their blocks"
        return Machine(
            cost=self.backend.costs,
            price=parts.price,
            objective=self.options.objective,
            limits=self.backend.limits,
            allows_lanes=self.backend.runs_lanes,
            pads_kernels=self.options.accuracy != "strict",
            launch_ns=parts.launch_ns,
            floors_ns=parts.floors_ns(),
        )

    def _blocks(self, best: Best[Program], meter: Meter) -> Best[Program]:
        """The better of a plan and what the search over blocks finds from all plans of its graph on."""
        from tilewright.joint.launched.content import Numbered, assembled
        from tilewright.joint.launched.pricer import LaunchedPricer
        from tilewright.joint.launched.search import LaunchedSearch

        numbered = Numbered(self.graph)
        recipe = replace(JOINT, memory=self.backend.default_recipe.memory)
        plans = [tuple(numbered.contents(s)) for s in self.seeds if s.partition.graph is self.graph]
        pricer = LaunchedPricer(numbered, self._machine())
        search = LaunchedSearch.of(pricer, plans, meter, self.clock.report)

        def judge(contents: Sequence[Content]) -> None:
            nonlocal best
            found = assembled(self.backend.partition_problem, contents, numbered.nodes)
            problem = self.schedule_problem(found.partition, recipe)
            schedule = build_schedule(problem, found.stages, Provenance(JOINT.schedule), found.splits)
            require_right("a joint schedule", lambda: check_schedule(problem, schedule))
            program = self.placed(schedule, recipe)
            attempt = Attempt(f"joint, {len(contents)} blocks", _cost(program), recipe=recipe)
            best = replace(best, attempts=(*best.attempts, attempt))
            if _cost(program) < _cost(best.plan):
                best = replace(best, plan=program, recipe=recipe)

        search.run(judge)
        return best

    def _grid(self) -> Grid:
        """Every registered partitioner and scheduler, the plain ones first."""
        return Grid(
            methods(PARTITIONERS.names(), PLAIN_RECIPE.partition),
            methods(SCHEDULERS.names(), PLAIN_RECIPE.schedule),
            self.backend.default_recipe.memory,
            self.backend.placements,
        )

    def program(self, recipe: Recipe) -> Program:
        """Every decision of a recipe."""
        return self.ordered(self.partition(recipe.partition), recipe)

    def ordered(self, partition: Partition, recipe: Recipe, *, share: float | None = None) -> Program:
        """A partition, ordered and placed as a recipe says, within a share of the time that is left."""
        with self.clock.phase("schedule"):
            schedule = self.schedule(partition, recipe, share)
        if self.options.plan == "joint":
            self.seeds.append(schedule)
        return self.placed(schedule, recipe)

    def of_stages(self, partition: Partition, stages: Sequence[Stage], recipe: Recipe) -> Program:
        """A partition in these stages, placed as a recipe says."""
        problem = self.schedule_problem(partition, recipe)
        schedule = build_schedule(problem, tuple(stages), Provenance("given"))
        require_right("a schedule to measure", lambda: check_schedule(problem, schedule))
        return self.placed(schedule, recipe)

    def placed(self, schedule: Schedule, recipe: Recipe) -> Program:
        """A schedule with its merges made, placed as a recipe says."""
        with self.clock.phase("schedule"):
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
        solution = PARTITIONERS.verified(name, solution, Partition, lambda p: check_partition(problem, p))
        refined = self.backend.refine(problem, solution, progress=self.clock.report)
        if refined is not solution:
            what = f"the partition that target {self.target.name!r} refined"
            require_right(what, lambda: check_partition(problem, refined))
        return refined

    def merged(self, schedule: Schedule, recipe: Recipe) -> Schedule:
        """The schedule of a graph in which the subgraphs of each stage that merges are one operator.

        Its costs, and those of its partition, are stated anew: of what really runs. Where that costs what was
        planned, what the scheduler proved of schedules of the partition before is about it, too.
        """
        planned = schedule.quality
        graph, partition, schedule = apply_merges(self.schedule_problem(schedule.partition, recipe), schedule)
        require_valid(graph, after="merging")
        require_bounded_graph(graph, "merging")
        asked = replace(self.backend.partition_problem, graph=graph, known=None)
        partition = self.backend.rewritten(asked, partition, progress=self.clock.report)
        problem = self.schedule_problem(partition, recipe)
        quality = problem.quality_of(schedule.stages, schedule.splits)
        bounds = bounds_with_merges(quality, planned)
        cut_off = planned.status is Status.CUT_OFF
        quality = Quality.of(quality.cost, *bounds, unit=quality.unit, cut_off=cut_off)
        schedule = replace(schedule, partition=partition, quality=quality)
        require_right(
            f"the graph merged as scheduler {recipe.schedule!r} asks",
            lambda: (*check_partition(asked, partition), *check_schedule(problem, schedule)),
        )
        return schedule

    def schedule(self, partition: Partition, recipe: Recipe, share: float | None = None) -> Schedule:
        """A partition in order, within a share of the time that is left."""
        problem = self.schedule_problem(partition, recipe)
        with self.search_time.running():
            solution = SCHEDULERS.get(recipe.schedule).solve(problem, self._schedule_budget(share))
        if isinstance(solution, Infeasible):
            raise InfeasibleMapping(str(solution))
        return SCHEDULERS.verified(recipe.schedule, solution, Schedule, lambda s: check_schedule(problem, s))

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
            allows_lanes=self.backend.runs_lanes,
            maps=self.backend.partition_problem.analysis.maps,
            pads_kernels=self.options.accuracy != "strict",
            bench=self.backend.stage_bench(
                partition, lambda stages: self.of_stages(partition, stages, recipe)
            ),
        )

    def _schedule_budget(self, share: float | None) -> Budget:
        """What one scheduler may spend: where measurements choose kernels, it leaves time for them."""
        left_s = None if self.meter is None else self.meter.left_s
        if left_s is None:
            return self.options.search_budget
        if share is None:
            share = _SHARE_BEFORE if self.target.is_measurable else 1.0
        return replace(self.options.search_budget, deadline_s=max(share * left_s, _LEAST_S))


_SHARE_BEFORE = 0.4
_SHARE_BESIDE = 0.15
"""Of what is left of a budget, for a schedule that was asked for, and for one that is only compared."""
_LEAST_S = 0.001
"""Of a budget that is used up."""
_MAX_ROUNDS = 3
"""How often variants of the best recipe so far are tried: a better one may have better ones, too."""


_NUM_MERGED, _NUM_AGAIN = 3, 8
"""Graphs that merging made of which joint plans are made, too, and recipes that are tried on each."""


def _attempt_cost(attempt: Attempt) -> float:
    return inf if attempt.cost is None else attempt.cost


def _cost(program: Program) -> float:
    return program.schedule.quality.cost
