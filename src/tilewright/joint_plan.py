"""Joint plans on machines that launch kernels one by one: the best path through the blocks of all plans.

The search is `joint/launched/`; here it is given what was planned, on the graph as it is and on those that
merging makes of it, and each better plan is judged as a whole.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tilewright.joint.launched.content import Content, Numbered, assembled
from tilewright.joint.launched.decisions import decisions_of
from tilewright.joint.launched.frozen import Frozen
from tilewright.joint.launched.merging import merges_within_kernels
from tilewright.joint.launched.path_bound import path_bound
from tilewright.joint.launched.pricer import LaunchedPricer
from tilewright.joint.launched.proof import Proof
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
from tilewright.planning import Bound, Meter, Provenance, Quality, Status
from tilewright.planning.checking import require_right
from tilewright.planning.portfolio import PLAIN_RECIPE, Attempt, Best, Recipe, best_of
from tilewright.program import Program
from tilewright.progress import after_the_end, ending_with
from tilewright.records import dataclass
from tilewright.schedule import check_schedule
from tilewright.schedule.base import Schedule, build_schedule
from tilewright.schedule.merge import merge_remarks
from tilewright.schedule.space import SAME_MERGES, SAME_SUMS
from tilewright.targets.base import Backend
from tilewright.text.formatting import counted

_SHARE_OF_PROOF = 0.4
"""Of what is left of a budget behind the search on a graph, for the proof of what it found."""
_NUM_MERGED, _NUM_AGAIN = 3, 8
"""Graphs that merging made of which plans are made, too, and recipes that are tried on each graph."""
_NUM_FIRST = 2
"""Recipes that are tried at first where sums are in parts: those that took least so far."""
_NUM_SEARCHED = 3
"""Graphs, the best ones, whose blocks are combined."""
_SHARE_OF_SUMS, _SHARE_OF_GRAPH = 0.8, 0.5
"""Of the time that is left, for the first plans with sums in parts, and for what is done with each graph."""
_SHARE_OF_JOINING = 0.7
"""Of the time for the first plans, for layers that are joined."""


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
    """The best plan so far of one graph: as it is, or `rewritten`."""

    planner: Planner
    best: Best[Program]
    rewritten: Rewritten | None = None

    @property
    def cost(self) -> float:
        return cost_of(self.best.plan)

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """What was tried, as on the graph before."""
        attempts = self.best.attempts
        is_split = self.rewritten is not None and SAME_SUMS in self.rewritten.rules
        return tuple(map(with_sums_split, attempts)) if is_split else attempts


def _best_of_graphs(
    planner: Planner, best: Best[Program], meter: Meter, prices: TaskSettings | None
) -> tuple[Best[Program], Backend]:
    if planner.given is not None and not _is_open(planner.options):
        return _best_of_blocks(planner, best, meter, prices), planner.backend
    plain = _Found(planner, best)
    found = [plain]
    with meter.ending_early(), meter.share(_SHARE_OF_SUMS):
        found += _first_of_graphs(plain, meter)
    with meter.ending_early(), meter.share(_SHARE_OF_GRAPH):
        plain.best = planner.compared(plain.best, meter)
    recipes = cheapest(plain.best)[:_NUM_AGAIN]
    with meter.ending_early(), meter.share(_SHARE_OF_GRAPH):
        for one in found[1:]:
            left = [recipe for recipe in recipes if recipe not in {a.recipe for a in one.best.attempts}]
            one.best = _best_of_recipes(one.planner, left, meter, one.best)
        for merged in _merged(planner, meter):
            found += _planned(planner, merged, recipes, meter)
    if planner.options.only:
        for one in found:  # what recipes made may differ in what is frozen
            one.best = replace(one.planner.plan_with_frozen(LEFT_OPEN), attempts=one.best.attempts)
    found.sort(key=lambda one: one.cost)
    for number, one in enumerate(found[:_NUM_SEARCHED]):
        is_last = number + 1 >= min(len(found), _NUM_SEARCHED)
        with meter.ending_early(), meter.share(1.0 if is_last else _SHARE_OF_GRAPH):
            one.best = _best_of_blocks(one.planner, one.best, meter, prices)
    chosen = min(found, key=lambda one: one.cost)
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


def _first_of_graphs(plain: _Found, meter: Meter) -> Iterator[_Found]:
    """What is found first: layers joined, with their sums in parts where these are cheaper, and what the best
    recipes make of such a graph. Where no sums are in parts, `plain` has what is better."""
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
            best = _best_of_recipes(other, recipes, meter, best)
    if best is not None:
        yield _Found(other, best, rewritten)


def _joined(planner: Planner, best: Best[Program] | None, meter: Meter) -> Best[Program] | None:
    """The better of a plan and layers that are joined window by window; None: there is neither."""
    if planner.options.only:
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
    planner: Planner, rewritten: Rewritten, recipes: Sequence[Recipe], meter: Meter
) -> Iterator[_Found]:
    """What recipes make of a rewritten graph; nothing without any, or if time ends before the first plan."""
    if not recipes:
        return
    other = planner.of_graph(rewritten.graph)
    with meter.ending_early():
        yield _Found(other, _best_of_recipes(other, recipes, meter), rewritten)


def _best_of_recipes(
    planner: Planner, recipes: Sequence[Recipe], meter: Meter, best: Best[Program] | None = None
) -> Best[Program]:
    report = planner.clock.report
    return best_of(recipes, planner.program, cost_of, report, incumbent=best, meter=meter, show=brief)


def _best_of_blocks(
    planner: Planner, best: Best[Program], meter: Meter, prices: TaskSettings | None
) -> Best[Program]:
    """The better of a plan and what the search over blocks finds from all plans of its graph on."""
    if meter.is_over:
        return best
    backend, numbered = planner.backend, Numbered(planner.graph)
    recipe = replace(COMBINED, memory=backend.default_recipe.memory)
    plans = [tuple(numbered.contents(s)) for s in planner.seeds if s.partition.graph is planner.graph]
    frozen = _frozen(planner, numbered)
    machine = machine_of(planner.backend, planner.options)
    pricer = LaunchedPricer(numbered, machine) if frozen is None else frozen.pricer(numbered, machine)

    def judge(contents: Sequence[Content], bound: Bound | None = None) -> None:
        nonlocal best
        schedule = _scheduled(planner, numbered, contents, recipe)
        if bound is not None and not bound.is_violated(schedule.quality.cost):
            quality = schedule.quality
            stated = Quality.of(quality.cost, *quality.bounds, bound, unit=quality.unit)
            schedule = replace(schedule, quality=stated)
        program = planner.placed(schedule, recipe)
        best = _with(best, program, recipe, contents)
        if bound is not None and cost_of(program) <= cost_of(best.plan):
            best = replace(best, plan=program, recipe=recipe)

    proof: Proof | None = None
    with meter.ending_early():
        if prices is not None:
            price_ahead(pricer, (c for plan in plans for c in plan), planner.options, prices)
        search = LaunchedSearch.of(pricer, plans, meter, planner.clock.report)
        if frozen is not None and search.best:
            judge(search.best)  # the best plan of all that leaves what is frozen
        # Of given kernels in stages the search that proves its answer is the faster one, too.
        is_staged = frozen is not None and frozen.has_kernels and frozen.left <= {"stages", "merges"}
        if not is_staged:
            search.run(judge)
        if frozen is None or not frozen.has_kernels:
            proof = search.prove(judge, _SHARE_OF_PROOF)
            if proof is not None and frozen is not None:
                space = proof.bound.space.keeping(*frozen.rules)
                proof = replace(proof, bound=replace(proof.bound, space=space))
        else:
            problem = planner.schedule_problem(frozen.partition, recipe)
            least = search.prove_frozen(frozen, problem)
            if least is not None:
                judge(least.contents, least.bound)
            elif is_staged:
                search.run(judge)
    with after_the_end():
        if proof is not None:
            best = replace(best, plan=_with_bounds(best, proof, pricer, recipe))
        if best.plan.graph is numbered.graph:
            planner.decisions = tuple(decisions_of(pricer, tuple(numbered.contents(best.plan.schedule))))
    return best


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


def _with_bounds(best: Best[Program], proof: Proof, pricer: LaunchedPricer, recipe: Recipe) -> Program:
    """The best program with what was proven of the spaces that hold it; as it is where blocks of it were
    priced otherwise.

    Events of a block that fall on the same time may come in another order in the whole plan. Where this costs
    less than its blocks do alone, the costs of blocks bound nothing.
    """
    program, schedule = best.plan, best.plan.schedule
    is_priced_so = (program.recipe.memory, program.recipe.execution) == (recipe.memory, recipe.execution)
    if schedule.partition.graph is not pricer.numbered.graph or not is_priced_so:
        return program
    contents, quality = tuple(pricer.numbered.contents(schedule)), schedule.quality
    bounds = list(proof.bounds_of(contents))
    if proof.bound in bounds and replace(proof.bound, value=sum(map(pricer.cost, contents))).is_violated(
        quality.cost
    ):
        bounds.remove(proof.bound)
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
