"""Joint plans of kernels that are launched one by one: blocks add up, combine, and are never worse."""

# mypy: disable-error-code="arg-type, assignment, attr-defined"

from __future__ import annotations

import itertools
from dataclasses import replace
from math import inf
from typing import Any

import pytest
from tests.support.graphs import GraphBuilder
from tests.support.launched_kernels import (
    GRAPHS,
    RECIPES,
    chain,
    deep_and_small,
    diamond,
    planner_of,
    pricer_of,
    siblings,
)

from tilewright import joint_blocks, joint_plan
from tilewright.bit_sets import bits
from tilewright.comparison import best_plan
from tilewright.compiler import plan_optimised
from tilewright.errors import InfeasibleMapping, Outclassed, UsageError
from tilewright.ir.graph import Graph
from tilewright.ir.split_sums import split_sums
from tilewright.joint.launched import splitting
from tilewright.joint.launched.content import Content, Numbered, assembled
from tilewright.joint.launched.decisions import Decision, decisions_of
from tilewright.joint.launched.merging import merges_within_kernels
from tilewright.joint.launched.moves import Moves
from tilewright.joint.launched.pricer import LaunchedPricer
from tilewright.joint.launched.search import LaunchedSearch
from tilewright.joint.launched.splitting import parts_of_sums
from tilewright.options import Options
from tilewright.partition.base import Partition
from tilewright.planner import LEFT_OPEN, Planner, cost_of, machine_of
from tilewright.planning import UNLIMITED, Budget, Provenance, Status
from tilewright.planning.grid import FAST
from tilewright.planning.portfolio import PLAIN_RECIPE, Recipe
from tilewright.program import Program
from tilewright.progress import PhaseClock, SearchEnded, checkpoint, ending_with, interrupt_search
from tilewright.report.comparison import Tolerance, first_difference
from tilewright.report.simulation import compare_values
from tilewright.schedule import check_schedule
from tilewright.schedule.base import build_schedule, single
from tilewright.schedule.space import SAME_SUMS
from tilewright.target_ref import TargetRef
from tilewright.targets import find_target
from tilewright.targets.base import SimulatedCode

MACHINES = ("v100", "jetson-nano")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", GRAPHS)
def test_plans_of_all_planners_cost_what_their_blocks_do(name: str, machine: str) -> None:
    graph = GRAPHS[name]()
    planner, numbered = planner_of(graph, machine), Numbered(graph)
    pricer = pricer_of(planner, numbered)
    for recipe in RECIPES:
        schedule = planner.schedule(planner.partition(recipe.partition), recipe)
        contents = list(numbered.contents(schedule))
        assert sum(content.mask for content in contents) == (1 << len(numbered.nodes)) - 1
        total = sum(map(pricer.cost, contents))
        if all(split.num_instances == 1 for split in schedule.splits):
            # In the whole plan a result may wait for the place of a value that died.
            assert 0.99 * schedule.quality.cost <= total <= schedule.quality.cost * (1 + 1e-9), str(recipe)
        again = assembled(planner.backend.partition_problem, contents, numbered.nodes.__getitem__)
        problem = planner.schedule_problem(again.partition, recipe)
        assert problem.quality_of(again.stages, again.splits).cost == schedule.quality.cost
        for content in contents:
            assert pricer.add(content) or content in set(pricer.contents)
            (block,) = pricer.blocks(content.mask)
            assert pricer.least(block) <= pricer.cost(content) * (1 + 1e-9)


