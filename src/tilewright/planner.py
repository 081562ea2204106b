"""Plans of one graph on one target: each recipe's, and the best of several.

A recipe names planners; its steps lead from the optimised graph to a placed program.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tilewright.errors import InfeasibleMapping, UsageError
from tilewright.ir.bounds import require_bounded_graph
from tilewright.ir.graph import Graph
from tilewright.ir.verify import require_valid
from tilewright.options import AUTO, Options
from tilewright.partition import PARTITIONERS, check_partition
from tilewright.partition.base import Partition
from tilewright.planning import UNLIMITED, Budget, Infeasible, Meter, Provenance, Quality, Status, Stopwatch
from tilewright.planning.checking import require_right
from tilewright.planning.grid import Grid, methods, of_pairs, of_papers
from tilewright.planning.portfolio import PLAIN_RECIPE, Attempt, Best, Recipe, best_of
from tilewright.program import Program
from tilewright.progress import PhaseClock, ending_with
from tilewright.schedule import SCHEDULERS, ScheduleProblem, check_schedule
from tilewright.schedule.base import Schedule, Stage, build_schedule
from tilewright.schedule.merge import apply_merges, merge_remarks
from tilewright.schedule.space import bounds_with_merges
from tilewright.targets.base import Backend, Improved, Target

if TYPE_CHECKING:
    from tilewright.joint.launched.decisions import Decision

WHOLE_PORTFOLIO = Budget(UNLIMITED)
"""Tries every recipe."""
LEFT_OPEN = Recipe(AUTO, AUTO, AUTO)
"""What asks for the best of what a target finds worth trying."""


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
        self.portfolio: Meter | None = None
        self.decisions: tuple[Decision, ...] = ()  # of a joint plan
        self.seeds: list[Schedule] = []  # of a plan that is improved: every schedule that was made
        self.given: Schedule | None = None  # of a joint plan: what decisions that are frozen stay as

    def best(self, asked: Recipe, portfolio: Budget | Meter = WHOLE_PORTFOLIO) -> Best[Program]:
        """The plan of a recipe, the target's default in place of what it leaves open.

        Where it leaves all open, the best that the target finds worth trying, or of the grid if the options
        say so, as far as `portfolio` goes: a budget whose evaluations are recipes, of which the first is
        always tried, or a meter that was started. With `options.budget` the best of the portfolio is
        improved, in the time that a deadline of it leaves.

        Raises:
            InfeasibleMapping: a planner found no solution; says what is too small.
            InternalError: a planner's answer failed its independent check.
        """
        self.meter = None if self.options.budget is None else self.options.budget.start(self.search_time)
        is_frozen = bool(self.options.only)
        if asked != LEFT_OPEN and not is_frozen:
            recipe = _completed(asked, self.backend.default_recipe)
            return Best(self.program(recipe), recipe)
        self.portfolio = meter = portfolio if isinstance(portfolio, Meter) else portfolio.start()
        if is_frozen:
            return self.plan_with_frozen(asked)
        with ending_with(meter):
            return self._best_of_all(meter)

    def plan_with_frozen(self, asked: Recipe) -> Best[Program]:
        """The plan whose decisions a joint search leaves as they are, but for those that are asked for."""
        if self.options.objective != "latency":
            raise UsageError(
                f"only: objective {self.options.objective!r} is no sum over blocks; take latency, or leave "
                "only out."
            )
        if self.backend.launched_parts is None:
            raise UsageError(
                f"only: target {self.target.name!r} does not launch kernels one by one; take one that does "
                "(v100, a310, jetson-nano), or leave only out."
            )
        recipe = _completed(asked, replace(PLAIN_RECIPE, memory=self.backend.default_recipe.memory))
        program = self.program(recipe)
        self.given = self.seeds[-1]
        return Best(program, recipe, (Attempt(str(recipe), cost_of(program), recipe=recipe),))

    def _best_of_all(self, meter: Meter) -> Best[Program]:
        """The best of portfolio or grid, or both, and of a search from there on."""
        is_joint = self.options.plan == "joint"
        if is_joint and self.backend.launched_parts is not None:
            return self._of_papers(meter)  # the search over blocks goes on from here
        with meter.share(_SHARE_OF_SEEDS if is_joint else 1.0):
            best = self.compared(None, meter)
        budget, left_s = self.options.budget, meter.left_s
        if budget is None or meter.is_over:
            return best
        if is_joint and meter.budget.max_evaluations != UNLIMITED:
            # What was tried so far counts.
            budget = replace(budget, max_evaluations=budget.max_evaluations - meter.num_evaluations)
            if budget.max_evaluations < 1:
                return best
        own_s = None if self.meter is None else self.meter.left_s
        left_s = min((s for s in (left_s, own_s) if s is not None), default=None)
        if left_s is not None:
            budget = replace(budget, deadline_s=max(left_s, _LEAST_S))
        with self.clock.phase("improve"), self.search_time.running():
            make = functools.partial(self.ordered, share=_SHARE_BESIDE)
            improved = Improved(best.plan)
            with meter.ending_early():
                improved = self.backend.improve(
                    best.plan, make, budget, seeds=self.seeds, progress=self.clock.report
                )
        return replace(best, plan=improved.program, attempts=(*best.attempts, *improved.attempts))

    def _of_papers(self, meter: Meter) -> Best[Program]:
        """The best of layers one by one and of what papers propose."""
        memory = self.backend.default_recipe.memory
        first = (replace(PLAIN_RECIPE, memory=memory), *of_papers(memory))
        with meter.share(_SHARE_OF_PAPERS):
            return self._tried(first, None, meter)

    def compared(self, best: Best[Program] | None, meter: Meter) -> Best[Program]:
        """The better of a plan and portfolio or grid, or of both, as the options say."""
        is_joint, memory = self.options.plan == "joint", self.backend.default_recipe.memory
        if best is not None:
            best = self._tried(of_pairs(memory), best, meter)
        if self.options.plan != "grid":
            recipes: Iterable[Recipe] = self.backend.recipes(self.partition)
            if meter.left_s is None:
                recipes = tuple(recipes)
            else:
                # The cheapest plan comes first: from then on time may end everything, even the naming of
                # others, which may take a while.
                recipes = itertools.chain((replace(PLAIN_RECIPE, memory=memory),), recipes)
            best = self._varied(self._tried(recipes, best, meter), meter)
        if self.options.plan in ("grid", "joint"):
            best = self._tried(self._grid(), best, meter)
        assert best is not None
        return self._varied(best, meter) if is_joint else best

    def _tried(self, recipes: Iterable[Recipe], best: Best[Program] | None, meter: Meter) -> Best[Program]:
        """The best of recipes that were not tried yet, and of what was."""
        if best is not None:
            tried = {attempt.recipe for attempt in best.attempts}
            recipes = (recipe for recipe in recipes if recipe not in tried)
        report = self.clock.report
        return best_of(recipes, self.program, cost_of, report, incumbent=best, meter=meter, show=brief)

    def _varied(self, best: Best[Program], meter: Meter) -> Best[Program]:
        """The best of a plan and variants of it, and of what is better then."""
        for _ in range(_MAX_ROUNDS):
            last, variants = best.recipe, tuple(self.backend.variants(best.recipe))
            best = best_of(variants, self.program, cost_of, incumbent=best, meter=meter, show=brief)
            if best.recipe == last:
                break
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
            solution = partitioner.solve(problem, self.options.search_budget)
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
        with self.search_time.running(), SCHEDULERS.using(recipe.schedule) as scheduler:
            solution = scheduler.solve(problem, self._schedule_budget(share))
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
        """What one scheduler may spend: where measurements choose kernels, it leaves time for them; where
        plans are compared, for the others."""
        lefts = (m.left_s for m in (self.meter, self.portfolio) if m is not None)
        left_s = min((s for s in lefts if s is not None), default=None)
        if left_s is None:
            return self.options.search_budget
        if share is None and self.portfolio is not None and self.portfolio.left_s is not None:
            share = _SHARE_BESIDE
        if share is None:
            share = _SHARE_BEFORE if self.target.is_measurable else 1.0
        return replace(self.options.search_budget, deadline_s=max(share * left_s, _LEAST_S))


def _completed(asked: Recipe, default: Recipe) -> Recipe:
    """A recipe with those of another in place of what it leaves open."""
    return Recipe(
        default.partition if asked.partition == AUTO else asked.partition,
        default.schedule if asked.schedule == AUTO else asked.schedule,
        default.memory if asked.memory == AUTO else asked.memory,
    )


_SHARE_BEFORE = 0.4
_SHARE_BESIDE = 0.15
"""Of what is left of a budget, for a schedule that was asked for, and for one that is only compared."""
_SHARE_OF_SEEDS = 0.6
"""Of the time of a joint plan, for the plans whose blocks it combines."""
_SHARE_OF_PAPERS = 0.5
"""Of the time of a joint plan of kernels that are launched one by one, for what papers propose."""
_LEAST_S = 0.001
"""Of a budget that is used up."""
_MAX_ROUNDS = 3
"""How often variants of the best recipe so far are tried: a better one may have better ones, too."""


def cost_of(program: Program) -> float:
    """What its schedule costs."""
    return program.schedule.quality.cost


def brief(program: Program) -> str:
    """What its schedule costs beside a bound, as progress says it."""
    return program.schedule.quality.brief
