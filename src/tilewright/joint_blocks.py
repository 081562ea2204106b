"""Blocks of all plans of one graph on machines that launch kernels: their best path, and its proof.

The search is `joint/launched/`; here it is given what was planned, each better plan is judged as a whole, and
decisions that are frozen stay as they are. When it runs is said in `joint_plan.py`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace

from tilewright.comparison import COMBINED, completed, with_blocks
from tilewright.errors import InfeasibleMapping, UsageError
from tilewright.joint.launched.content import Content, Numbered, assembled
from tilewright.joint.launched.decisions import decisions_of
from tilewright.joint.launched.frozen import Frozen
from tilewright.joint.launched.pricer import LaunchedPricer
from tilewright.joint.launched.proof import SMALL_BLOCKS, Proof, path_bound
from tilewright.joint.launched.samples import OneSample
from tilewright.joint.launched.search import LaunchedSearch
from tilewright.joint.launched.windows import Joiner, WindowedPlan, one_by_one
from tilewright.joint_prices import price_ahead
from tilewright.mapping.sweep.answered import TaskSettings
from tilewright.options import AUTO, Options
from tilewright.partition import check_partition
from tilewright.planner import Planner, brief, cost_of, machine_of
from tilewright.planning import Bound, Meter, Provenance, Quality, Rule, Status
from tilewright.planning.checking import require_right
from tilewright.planning.portfolio import PLAIN_RECIPE, Attempt, Best, Recipe
from tilewright.program import Program
from tilewright.progress import after_the_end, checkpoint
from tilewright.records import dataclass
from tilewright.schedule import check_schedule
from tilewright.schedule.base import Schedule, build_schedule

_MOST_AT_FIRST, _MOST_OF_FIRST = 1000, 1 / 3
"""Nodes of a network up to which papers plan it at first, where time is limited; and the share of that time
which the first plan took, up to which they do."""
_SHARE_OF_JOINING, _SHARE_BEFORE_JUDGED = 0.95, 0.7
"""Of the time for layers of a large network, for joining them, before their bound; of that for small blocks,
before their plan is simulated as a whole."""
_SHARE_OF_NEAR, _WORTH_MORE = 0.5, 0.99
"""Of the time of a proof, for blocks near the best plan that an unfinished search left; of what the plan
cost, what it costs then where they have the rest, too."""


def is_large(planner: Planner) -> bool:
    """Whether papers take long to plan the network, of the time that there is."""
    return len(planner.graph.nodes) > _MOST_AT_FIRST or planner.share_of_first > _MOST_OF_FIRST


class Blocks:
    """The search over the blocks of all plans of one graph, and what it has priced, with values placed by one
    planner of `memory`."""

    def __init__(self, planner: Planner, prices: TaskSettings | None, memory: str) -> None:
        self.planner, self.prices = planner, prices
        self._is_settled = True  # no block that a search noted near a plan is left to be tried
        self.numbered = Numbered(planner.graph)
        self.recipe = replace(COMBINED, memory=memory)
        self.frozen = frozen_of(planner, self.numbered)
        machine = machine_of(planner.backend, planner.options, memory)
        frozen, numbered = self.frozen, self.numbered
        self.pricer = (
            LaunchedPricer(numbered, machine) if frozen is None else frozen.pricer(numbered, machine)
        )

    def searched(self, best: Best[Program], meter: Meter) -> Best[Program]:
        """The better of a plan and what the search finds from all plans on."""
        judged = _Judged(self, best)
        with meter.ending_early():
            search = self._search(best, meter)
            if self.frozen is not None and search.best:
                judged(search.best)  # the best plan of all that leaves what is frozen
            if not self._is_staged:
                self._is_settled = False
                search.run(judged)
                self._is_settled = search.is_settled
        return judged.best

    def repeated(
        self, best: Best[Program], one: OneSample, schedule: Schedule, meter: Meter
    ) -> Best[Program]:
        """The better of a plan and of a schedule of one sample that runs for each, if that fits."""
        judged = _Judged(self, best)
        with meter.ending_early(), contextlib.suppress(InfeasibleMapping):
            checkpoint()
            judged(tuple(one.repeated(tuple(Numbered(one.graph).contents(schedule)), self.numbered)))
        return judged.best

    def of_small(self, best: Best[Program], meter: Meter) -> Best[Program]:
        """The better of a plan and what the first steps of its proof find."""
        judged = _Judged(self, best)
        with meter.ending_early():
            self._search(best, meter).prove(judged, _SHARE_BEFORE_JUDGED, SMALL_BLOCKS)
        return judged.best

    def proven(self, best: Best[Program], meter: Meter) -> Best[Program]:
        """The better of a plan and the best of a declared space, with what is proven of it, as far as the
        time lasts."""
        judged, proof = _Judged(self, best), None
        with meter.ending_early():
            if not meter.is_over:
                proof = self._prove(judged, meter)
        best = judged.best
        with after_the_end():
            if proof is not None:
                rules = () if self.frozen is None else self.frozen.rules
                rules = (*rules, Rule(f"placed by {self.recipe.memory}"))
                plan = with_bounds(best, proof, self.pricer, self.recipe, rules)
                best = replace(best, plan=plan)
            if best.plan.graph is self.numbered.graph and is_priced_as(best.plan, self.recipe):
                contents = tuple(self.numbered.contents(best.plan.schedule))
                self.planner.decisions = tuple(decisions_of(self.pricer, contents))
        return best

    def _prove(self, judged: _Judged, meter: Meter) -> Proof | None:
        frozen = self.frozen
        if frozen is None or not frozen.has_kernels:
            search = self._search(judged.best, meter)
            if not self._is_settled:
                cost = search.cost
                search.prove(judged, _SHARE_OF_NEAR, SMALL_BLOCKS)
                if search.cost < cost * _WORTH_MORE:
                    return search.prove(judged, 1.0)
            # What the search noted near its best plan and did not need has no close bound: a proof of it
            # all would price each block before the small ones.
            self.pricer.forget_unpriced()
            return self._search(judged.best, meter).prove(judged, 1.0)
        search = self._search(judged.best, meter)
        problem = self.planner.schedule_problem(frozen.partition, self.recipe)
        least = search.prove_frozen(frozen, problem)
        if least is not None:
            judged(least.contents, least.bound)
        elif self._is_staged:
            search.run(judged)
        return None

    @property
    def _is_staged(self) -> bool:
        """Of given kernels in stages the search that proves its answer is the faster one, too."""
        frozen = self.frozen
        return frozen is not None and frozen.has_kernels and frozen.left <= {"stages", "merges"}

    def _search(self, best: Best[Program], meter: Meter) -> LaunchedSearch:
        planner = self.planner
        seeds = sorted((best.plan.schedule, *planner.seeds), key=lambda schedule: schedule.quality.cost)
        plans = [tuple(self.numbered.contents(s)) for s in seeds if s.partition.graph is planner.graph]
        if self.prices is not None:
            price_ahead(self.pricer, (c for plan in plans for c in plan), planner.options, self.prices)
        return LaunchedSearch.of(self.pricer, plans, meter, planner.clock.report)


@dataclass(slots=True, eq=False)
class _Judged:
    """The best plan so far; plans of blocks that are found are simulated whole, and checked."""

    blocks: Blocks
    best: Best[Program]

    def __call__(self, contents: Sequence[Content], bound: Bound | None = None) -> None:
        planner, recipe = self.blocks.planner, self.blocks.recipe
        schedule = _scheduled(planner, self.blocks.numbered, contents, recipe)
        if bound is not None and not bound.is_violated(schedule.quality.cost):
            quality = schedule.quality
            stated = Quality.of(quality.cost, *quality.bounds, bound, unit=quality.unit)
            schedule = replace(schedule, quality=stated)
        planner.seeds.append(schedule)
        program = planner.placed(schedule, recipe)
        best = with_blocks(self.best, program, recipe, contents)
        if bound is not None and cost_of(program) <= cost_of(best.plan):
            best = replace(best, plan=program, recipe=recipe)
        self.best = best


def _scheduled(planner: Planner, numbered: Numbered, contents: Sequence[Content], recipe: Recipe) -> Schedule:
    """The schedule of some blocks, checked."""
    asked = planner.backend.partition_problem
    found = assembled(asked, contents, numbered.nodes.__getitem__)
    problem = planner.schedule_problem(found.partition, recipe)
    schedule = build_schedule(problem, found.stages, Provenance(COMBINED.schedule), found.splits)
    require_right(
        "a joint plan",
        lambda: (*check_partition(asked, found.partition), *check_schedule(problem, schedule)),
    )
    return schedule


def joined(planner: Planner, best: Best[Program] | None, meter: Meter) -> Best[Program] | None:
    """The better of a plan and layers of a large network that are joined window by window; None: there is
    neither."""
    if planner.options.only or not is_large(planner):
        return best
    recipe = replace(COMBINED, memory=planner.backend.default_recipe.memory)
    pricer = LaunchedPricer(Numbered(planner.graph), machine_of(planner.backend, planner.options))

    def judge(contents: Sequence[Content]) -> None:
        nonlocal best
        schedule = _scheduled(planner, pricer.numbered, contents, recipe)
        planner.seeds.append(schedule)
        best = with_blocks(best, planner.placed(schedule, recipe), recipe, contents)
        planner.clock.report(f"joint (best so far: {brief(best.plan)})", *meter.progress)

    with meter.ending_early(), meter.share(_SHARE_OF_JOINING):
        plan = WindowedPlan(pricer, [one_by_one(pricer)])
        Joiner(plan, meter, judge, planner.first_s, planner.clock.report).run()
    with meter.ending_early():
        if best is not None and best.recipe == recipe:  # whole layers in kernels of their own and in lanes
            quality = best.plan.schedule.quality
            bound = path_bound(pricer)
            quality = Quality.of(quality.cost, *quality.bounds, bound, unit=quality.unit)
            best = replace(
                best, plan=replace(best.plan, schedule=replace(best.plan.schedule, quality=quality))
            )
    return best


def is_priced_as(program: Program, recipe: Recipe) -> bool:
    """Whether a program is placed and run as a recipe says, by which its blocks were priced."""
    return (program.recipe.memory, program.recipe.execution) == (recipe.memory, recipe.execution)


def with_bounds(
    best: Best[Program],
    proof: Proof,
    pricer: LaunchedPricer,
    recipe: Recipe,
    rules: Sequence[Rule] = (),
) -> Program:
    """The best program with what was proven of the spaces that hold it, of which declared ones keep some more
    rules; as it is where blocks of it were priced otherwise.

    Events of a block that fall on the same time may come in another order in the whole plan. Where this costs
    less than its blocks do alone, the costs of blocks bound nothing.
    """
    program, schedule = best.plan, best.plan.schedule
    if schedule.partition.graph is not pricer.numbered.graph or not is_priced_as(program, recipe):
        return program
    contents, quality = tuple(pricer.numbered.contents(schedule)), schedule.quality
    total = replace(proof.bound, value=sum(map(pricer.cost, contents)))
    found = proof.bounds_of(contents, rules, is_sum=not total.is_violated(quality.cost))
    cut_off = quality.status is Status.CUT_OFF
    quality = Quality.of(quality.cost, *quality.bounds, *found, unit=quality.unit, cut_off=cut_off)
    return replace(program, schedule=replace(schedule, quality=quality))


def plan_with_frozen(planner: Planner, asked: Recipe) -> Best[Program]:
    """The plan whose decisions a joint search leaves as they are, but for those that are asked for.

    Raises:
        UsageError: the objective is no sum over blocks, or the target launches no kernels one by one.
    """
    if planner.options.objective != "latency":
        raise UsageError(
            f"only: objective {planner.options.objective!r} is no sum over blocks; take latency, or leave "
            "only out."
        )
    if planner.backend.launched_parts is None:
        raise UsageError(
            f"only: target {planner.target.name!r} does not launch kernels one by one; take one that does "
            "(v100, a310, jetson-nano), or leave only out."
        )
    recipe = completed(asked, replace(PLAIN_RECIPE, memory=planner.backend.default_recipe.memory))
    program = planner.program(recipe)
    planner.given = planner.seeds[-1]
    return Best(program, recipe, (Attempt(str(recipe), cost_of(program), recipe=recipe),))


def is_open(options: Options) -> bool:
    """Whether all decisions, or kernels of any layers, are left to the search."""
    return not options.only or (options.partition == AUTO and "kernels" in options.only)


def frozen_of(planner: Planner, numbered: Numbered) -> Frozen | None:
    """What of a plan stays as it is; None where nothing does."""
    given, options = planner.given, planner.options
    if given is None:
        return None
    contents = tuple(numbered.contents(given))
    return Frozen(frozenset(options.only), given.partition, contents, has_kernels=not is_open(options))
