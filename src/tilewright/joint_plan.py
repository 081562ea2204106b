"""Joint plans on machines that launch kernels one by one: the best path through the blocks of all plans.

The search is `joint/launched/`; here it is given what was planned, on the graph as it is and on those that
merging makes of it, and each better plan is judged as a whole.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, replace

from tilewright.joint.launched.content import Content, Numbered, assembled
from tilewright.joint.launched.decisions import decisions_of
from tilewright.joint.launched.frozen import Frozen
from tilewright.joint.launched.merging import merges_within_kernels
from tilewright.joint.launched.path_bound import path_bound
from tilewright.joint.launched.pricer import LaunchedPricer
from tilewright.joint.launched.proof import SMALL_BLOCKS, Proof
from tilewright.joint.launched.rewritten import Rewritten
from tilewright.joint.launched.search import LaunchedSearch
from tilewright.joint.launched.windows import Joiner, WindowedPlan, one_by_one
from tilewright.joint_prices import price_ahead
from tilewright.mapping.sweep.answered import TaskSettings
from tilewright.options import AUTO, Options
from tilewright.partition import check_partition
from tilewright.planner import (
    COMBINED,
    LEFT_OPEN,
    Planner,
    brief,
    cheapest,
    cost_of,
    machine_of,
    with_sums_split,
)
from tilewright.planning import UNLIMITED, Bound, Budget, Meter, Provenance, Quality, Rule, Status
from tilewright.planning.checking import require_right
from tilewright.planning.portfolio import PLAIN_RECIPE, Attempt, Best, Recipe
from tilewright.program import Program
from tilewright.progress import after_the_end, ending_with
from tilewright.records import dataclass
from tilewright.schedule import check_schedule
from tilewright.schedule.base import Schedule, build_schedule
from tilewright.schedule.merge import merge_remarks
from tilewright.schedule.space import SAME_MERGES, SAME_SUMS
from tilewright.targets.base import Backend
from tilewright.text.formatting import counted

_NUM_MERGED, _NUM_AGAIN = 3, 8
"""Graphs that merging made of which plans are made, too, and recipes that are tried on each graph."""
_NUM_FIRST = 2
"""Recipes that are tried at first where sums are in parts: those that took least so far."""
_NUM_SEARCHED = 3
"""Graphs, the best ones, whose blocks are combined."""
_SHARE_OF_SUMS, _SHARE_OF_NEAREST, _SHARE_OF_METHODS, _SHARE_OF_METHODS_ALONE = 0.5, 0.2, 0.35, 0.6
_SHARE_OF_BLOCKS, _SHARE_OF_KERNELS, _SHARE_OF_GRAPH = 0.5, 0.7, 0.5
"""Of the time that is left, for the first plans with sums in parts; for recipes that vary the best, for
others, and for these where none vary it; for blocks of the graph, for kernels, slices and places; and for
each other graph."""
_SHARE_OF_LARGE, _SHARE_OF_JOINING = 0.95, 0.95
"""Of the time that is left, for the first plans of a large network; of that, for layers that are joined."""
_SHARE_OF_SMALL, _SHARE_BEFORE_JUDGED = 0.6, 0.7
"""Of the time that is left, for the best plan of small blocks; of that, before it is simulated as a whole."""
_SHARE_BEFORE_PROOF = 0.9
"""Of the time of the search, for all but the proof of its plan."""
_SHARE_OF_TRIALS = 0.5
"""Of the trials that are left, for kernels, slices and places."""


def joint_plan(
    planner: Planner, best: Best[Program], prices: TaskSettings | None = None
) -> tuple[Best[Program], Backend]:
    """The best path through the blocks of all plans that a planner made, and on from there: on its graph and
    on those that merging made of it. The best plan, and the backend of the graph that it is of."""
    meter = planner.portfolio
    assert meter is not None, "the best of several recipes was asked for"
    with ending_with(meter):
        return _best_of_graphs(planner, best, meter, prices)


@dataclass(slots=True, eq=False)
class _Found:
    """The best plan so far of one graph: as it is, or `rewritten`; the search over its blocks."""

    planner: Planner
    best: Best[Program]
    prices: TaskSettings | None
    rewritten: Rewritten | None = None
    _blocks: _Blocks | None = field(init=False, default=None)

    @property
    def cost(self) -> float:
        return cost_of(self.best.plan)

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """What was tried, as on the graph before."""
        attempts = self.best.attempts
        is_split = self.rewritten is not None and SAME_SUMS in self.rewritten.rules
        return tuple(map(with_sums_split, attempts)) if is_split else attempts

    @property
    def blocks(self) -> _Blocks:
        """The search over blocks of this graph's plans."""
        if self._blocks is None:
            self._blocks = _Blocks(self.planner, self.prices)
        return self._blocks

    def searches(self) -> Iterator[tuple[Callable[[Meter], None], float]]:
        """What may find a better plan, by turns, and shares of the time that is left then. Joint tilings are
        of whole kernels, as methods cut them, so that these come before blocks even where slices are best. On
        several cores most is gained by slices and lanes, which small blocks of a proof have not."""
        if self.planner.backend.limits.num_cores == 1:
            yield self.prove_small, _SHARE_OF_SMALL
        is_varied = self.planner.varies(self.best.recipe)
        if is_varied:
            yield self.try_nearest, _SHARE_OF_NEAREST
        yield self.try_methods, _SHARE_OF_METHODS if is_varied else _SHARE_OF_METHODS_ALONE
        yield self.search_blocks, _SHARE_OF_BLOCKS
        if is_varied or any(split.num_instances > 1 for split in self.best.plan.schedule.splits):
            yield self.search_kernels, _SHARE_OF_KERNELS

    def prove_small(self, meter: Meter) -> None:
        """Take the best plan of small blocks, of which a proof prices few: what it knows by then is known to
        the proof of the final plan, too."""
        if not (meter.is_over or self.planner.is_large):
            self.best = self.blocks.of_small(self.best, meter)

    def try_nearest(self, meter: Meter) -> None:
        """Try recipes that vary the best one."""
        self.best = self.planner.varied(self.best, meter)

    def try_methods(self, meter: Meter) -> None:
        """Try papers, pairs of their methods, and the portfolio."""
        self.best = self.planner.promising(self.best, meter)

    def try_again(self, recipes: Sequence[Recipe], meter: Meter) -> None:
        """Try recipes that were tried on another graph."""
        self.best = self.planner.tried(recipes, self.best, meter)

    def search_blocks(self, meter: Meter) -> None:
        """Go on from the best combination of the blocks of all plans."""
        if not meter.is_over:
            self.best = self.blocks.searched(self.best, meter)

    def prove(self, meter: Meter) -> None:
        """Say how far from the best of its space the plan can be, as far as the time lasts."""
        if self._blocks is not None or not meter.is_over:
            self.best = self.blocks.proven(self.best, meter)

    def search_kernels(self, meter: Meter) -> None:
        """Change kernels, slices and places of the best plan, as long as this gains something, if nothing in
        it runs side by side."""
        left_s, budget = meter.left_s, meter.budget
        stages = self.best.plan.schedule.stages
        is_serial = all(len(s.groups) == 1 and not any(s.groups[0].inside) for s in stages)
        is_limited = left_s is not None or budget.max_evaluations != UNLIMITED
        if meter.is_over or not (is_serial and is_limited):
            return
        num_trials = UNLIMITED
        if budget.max_evaluations != UNLIMITED:
            num_trials = int(_SHARE_OF_TRIALS * (budget.max_evaluations - meter.num_evaluations))
        before = len(self.best.attempts)
        own = Budget(num_trials, None if left_s is None else max(left_s, 0.001))
        self.best = self.planner.improved(self.best, own, meter)
        meter.num_evaluations += len(self.best.attempts) - before