def test_a_kernel_is_tiled_as_alone_whatever_made_its_operands() -> None:
    b = GraphBuilder()
    x = b.input(1, 24, 100, 100)
    x = b.op("Conv", x, b.constant(24, 24, 1, 1), shape=x.shape, kernel_shape=(1, 1))
    x = b.op("MaxPool", x, shape=(1, 24, 50, 50), kernel_shape=(2, 2), strides=(2, 2))
    x = b.op("MaxPool", x, shape=(1, 24, 50, 50), kernel_shape=(3, 3), pads=(1, 1, 1, 1))
    graph = b.finish(x)
    planner, numbered = planner_of(graph, "k80"), Numbered(graph)
    pricer = pricer_of(planner, numbered)
    schedule = planner.schedule(planner.partition("layerwise"), RECIPES[0])
    contents = list(numbered.contents(schedule))
    assert len(contents) == 3
    assert sum(map(pricer.cost, contents)) == pytest.approx(schedule.quality.cost, rel=1e-9)


def test_a_proof_leaves_out_what_the_search_noted_and_did_not_price() -> None:
    graph = chain()
    planner = planner_of(graph, "jetson-nano")
    schedule = planner.schedule(planner.partition("layerwise"), RECIPES[0])
    blocks = joint_blocks.Blocks(planner, None, "longest-liveness")
    pricer = blocks.pricer
    noted = [Moves(pricer, 4).fused(mask) for mask in (0b11, 0b1111)]
    for content in noted:
        assert pricer.add(content)
    pricer.best(noted[0].mask)
    pricer.forget_unpriced()
    assert list(pricer.contents) == noted[:1]
    assert list(pricer.sets) == [noted[0].mask]
    search = LaunchedSearch.of(pricer, [tuple(blocks.numbered.contents(schedule))], Budget().start())
    search.run(lambda contents: None)
    assert search.is_settled
    assert search.cost == pricer.cost(noted[1])  # it is noted again


@pytest.mark.sampled(2)
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", GRAPHS)
def test_the_search_finds_the_least_of_all_cuts_into_kernels(name: str, machine: str) -> None:
    graph = GRAPHS[name]()
    planner, numbered = planner_of(graph, machine), Numbered(graph)
    pricer = pricer_of(planner, numbered)
    moves = Moves(pricer, 4)
    least = min(
        sum(pricer.cost(moves.fused(mask)) for mask in masks)
        for masks in _partitions(tuple(range(len(numbered.nodes))))
        if _is_acyclic(pricer, masks)
    )
    layerwise = planner.schedule(planner.partition("layerwise"), RECIPES[0])
    search = LaunchedSearch.of(
        pricer_of(planner, numbered), [tuple(numbered.contents(layerwise))], Budget().start()
    )
    published: list[float] = []
    search.run(lambda contents: published.append(search.cost))
    assert search.cost <= least * (1 + 1e-9)
    assert published == sorted(published, reverse=True)


def _partitions(nodes: tuple[int, ...]) -> list[list[int]]:
    """All partitions of a set, as masks."""
    if not nodes:
        return [[]]
    first, rest = 1 << nodes[0], nodes[1:]
    found = []
    for smaller in _partitions(rest):
        found.append([first, *smaller])
        found += [[*smaller[:i], smaller[i] | first, *smaller[i + 1 :]] for i in range(len(smaller))]
    return found


def _is_acyclic(pricer: LaunchedPricer, masks: list[int]) -> bool:
    left, done = list(masks), 0
    while left:
        ready = [
            mask for mask in left if all(not pricer.predecessors(i) & ~(done | mask) for i in bits(mask))
        ]
        if not ready:
            return False
        done |= ready[0]
        left.remove(ready[0])
    return True


@pytest.mark.sampled(1)
@pytest.mark.parametrize("machine", [*MACHINES, "stcp920"])
@pytest.mark.parametrize("name", GRAPHS)
def test_a_joint_plan_is_never_worse_and_computes_the_same(name: str, machine: str) -> None:
    graph = GRAPHS[name]()
    joint = plan_optimised(graph, Options(target=TargetRef.parse(machine), plan="joint"))
    cost = joint.program.schedule.quality.cost
    for plan in ("portfolio", "grid"):
        other = plan_optimised(graph, Options(target=TargetRef.parse(machine), plan=plan))
        assert cost <= other.program.schedule.quality.cost
    again = plan_optimised(graph, Options(target=TargetRef.parse(machine), plan="joint"))
    assert again.attempts == joint.attempts
    code = joint.backend.generate(joint.program)
    assert isinstance(code, SimulatedCode)
    assert first_difference(compare_values(code, Tolerance())) is None


