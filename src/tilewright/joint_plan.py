"""Joint plans on machines that launch kernels one by one: the best path through the blocks of all plans.

The search is `joint/launched/`; here it is given what was planned, on the graph as it is and on those that
merging makes of it, and each better plan is judged as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from tilewright.joint.launched.content import Content, Numbered, assembled
from tilewright.joint.launched.decisions import decisions_of
from tilewright.joint.launched.merging import merges_within_kernels
from tilewright.joint.launched.pricer import LaunchedPricer
from tilewright.joint.launched.proof import Proof
from tilewright.joint.launched.search import LaunchedSearch
from tilewright.joint_prices import PriceSettings, machine_of, price_ahead
from tilewright.options import AUTO
from tilewright.partition import check_partition
from tilewright.planner import Planner, brief, cost_of
from tilewright.planning import Meter, Provenance, Quality, Space, Status
from tilewright.planning.checking import require_right
from tilewright.planning.portfolio import PLAIN_RECIPE, Attempt, Best, Recipe, best_of
from tilewright.program import Program
from tilewright.progress import after_the_end, ending_with
from tilewright.schedule import check_schedule
from tilewright.schedule.base import Schedule, build_schedule
from tilewright.schedule.merge import merge_remarks
from tilewright.schedule.space import SAME_MERGES, WITHOUT_MERGES
from tilewright.targets.base import Backend

JOINT = Recipe("joint", "joint", AUTO)
"""What a plan of blocks of several recipes is called."""
_SHARE_OF_PROOF = 0.4
"""Of what is left of a budget behind the search on a graph, for the proof of what it found."""
_NUM_MERGED, _NUM_AGAIN = 3, 8
"""Graphs that merging made of which joint plans are made, too, and recipes that are tried on each."""


def joint_plan(
    planner: Planner, best: Best[Program], prices: PriceSettings | None = None
) -> tuple[Best[Program], Backend]:
    """The best path through the blocks of all plans that a planner made, and on from there: on its graph and
    on those that merging made of it. The best plan, and the backend of the graph that it is of."""
    meter = planner.portfolio
    assert meter is not None, "the best of several recipes was asked for"
    with ending_with(meter):
        return _best_of_graphs(planner, best, meter, prices)


def _best_of_graphs(
    planner: Planner, best: Best[Program], meter: Meter, prices: PriceSettings | None
) -> tuple[Best[Program], Backend]:
    backend = planner.backend
    best = _best_of_blocks(planner, best, meter, prices)
    priced = [a for a in best.attempts if a.recipe is not None and a.recipe.partition != JOINT.partition]
    cheapest = [a.recipe for a in sorted(priced, key=_cost_of_attempt) if a.recipe is not None]
    mergings: list[Schedule] = []
    if not meter.is_over:
        with meter.ending_early():
            mergings = _merging(planner, meter)
    for schedule in mergings:
        if not meter.spend():
            break
        with meter.ending_early():
            again, other = _best_of_merged(planner, schedule, cheapest[:_NUM_AGAIN], meter, prices)
            attempts = (*best.attempts, *again.attempts)
            if cost_of(again.plan) < cost_of(best.plan):
                program = replace(again.plan, remarks=(*again.plan.remarks, *merge_remarks(schedule)))
                program = _of_merged(program)
                best, backend = replace(again, plan=program), other.backend
                planner.decisions = other.decisions
            best = replace(best, attempts=attempts)
    return best, backend


def _best_of_merged(
    planner: Planner,
    schedule: Schedule,
    recipes: Sequence[Recipe],
    meter: Meter,
    prices: PriceSettings | None,
) -> tuple[Best[Program], Planner]:
    """The best of recipes, and of the blocks of their plans, of the graph that the merges of a schedule
    make; and the planner of that graph."""
    graph = planner.merged(schedule, planner.backend.default_recipe).partition.graph
    backend = planner.target.backend(graph, planner.options)
    other = Planner(graph, planner.target, backend, planner.options, planner.clock)
    best = best_of(recipes, other.program, cost_of, planner.clock.report, meter=meter, show=brief)
    return _best_of_blocks(other, best, meter, prices), other


def _best_of_blocks(
    planner: Planner, best: Best[Program], meter: Meter, prices: PriceSettings | None
) -> Best[Program]:
    """The better of a plan and what the search over blocks finds from all plans of its graph on."""
    if meter.is_over:
        return best
    backend, numbered = planner.backend, Numbered(planner.graph)
    recipe = replace(JOINT, memory=backend.default_recipe.memory)
    plans = [tuple(numbered.contents(s)) for s in planner.seeds if s.partition.graph is planner.graph]
    pricer = LaunchedPricer(numbered, machine_of(planner.backend, planner.options))

    def judge(contents: Sequence[Content]) -> None:
        nonlocal best
        asked = backend.partition_problem
        found = assembled(asked, contents, numbered.nodes)
        problem = planner.schedule_problem(found.partition, recipe)
        schedule = build_schedule(problem, found.stages, Provenance(JOINT.schedule), found.splits)
        require_right(
            "a joint plan",
            lambda: (*check_partition(asked, found.partition), *check_schedule(problem, schedule)),
        )
        program = planner.placed(schedule, recipe)
        attempt = Attempt(f"joint, {len(contents)} blocks", cost_of(program), recipe=recipe)
        best = replace(best, attempts=(*best.attempts, attempt))
        if cost_of(program) < cost_of(best.plan):
            best = replace(best, plan=program, recipe=recipe)

    proof: Proof | None = None
    with meter.ending_early():
        if prices is not None:
            price_ahead(pricer, (c for plan in plans for c in plan), planner.options, prices)
        search = LaunchedSearch.of(pricer, plans, meter, planner.clock.report)
        search.run(judge)
        proof = search.prove(judge, _SHARE_OF_PROOF)
    with after_the_end():
        if proof is not None:
            best = replace(best, plan=_with_bounds(best, proof, pricer, recipe))
        if best.plan.graph is numbered.graph:
            planner.decisions = tuple(decisions_of(pricer, tuple(numbered.contents(best.plan.schedule))))
    return best


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


def _of_merged(program: Program) -> Program:
    """A program of a graph that merging made: what is proven of it is of plans with the same merges."""
    quality = program.schedule.quality
    bounds = [
        replace(b, space=Space(b.space.of, (*(r for r in b.space.rules if r != WITHOUT_MERGES), SAME_MERGES)))
        if b.space.rules
        else b
        for b in quality.bounds
    ]
    stated = replace(quality, bounds=tuple(bounds))
    return replace(program, schedule=replace(program.schedule, quality=stated))


def _merging(planner: Planner, meter: Meter) -> list[Schedule]:
    """Schedules that merge siblings, each choice once: what pays within larger kernels, then what schedulers
    chose."""
    partition = planner.partition(PLAIN_RECIPE.partition)
    problem = planner.schedule_problem(partition, planner.backend.default_recipe)
    stages = merges_within_kernels(partition, machine_of(planner.backend, planner.options), meter)
    within = build_schedule(problem, stages, Provenance(JOINT.schedule))
    found: dict[frozenset[str], Schedule] = {}
    for schedule in (within, *planner.seeds):
        names = frozenset(merge_remarks(schedule))
        if names and schedule.partition.graph is planner.graph:
            found.setdefault(names, schedule)
    return list(found.values())[:_NUM_MERGED]


def _cost_of_attempt(attempt: Attempt) -> float:
    return inf if attempt.cost is None else attempt.cost
