"""Joint plans on machines that launch kernels one by one: what is tried, in which order and for how long.

`begun`, `_Graphs.steps` and `_Found.steps` are the order. Each step has a share of the time that is left when
it begins, and what it does not need is for the next ones. What is planned are the graph as it is, with sums
of products in parts, and with siblings merged; the blocks of all plans of one of them are combined in
`joint_blocks.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field, replace

from tilewright.comparison import (
    COMBINED,
    cheapest,
    first_plan,
    grid_of,
    improved,
    varied,
    with_sums_split,
    within_time,
    without_searches,
)
from tilewright.errors import InfeasibleMapping
from tilewright.joint.launched.merging import merges_within_kernels
from tilewright.joint.launched.rewritten import Rewritten
from tilewright.joint.launched.samples import OneSample, one_sample
from tilewright.joint_blocks import Blocks, is_large, is_open, joined, plan_with_frozen
from tilewright.mapping.sweep.answered import TaskSettings
from tilewright.planner import LEAST_S, LEFT_OPEN, OF_FIRST, WHOLE_PORTFOLIO, Planner, cost_of, machine_of
from tilewright.planning import UNLIMITED, Budget, Meter, Provenance, Spec
from tilewright.planning.grid import of_fast, of_pairs, of_papers
from tilewright.planning.portfolio import PLAIN_RECIPE, Attempt, Best, Recipe
from tilewright.program import Program
from tilewright.progress import ending_with
from tilewright.records import dataclass
from tilewright.schedule.base import Schedule, build_schedule
from tilewright.schedule.merge import merge_remarks
from tilewright.schedule.space import SAME_MERGES, SAME_SUMS
from tilewright.targets.base import Backend

_NUM_MERGED, _NUM_AGAIN = 3, 8
"""Graphs that merging made of which plans are made, too, and recipes that are tried on each graph."""
_NUM_NEAREST, _NUM_PAIRS = 9, 2
"""Recipes of the portfolio, and promising pairs of methods, of one partition, that come before searches."""
_NUM_SEARCHED = 3
"""Graphs, the best ones, whose blocks are combined."""
_MUCH = 0.1
"""The share of a plan's cost that sums in parts save, from which on their graph comes first."""
_SHARE_OF_PAPER = 0.5
"""Of the time that is left, for a paper's plan of the graph with sums in parts, unless papers are late."""
_SHARE_OF_SAMPLE, _SHARE_BEFORE_REPEATED = 0.7, 0.5
"""Of the time that is left, for plans of one of many samples; of that, before its plan is run for all."""
_OF_REPEATED = 0.75
"""Of the time that a plan of one sample took, for each sample of the plan that runs it for all."""
_WORTH_REPEATING = 0.98
"""Of what the best plan takes, below which one sample's, as often as there are samples, is planned further
and run for all."""
_SHARE_OF_TRIALS = 0.5
"""Of the trials that are left, for kernels, slices and places."""

Step = tuple[Callable[[Meter], None], float]
"""What may find a better plan, and its share of the time that is left when it begins."""


def begun(planner: Planner, asked: Recipe, portfolio: Budget | Meter = WHOLE_PORTFOLIO) -> Best[Program]:
    """Layers one by one, where time is limited; else the best of it and of papers that are planned fastest;
    where decisions are frozen, the plan that has these. `portfolio` is as for `best_plan`."""
    meter = planner.begin(portfolio)
    if planner.options.only:
        return plan_with_frozen(planner, asked)
    plain = replace(PLAIN_RECIPE, memory=planner.backend.default_recipe.memory)
    with ending_with(meter):
        best = first_plan(planner, meter)
        if best is None:
            with meter.share(0.3):
                best = planner.tried((plain, *_fastest(planner)), None, meter)
    return best


def joint_plan(
    planner: Planner, best: Best[Program], prices: TaskSettings | None = None
) -> tuple[Best[Program], Backend]:
    """The best path through the blocks of all plans that a planner made, and on from there: on its graph and
    on those that merging made of it. The best plan, and the backend of the graph that it is of."""
    meter, asked = planner.portfolio, planner
    assert meter is not None, "the best of several recipes was asked for"
    planner = within_time(asked, best)
    plain = _Found(planner, best, prices if planner is asked else None)
    graphs = _Graphs(plain)
    with ending_with(meter):
        if planner.given is not None and not is_open(planner.options):
            plain.search_blocks(meter)
            plain.prove(meter)
            return plain.best, planner.backend
        with meter.share(0.85):
            graphs.run(meter)
        chosen = graphs.best
        chosen.prove(meter)
    attempts = (a for one in dict.fromkeys((plain, *graphs.found)) for a in one.attempts)
    answer = replace(chosen.best, attempts=tuple(attempts), num_untried=plain.best.num_untried)
    plan = answer.plan
    if chosen is not plain:
        if chosen.rewritten is not None:
            plan = chosen.rewritten.stated(plan, best.plan.schedule.quality)
        plan = replace(plan, recipe=chosen.stated(plan.recipe))
    asked.decisions = chosen.planner.decisions
    answer, backend = replace(answer, plan=plan), chosen.planner.of_execution(plan.recipe).backend
    return answer if planner is asked else without_searches(answer, best), backend