def _best_of_graphs(
    planner: Planner, best: Best[Program], meter: Meter, prices: TaskSettings | None
) -> tuple[Best[Program], Backend]:
    plain = _Found(planner, best, prices)
    if planner.given is not None and not _is_open(planner.options):
        plain.search_blocks(meter)
        plain.prove(meter)
        return plain.best, planner.backend
    with meter.share(_SHARE_BEFORE_PROOF):
        found = _of_all_graphs(plain, meter)
    chosen = _least(found)
    chosen.prove(meter)
    others = [a for one in found if one is not plain for a in one.attempts]
    answer = replace(
        chosen.best, attempts=(*plain.best.attempts, *others), num_untried=plain.best.num_untried
    )
    if chosen.rewritten is not None:
        plan = chosen.rewritten.stated(answer.plan, best.plan.schedule.quality)
        splits_sums = SAME_SUMS in chosen.rewritten.rules
        answer = replace(answer, plan=replace(plan, recipe=replace(plan.recipe, splits_sums=splits_sums)))
        planner.decisions = chosen.planner.decisions
    return answer, chosen.planner.of_execution(answer.plan.recipe).backend


def _of_all_graphs(plain: _Found, meter: Meter) -> list[_Found]:
    """The best plans found of the graph and of what it may be rewritten to: on the one that is better at
    first, then on the others."""
    planner, found = plain.planner, [plain]
    is_open = not planner.options.only
    with meter.ending_early(), meter.share(_SHARE_OF_LARGE if planner.is_large else _SHARE_OF_SUMS):
        found += _first_of_graphs(plain, meter)
    first = _least(found)
    for search, share in first.searches() if is_open else ():
        with meter.ending_early(), meter.share(share):
            search(meter)
    with meter.ending_early(), meter.share(_SHARE_OF_GRAPH):
        plain.try_methods(meter)
    recipes = cheapest(plain.best)[:_NUM_AGAIN]
    with meter.ending_early(), meter.share(_SHARE_OF_GRAPH):
        for one in found[1:]:
            one.try_again(recipes, meter)
        for merged in _merged(planner, meter):
            found += _planned(plain, merged, recipes, meter)
    if planner.options.only:
        for one in found:  # what recipes made may differ in what is frozen
            one.best = replace(one.planner.plan_with_frozen(LEFT_OPEN), attempts=one.best.attempts)
    else:
        with meter.ending_early(), meter.share(_SHARE_OF_GRAPH):
            plain.best = planner.rest_of_grid(plain.best, meter)
    found.sort(key=lambda one: one.cost)
    for one in found[:_NUM_SEARCHED]:
        with meter.ending_early(), meter.share(_SHARE_OF_GRAPH):
            one.search_blocks(meter)
    if is_open:
        with meter.ending_early():
            _least(found).search_kernels(meter)
    return found


