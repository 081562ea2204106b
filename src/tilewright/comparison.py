"""Comparison of plans: portfolio, grid, sums in parts, and the search that goes on from the best.

What is tried comes in the order of the functions below, each step in its share of the time that is left when
it begins. Joint plans of kernels that are launched one by one have an order of their own: `joint_plan.py`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from tilewright.errors import InternalError, TilewrightError, UsageError
from tilewright.joint.launched.combined import combined
from tilewright.joint.launched.content import Content, Numbered, assembled
from tilewright.options import AUTO
from tilewright.partition import PARTITIONERS, check_partition
from tilewright.partition.base import Partition
from tilewright.planner import LEAST_S, LEFT_OPEN, SHARE_BESIDE, WHOLE_PORTFOLIO, Planner, brief, cost_of
from tilewright.planning import UNLIMITED, Budget, Meter, Rule
from tilewright.planning.checking import require_right
from tilewright.planning.grid import Grid, methods, of_pairs, of_papers
from tilewright.planning.portfolio import PLAIN_RECIPE, Attempt, Best, Recipe, best_of
from tilewright.program import Program
from tilewright.progress import ending_with
from tilewright.schedule import SCHEDULERS
from tilewright.schedule.base import Schedule
from tilewright.targets.base import Improved
from tilewright.text.formatting import counted

COMBINED = Recipe("joint", "joint", AUTO)
"""What a plan of blocks of several recipes is called."""

SHARE_AS_IS = 0.6  # for portfolio or grid of the graph as it is; the rest is for sums in parts
SHARE_OF_COMPARED = 0.6  # of a joint plan, for the plans whose blocks are combined; the rest is for a search
SHARE_OF_COMPILER = 0.7  # of what a first plan without searches leaves, for one with them
SHARE_OF_SEED = 0.05  # for each other partition that a search may go on from

NUM_AGAIN = 8
"""Recipes that took least, which are tried again with sums in parts."""
_MAX_ROUNDS = 3
"""How often variants of the best recipe so far are tried: a better one may have better ones, too."""
_ROUNDING = 1e-9
"""Of estimates that are sums in another order: plans so close are equal."""
_RACE_ALONE = Budget(1)
"""For a plan that must win a race, where no budget is given: none that is a time."""


def best_plan(planner: Planner, asked: Recipe, portfolio: Budget | Meter = WHOLE_PORTFOLIO) -> Best[Program]:
    """The plan of a recipe, the target's default in place of what it leaves open.

    Where it leaves all open, the best that the target finds worth trying, or of the grid if the options
    say so, as far as `portfolio` goes: a budget whose evaluations are recipes, of which the first is
    always tried, or a meter that was started. With `options.budget` the best of the portfolio is
    improved, in the time that a deadline of it leaves.

    Raises:
        InfeasibleMapping: a planner found no solution; says what is too small.
        InternalError: a planner's answer failed its independent check.
        UsageError: sums are to be in parts where no kernels are launched one by one.
    """
    backend, splits_sums = planner.backend, bool(planner.options.split_sums)
    if splits_sums and backend.launched_parts is None:
        raise UsageError(
            f"split-sums: target {planner.target.name!r} does not launch kernels one by one, or "
            f"{planner.options.objective} is no sum over them; take a target that does (v100, a310, "
            "jetson-nano) and latency, or leave split-sums out."
        )
    meter = planner.begin(portfolio if asked == LEFT_OPEN else None)
    if asked == LEFT_OPEN:
        with ending_with(meter):
            first = first_plan(planner, meter)
            ready = within_time(planner, first)
            best = _best_of_all(ready, first, meter)
        return best if first is None or ready is planner else without_searches(best, first)
    recipe = replace(completed(asked, backend.default_recipe), splits_sums=splits_sums)
    program = planner.program(recipe)
    return Best(program, program.recipe)


def first_plan(planner: Planner, meter: Meter) -> Best[Program] | None:
    """The plan that is there soonest, where time is limited. If it was made without searches, whose loops
    are still to be compiled, the better of it and of the same with them, if a share of the time suffices."""
    best = planner.first(meter)
    if best is not None and planner.of_execution(best.recipe) is not planner:
        plain = replace(best.recipe, execution="")
        with meter.ending_early(), meter.share(SHARE_OF_COMPILER):
            best = planner.tried((plain,), best, meter)
    return best


def within_time(planner: Planner, first: Best[Program] | None) -> Planner:
    """What goes on from a first plan: without searches, if none was made with them."""
    if first is None or any(a.recipe is not None and a.cost is not None for a in first.attempts):
        return planner
    return planner.of_execution(first.recipe)


def without_searches(best: Best[Program], first: Best[Program]) -> Best[Program]:
    """What was planned as the first plan, without searches for mappings: recipes and spaces say so, as plans
    of a declared space may take less with them. A bound of all schedules counts no mappings."""
    execution, plan = first.recipe.execution, best.plan
    quality = plan.schedule.quality
    rule = Rule(f"with {execution}")
    bounds = (replace(b, space=b.space.keeping(rule)) if b.space.rules else b for b in quality.bounds)
    schedule = replace(plan.schedule, quality=replace(quality, bounds=tuple(bounds)))
    plan = replace(plan, schedule=schedule, recipe=replace(plan.recipe, execution=execution))
    attempts = tuple(
        tried
        if execution in tried.what
        else replace(
            tried,
            what=f"{tried.what}, {execution}",
            recipe=tried.recipe and replace(tried.recipe, execution=execution),
        )
        for tried in best.attempts
    )
    return replace(best, plan=plan, recipe=replace(best.recipe, execution=execution), attempts=attempts)


def _best_of_all(planner: Planner, first: Best[Program] | None, meter: Meter) -> Best[Program]:
    """The best of portfolio or grid, or both, and of a search from there on."""
    options, backend = planner.options, planner.backend
    is_joint, budget = options.plan == "joint", options.budget
    is_searched = is_joint and budget is not None and backend.price(PLAIN_RECIPE) is not None
    if is_searched:  # which gains more than combinations of planners do, and asks for their partitions
        plain = replace(PLAIN_RECIPE, memory=backend.default_recipe.memory)
        best = planner.tried((plain, backend.default_recipe), first, meter)
    else:
        with meter.share(SHARE_OF_COMPARED if is_joint else 1.0):
            best = _compared(planner, first, meter)
    if is_joint and backend.price(best.recipe) is None:
        with meter.ending_early():
            best = _combined(planner, best)
    left_s = meter.left_s
    default: Program | None = None
    if planner.target.is_measurable and (is_joint or (options.plan == "grid" and budget is not None)):
        # What least is estimated for may be slower: it must win against what is planned by default.
        default = planner.tried(backend.recipes(planner.partition), None, WHOLE_PORTFOLIO.start()).plan
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
    own_s = None if planner.meter is None else planner.meter.left_s
    left_s = min((s for s in (left_s, own_s) if s is not None), default=None)
    if left_s is not None:
        budget = replace(budget, deadline_s=max(left_s, LEAST_S))
    return improved(planner, best, budget, meter, default, with_others=is_searched)


def _compared(planner: Planner, first: Best[Program] | None, meter: Meter) -> Best[Program]:
    """The best of portfolio or grid, or of both, as the options say: on the graph as it is, and with sums in
    parts. A joint plan decides about sums itself."""
    splits_sums = planner.options.split_sums
    if planner.backend.launched_parts is None or splits_sums is False or planner.options.plan == "joint":
        return _of_one_graph(planner, first, meter)
    if splits_sums and (split := _with_sums_in_parts(planner, None, meter)) is not None:
        return split
    with meter.share(SHARE_AS_IS):
        best = _of_one_graph(planner, first, meter)
    found = None
    if not meter.is_over and meter.num_evaluations < meter.budget.max_evaluations:
        with meter.ending_early():
            found = _with_sums_in_parts(planner, best, meter)
    if best.num_untried and not meter.is_over:  # time that was left for sums and not needed
        pairs = of_pairs(planner.backend.default_recipe.memory)
        best = _of_one_graph(planner, planner.tried(pairs, replace(best, num_untried=0), meter), meter)
    if found is None:
        return best
    better = found if cost_of(found.plan) < cost_of(best.plan) else best
    num_untried = best.num_untried + found.num_untried
    return replace(better, attempts=(*best.attempts, *found.attempts), num_untried=num_untried)


def _of_one_graph(planner: Planner, best: Best[Program] | None, meter: Meter) -> Best[Program]:
    """The better of a plan and portfolio or grid: of a joint plan both."""
    plan, memory = planner.options.plan, planner.backend.default_recipe.memory
    if plan != "grid":
        recipes: Iterable[Recipe] = planner.backend.recipes(planner.partition)
        if meter.left_s is None:
            recipes = tuple(recipes)
        else:
            # The cheapest plan comes first: from then on time may end everything, even the naming of
            # others, which may take a while.
            recipes = itertools.chain((replace(PLAIN_RECIPE, memory=memory),), recipes)
        best = varied(planner, planner.tried(recipes, best, meter), meter)
    if plan in ("grid", "joint"):
        best = planner.tried(grid_of(planner), best, meter)
    assert best is not None
    return varied(planner, best, meter) if plan == "joint" else best


def _with_sums_in_parts(planner: Planner, best: Best[Program] | None, meter: Meter) -> Best[Program] | None:
    """The best with sums in parts: of all recipes of a grid, or where there is no plan before, of the
    portfolio; else of those that took least on the graph as it is. None: no sums are cut."""
    other = planner.in_parts
    if other is None or (best is not None and not cheapest(best)):
        return None
    if best is None or planner.options.plan == "grid":
        found = _of_one_graph(other, other.first(meter), meter)
    else:
        found = varied(other, other.tried(cheapest(best)[:NUM_AGAIN], None, meter), meter)
    recipe, plan = replace(found.recipe, splits_sums=True), planner.stated(found.plan, other)
    return Best(plan, recipe, tuple(map(with_sums_split, found.attempts)), found.num_untried)


def varied(planner: Planner, best: Best[Program], meter: Meter) -> Best[Program]:
    """The best of a plan and variants of it, and of what is better then."""
    for _ in range(_MAX_ROUNDS):
        last, variants = best.recipe, tuple(planner.backend.variants(best.recipe))
        best = best_of(variants, planner.program, cost_of, incumbent=best, meter=meter, show=brief)
        if best.recipe == last:
            break
    return best


def grid_of(planner: Planner) -> Grid:
    """Every registered partitioner and scheduler, the plain ones first."""
    return Grid(
        methods(PARTITIONERS.names(), PLAIN_RECIPE.partition),
        methods(SCHEDULERS.names(), PLAIN_RECIPE.schedule),
        planner.backend.default_recipe.memory,
        planner.backend.placements,
    )


def _combined(planner: Planner, best: Best[Program]) -> Best[Program]:
    """The better of a plan and the cheapest path through the blocks of all plans of the graph, where the
    estimates of stages add up."""
    numbered = Numbered(planner.graph)
    found = combined(numbered, _priced_blocks(planner, numbered))
    if found is None:
        return best
    problem, recipe = planner.backend.partition_problem, replace(COMBINED, memory=best.recipe.memory)
    assembly = assembled(problem, found, numbered.nodes.__getitem__)
    partition = planner.backend.refine(problem, assembly.partition, progress=planner.clock.report)
    require_right("a combination of blocks", lambda: check_partition(problem, partition))
    return with_blocks(best, planner.of_stages(partition, assembly.stages, recipe), recipe, found)


def _priced_blocks(planner: Planner, numbered: Numbered) -> Iterator[tuple[Content, float]]:
    """The blocks of every schedule that was made, with what their stages cost in it."""
    for schedule in planner.seeds:
        if schedule.partition.graph is planner.graph:
            problem = planner.schedule_problem(schedule.partition, PLAIN_RECIPE)
            stages = iter(schedule.stages)
            for content in numbered.contents(schedule):
                own = itertools.islice(stages, len(content.stages))
                yield content, sum(problem.stage(s).cost(planner.options.objective) for s in own)


def with_blocks(
    best: Best[Program] | None, program: Program, recipe: Recipe, contents: Sequence[Content]
) -> Best[Program]:
    """The better of what is known and a program of blocks, which was tried, too."""
    attempt = Attempt(f"joint, {counted(len(contents), 'block')}", cost_of(program), recipe=recipe)
    if best is None:
        return Best(program, recipe, (attempt,))
    best = replace(best, attempts=(*best.attempts, attempt))
    return replace(best, plan=program, recipe=recipe) if cost_of(program) < cost_of(best.plan) else best


def improved(
    planner: Planner,
    best: Best[Program],
    budget: Budget,
    meter: Meter,
    default: Program | None = None,
    *,
    with_others: bool = False,
) -> Best[Program]:
    """The best that the target's search finds from a plan on, with kernels of all plans, `with_others` of
    partitions that were not made yet, too; `default` is what must not be slower."""
    owner, given = planner.planner_of(best.recipe), best.plan
    if owner is not planner:
        given = replace(given, recipe=replace(given.recipe, splits_sums=False))
    with planner.clock.phase("improve"), planner.search_time.running():
        make = functools.partial(owner.ordered, share=SHARE_BESIDE)
        better = Improved(given)
        with meter.ending_early():
            seeds = seeds_of(planner, meter, with_others=with_others)
            better = owner.backend.improve(
                given, make, budget, seeds=seeds, default=default, progress=planner.clock.report
            )
    plan = best.plan if better.program is given else planner.stated(better.program, owner)
    attempts = (*best.attempts, *better.attempts)
    return replace(best, plan=plan, recipe=best.recipe if default is None else plan.recipe, attempts=attempts)


def seeds_of(planner: Planner, meter: Meter, *, with_others: bool = False) -> Iterator[Partition | Schedule]:
    """What a search may go on from: the schedules that were made, the cheapest first; and the partitions that
    the target asks for first, of layers one by one and of portfolio, papers and grid, if each takes little of
    the time."""
    yield from sorted(planner.seeds, key=lambda schedule: schedule.quality.cost)
    if not with_others:
        return
    recipes = itertools.chain(
        planner.backend.recipes(planner.partition), of_papers(planner.backend.default_recipe.memory)
    )
    plain, asked = PLAIN_RECIPE.partition, set[str]()
    of_recipes = (recipe.partition for recipe in recipes)
    first = planner.backend.first_partitions
    for name in itertools.chain(first, (plain,), of_recipes, methods(PARTITIONERS.names(), plain)):
        if name in asked:
            continue
        asked.add(name)
        found = None
        with meter.share(SHARE_OF_SEED), meter.ending_early():
            try:
                found = planner.partition(name)
            except InternalError:
                raise
            except TilewrightError:  # it cuts no such graph
                continue
        if found is not None:
            yield found


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


def completed(asked: Recipe, default: Recipe) -> Recipe:
    """A recipe with those of another in place of what it leaves open."""
    return Recipe(
        default.partition if asked.partition == AUTO else asked.partition,
        default.schedule if asked.schedule == AUTO else asked.schedule,
        default.memory if asked.memory == AUTO else asked.memory,
    )
