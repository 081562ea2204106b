"""The search over plans of one program as the simulator judges them, from the best plan known on."""

from __future__ import annotations

import functools
import random
from array import array
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from tilewright.errors import InternalError, TilewrightError
from tilewright.hardware.element_types import ElementTypes
from tilewright.ir.graph import Node, Value
from tilewright.ir.region import Region
from tilewright.joint.launched.content import Numbered
from tilewright.joint.overlapped.kernels import Kernels
from tilewright.joint.overlapped.moves import Moves, Ways
from tilewright.joint.overlapped.plan import (
    NAME,
    RULES,
    Nest,
    NestPlan,
    Rule,
    arranged,
    kernels_of,
    nests_of,
    plan_of,
)
from tilewright.joint.overlapped.search import Judged, search
from tilewright.partition import check_cut
from tilewright.partition.base import Partition, PartitionProblem, kept_as
from tilewright.partition.graphturbo import GraphTurbo
from tilewright.planning import Budget, Provenance
from tilewright.planning.checking import require_right
from tilewright.planning.portfolio import Attempt, Recipe
from tilewright.program import Program
from tilewright.progress import Progress, SearchEnded, after_the_end, interrupt_search
from tilewright.schedule.base import Instance, Schedule
from tilewright.schedule.instances import InstanceGraph, instance_graph
from tilewright.targets.base import Improved, MakeProgram
from tilewright.targets.npu.costs import UNPRICED
from tilewright.targets.npu.kernels import fastest_binding
from tilewright.targets.npu.plan import SimulatedPlan
from tilewright.targets.npu.recipes import ALPHAS
from tilewright.targets.npu.work import Works

_SEED_RULES: Sequence[Rule] = ("depth-first", "level-order")


class Simulate(Protocol):
    """What simulates schedules."""

    def __call__(
        self, schedule: Schedule, recipe: Recipe, most: float, known: InstanceGraph | None = None
    ) -> tuple[SimulatedPlan, float]:
        """A schedule, placed and run as a recipe says: the plan and its cost. One that is seen to cost more
        than `most` is refused; `known` are the schedule's instances, if they were made."""
        ...