def _least(found: Sequence[_Found]) -> _Found:
    return min(found, key=lambda one: one.cost)


def _first_of_graphs(plain: _Found, meter: Meter) -> Iterator[_Found]:
    """What is found first: layers of large networks joined, with their sums in parts where these are cheaper,
    and what the best recipes make of such a graph. Where no sums are in parts, `plain` has what is better."""
    planner = plain.planner
    rewritten = _sums_in_parts(planner)
    if rewritten is None:
        plain.best = _joined(planner, plain.best, meter) or plain.best
        return
    other = planner.of_graph(rewritten.graph)
    other.first_s = planner.first_s
    best = _joined(other, None, meter)
    recipes = cheapest(plain.best)[:_NUM_FIRST]
    if recipes:
        with contextlib.nullcontext() if best is None else meter.ending_early():
            best = other.tried(recipes, best, meter)
    if best is not None:
        yield _Found(other, best, plain.prices, rewritten)


def _joined(planner: Planner, best: Best[Program] | None, meter: Meter) -> Best[Program] | None:
    """The better of a plan and layers of a large network that are joined window by window; None: there is
    neither."""
    if planner.options.only or not planner.is_large:
        return best
    recipe = replace(COMBINED, memory=planner.backend.default_recipe.memory)
    pricer = LaunchedPricer(Numbered(planner.graph), machine_of(planner.backend, planner.options))

    def judge(contents: Sequence[Content]) -> None:
        nonlocal best
        schedule = _scheduled(planner, pricer.numbered, contents, recipe)
        planner.seeds.append(schedule)
        best = _with(best, planner.placed(schedule, recipe), recipe, contents)
        planner.clock.report(f"joint (best so far: {brief(best.plan)})", *meter.progress)

    with meter.ending_early(), meter.share(_SHARE_OF_JOINING):
        plan = WindowedPlan(pricer, [one_by_one(pricer)])
        Joiner(plan, meter, judge, planner.first_s, planner.clock.report).run()
    with meter.ending_early():
        if best is not None and best.recipe == recipe:  # whole layers in kernels of their own and in lanes
            quality = best.plan.schedule.quality
            bounds = (*quality.bounds, path_bound(pricer))
            quality = Quality.of(quality.cost, *bounds, unit=quality.unit)
            best = replace(
                best, plan=replace(best.plan, schedule=replace(best.plan.schedule, quality=quality))
            )
    return best


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


