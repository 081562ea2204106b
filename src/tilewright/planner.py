"""Plans of one graph on one target, a recipe's each: partition, schedule, merges, places, and their checks.

A recipe names planners; its steps lead from the optimised graph to a placed program. Which recipes are tried,
in which order and for how long, is said in `comparison.py` and `joint_plan.py`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tilewright.errors import InfeasibleMapping, InternalError, TilewrightError
from tilewright.ir.bounds import require_bounded_graph
from tilewright.ir.graph import Graph
from tilewright.ir.verify import require_valid
from tilewright.joint.launched.pricer import Machine as PricedParts
from tilewright.joint.launched.rewritten import Rewritten
from tilewright.options import AUTO, Options
from tilewright.partition import PARTITIONERS, check_cut, check_partition
from tilewright.partition.base import Partition
from tilewright.planning import (
    UNLIMITED,
    Budget,
    Infeasible,
    Meter,
    Provenance,
    Quality,
    Status,
    Stopwatch,
    Violation,
)
from tilewright.planning.checking import require_right
from tilewright.planning.portfolio import PLAIN_RECIPE, Attempt, Best, Recipe, best_of
from tilewright.program import Program
from tilewright.progress import PhaseClock, WouldCompile, without_compiling
from tilewright.schedule import SCHEDULERS, ScheduleProblem, check_schedule
from tilewright.schedule.base import Schedule, Stage, build_schedule
from tilewright.schedule.merge import apply_merges, merge_remarks
from tilewright.schedule.space import bounds_with_merges
from tilewright.targets.base import Backend, Target

if TYPE_CHECKING:
    from tilewright.joint.launched.decisions import Decision

WHOLE_PORTFOLIO = Budget(UNLIMITED)
"""Tries every recipe."""
LEFT_OPEN = Recipe(AUTO, AUTO, AUTO)
"""What asks for the best of what a target finds worth trying."""
LEAST_S = 0.001
"""Of a budget that is used up."""
SHARE_BESIDE, _SHARE_BEFORE, _SHARE_OF_PARTITION = 0.15, 0.4, 0.5
"""Of the time that is left: for a schedule that is only compared, for one that was asked for where kernels
are measured then, and at least for a partition of a joint plan of launched kernels."""
OF_FIRST = 1.5
"""Times that the first plan took, for another one."""


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
        self.backends = [backend]  # and those of graphs that this one was rewritten to
        self.options = options
        self.clock = clock
        self.only_better = only_better
        self._partitions: dict[str, Partition] = {}
        self.search_time = Stopwatch()
        self.meter: Meter | None = None
        self.portfolio: Meter | None = None
        self.decisions: tuple[Decision, ...] = ()  # of a joint plan
        self.seeds: list[Schedule] = []  # of a plan that is improved: every schedule that was made
        self.first_s = self.share_of_first = 0.0  # of a budget, what the first plan took
        self._first: Quality | None = None  # of the schedule that was made first
        self._without_searches: tuple[str, Planner] | None = None  # what made the first plan, if it did so
        self.given: Schedule | None = None  # of a joint plan: what decisions that are frozen stay as

    def begin(self, portfolio: Budget | Meter | None = None) -> Meter:
        """Start the budget of a plan, and that of the recipes that are compared for it, if any are; the
        latter, or one without end."""
        self.meter = None if self.options.budget is None else self.options.budget.start(self.search_time)
        if portfolio is None:
            return WHOLE_PORTFOLIO.start()
        self.portfolio = portfolio if isinstance(portfolio, Meter) else portfolio.start()
        return self.portfolio

    def first(self, meter: Meter) -> Best[Program] | None:
        """The plan that is there soonest, where time is limited: of layers one by one; where the target would
        have to compile the loops of its searches before, without these. None: time has no limit, or there is
        no such plan."""
        if meter.left_s is None or self.backend.price(PLAIN_RECIPE) is None:
            return None
        recipe = replace(PLAIN_RECIPE, memory=self.backend.default_recipe.memory)
        try:
            with contextlib.suppress(WouldCompile), without_compiling():
                return self._first_of(recipe, meter)
            if (without := self.backend.without_searches()) is None:
                return None
            execution, backend = without
            self._without_searches = execution, self._beside(backend)
            return self._first_of(replace(recipe, execution=execution), meter)
        except InternalError:
            raise
        except TilewrightError:  # why is told where recipes are tried
            return None

    def _first_of(self, recipe: Recipe, meter: Meter) -> Best[Program]:
        """The plan of a recipe, checked; as much time as that took is left for the check of the plan that is
        chosen."""
        start_s = meter.clock()
        program = self.program(recipe)
        self.first_s = meter.clock() - start_s
        self.share_of_first = self.first_s / max(self.first_s + (meter.left_s or 0.0), self.first_s, LEAST_S)
        start_s = meter.clock()
        self.of_execution(recipe).backend.generate(program)
        meter.set_aside(meter.clock() - start_s)
        tried = None if recipe.execution else recipe  # which is still to be planned with searches
        return Best(program, recipe, (Attempt(str(recipe), cost_of(program), recipe=tried),))

    def tried(self, recipes: Iterable[Recipe], best: Best[Program] | None, meter: Meter) -> Best[Program]:
        """The best of recipes that were not tried yet, and of what was."""
        if best is not None:
            tried = {attempt.recipe for attempt in best.attempts}
            recipes = (recipe for recipe in recipes if recipe not in tried)
        report = self.clock.report
        return best_of(recipes, self.program, cost_of, report, incumbent=best, meter=meter, show=brief)

    def of_graph(self, graph: Graph) -> Planner:
        """A planner of what this graph was rewritten to, within the same time."""
        return self._beside(self.target.backend(graph, self.options))

    def _beside(self, backend: Backend) -> Planner:
        graph, only_better = backend.graph, self.only_better
        other = Planner(graph, backend.target, backend, self.options, self.clock, only_better=only_better)
        other.meter, other.portfolio, other.search_time = self.meter, self.portfolio, self.search_time
        other.first_s, other.share_of_first = self.first_s, self.share_of_first
        other.backends = self.backends
        other.backends.append(backend)
        return other

    @functools.cached_property
    def sums_in_parts(self) -> Rewritten | None:
        """The graph with sums of products in parts, where that makes their layers cheaper; None: nowhere."""
        from tilewright.joint.launched.splitting import with_split_sums  # loads machines

        meter = self.portfolio or WHOLE_PORTFOLIO.start()
        layers = self.partition(PLAIN_RECIPE.partition)
        found = with_split_sums(layers, machine_of(self.backend, self.options), meter)
        if found is not None:
            require_valid(found.graph, after="splitting sums")
            require_bounded_graph(found.graph, "splitting sums")
        return found

    @functools.cached_property
    def in_parts(self) -> Planner | None:
        """What plans the graph with sums of products in parts; None: nowhere are they cheaper."""
        return None if self.sums_in_parts is None else self.of_graph(self.sums_in_parts.graph)

    def planner_of(self, recipe: Recipe) -> Planner:
        """What plans as a recipe says: as `of_execution`, or that of the graph with sums in parts."""
        planner = self.of_execution(recipe)
        return (planner.in_parts if recipe.splits_sums else None) or planner

    def of_execution(self, recipe: Recipe) -> Planner:
        """What plans this graph as a recipe says: itself, or what plans without searches."""
        execution, planner = self._without_searches or ("", self)
        return planner if execution and recipe.execution.startswith(execution) else self

    def stated(self, program: Program, planner: Planner) -> Program:
        """A program of a planner of this one's, as one of this graph."""
        if planner is self or program.graph is self.graph or self.sums_in_parts is None:
            return program
        if self._first is None:
            self.program(replace(PLAIN_RECIPE, memory=self.backend.default_recipe.memory))
        assert self._first is not None, "it is stated as soon as something is planned"
        stated = self.sums_in_parts.stated(program, self._first)
        return replace(stated, recipe=replace(program.recipe, splits_sums=True))

    def program(self, recipe: Recipe) -> Program:
        """Every decision of a recipe. Where no sums get cheaper in parts, they stay whole."""
        planner = self.planner_of(recipe)
        recipe = replace(recipe, splits_sums=False)
        return self.stated(planner.ordered(planner.partition(recipe.partition), recipe), planner)

    def ordered(
        self,
        partition: Partition,
        recipe: Recipe,
        *,
        share: float | None = None,
        stages: Sequence[Stage] = (),
    ) -> Program:
        """A partition, ordered and placed as a recipe says, within a share of the time that is left; in these
        stages of its slices, if any are given."""
        with self.clock.phase("schedule"):
            if stages:
                schedule = self._given(partition, stages, recipe)
            else:
                schedule = self.schedule(partition, recipe, share)
        self._first = self._first or schedule.quality
        if self.options.plan == "joint" or self.options.budget is not None:
            self.seeds.append(schedule)
        return self.placed(schedule, recipe)

    def of_stages(self, partition: Partition, stages: Sequence[Stage], recipe: Recipe) -> Program:
        """A partition in these stages, placed as a recipe says."""
        return self.placed(self._given(partition, stages, recipe), recipe)

    def _given(self, partition: Partition, stages: Sequence[Stage], recipe: Recipe) -> Schedule:
        """A schedule of stages that were chosen elsewhere, checked."""
        problem = self.schedule_problem(partition, recipe)
        splits = partition.splits if self.target.runs_slices else ()
        schedule = build_schedule(problem, tuple(stages), Provenance("given"), splits)
        require_right("a schedule that was given", lambda: check_schedule(problem, schedule))
        return schedule

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
        with PARTITIONERS.using(name) as partitioner:
            solution = partitioner.solve(problem, self._partition_budget())
        if isinstance(solution, Infeasible):
            raise InfeasibleMapping(str(solution))
        # Where whole schedules are priced, what a partition costs kernel by kernel may decide nothing.
        adds_up = self.backend.price(PLAIN_RECIPE) is None

        def check(partition: Partition) -> Sequence[Violation]:
            if adds_up or partition.is_priced:
                return check_partition(problem, partition)
            return check_cut(self.graph, partition, problem.analysis.maps)

        solution = PARTITIONERS.verified(name, solution, Partition, check)
        refined = self.backend.refine(problem, solution, progress=self.clock.report)
        if refined is not solution:
            what = f"the partition that target {self.target.name!r} refined"
            require_right(what, lambda: check(refined))
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
        problem = self.schedule_problem(partition, recipe, only_better=self.only_better or self._is_hurried)
        with self.search_time.running(), SCHEDULERS.using(recipe.schedule) as scheduler:
            solution = scheduler.solve(problem, self._schedule_budget(share))
        if isinstance(solution, Infeasible):
            raise InfeasibleMapping(str(solution))
        return SCHEDULERS.verified(recipe.schedule, solution, Schedule, lambda s: check_schedule(problem, s))

    @property
    def _is_hurried(self) -> bool:
        """Whether a joint plan of launched kernels has limited time: what is seen to take longer than a plan
        before is not simulated then, as it takes time from what may take less. A plan whose decisions are
        frozen is asked for, however long it takes."""
        is_joint = self.options.plan == "joint" and self.backend.launched_parts is not None
        is_open = not self.options.only
        return is_joint and is_open and self.portfolio is not None and self.portfolio.left_s is not None

    def schedule_problem(
        self, partition: Partition, recipe: Recipe, *, only_better: bool | None = None
    ) -> ScheduleProblem:
        """What schedulers are asked about a partition; `only_better` if not as the planner's."""
        return ScheduleProblem(
            partition,
            machine=self.target.machine,
            cost=self.backend.costs,
            objective=self.options.objective,
            limits=self.backend.limits,
            seed=self.options.seed,
            price=self.backend.price(
                recipe, only_better=self.only_better if only_better is None else only_better
            ),
            allows_slices=self.target.runs_slices,
            allows_lanes=self.backend.runs_lanes,
            maps=self.backend.partition_problem.analysis.maps,
            pads_kernels=self.options.accuracy != "strict",
            bench=self.backend.stage_bench(
                partition, lambda stages: self.of_stages(partition, stages, recipe)
            ),
        )

    def _partition_budget(self) -> Budget:
        """What one partitioner may spend: of a joint plan within limited time so much that what it has by
        then is scheduled; of a joint plan of one program, whose trials are plans of many partitions, no more
        evaluations than it has trials."""
        budget, own = self.options.search_budget, self.options.budget
        if own is not None and self.options.plan == "joint" and self.backend.launched_parts is None:
            budget = replace(budget, max_evaluations=min(budget.max_evaluations, own.max_evaluations))
        left_s = self.portfolio.left_s if self._is_hurried and self.portfolio is not None else None
        if left_s is None:
            return budget
        own_s = max(_SHARE_OF_PARTITION * left_s, left_s - OF_FIRST * self.first_s)
        return replace(budget, deadline_s=max(own_s, LEAST_S))

    def _schedule_budget(self, share: float | None) -> Budget:
        """What one scheduler may spend: where measurements choose kernels, it leaves time for them; where
        plans are compared, for the others."""
        lefts = (m.left_s for m in (self.meter, self.portfolio) if m is not None)
        left_s = min((s for s in lefts if s is not None), default=None)
        if left_s is None:
            return self.options.search_budget
        if share is None and self.portfolio is not None and self.portfolio.left_s is not None:
            share = SHARE_BESIDE
        if share is None:
            share = _SHARE_BEFORE if self.target.is_measurable else 1.0
        return replace(self.options.search_budget, deadline_s=max(share * left_s, LEAST_S))


def machine_of(backend: Backend, options: Options, memory: str = "") -> PricedParts:
    """What blocks of a graph are priced by; values lie where a planner of `memory` says, by default that of
    the target's recipe."""
    parts = backend.launched_parts
    assert parts is not None, "plans cost the sum of their blocks"
    return PricedParts(
        cost=backend.costs,
        price=parts.price(memory or backend.default_recipe.memory),
        objective=options.objective,
        limits=backend.limits,
        allows_lanes=backend.runs_lanes,
        pads_kernels=options.accuracy != "strict",
        launch_ns=parts.launch_ns,
        join_ns=parts.join_ns,
        floors_ns=parts.floors_ns(),
        layer_times=parts.layer_times,
        cores_worth=parts.cores_worth,
        tilings=parts.tilings,
    )


def cost_of(program: Program) -> float:
    """What its schedule costs."""
    return program.schedule.quality.cost


def brief(program: Program) -> str:
    """What its schedule costs beside a bound, as progress says it."""
    return program.schedule.quality.brief