class NestJudge:
    """Prices plans by simulating them whole. Searches that it judges go on from each other: `generator` draws
    on, and plans that one has `seen` are not tried by the next."""

    def __init__(
        self, problem: PartitionProblem, numbered: Numbered, types: ElementTypes, works: Works,
        simulate: Simulate, seed: int,
    ) -> None:  # fmt: skip
        self.problem, self.numbered, self.types, self.works = problem, numbered, types, works
        self.num_cores = works.machine.num_cores_per_cluster
        self.simulate = simulate
        self.generator, self.seen = random.Random(seed), set[NestPlan]()
        self._known: dict[Hashable, tuple[float, Sequence[float], int]] = {}

    def __call__(self, plan: NestPlan, most: float) -> Judged | None:
        """What a plan costs; None of one that is impossible, or seen to cost more than `most`."""
        try:
            schedule, instances, placed, places = self._scheduled(plan)
            in_order = placed.kernels
            kernels = tuple(in_order[place] for place in places)
            order = array("q", (n for i in schedule.instances() for n in (i.subgraph_id, i.index))).tobytes()
            key = kernels, order, replace(placed, nests=())
            if key in self._known:
                # Nests that are cut otherwise, or have another rule, may run in the same order.
                cost, losses, num_runs = self._known[key]
                return Judged(placed, cost, _by_place(losses, places), is_known=True, num_runs=num_runs)
            planned, cost = self.simulate(schedule, recipe_of(placed), most, instances)
        except InternalError:
            raise
        except (TilewrightError, ValueError):
            return None
        losses, num_runs = _losses(planned), len(planned.simulation.runs)
        self._known[key] = cost, losses, num_runs
        return Judged(placed, cost, _by_place(losses, places), num_runs=num_runs)

    def share(
        self, nodes: Sequence[Node], value: Value, region: Region, axes: Collection[int]
    ) -> tuple[int, ...]:
        """How the cores share a region of a value that a layer makes: in the fastest way along some axes for
        all operators of the layer that make as much; in equal parts, which is (), where the value is a later
        result of one that makes something else first."""
        makers = [n for n in nodes if n.output.shape == value.shape]
        return fastest_binding(self.works, makers, region, self.num_cores, axes) if makers else ()

    def seeds_of(self, seed: Partition | Schedule) -> Iterator[NestPlan]:
        """A schedule as a plan that is placed by nothing yet, or a partition without an order in those that
        differ most; none of another graph."""
        partition = seed.partition if isinstance(seed, Schedule) else seed
        if partition.graph is not self.numbered.graph:
            return
        if isinstance(seed, Schedule):
            found = self.plan_of(seed, Recipe(NAME, NAME, ""))
            if found is not None:
                yield found
            return
        kernels = kernels_of(self.numbered, partition)
        yield from (NestPlan((Nest(kernels, rule),), "") for rule in _SEED_RULES)

    def plan_of(self, schedule: Schedule, recipe: Recipe) -> NestPlan | None:
        """A schedule, placed and run as a recipe says, as a plan that costs what it does; None where its
        slices run on groups of cores that plans do not know."""
        firsts = {next(k.nodes): i for i, k in enumerate(kernels_of(self.numbered, schedule.partition))}

        def ordered(plan: NestPlan) -> Iterator[Instance]:
            found, placed, places = self.schedule(plan)
            kernels = placed.kernels
            numbers = [firsts[next(kernels[place].nodes)] for place in places]
            return (Instance(numbers[i.subgraph_id], i.index) for i in found.instances())

        found = plan_of(self.numbered, schedule, self.num_cores, ordered)
        return None if found is None else replace(found, memory=recipe.memory, execution=recipe.execution)

    def schedule(self, plan: NestPlan) -> tuple[Schedule, NestPlan, Sequence[int]]:
        """A plan as a schedule without a cost, with its kernels in the order of the schedule, and their
        places by subgraph.

        Raises:
            ValueError: kernels wait for each other.
        """
        schedule, _, placed, places = self._scheduled(plan)
        return schedule, placed, places

    def _scheduled(self, plan: NestPlan) -> tuple[Schedule, InstanceGraph, NestPlan, Sequence[int]]:
        """The same with the instances of the schedule."""
        found = arranged(self.problem, self.numbered, plan)
        partition = found.partition
        graph = instance_graph(kept_as(partition, self.types), partition.splits, self.problem.analysis.maps)
        stages = found.stages(graph, self.num_cores)
        schedule = Schedule(partition, stages, UNPRICED, Provenance(NAME), partition.splits)
        return schedule, graph, found.plan, found.places


def recipe_of(plan: NestPlan) -> Recipe:
    """What names a plan of the search."""
    return Recipe(NAME, NAME, plan.memory, plan.execution)


def _by_place(losses: Sequence[float], places: Sequence[int]) -> list[float]:
    """What kernels lose in the order of a plan, of which `places[i]` is the place of subgraph i."""
    ordered = sorted(zip(places, losses, strict=True))
    return [loss for _, loss in ordered]


def _losses(planned: SimulatedPlan) -> list[float]:
    """Seconds of the busiest unit that are lost with each subgraph: in which the unit waits before it goes
    on, and by which its work takes longer than at the speed that it reaches elsewhere."""
    losses = [0.0] * len(planned.partition.subgraphs)
    busy = planned.simulation.busy_s
    if not busy:
        return losses
    unit = max(busy, key=lambda name: busy[name])
    nodes = planned.instances.nodes
    homes = [nodes[step.node].subgraph_id for step in planned.scopes.steps]
    works = [
        (home, work.seconds, work.macs + work.ops)
        for home, step in zip(homes, planned.simulation.steps, strict=True)
        for work in step.works
        if work.unit == unit and work.seconds
    ]
    fastest = max((done / seconds for _, seconds, done in works), default=0.0)
    for home, seconds, done in works if fastest else ():
        losses[home] += seconds - done / fastest
    now = 0.0
    last = len(losses) - 1
    for run in sorted((r for r in planned.simulation.runs if r.unit == unit), key=lambda r: r.start_s):
        last = homes[run.step]
        losses[last] += max(0.0, run.start_s - now)
        now = max(now, run.end_s)
    losses[last] += max(0.0, planned.simulation.time_s - now)
    return losses