def _with(
    best: Best[Program] | None, program: Program, recipe: Recipe, contents: Sequence[Content]
) -> Best[Program]:
    """The better of what is known and a program of blocks, which was tried, too."""
    attempt = Attempt(f"joint, {counted(len(contents), 'block')}", cost_of(program), recipe=recipe)
    if best is None:
        return Best(program, recipe, (attempt,))
    best = replace(best, attempts=(*best.attempts, attempt))
    return replace(best, plan=program, recipe=recipe) if cost_of(program) < cost_of(best.plan) else best


def _planned(
    plain: _Found, rewritten: Rewritten, recipes: Sequence[Recipe], meter: Meter
) -> Iterator[_Found]:
    """What recipes make of a rewritten graph; nothing without any, or if time ends before the first plan."""
    if not recipes:
        return
    other = plain.planner.of_graph(rewritten.graph)
    with meter.ending_early():
        yield _Found(other, other.tried(recipes, None, meter), plain.prices, rewritten)


class _Blocks:
    """The search over the blocks of all plans of one graph, and what it has priced."""

    def __init__(self, planner: Planner, prices: TaskSettings | None) -> None:
        self.planner, self.prices = planner, prices
        self.numbered = Numbered(planner.graph)
        self.recipe = replace(COMBINED, memory=planner.backend.default_recipe.memory)
        self.frozen = _frozen(planner, self.numbered)
        machine = machine_of(planner.backend, planner.options)
        frozen, numbered = self.frozen, self.numbered
        self.pricer = (
            LaunchedPricer(numbered, machine) if frozen is None else frozen.pricer(numbered, machine)
        )

    def searched(self, best: Best[Program], meter: Meter) -> Best[Program]:
        """The better of a plan and what the search finds from all plans on."""
        judged = _Judged(self, best)
        with meter.ending_early():
            search = self._search(meter)
            if self.frozen is not None and search.best:
                judged(search.best)  # the best plan of all that leaves what is frozen
            if not self._is_staged:
                search.run(judged)
        return judged.best

    def of_small(self, best: Best[Program], meter: Meter) -> Best[Program]:
        """The better of a plan and what the first steps of its proof find."""
        judged = _Judged(self, best)
        with meter.ending_early():
            self._search(meter).prove(judged, _SHARE_BEFORE_JUDGED, SMALL_BLOCKS)
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
                best = replace(best, plan=_with_bounds(best, proof, self.pricer, self.recipe, rules))
            if best.plan.graph is self.numbered.graph:
                contents = tuple(self.numbered.contents(best.plan.schedule))
                self.planner.decisions = tuple(decisions_of(self.pricer, contents))
        return best

    def _prove(self, judged: _Judged, meter: Meter) -> Proof | None:
        search, frozen = self._search(meter), self.frozen
        if frozen is None or not frozen.has_kernels:
            return search.prove(judged, 1.0)
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

    def _search(self, meter: Meter) -> LaunchedSearch:
        planner = self.planner
        plans = [
            tuple(self.numbered.contents(s)) for s in planner.seeds if s.partition.graph is planner.graph
        ]
        if self.prices is not None:
            price_ahead(self.pricer, (c for plan in plans for c in plan), planner.options, self.prices)
        return LaunchedSearch.of(self.pricer, plans, meter, planner.clock.report)