def _fastest(planner: Planner) -> tuple[Recipe, ...]:
    """What is planned fastest, in the target's places."""
    return tuple(of_fast(planner.backend.default_recipe.memory))


def _lasts(meter: Meter, needed_s: float) -> bool:
    """Whether there is so much time."""
    return meter.left_s is None or meter.left_s >= needed_s


def _num_steps(program: Program) -> int:
    """Operators that are simulated, in each slice anew."""
    kernels = zip(program.partition.subgraphs, program.schedule.splits, strict=True)
    return sum(len(subgraph.nodes) * split.num_instances for subgraph, split in kernels)


@dataclass(slots=True, eq=False)
class _Graphs:
    """The best plans so far of the graph as it is, `plain`, and of what it was rewritten to."""

    plain: _Found
    found: list[_Found] = field(init=False)
    split: Rewritten | None = field(init=False, default=None)
    papers_are_late: bool = field(init=False, default=False)
    """Whether a part of the time that is left may not do for a paper's plan of a large network."""

    def __post_init__(self) -> None:
        self.found = [self.plain]

    @property
    def best(self) -> _Found:
        """The graph whose plan is the best; the first of equals."""
        return min(self.found, key=lambda one: one.cost)

    def steps(self) -> Iterator[Step]:
        """All that is tried: on the graph that is better at first, then on the others."""
        planner, options = self.plain.planner, self.plain.planner.options
        yield self.split_sums, 0.5
        gains = self.split is not None and self.split.saved > _MUCH * self.plain.cost
        is_long = is_large(planner)
        left_s = None if planner.portfolio is None else planner.portfolio.left_s
        if is_long and left_s is not None:
            self.papers_are_late = OF_FIRST * planner.first_s > _SHARE_OF_PAPER * left_s
        if gains or is_long:
            yield self.plan_first, 0.95 if self.papers_are_late else _SHARE_OF_PAPER
        if not options.only:
            yield self.best.try_fastest, 0.8
        if not (gains or is_long):
            yield self.plan_first, _SHARE_OF_PAPER
        if is_long and not self.papers_are_late:  # else they were joined first
            yield self.best.join_layers, 0.95
        if not options.only:
            if planner.backend.limits.num_cores > 1:  # where slices fill cores
                yield self.best.try_default, 0.4
                yield self.best.try_nearest, 0.4
            yield self.plan_one_sample, _SHARE_OF_SAMPLE
            yield from self.best.steps()
        yield self.plain.try_methods, 0.5
        yield self.rewrite, 0.5
        if not options.only:
            yield self.plain.try_grid, 0.5
        for one in self.found if options.only else ():  # what recipes made may differ in what is frozen
            one.best = replace(plan_with_frozen(one.planner, LEFT_OPEN), attempts=one.best.attempts)
        self.found.sort(key=lambda one: one.cost)
        for one in self.found[:_NUM_SEARCHED]:
            yield one.search_blocks, 0.5
        if not options.only:
            yield self.best.search_kernels, 1.0

    def run(self, meter: Meter) -> None:
        """Try all. No step has less time than a plan takes, so that it may have one."""
        for step, share in self.steps():
            left_s = meter.left_s
            if left_s is not None and left_s > 0:
                share = max(share, min(OF_FIRST * self.plain.planner.first_s / left_s, 1.0))
            with meter.ending_early(), meter.share(share):
                step(meter)

    def split_sums(self, meter: Meter) -> None:
        """Find the graph with sums in parts, if these are cheaper anywhere."""
        self.split = _sums_in_parts(self.plain.planner)

    def plan_first(self, meter: Meter) -> None:
        """Plan the graph with sums in parts, where these are cheaper, by the best recipe, or the paper that
        is planned fastest, which joins what adds parts; where papers come late, join layers."""
        if self.split is not None:
            other = self.plain.planner.of_graph(self.split.graph)
            if self.papers_are_late:
                self._add(self.split, other, joined(other, None, meter), (), meter)
            else:
                known = (r for r in cheapest(self.plain.best) if r.partition != PLAIN_RECIPE.partition)
                self._add(self.split, other, None, (*known, *_fastest(other))[:1], meter)
        elif self.papers_are_late:
            self.plain.join_layers(meter)

    def plan_one_sample(self, meter: Meter) -> None:
        """Plan one of many samples, if its whole kernels, which are planned soonest, run for each take less
        than the best plan and may be planned in time, and run its plan for each of them."""
        planner = self.plain.planner
        analysis = planner.backend.partition_problem.analysis
        if meter.is_over or (one := one_sample(planner.graph, analysis)) is None:
            return
        other = planner.of_graph(one.graph)
        fast = _fastest(other)[-1]
        try:
            other.partition(fast.partition)  # which all samples share
            start_s = meter.clock()
            found = _Found(other, other.tried((fast,), None, meter), None)
        except InfeasibleMapping:
            return
        first = found.best.plan
        needed_s = _OF_REPEATED * one.num_samples * (meter.clock() - start_s)

        def gains(plan: Program) -> bool:
            return one.num_samples * cost_of(plan) < _WORTH_REPEATING * self.best.cost

        if not (gains(first) and _lasts(meter, needed_s)):
            return
        with meter.ending_early(), meter.share(_SHARE_BEFORE_REPEATED):
            for step in (found.try_default, found.try_fastest, found.try_nearest, found.search_kernels):
                step(meter)
        for plan in dict.fromkeys((found.best.plan, first)):
            lasts = _lasts(meter, needed_s * _num_steps(plan) / _num_steps(first))
            if lasts and gains(plan):
                self._repeat(one, plan, meter)
                return

    def _repeat(self, one: OneSample, plan: Program, meter: Meter) -> None:
        """Run a plan of one sample for each."""
        blocks = self.plain.blocks
        if plan.recipe.memory != blocks.recipe.memory:
            blocks = Blocks(self.plain.planner, None, plan.recipe.memory)
        self.plain.best = blocks.repeated(self.plain.best, one, plan.schedule, meter)

    def rewrite(self, meter: Meter) -> None:
        """Try the recipes that took least on the other graphs, and on those that merging makes."""
        recipes = cheapest(self.plain.best)[:_NUM_AGAIN]
        for one in self.found[1:]:
            one.best = one.planner.tried(recipes, one.best, meter)
        for merged in _merged(self.plain.planner, meter):
            self._add(merged, self.plain.planner.of_graph(merged.graph), None, recipes, meter)

    def _add(
        self,
        rewritten: Rewritten,
        planner: Planner,
        best: Best[Program] | None,
        recipes: Sequence[Recipe],
        meter: Meter,
    ) -> None:
        """Add what recipes make of a rewritten graph, if there is a plan before the time ends."""
        if recipes:
            with meter.ending_early():
                best = planner.tried(recipes, best, meter)
        if best is not None:
            self.found.append(_Found(planner, best, self.plain.prices, rewritten))