_LEAST_S = 1e-3
"""Of a budget that is used up."""


def improved(
    judge: NestJudge,
    start: Program,
    seeds: Iterable[Partition | Schedule],
    make: MakeProgram,
    check: Callable[[Program], object],
    more_to_check_s: Callable[[int], float],
    budget: Budget,
    ways: Ways,
    progress: Progress | None = None,
) -> Improved:
    """The best plan found from one on, never worse than it; `seeds` are other schedules or partitions
    of the graph, made when they are asked for. The program that is made of it, within the time of a budget,
    passes `check`, which raises where it is wrong, and of so many runs of units takes so much longer than
    there is time for behind the budget."""
    numbered, meter = judge.numbered, budget.start()
    whole_s = meter.left_s
    first = judge.plan_of(start.schedule, start.recipe)
    judged = None if first is None else judge(first, float("inf"))
    if judged is None:
        return Improved(start)
    attempts: list[Attempt] = []
    better: list[Judged] = []
    others = (plan for seed in seeds for plan in judge.seeds_of(seed))
    cost = start.schedule.quality.cost

    aside_s = 0.0

    def leave_time_to_check(judged: Judged) -> None:
        nonlocal aside_s
        needed_s = more_to_check_s(judged.num_runs)
        meter.set_aside(needed_s - aside_s)
        aside_s = needed_s

    def report(judged: Judged, what: str, least: float) -> None:
        attempts.append(Attempt(f"search {meter.num_evaluations}: {what}", judged.cost))
        if judged.cost < (better[-1].cost if better else cost):
            better.append(judged)
            leave_time_to_check(judged)
        if progress is not None:
            progress(f"search: {what}, best so far {cost / least:.2f} x the start", *meter.progress)

    widest = GraphTurbo(alpha=max(ALPHAS))
    kernels = Kernels(
        numbered,
        widest.splitter(judge.problem),
        replace(widest, rows="keep").splitter(judge.problem),
        widest.recompute_limit,
        judge.share,
    )
    moves = Moves(kernels, others, ways, judge.generator)
    leave_time_to_check(judged)
    left_s = meter.left_s
    # A program is made in no more than the time in which the start was judged.
    own = 1.0
    if left_s is not None and whole_s is not None:
        own = max(0.5, 1 - (whole_s - left_s) / max(left_s, _LEAST_S))
    try:
        with meter.share(own):
            search(
                judge,
                moves,
                judged,
                meter,
                report,
                moves.opening(),
                beginning=moves.beginning(),
                second=functools.partial(_in_runs, judge, start),
                seen=judge.seen,
            )
    except SearchEnded:
        pass
    except KeyboardInterrupt:
        if not interrupt_search():  # nothing around goes on with the best so far
            raise
    if not better:
        return Improved(start, tuple(attempts))
    with after_the_end():
        program = _made(judge, better[-1].plan, make)
        check(program)
    return Improved(program, tuple(attempts))


def _made(judge: NestJudge, plan: NestPlan, make: MakeProgram) -> Program:
    """A plan as a program."""
    schedule, placed, _ = judge.schedule(plan)
    problem, partition = judge.problem, schedule.partition
    require_right("a searched partition", lambda: check_cut(problem.graph, partition, problem.analysis.maps))
    return make(partition, recipe_of(placed), stages=schedule.stages)


def _in_runs(judge: NestJudge, start: Program) -> Judged | None:
    """A program cut into runs of kernels that end together, with the rule that comes nearest to its order;
    None where it runs so already."""
    whole = judge.plan_of(start.schedule, start.recipe)
    if whole is None:
        return None
    plans = [replace(whole, nests=nests_of(judge.numbered, start.schedule, rule)) for rule in RULES]
    if whole in plans:
        return None
    found = [judged for plan in plans if (judged := judge(plan, float("inf"))) is not None]
    return min(found, key=lambda judged: judged.cost, default=None)