def test_blocks_name_their_kernels_by_place() -> None:
    contents = [Content.of_kernel([(0,), (1, 2)]), Content.of_kernel([(3,)])]
    assert [content.mask for content in contents] == [0b111, 0b1000]
    for content, number in itertools.product(contents, (0, 5)):
        (stage,) = content.renumbered([number])
        assert [i.subgraph_id for i in stage.instances()] == [number]


def test_siblings_merge_where_the_kernel_around_them_gets_cheaper() -> None:
    graph = siblings()
    planner = planner_of(graph, "v100")
    partition = planner.partition("layerwise")
    machine = pricer_of(planner, Numbered(graph)).machine
    stages = merges_within_kernels(partition, machine, Budget().start())
    recipe = Recipe("layerwise", "sequential", "longest-liveness")
    problem = planner.schedule_problem(partition, recipe)
    schedule = build_schedule(problem, stages, Provenance("by hand"))
    assert check_schedule(problem, schedule) == ()
    assert any(stage.strategy == "merge" for stage in stages)
    whole = planner.program(replace(recipe, partition="pcgc")).schedule.quality.cost
    options = Options(target=TargetRef.parse("v100"), plan="joint")
    merged = plan_optimised(graph, options, portfolio=Budget(100)).program.schedule.quality.cost
    assert merged < whole
    unmerged = merges_within_kernels(partition, machine, Budget(0).start())
    assert all(stage.strategy == "parallel" for stage in unmerged)


def test_decisions_say_what_the_next_best_would_have_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = siblings()
    numbered = Numbered(graph)
    planner = planner_of(graph, "v100")
    pricer = pricer_of(planner, numbered)
    search = LaunchedSearch.of(
        pricer,
        [
            tuple(numbered.contents(planner.schedule(planner.partition(r.partition), r)))
            for r in RECIPES[:12:6]
        ],
        Budget().start(),
    )
    search.run(lambda contents: None)
    decisions = decisions_of(pricer, search.best)
    assert sum(d.cost_ns for d in decisions) == pytest.approx(search.cost)
    assert sorted(name for d in decisions for name in d.nodes) == sorted(n.name for n in graph.nodes)
    for content, decision in zip(search.best, decisions, strict=True):
        # The plan is the best of all that was priced.
        assert decision.other_ns is None or decision.other_ns >= decision.cost_ns * (1 - 1e-9)
        assert decision.without_ns is None or decision.without_ns >= -1e-6 * search.cost
        others = [
            c for c in pricer.contents if c.mask == content.mask and c != content and pricer.is_known(c)
        ]
        assert (decision.other_ns is None) <= (not [c for c in others if pricer.cost(c) < inf])
    assert any(d.without_ns is not None for d in decisions)
    unpriced = pricer_of(planner, numbered)
    assert decisions_of(unpriced, search.best) == []
    monkeypatch.setattr(decisions_of.__module__ + "._MOST_STEPS", 0)
    bounded = decisions_of(pricer, search.best)
    assert [d.without_ns for d in bounded] == [None] * len(decisions)
    assert [d.other_ns for d in bounded] == [d.other_ns for d in decisions]


def test_progress_says_cost_bound_and_gap() -> None:
    told: list[str] = []
    clock = PhaseClock(None, lambda what, done, total: told.append(what))
    options = Options(target=TargetRef.parse("v100"), plan="joint")
    planned = plan_optimised(diamond(), options, clock, portfolio=Budget(60))
    of_blocks = [what for what in told if what.startswith("joint: ")]
    cost = planned.program.schedule.quality.cost
    assert any(what.startswith(f"joint: {cost:,.0f} ns, at least ") for what in of_blocks), of_blocks[-1]
    assert any("best so far: " in what and "% above)" in what for what in told)


