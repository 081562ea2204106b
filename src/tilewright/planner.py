"""Plans of one graph on one target: each recipe's, and the best of several.

A recipe names planners; its steps lead from the optimised graph to a placed program.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tilewright.errors import InfeasibleMapping, InternalError, TilewrightError, UsageError
from tilewright.ir.bounds import require_bounded_graph
from tilewright.ir.graph import Graph
from tilewright.ir.verify import require_valid
from tilewright.joint.launched.combined import combined
from tilewright.joint.launched.content import Content, Numbered, assembled
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
from tilewright.planning.grid import NUM_FAST, Grid, methods, of_pairs, of_papers
from tilewright.planning.portfolio import PLAIN_RECIPE, Attempt, Best, Recipe, best_of
from tilewright.program import Program
from tilewright.progress import PhaseClock, SearchEnded, ending_with
from tilewright.records import dataclass
from tilewright.schedule import SCHEDULERS, ScheduleProblem, check_schedule
from tilewright.schedule.base import Schedule, Stage, build_schedule
from tilewright.schedule.merge import apply_merges, merge_remarks
from tilewright.schedule.space import bounds_with_merges
from tilewright.targets.base import Backend, Improved, Searches, Target

if TYPE_CHECKING:
    from tilewright.joint.launched.decisions import Decision

WHOLE_PORTFOLIO = Budget(UNLIMITED)
"""Tries every recipe."""
LEFT_OPEN = Recipe(AUTO, AUTO, AUTO)
"""What asks for the best of what a target finds worth trying."""
COMBINED = Recipe("joint", "joint", AUTO)
"""What a plan of blocks of several recipes is called."""


@dataclass(frozen=True, slots=True)
class _WithoutSearches:
    """Work that ends where a search begins, of which there were so many before."""

    searches: Searches
    num_before: int

    @property
    def ends_here(self) -> bool:
        return self.searches.count() != self.num_before

    def interrupt(self) -> bool:
        return False


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
        self.first_s = 0.0  # of a budget, what the first plan took
        self._first: Quality | None = None  # of the schedule that was made first
        self._quick: tuple[str, Planner] | None = None  # an execution, and what plans so
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
        is_frozen, splits_sums = bool(self.options.only), bool(self.options.split_sums)
        if splits_sums and self.backend.launched_parts is None:
            raise UsageError(
                f"split-sums: target {self.target.name!r} does not launch kernels one by one, or "
                f"{self.options.objective} is no sum over them; take a target that does (v100, a310, "
                "jetson-nano) and latency, or leave split-sums out."
            )
        if asked != LEFT_OPEN and not is_frozen:
            recipe = replace(_completed(asked, self.backend.default_recipe), splits_sums=splits_sums)
            program = self.program(recipe)
            return Best(program, program.recipe)
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
            return self._of_layers(meter)  # the search over blocks goes on from here
        budget = self.options.budget
        is_searched = is_joint and budget is not None and self.backend.price(PLAIN_RECIPE) is not None
        if is_searched:  # which gains more than combinations of planners do, and asks for their partitions
            best = self._begun(meter)
        else:
            with meter.share(_SHARE_OF_SEEDS if is_joint else 1.0):
                best = self.compared(None, meter)
        if is_joint and self.backend.price(best.recipe) is None:
            with meter.ending_early():
                best = self._combined(best)
        left_s = meter.left_s
        default: Program | None = None
        if self.target.is_measurable and (is_joint or (self.options.plan == "grid" and budget is not None)):
            # What least is estimated for may be slower: it must win against what is planned by default.
            default = self.tried(self.backend.recipes(self.partition), None, WHOLE_PORTFOLIO.start()).plan
            budget = budget or _RACE_ALONE
            if cost_of(best.plan) > (1 - _ROUNDING) * cost_of(default):
                best = replace(best, plan=default, recipe=default.recipe)
        if budget is None or meter.is_over:
            return best if default is None else replace(best, plan=default, recipe=default.recipe)
        if is_joint and meter.budget.max_evaluations != UNLIMITED:
            # What was tried so far counts.
            budget = replace(budget, max_evaluations=budget.max_evaluations - meter.num_evaluations)
            if budget.max_evaluations < 1:
                return best
        own_s = None if self.meter is None else self.meter.left_s
        left_s = min((s for s in (left_s, own_s) if s is not None), default=None)
        if left_s is not None:
            budget = replace(budget, deadline_s=max(left_s, _LEAST_S))
        return self.improved(best, budget, meter, default, with_others=is_searched)

    def improved(
        self,
        best: Best[Program],
        budget: Budget,
        meter: Meter,
        default: Program | None = None,
        *,
        with_others: bool = False,
    ) -> Best[Program]:
        """The best that the target's search finds from a plan on, with kernels of all plans, `with_others` of
        partitions that were not made yet, too; `default` is what must not be slower."""
        planner, given = self.planner_of(best.recipe), best.plan
        if planner is not self:
            given = replace(given, recipe=replace(given.recipe, splits_sums=False))
        with self.clock.phase("improve"), self.search_time.running():
            make = functools.partial(planner.ordered, share=_SHARE_BESIDE)
            improved = Improved(given)
            with meter.ending_early():
                seeds = self.seed_partitions(meter, with_others=with_others)
                improved = planner.backend.improve(
                    given, make, budget, seeds=seeds, default=default, progress=self.clock.report
                )
        plan = best.plan if improved.program is given else self._stated(improved.program, planner)
        attempts = (*best.attempts, *improved.attempts)
        return replace(
            best, plan=plan, recipe=best.recipe if default is None else plan.recipe, attempts=attempts
        )

    def _begun(self, meter: Meter) -> Best[Program]:
        """The better of layers one by one and of what the target plans by default. Where the first would wait
        for searches, it has a plan without; its kernels are a seed of the search, whose places need fewer."""
        default = self.backend.default_recipe
        plain = replace(PLAIN_RECIPE, memory=default.memory)
        best = self._at_once(meter)
        best = self.tried((plain, default) if best is None else (default,), best, meter)
        return best if self.of_execution(best.recipe) is self else self.tried((plain,), best, meter)

    def seed_partitions(self, meter: Meter, *, with_others: bool = False) -> Iterator[Partition]:
        """Partitions that a search may go on from: of the schedules that were made, the cheapest first; and
        layers one by one and those of portfolio, papers and grid, if each takes little of the time."""
        for schedule in sorted(self.seeds, key=lambda schedule: schedule.quality.cost):
            yield replace(schedule.partition, splits=schedule.splits)
        if not with_others:
            return
        memory = self.backend.default_recipe.memory
        recipes = itertools.chain(self.backend.recipes(self.partition), of_papers(memory))
        names = (recipe.partition for recipe in recipes)
        plain, asked = PLAIN_RECIPE.partition, set[str]()
        for name in itertools.chain((plain,), names, methods(PARTITIONERS.names(), plain)):
            if name in asked:
                continue
            asked.add(name)
            with meter.share(_SHARE_OF_SEED), meter.ending_early():
                try:
                    self.partition(name)
                except InternalError:
                    raise
                except TilewrightError:  # it cuts no such graph
                    continue
            if name in self._partitions:
                yield self._partitions[name]

    def _at_once(self, meter: Meter) -> Best[Program] | None:
        """A plan of layers one by one that is there at once, where time is limited: that which the target
        makes, unless it would wait for searches; then one that does without. None: plans wait for none, or
        there is no such plan."""
        searches = self.backend.searches
        if meter.left_s is None or searches is None:
            return None
        recipe = replace(PLAIN_RECIPE, memory=self.backend.default_recipe.memory)
        try:
            known = _WithoutSearches(searches, searches.count())
            with contextlib.suppress(SearchEnded), ending_with(known):
                program = self._timed(recipe, meter)
                return Best(program, recipe, (Attempt(str(recipe), cost_of(program), recipe=recipe),))
            planner = Planner(self.graph, self.target, searches.without(), self.options, self.clock)
            self._quick = searches.execution, planner
            recipe = replace(recipe, execution=searches.execution)
            program = self._timed(recipe, meter)
            return Best(program, recipe, (Attempt(str(recipe), cost_of(program)),))
        except InternalError:
            raise
        except TilewrightError:  # why is told where recipes are tried
            return None

    def _timed(self, recipe: Recipe, meter: Meter) -> Program:
        start_s = meter.clock()
        program = self.program(recipe)
        self.first_s = meter.clock() - start_s
        return program

    def _combined(self, best: Best[Program]) -> Best[Program]:
        """The better of a plan and the cheapest path through the blocks of all plans of the graph, where the
        estimates of stages add up."""
        numbered = Numbered(self.graph)
        found = combined(numbered, self._priced_blocks(numbered))
        if found is None:
            return best
        problem, recipe = self.backend.partition_problem, replace(COMBINED, memory=best.recipe.memory)
        assembly = assembled(problem, found, numbered.nodes.__getitem__)
        partition = self.backend.refine(problem, assembly.partition, progress=self.clock.report)
        require_right("a combination of blocks", lambda: check_partition(problem, partition))
        program = self.of_stages(partition, assembly.stages, recipe)
        attempt = Attempt(f"joint, {len(found)} blocks", cost_of(program), recipe=recipe)
        best = replace(best, attempts=(*best.attempts, attempt))
        return replace(best, plan=program, recipe=recipe) if cost_of(program) < cost_of(best.plan) else best

    def _priced_blocks(self, numbered: Numbered) -> Iterator[tuple[Content, float]]:
        """The blocks of every schedule that was made, with what their stages cost in it."""
        for schedule in self.seeds:
            if schedule.partition.graph is self.graph:
                problem = self.schedule_problem(schedule.partition, PLAIN_RECIPE)
                stages = iter(schedule.stages)
                for content in numbered.contents(schedule):
                    own = itertools.islice(stages, len(content.stages))
                    yield content, sum(problem.stage(s).cost(self.options.objective) for s in own)

    def _of_layers(self, meter: Meter) -> Best[Program]:
        """The best of layers one by one and of what the papers propose that are planned fastest."""
        memory = self.backend.default_recipe.memory
        best = self._at_once(meter)
        if best is not None and self.is_large:
            return best  # what joins its layers first gains more in less time
        first = (replace(PLAIN_RECIPE, memory=memory), *itertools.islice(of_papers(memory), NUM_FAST))
        with meter.share(_SHARE_OF_LAYERS):
            return self.tried(first, best, meter)

    @property
    def is_large(self) -> bool:
        """Whether papers take long to plan the network."""
        return len(self.graph.nodes) > _MOST_AT_FIRST

    def varies(self, recipe: Recipe) -> bool:
        """Whether the portfolio has variants of a recipe: it varies the target's own way to cut."""
        return recipe.partition == self.backend.default_recipe.partition

    def varied(self, best: Best[Program], meter: Meter) -> Best[Program]:
        """The better of a plan and the portfolio."""
        return self.tried(self.backend.recipes(self.partition), best, meter)

    def promising(self, best: Best[Program], meter: Meter) -> Best[Program]:
        """The better of a plan, of pairs of papers' methods, papers, and the portfolio."""
        memory = self.backend.default_recipe.memory
        published = dict.fromkeys((*of_pairs(memory), *of_papers(memory)))
        recipes = itertools.chain(published, self.backend.recipes(self.partition))
        return self.tried(recipes, replace(best, num_untried=0), meter)

    def rest_of_grid(self, best: Best[Program], meter: Meter) -> Best[Program]:
        """The better of a plan and all combinations of planners, and variants of that."""
        return self._varied(self.tried(self._grid(), best, meter), meter)

    def compared(self, best: Best[Program] | None, meter: Meter) -> Best[Program]:
        """The better of a plan and portfolio or grid, or of both, as the options say: on the graph as it is,
        and with sums in parts. A joint plan decides about sums itself."""
        splits_sums = self.options.split_sums
        if self.backend.launched_parts is None or splits_sums is False or self.options.plan == "joint":
            return self._compared(best, meter)
        if splits_sums and (found := self._with_sums_in_parts(None, meter)) is not None:
            return found
        with meter.share(_SHARE_AS_IS):
            best = self._compared(best, meter)
        found = None
        if not meter.is_over and meter.num_evaluations < meter.budget.max_evaluations:
            with meter.ending_early():
                found = self._with_sums_in_parts(best, meter)
        if best.num_untried and not meter.is_over:  # time that was left for sums and not needed
            best = self._compared(replace(best, num_untried=0), meter)
        if found is None:
            return best
        better = found if cost_of(found.plan) < cost_of(best.plan) else best
        num_untried = best.num_untried + found.num_untried
        return replace(better, attempts=(*best.attempts, *found.attempts), num_untried=num_untried)

    def _with_sums_in_parts(self, best: Best[Program] | None, meter: Meter) -> Best[Program] | None:
        """The best with sums in parts: of all recipes of a grid, or where there is no plan before, of the
        portfolio; else of those that took least on the graph as it is. None: no sums are cut."""
        other = self._in_parts
        if other is None or (best is not None and not cheapest(best)):
            return None
        if best is None or self.options.plan == "grid":
            found = other._compared(None, meter)
        else:
            found = other._varied(other.tried(cheapest(best)[:_NUM_AGAIN], None, meter), meter)
        recipe = replace(found.recipe, splits_sums=True)
        return Best(
            self._stated(found.plan, other),
            recipe,
            tuple(map(with_sums_split, found.attempts)),
            found.num_untried,
        )

    def _compared(self, best: Best[Program] | None, meter: Meter) -> Best[Program]:
        is_joint, memory = self.options.plan == "joint", self.backend.default_recipe.memory
        best = self._at_once(meter) if best is None else self.tried(of_pairs(memory), best, meter)
        if self.options.plan != "grid":
            recipes: Iterable[Recipe] = self.backend.recipes(self.partition)
            if meter.left_s is None:
                recipes = tuple(recipes)
            else:
                # The cheapest plan comes first: from then on time may end everything, even the naming of
                # others, which may take a while.
                recipes = itertools.chain((replace(PLAIN_RECIPE, memory=memory),), recipes)
            best = self._varied(self.tried(recipes, best, meter), meter)
        assert best is not None or self.options.plan == "grid"
        if self.options.plan in ("grid", "joint"):
            best = self.tried(self._grid(), best, meter)
        assert best is not None
        return self._varied(best, meter) if is_joint else best

    def tried(self, recipes: Iterable[Recipe], best: Best[Program] | None, meter: Meter) -> Best[Program]:
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

    def of_graph(self, graph: Graph) -> Planner:
        """A planner of what this graph was rewritten to, within the same time."""
        backend = self.target.backend(graph, self.options)
        only_better = self.only_better
        other = Planner(graph, self.target, backend, self.options, self.clock, only_better=only_better)
        other.meter, other.portfolio, other.search_time = self.meter, self.portfolio, self.search_time
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
    def _in_parts(self) -> Planner | None:
        return None if self.sums_in_parts is None else self.of_graph(self.sums_in_parts.graph)

    def planner_of(self, recipe: Recipe) -> Planner:
        """What plans as a recipe says: as `of_execution`, or that of the graph with sums in parts."""
        planner = (self._in_parts if recipe.splits_sums else None) or self
        return planner.of_execution(recipe)

    def of_execution(self, recipe: Recipe) -> Planner:
        """What plans this graph as a recipe says: itself, or what plans at once."""
        execution, planner = self._quick or ("", self)
        return planner if recipe.execution == execution else self

    def _stated(self, program: Program, planner: Planner) -> Program:
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
        return self._stated(planner.ordered(planner.partition(recipe.partition), recipe), planner)

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

    def _partition_budget(self) -> Budget:
        """What one partitioner may spend: of a joint plan within limited time no more than half of what is
        left, so that what it has by then is scheduled."""
        budget = self.options.search_budget
        is_joint = self.options.plan == "joint" and self.backend.launched_parts is not None
        left_s = self.portfolio.left_s if is_joint and self.portfolio is not None else None
        if left_s is None:
            return budget
        return replace(budget, deadline_s=max(_SHARE_OF_PARTITION * left_s, _LEAST_S))

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