@dataclass(slots=True, eq=False)
class _Found:
    """The best plan so far of one graph: as it is, or `rewritten`; the search over its blocks."""

    planner: Planner
    best: Best[Program]
    prices: TaskSettings | None
    rewritten: Rewritten | None = None
    _blocks: Blocks | None = field(init=False, default=None)

    @property
    def cost(self) -> float:
        return cost_of(self.best.plan)

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """What was tried, as on the graph before."""
        return tuple(map(with_sums_split, self.best.attempts) if self.splits_sums else self.best.attempts)

    @property
    def splits_sums(self) -> bool:
        """Whether sums are in parts."""
        return self.rewritten is not None and SAME_SUMS in self.rewritten.rules

    def stated(self, recipe: Recipe) -> Recipe:
        """A recipe of this graph's plans, as one of the graph before."""
        return replace(recipe, splits_sums=self.splits_sums)

    @property
    def blocks(self) -> Blocks:
        """The search over blocks of this graph's plans."""
        if self._blocks is None:
            self._blocks = Blocks(self.planner, self.prices, self.planner.backend.default_recipe.memory)
        return self._blocks

    def steps(self) -> Iterator[Step]:
        """What is tried on the graph that is the best of all then. Joint tilings are of whole kernels, as
        methods cut them, so that these come before blocks near the best plan even where slices are best."""
        is_serial = self.planner.backend.limits.num_cores == 1
        is_varied = self._is_varied
        yield self.try_best_pairs, 0.7
        if is_varied or is_serial:
            yield self.prove_small, 0.5 if is_serial else 0.3
        if is_varied:
            yield self.search_kernels, 0.3
        else:
            yield self.try_methods, 0.6
        yield self.search_blocks, 0.6
        if is_varied or any(split.num_instances > 1 for split in self.best.plan.schedule.splits):
            yield self.search_kernels, 0.7

    @property
    def _is_varied(self) -> bool:
        """Whether the best plan is cut in the target's own way, which the portfolio varies."""
        best, default = self.best.recipe.partition, self.planner.backend.default_recipe.partition
        return Spec.parse(best).name == Spec.parse(default).name

    def prove_small(self, meter: Meter) -> None:
        """Take the best plan of small blocks, of which a proof prices few: what it knows by then is known to
        the proof of the final plan, too."""
        if not (meter.is_over or is_large(self.planner)):
            self.best = self.blocks.of_small(self.best, meter)

    def try_default(self, meter: Meter) -> None:
        """Try the target's own recipe, which cuts into slices."""
        self.best = self.planner.tried((self.planner.backend.default_recipe,), self.best, meter)

    def try_nearest(self, meter: Meter) -> None:
        """Where the plan is cut in the target's own way, try recipes that vary this in what gains most often,
        slices, kept rows and the share of the capacity, in the order that it took; then other orders of the
        best partition."""
        if not self._is_varied:
            return
        recipes = (recipe for recipe in self._portfolio() if recipe.partition != PLAIN_RECIPE.partition)
        taken = {schedule.provenance.note for schedule in self.planner.seeds}
        others: list[Recipe] = []

        def one_of_each() -> Iterator[Recipe]:
            nearest = itertools.islice(recipes, _NUM_NEAREST)
            for _, alike in itertools.groupby(nearest, key=lambda recipe: recipe.partition):
                first, *rest = sorted(alike, key=lambda recipe: recipe.schedule not in taken)
                others.extend(rest)
                yield first

        self.best = self.planner.tried(one_of_each(), self.best, meter)
        partition = self.best.recipe.partition
        self.best = self.planner.tried((r for r in others if r.partition == partition), self.best, meter)

    def try_fastest(self, meter: Meter) -> None:
        """Try what is planned fastest."""
        self.best = self.planner.tried(_fastest(self.planner), self.best, meter)

    def join_layers(self, meter: Meter) -> None:
        """Join layers of a large network."""
        self.best = joined(self.planner, self.best, meter) or self.best

    def try_best_pairs(self, meter: Meter) -> None:
        """Try what is the best of all recipes most often, and takes longer than others: other kernels, in
        stages or lanes. Where all layers are one kernel already, which no others can save anything of, try
        this one in lanes."""
        memory = self.planner.backend.default_recipe.memory
        recipes: Iterable[Recipe] = itertools.islice(of_pairs(memory), _NUM_PAIRS)
        if len(self.best.plan.partition.subgraphs) == 1 and self._is_varied:
            recipes = (replace(self.best.recipe, schedule="virtual-units"),)
        self.best = self.planner.tried(recipes, self.best, meter)

    def try_methods(self, meter: Meter) -> None:
        """Try papers, pairs of their methods, and the portfolio."""
        memory = self.planner.backend.default_recipe.memory
        published = dict.fromkeys((*of_pairs(memory), *of_papers(memory)))
        recipes = itertools.chain(published, self._portfolio())
        self.best = self.planner.tried(recipes, replace(self.best, num_untried=0), meter)

    def try_grid(self, meter: Meter) -> None:
        """Try all combinations of planners, and variants of the best."""
        best = self.planner.tried(grid_of(self.planner), self.best, meter)
        self.best = varied(self.planner, best, meter)

    def _portfolio(self) -> Iterable[Recipe]:
        return self.planner.backend.recipes(self.planner.partition)

    def search_blocks(self, meter: Meter) -> None:
        """Go on from the best combination of the blocks of all plans."""
        if not meter.is_over:
            self.best = self.blocks.searched(self.best, meter)

    def prove(self, meter: Meter) -> None:
        """Say how far from the best of its space the plan can be, as far as the time lasts: of all blocks
        placed by the planner of memory that places its own."""
        if self._blocks is None and meter.is_over:
            return
        blocks, recipe = self.blocks, self.best.plan.recipe
        if not meter.is_over and recipe.memory != blocks.recipe.memory and not recipe.execution:
            blocks = Blocks(self.planner, None, recipe.memory)  # workers place by the target's own
        self.best = blocks.proven(self.best, meter)

    def search_kernels(self, meter: Meter) -> None:
        """Change kernels, slices and places of the best plan, as long as this gains something, if nothing in
        it runs side by side."""
        left_s, budget = meter.left_s, meter.budget
        stages = self.best.plan.schedule.stages
        is_serial = all(len(s.groups) == 1 and not any(s.groups[0].inside) for s in stages)
        is_limited = left_s is not None or budget.max_evaluations != UNLIMITED
        is_short = left_s is not None and left_s < self.planner.first_s
        if meter.is_over or is_short or not (is_serial and is_limited):
            return
        num_trials = UNLIMITED
        if budget.max_evaluations != UNLIMITED:
            num_trials = int(_SHARE_OF_TRIALS * (budget.max_evaluations - meter.num_evaluations))
        before = len(self.best.attempts)
        own = Budget(num_trials, None if left_s is None else max(left_s, LEAST_S))
        self.best = improved(self.planner, self.best, own, meter)
        meter.num_evaluations += len(self.best.attempts) - before


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