def test_a_joint_search_whose_time_is_over_begins_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        joint_plan, "_merging", lambda *_: pytest.fail("a partition of its own is made for it")
    )
    options = Options(target=TargetRef.parse("v100"), plan="joint")
    target = find_target(TargetRef.parse("v100"))
    graph = siblings()
    planner = Planner(graph, target, target.backend(graph, options), options, PhaseClock(None, None))
    best, _ = joint_plan.joint_plan(planner, joint_plan.begun(planner, LEFT_OPEN, Budget(deadline_s=1e-9)))
    assert best.plan.recipe == best.recipe
    assert best.num_untried


def test_with_a_deadline_layers_one_by_one_come_first_and_may_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    planner = planner_of(chain(), "v100")
    asked: list[Recipe] = []
    program = planner.program

    def fail_first(recipe: Recipe) -> Program:
        asked.append(recipe)
        if recipe == asked[0]:
            raise InfeasibleMapping("too large in layers one by one")
        return program(recipe)

    monkeypatch.setattr(planner, "program", fail_first)
    best = best_plan(planner, LEFT_OPEN, Budget(2, deadline_s=1000.0))
    assert (asked[0].partition, asked[0].schedule) == (PLAIN_RECIPE.partition, PLAIN_RECIPE.schedule)
    assert best.recipe == asked[-1] != asked[0]
    assert best.attempts[0].error == "too large in layers one by one"


def test_a_partition_whose_time_ends_is_scheduled_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    planner = planner_of(deep_and_small(), "v100")
    planner.options = replace(planner.options, plan="joint")
    monkeypatch.setattr("tilewright.planner.LEAST_S", 1e-12)
    planner.portfolio = Budget(deadline_s=1e-9).start()
    cut_off = planner.program(Recipe("pcgc", "sequential", "longest-liveness"))
    assert cut_off.partition.quality.status is Status.CUT_OFF