def cheapest(best: Best[Program]) -> list[Recipe]:
    """The recipes that were tried, by what their plans cost; none where there is only a plan at once."""
    recipes = ((a.cost, a.recipe) for a in best.attempts if a.cost is not None and a.recipe is not None)
    priced = [(cost, recipe) for cost, recipe in recipes if recipe.partition != COMBINED.partition]
    return list(dict.fromkeys(recipe for _, recipe in sorted(priced, key=lambda pair: pair[0])))


def with_sums_split(attempt: Attempt) -> Attempt:
    """An attempt of a planner of the graph with sums in parts, as one of the graph as it is."""
    if attempt.recipe is None:
        return attempt
    recipe = replace(attempt.recipe, splits_sums=True)
    return replace(attempt, what=f"split-sums, {attempt.what}", recipe=recipe)


def machine_of(backend: Backend, options: Options) -> PricedParts:
    """What blocks of a graph are priced by."""
    parts = backend.launched_parts
    assert parts is not None, "plans cost the sum of their blocks"
    return PricedParts(
        cost=backend.costs,
        price=parts.price,
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
_SHARE_OF_PARTITION = 0.5
"""Of the time that is left to a recipe of a joint plan, for its partition."""
_SHARE_OF_SEEDS = 0.6
"""Of the time of a joint plan, for the plans whose blocks it combines."""
_SHARE_OF_SEED = 0.05
"""Of what is left of the time of a search, for another partition that it may go on from."""
_MOST_AT_FIRST = 1000
"""Nodes of a network up to which papers plan it at first, where time is limited."""
_SHARE_OF_LAYERS = 0.3
"""Of the time of a joint plan of kernels that are launched one by one, for what is planned fastest."""
_SHARE_AS_IS = 0.6
"""Of the time of a portfolio or a grid, for the graph as it is: the rest is for sums in parts."""
_NUM_AGAIN = 8
"""Recipes of a portfolio that are tried again with sums in parts: those that took least."""
_ROUNDING = 1e-9
"""Of estimates that are sums in another order: plans so close are equal."""
_RACE_ALONE = Budget(1)
"""For a plan that must win a race, where no budget is given: none that is a time."""
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