@dataclass(slots=True, eq=False)
class _Judged:
    """The best plan so far; plans of blocks that are found are simulated whole, and checked."""

    blocks: _Blocks
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
        best = _with(self.best, program, recipe, contents)
        if bound is not None and cost_of(program) <= cost_of(best.plan):
            best = replace(best, plan=program, recipe=recipe)
        self.best = best


def _is_open(options: Options) -> bool:
    """Whether all decisions, or kernels of any layers, are left to the search."""
    return not options.only or (options.partition == AUTO and "kernels" in options.only)


def _frozen(planner: Planner, numbered: Numbered) -> Frozen | None:
    """What of a plan stays as it is; None where nothing does."""
    given, options = planner.given, planner.options
    if given is None:
        return None
    contents = tuple(numbered.contents(given))
    return Frozen(frozenset(options.only), given.partition, contents, has_kernels=not _is_open(options))


def _with_bounds(
    best: Best[Program], proof: Proof, pricer: LaunchedPricer, recipe: Recipe, rules: Sequence[Rule] = ()
) -> Program:
    """The best program with what was proven of the spaces that hold it, which keep some more rules; as it is
    where blocks of it were priced otherwise.

    Events of a block that fall on the same time may come in another order in the whole plan. Where this costs
    less than its blocks do alone, the costs of blocks bound nothing.
    """
    program, schedule = best.plan, best.plan.schedule
    is_priced_so = (program.recipe.memory, program.recipe.execution) == (recipe.memory, recipe.execution)
    if schedule.partition.graph is not pricer.numbered.graph or not is_priced_so:
        return program
    contents, quality = tuple(pricer.numbered.contents(schedule)), schedule.quality
    total = replace(proof.bound, value=sum(map(pricer.cost, contents)))
    bounds = proof.bounds_of(contents, rules, is_sum=not total.is_violated(quality.cost))
    cut_off = quality.status is Status.CUT_OFF
    quality = Quality.of(quality.cost, *quality.bounds, *bounds, unit=quality.unit, cut_off=cut_off)
    return replace(program, schedule=replace(schedule, quality=quality))


def _sums_in_parts(planner: Planner) -> Rewritten | None:
    """The graph with sums in parts, where that is cheaper and open."""
    options = planner.options
    is_open = options.split_sums is not False and (not options.only or "sums" in options.only)
    return planner.sums_in_parts if is_open else None


def _merged(planner: Planner, meter: Meter) -> Iterator[Rewritten]:
    """Graphs with siblings merged in each of the ways that were chosen, and with sums in parts there."""
    options = planner.options
    if meter.is_over or (options.only and "merges" not in options.only):
        return
    for schedule in _merging(planner, meter):
        if not meter.spend():
            return
        graph = planner.merged(schedule, planner.backend.default_recipe).partition.graph
        other = planner.of_graph(graph)
        remarks, rules = merge_remarks(schedule), (SAME_MERGES,)
        sums = _sums_in_parts(other)
        if sums is None:
            yield Rewritten(graph, remarks, rules)
        else:
            yield Rewritten(sums.graph, (*remarks, *sums.remarks), (*rules, *sums.rules))


def _merging(planner: Planner, meter: Meter) -> list[Schedule]:
    """Schedules that merge siblings, each choice once: what pays within larger kernels, then what schedulers
    chose."""
    partition = planner.partition(PLAIN_RECIPE.partition)
    problem = planner.schedule_problem(partition, planner.backend.default_recipe)
    stages = merges_within_kernels(partition, machine_of(planner.backend, planner.options), meter)
    within = build_schedule(problem, stages, Provenance(COMBINED.schedule))
    found: dict[frozenset[str], Schedule] = {}
    for schedule in (within, *planner.seeds):
        names = frozenset(merge_remarks(schedule))
        if names and schedule.partition.graph is planner.graph:
            found.setdefault(names, schedule)
    return list(found.values())[:_NUM_MERGED]