def test_a_merged_plan_is_kept_when_the_time_ends_behind_its_search(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = siblings()
    planner = planner_of(graph, "v100")
    best = best_plan(planner, LEFT_OPEN, Budget(3).start(is_interruptible=True))
    unmerged = best.plan
    stated = joint_blocks.decisions_of
    meter = planner.portfolio
    assert meter is not None

    def ended(*asked: Any) -> list[Decision]:
        # The user interrupts while decisions are stated, of the merged graph: as a signal does.
        if asked[0].numbered.graph is not graph:
            assert interrupt_search()
        checkpoint()
        return stated(*asked)

    monkeypatch.setattr(joint_blocks, "decisions_of", ended)
    meter.budget = Budget(100)
    found, _ = joint_plan.joint_plan(planner, best)
    assert meter.is_interrupted
    assert found.plan.graph is not graph
    assert found.plan.schedule.quality.cost < unmerged.schedule.quality.cost


def test_sums_in_parts_fill_idle_cores_and_keep_values() -> None:
    split = plan_optimised(
        deep_and_small(), Options(target=TargetRef.parse("v100"), plan="joint"), portfolio=Budget(8)
    )
    tried = [a.cost for a in split.attempts if a.cost is not None]
    quality = split.program.schedule.quality
    # Nine of ten multiprocessors are idle for whole sums, which are all that takes long.
    assert quality.cost == min(tried) < 0.6 * min(tried[:3])
    assert any("sums in" in remark for remark in split.program.remarks)
    assert all(SAME_SUMS in b.space.rules for b in quality.bounds if b.space.rules)
    code = split.backend.generate(split.program)
    assert isinstance(code, SimulatedCode)
    assert first_difference(compare_values(code, Tolerance())) is None


def wide_chain(num_layers: int = 3, side: int = 112) -> Graph:
    """Convolutions whose results are far larger than their weights, on large images: what passes main memory
    decides."""
    b = GraphBuilder()
    y = b.input(1, 32, side, side)
    for _ in range(num_layers):
        weight = b.constant(32, 32, 1, 1, value=0.01)
        y = b.op("Relu", b.op("Conv", y, weight, b.constant(32), shape=(1, 32, side, side)))
    return b.finish(y)


def order_of_trials(graph: Graph, machine: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is planned of a graph where time is limited, and when a search begins, in few trials."""
    planner = planner_of(graph, machine)
    planner.options = replace(planner.options, plan="joint")
    tried: list[str] = []
    plan, of_small = Planner.program, joint_blocks.Blocks.of_small

    def program(self: Planner, recipe: Recipe) -> Program:
        tried.append(f"{recipe.partition}, {recipe.schedule}")
        return plan(self, recipe)

    def searched(*asked: Any) -> Any:
        tried.append("search")
        return of_small(*asked)

    def improved(planner: Planner, best: Any, *_: Any) -> Any:
        tried.append("search")
        return best

    monkeypatch.setattr(Planner, "program", program)
    monkeypatch.setattr(joint_blocks.Blocks, "of_small", searched)
    monkeypatch.setattr(joint_plan, "improved", improved)
    meter = Budget(16, deadline_s=1e6).start()
    joint_plan.joint_plan(planner, joint_plan.begun(planner, LEFT_OPEN, meter))
    return list(dict.fromkeys(tried))


def test_slices_and_pcgc_come_after_what_is_planned_fastest_and_before_any_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried = order_of_trials(diamond(), "a310", monkeypatch)
    fast = [f"{partition}, {schedule}" for partition, schedule in FAST]
    first = ["layerwise, sequential", *fast, "graphturbo, depth-or-breadth-first"]
    assert tried[: len(first)] == first
    assert tried[len(first)] == "pcgc, ios"
    assert "search" not in tried[: len(first)]


def test_no_other_kernels_come_before_a_search_where_one_holds_all_layers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried = order_of_trials(wide_chain(side=28), "a310", monkeypatch)
    assert tried.index("graphturbo{alpha=1.25}, virtual-units") < tried.index("search")
    assert "pcgc, ios" not in tried[: tried.index("search")]


def test_what_is_seen_to_take_longer_is_not_simulated_where_time_is_limited() -> None:
    layers = Recipe(PLAIN_RECIPE.partition, PLAIN_RECIPE.schedule, "longest-liveness")
    for budget in (Budget(1000), Budget(UNLIMITED, deadline_s=1e6)):
        planner = planner_of(wide_chain(), "a310")
        planner.options = replace(planner.options, plan="joint")
        planner.begin(budget)
        fused = planner.program(planner.backend.default_recipe)
        if budget.deadline_s is None:
            whole_ns = cost_of(planner.program(layers))
        else:
            with pytest.raises(Outclassed):
                planner.program(layers)
            # A plan of given blocks is priced all the same.
            partition = planner.partition(layers.partition)
            stages = [single(subgraph.id) for subgraph in partition.subgraphs]
            given = planner.of_stages(partition, stages, layers)
            assert cost_of(given) == whole_ns
        assert cost_of(fused) < whole_ns


def test_a_partition_of_limited_time_leaves_what_a_schedule_takes() -> None:
    planner = planner_of(wide_chain(), "a310")
    planner.options = replace(planner.options, plan="joint")
    planner.begin(Budget(UNLIMITED, deadline_s=100.0).start(lambda: 0.0))
    for first_s, own_s in ((2.0, 97.0), (50.0, 50.0)):
        planner.first_s = first_s
        assert planner._partition_budget().deadline_s == own_s


def test_sums_in_parts_are_found_once_and_come_first_where_they_gain_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planner, num_clocked = planner_of(deep_and_small(), "v100"), itertools.count()
    planner.options = replace(planner.options, plan="joint")
    split = splitting.with_split_sums
    planned: list[tuple[bool, str]] = []
    num_split = 0

    def split_once(layers: Partition, *asked: Any) -> Any:
        nonlocal num_split
        num_split += layers.graph is planner.graph
        return split(layers, *asked)

    def program(self: Planner, recipe: Recipe) -> Program:
        planned.append((self.graph is planner.graph, recipe.partition))
        return made(self, recipe)

    made = Planner.program
    monkeypatch.setattr(Planner, "program", program)
    monkeypatch.setattr(splitting, "with_split_sums", split_once)
    meter = Budget(UNLIMITED, deadline_s=10_000.0).start(num_clocked.__next__)
    found, backend = joint_plan.joint_plan(planner, joint_plan.begun(planner, LEFT_OPEN, meter))
    assert found.plan.recipe.splits_sums
    assert num_split == 1
    first = [(True, "layerwise"), (False, "ago"), (False, "graphturbo{alpha=1.25}")]
    assert list(dict.fromkeys(planned))[:3] == first
    code = backend.generate(found.plan)
    assert isinstance(code, SimulatedCode)
    assert code.cost.time_s * 1e9 == pytest.approx(cost_of(found.plan))


def test_prices_of_sums_leave_time_to_make_their_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    planner, now_s = planner_of(deep_and_small(), "v100"), 0.0
    meter = Budget(UNLIMITED, deadline_s=10.0).start(lambda: now_s)
    price = splitting.cost_as_kernel

    def cost(*asked: Any) -> float:
        nonlocal now_s
        found_ns = price(*asked)
        now_s += 9.0
        return found_ns

    monkeypatch.setattr(splitting, "cost_as_kernel", cost)
    layers, machine = planner.partition("layerwise"), machine_of(planner.backend, planner.options)
    with ending_with(meter), meter.ending_early():
        found = splitting.with_split_sums(layers, machine, meter)
        checkpoint()
        assert found is not None
    assert not meter.cut_off


def test_sums_that_save_most_are_priced_first_and_kept_when_time_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    b = GraphBuilder()
    y = b.input(1, 256, 7, 7)
    for channels in (64, 32):
        weight = b.constant(channels, y.shape[1], 3, 3, value=0.01)
        y = b.op("Conv", y, weight, b.constant(channels), shape=(1, channels, 7, 7), pads=(1, 1, 1, 1))
    planner = planner_of(b.finish(y), "v100")
    machine = machine_of(planner.backend, planner.options)
    layers, priced = planner.partition("layerwise"), list[float]()
    savings = sorted((sums.saved for sums in splitting._candidates(layers, machine)), reverse=True)
    assert len(savings) == 2

    def cost(*_: Any) -> float:
        if priced:
            raise SearchEnded
        priced.append(0.0)
        return 0.0

    monkeypatch.setattr(splitting, "cost_as_kernel", cost)
    found, saved = parts_of_sums(layers, machine, Budget().start())
    ((node, count),) = found.items()
    assert count > 1
    assert node.output.shape == (1, 64, 7, 7), "of more channels, which take longer"
    assert saved >= savings[0]


def test_fewer_parts_are_taken_where_they_cost_least() -> None:
    b = GraphBuilder()
    x = b.input(1, 32, 28, 28)
    weight = b.constant(128, 32, 3, 3, value=0.01)
    y = b.op("Conv", x, weight, b.constant(128), shape=(1, 128, 28, 28), pads=(1, 1, 1, 1))
    planner = planner_of(b.finish(y), "v100")
    machine = machine_of(planner.backend, planner.options)
    layers = planner.partition("layerwise")
    (sums,) = splitting._candidates(layers, machine)
    counts = list(sums.times_filled)
    costs = {
        count: splitting.cost_as_kernel(
            split_sums(sums.layer.graph, {sums.twin: count}).graph, sums.layer.quality, machine
        )
        for count in counts
    }
    assert counts == sorted(counts, reverse=True)
    assert costs[counts[0]] > sums.cost, "the most parts take longer than whole sums: they move too much"
    found, saved = parts_of_sums(layers, machine, Budget().start())
    assert list(found.values()) == [min(costs, key=costs.__getitem__)]
    assert saved == pytest.approx(sums.cost - min(costs.values()))
    assert saved > 0.3 * sums.cost


@pytest.mark.parametrize("planners", [("layerwise", "ios"), ("graphturbo", "greedy")])
def test_named_planners_may_split_sums(planners: tuple[str, str]) -> None:
    partition, schedule = planners
    costs = {}
    for splits in (True, None):
        asked = Options(
            target=TargetRef.parse("v100"), partition=partition, schedule=schedule, split_sums=splits
        )
        planned = plan_optimised(deep_and_small(), asked)
        costs[splits] = planned.program.schedule.quality.cost
        assert planned.program.recipe.splits_sums == bool(splits)
        assert all(
            splits is None or SAME_SUMS in b.space.rules
            for b in planned.program.schedule.quality.bounds
            if b.space.rules
        )
        code = planned.backend.generate(planned.program)
        assert isinstance(code, SimulatedCode)
        assert first_difference(compare_values(code, Tolerance())) is None
        assert planned.program.schedule.quality.bound <= costs[splits]
    assert costs[True] < 0.6 * costs[None]


@pytest.mark.parametrize("plan", ["portfolio", "grid"])
def test_the_best_of_many_recipes_splits_sums_unless_it_must_not(plan: Any) -> None:
    found = plan_optimised(deep_and_small(), Options(target=TargetRef.parse("v100"), plan=plan))
    whole = plan_optimised(
        deep_and_small(), Options(target=TargetRef.parse("v100"), plan=plan, split_sums=False)
    )
    split = [a for a in found.attempts if a.recipe is not None and a.recipe.splits_sums]
    assert found.program.schedule.quality.cost == min(a.cost for a in split if a.cost is not None)
    assert found.program.recipe.splits_sums
    assert found.attempts[: len(whole.attempts)] == whole.attempts
    assert not whole.program.recipe.splits_sums
    assert found.num_simulated > whole.num_simulated, "plans of both graphs count"
    code = found.backend.generate(found.program)
    assert isinstance(code, SimulatedCode)
    assert code.cost.time_s * 1e9 == pytest.approx(found.program.schedule.quality.cost)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"target": "stcp920"}, "split-sums: target 'stcp920' does not launch kernels one by one"),
        ({"target": "v100", "hint": "energy"}, "energy is no sum over them"),
        ({"target": "v100", "plan": "joint"}, "plan joint decides about sums itself"),
        ({"target": "v100", "accuracy": "strict"}, "accuracy strict adds products in the model's order"),
    ],
)
def test_sums_are_split_only_where_that_means_something(asked: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        plan_optimised(deep_and_small(), Options(split_sums=True, **asked))


def test_one_core_is_never_idle() -> None:
    planner = planner_of(deep_and_small(), "jetson-nano")
    layers = planner.partition(PLAIN_RECIPE.partition)
    machine = machine_of(planner.backend, planner.options)
    assert parts_of_sums(layers, machine, Budget().start()) == ({}, 0.0)


def test_strict_accuracy_leaves_sums_whole() -> None:
    planned = plan_optimised(
        deep_and_small(),
        Options(target=TargetRef.parse("v100"), plan="joint", accuracy="strict"),
        portfolio=Budget(7),
    )
    assert not any("sums in" in remark for remark in planned.program.remarks)


def test_a_budget_in_trials_counts_plans_before_a_search_of_one_program() -> None:
    budget = Budget(6)
    options = Options(target=TargetRef.parse("stcp920"), plan="joint", budget=budget)
    planned = plan_optimised(chain(), options, portfolio=budget)
    assert len(planned.attempts) == 6
