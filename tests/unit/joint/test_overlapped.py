"""Search over plans of one program: valid plans, values, never slower, the same every time."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from tests.support.accelerator import best_plan, compiled, with_local_bytes
from tests.support.graphs import GraphBuilder
from tests.support.integer_networks import integer_feed, integer_network

from tilewright.artifact.plan import decode_plan, encode_plan
from tilewright.comparison import seeds_of
from tilewright.errors import InternalError
from tilewright.fields import FieldError
from tilewright.hardware.element_types import element_types
from tilewright.hardware.machine import Machine
from tilewright.hardware.presets import load_preset
from tilewright.ir.graph import Graph
from tilewright.ir.interpret import run_graph
from tilewright.joint.launched.content import Kernel, Numbered
from tilewright.joint.overlapped.kernels import Kernels
from tilewright.joint.overlapped.moves import Beginning, Move, Moves, Ways
from tilewright.joint.overlapped.plan import RULES, Nest, NestPlan, Rule, arranged, nests_of
from tilewright.memory.check_scopes import check_scopes
from tilewright.options import Options
from tilewright.partition import PartitionProblem, check_partition
from tilewright.partition.analysis import Analysis
from tilewright.partition.base import kept_as
from tilewright.partition.check_splits import check_splits
from tilewright.partition.graphturbo import GraphTurbo
from tilewright.partition.layers import cut_layers
from tilewright.partition.split import WHOLE, Split, split_of
from tilewright.planner import Planner
from tilewright.planning import Bound, Budget, Meter, Quality, Violation
from tilewright.planning.portfolio import PLAIN_RECIPE, Recipe
from tilewright.program import Program
from tilewright.progress import PhaseClock
from tilewright.schedule.check_instances import check_bindings, check_instances, check_order
from tilewright.schedule.instances import instance_graph
from tilewright.schedule.space import SCHEDULES
from tilewright.targets.base import Improved
from tilewright.targets.npu.execute import execute
from tilewright.targets.npu.nest_judge import recipe_of
from tilewright.targets.npu.plan import SimulatedPlan, simulated_order
from tilewright.targets.npu.recipes import GRAPHTURBO, IN_GROUPS
from tilewright.targets.npu.target import NpuTarget

MEMORY = "longest-liveness"


@cache
def small_machine() -> Machine:
    """So little room in the cores that networks of a few rows are cut."""
    return with_local_bytes(load_preset("stcp920"), 64)


def problem_of(graph: Graph) -> PartitionProblem:
    return PartitionProblem(graph, small_machine(), known=Analysis(graph))


def kernels_of(graph: Graph, machine: Machine | None = None) -> Kernels:
    machine, planner = machine or small_machine(), GraphTurbo(alpha=1.25)
    problem = PartitionProblem(graph, machine, known=Analysis(graph))
    keeping = GraphTurbo(alpha=1.25, rows="keep")
    fits = planner.splitter(problem)
    share = NpuTarget(machine).backend(graph, Options()).nest_judge.share
    return Kernels(Numbered(graph), fits, keeping.splitter(problem), planner.recompute_limit, share)


def layer_by_layer(graph: Graph, split: Split = WHOLE) -> NestPlan:
    numbers = Numbered(graph).numbers
    layers = [tuple(numbers[n] for n in layer.nodes) for layer in cut_layers(graph)]
    return NestPlan((Nest(tuple(Kernel((layer,), split) for layer in layers), "depth-first"),), MEMORY)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "seed",
    [1, 2, 3, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (0, *range(4, 16)))],
)
def test_searched_plans_are_valid_and_compute_the_network(seed: int) -> None:
    graph = integer_network(seed)
    found = best_plan(graph, small_machine(), Budget(max_evaluations=12))
    best = found.planned
    assert check_partition(found.backend.partition_problem, best.partition) == ()
    assert check_splits(best.partition, recompute_limit=1.25) == ()
    assert check_instances(best.instances) == ()
    assert check_order(best.instances, best.order) == ()
    assert check_scopes(best.scopes, best.bindings) == ()
    least_s = min(t for t in found.tried.values() if t is not None)
    assert best.simulation.time_s == pytest.approx(least_s, rel=1e-12)
    assert sum(name.startswith("search") for name in found.tried) <= 12
    feed = integer_feed(graph)
    expected = run_graph(graph, feed)
    for name, array in execute(best.scopes, feed).items():
        np.testing.assert_array_equal(array, expected[name])


def test_the_same_network_is_searched_in_the_same_way() -> None:
    first, second = (
        best_plan(integer_network(3), small_machine(), Budget(max_evaluations=8)) for _ in range(2)
    )
    assert first.tried == second.tried
    assert first.planned.order == second.planned.order


def test_first_layers_of_the_largest_kernel_are_cut_off_in_slices_that_keep_rows() -> None:
    b = GraphBuilder()
    x = b.input(1, 2, 32, 4)
    for _ in range(4):
        x = b.op("Conv", x, b.constant(2, 2, 3, 3), shape=x.shape, pads=(1, 1, 1, 1))
    kernels = kernels_of(b.finish(x), load_preset("stcp920"))
    layers = tuple(layer for kernel in layer_by_layer(b.graph).kernels for layer in kernel.layers)
    whole = NestPlan((Nest((Kernel(layers, WHOLE),), "depth-first"),), MEMORY)
    moves = Moves(kernels, (), Ways([MEMORY], [""]), random.Random(0))
    assert moves.headed(whole, further=0.25) is None
    assert moves.resliced(whole, 2.0) is None

    def lengths(move: Move | None) -> list[tuple[int, str]]:
        assert move is not None
        return [(len(kernel.layers), str(kernel.split)) for kernel in move.plan.kernels]

    half = moves.headed(whole, share=0.5)
    assert lengths(half) == [(2, "axis 2 by 4, rows kept"), (2, "whole")]
    assert half is not None
    assert lengths(moves.headed(half.plan, share=0.25)) == [(1, "axis 2 by 4"), (3, "whole")]
    assert lengths(moves.headed(half.plan, further=0.25)) == [(3, "axis 2 by 4, rows kept"), (1, "whole")]
    assert lengths(moves.resliced(half.plan, 2.0)) == [(2, "axis 2 by 8, rows kept"), (2, "whole")]


def test_a_search_begins_with_the_plans_that_are_there_and_the_ways_to_run() -> None:
    b = GraphBuilder()
    graph = b.finish(b.op("Relu", b.op("Relu", b.input(1, 8))))
    kernels, plan = kernels_of(graph), layer_by_layer(graph)
    late = [f"late {share}" for share in (4, 3, 2, 1)]

    def moves(executions: Sequence[str]) -> Moves:
        others = [NestPlan((Nest(plan.kernels, rule),), "") for rule in RULES]
        return Moves(kernels, others, Ways([MEMORY, *late], executions, late), random.Random(0))

    def steps(beginning: Sequence[Beginning]) -> list[str]:
        return [move.what for step in beginning if (move := step(plan)) is not None]

    run, placed = [f"run with {how}" for how in ("nothing resident", "kept")], f"values placed by {MEMORY}"
    others = [f"kernels of plan {number}" for number in range(4)]
    shared = ["all shared", "all shared as readers want"]
    first = ["values placed by late 4", "1 groups of cores"]
    last = [f"values placed by {memory}" for memory in (late[1], late[-1])]
    program = moves(["", "kept"])
    assert steps(program.beginning()) == [*run, *others, *shared, *run, placed, *first, *last]
    launched = moves([""])
    assert steps(launched.beginning()) == [*run[:1], *shared, *run[:1], placed, *first[:1]]
    assert steps(launched.opening()) == steps(launched.beginning())


def test_with_several_samples_places_of_wholes_are_none_of_slices() -> None:
    """Where values lie best depends on the slices, and how a program runs gains less than these."""
    b = GraphBuilder()
    graph = b.finish(b.op("Relu", b.input(16, 8)))
    plan = layer_by_layer(graph)
    late = [f"late {share}" for share in (4, 3, 2, 1)]

    def moves(executions: Sequence[str]) -> Moves:
        others = [NestPlan((Nest(plan.kernels, rule),), "") for rule in RULES]
        return Moves(kernels_of(graph), others, Ways([MEMORY, *late], executions, late), random.Random(0))

    def steps(moves: Moves, best: NestPlan) -> list[str]:
        found = [move.what for step in moves.beginning() if (move := step(best)) is not None]
        return [what for what in found if what.startswith(("kernels", "largest", "values", "1 groups"))]

    program = moves(["", "kept"])
    others = [f"kernels of plan {number}" for number in range(4)]
    placed = [f"values placed by {memory}" for memory in (MEMORY, late[0])]
    last = [*placed, *(f"values placed by {memory}" for memory in (late[1], late[-1])), "1 groups of cores"]
    assert program.beginning()[0] == program.another, "before it is run otherwise"
    assert steps(program, plan) == [*others, *placed, "largest: axis 0 by 4", *last]
    few = program.by_samples(replace(plan, memory=late[0]), 4, memory=MEMORY)
    assert few is not None
    assert few.plan.memory == MEMORY
    further = ["largest: axis 0 by 4", "largest: axis 0 by 8", "largest: axis 0 by 16"]
    assert steps(program, few.plan) == [*placed, *further, *last], "where few slices gain, more may"
    launched = moves([""])
    further = ["largest: axis 0 by 8", "largest: axis 0 by 4", "largest: axis 0 by 16"]
    assert steps(launched, plan) == [*placed, *further]


def test_less_of_the_buffers_is_tried_from_a_limit_on() -> None:
    plan = NestPlan((), "late 2")
    moves = Moves(
        kernels_of(integer_network(3)),
        (),
        Ways([MEMORY], [""], [f"late {s}" for s in (4, 2, 1)]),
        random.Random(0),
    )

    def memory(plan: NestPlan, further: int) -> str | None:
        move = moves.limited(plan, further)
        return None if move is None else move.plan.memory

    assert [memory(plan, further) for further in (1, -1)] == ["late 1", None]
    assert [memory(replace(plan, memory="late 1"), further) for further in (1, -1)] == [None, "late 2"]
    assert [memory(replace(plan, memory=other), 1) for other in ("late 4", MEMORY)] == [None, None]


@pytest.mark.parametrize(("num_samples", "split"), [(1, None), (4, "axis 0 by 4")])
def test_a_search_begins_with_slices_of_samples_where_there_are_several(
    num_samples: int, split: str | None
) -> None:
    b = GraphBuilder()
    x = b.input(num_samples, 2, 8, 8)
    for _ in range(2):
        x = b.op("Relu", x)
    kernels = kernels_of(b.finish(x), load_preset("stcp920"))
    layers = tuple(layer for kernel in layer_by_layer(b.graph).kernels for layer in kernel.layers)
    whole = NestPlan((Nest((Kernel(layers, WHOLE),), "depth-first"),), MEMORY)
    moves = Moves(kernels, (), Ways([MEMORY], [""]), random.Random(0))
    moved = [moves.by_samples(whole, number) for number in (8, 4)]
    assert [move and str(move.plan.kernels[0].split) for move in moved] == [None, split]


def test_layers_with_results_of_several_ranks_are_in_no_slices_that_keep_rows() -> None:
    b = GraphBuilder()
    shape = (1, 2, 32, 4)
    x = b.op("Conv", b.input(*shape), b.constant(2, 2, 3, 3), shape=shape, pads=(1, 1, 1, 1))
    ends = [
        b.op("Conv", x, b.constant(2, 2, 3, 3), shape=shape, pads=(1, 1, 1, 1)),
        b.op("ReduceSum", x, b.integers(1, 2), shape=(1, 4), keepdims=0),
    ]
    plan, kernels = layer_by_layer(b.finish(*ends)), kernels_of(b.graph, load_preset("stcp920"))
    layers = tuple(layer for kernel in plan.kernels for layer in kernel.layers)
    assert kernels.in_rows(layers, 4) is None


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(8))
def test_every_move_holds_each_node_once_and_its_plan_has_an_order(seed: int) -> None:
    graph = integer_network(seed)
    kernels, problem = kernels_of(graph), problem_of(graph)
    types = element_types(small_machine())
    plan = layer_by_layer(graph)
    others = tuple(Kernel((layer,), WHOLE) for k in plan.kernels for layer in k.layers)
    pool = [replace(plan, nests=(Nest(others, "breadth-first"),), num_groups=2)]
    moves = Moves(
        kernels, pool, Ways([MEMORY, "largest-size"], ["", "resident_weights=true"]), random.Random(seed)
    )
    other = moves.another(plan)
    assert other is not None
    assert other.plan.num_groups == 2, "it brings its groups of cores along"
    made = 0
    for _ in range(60):
        move = moves.draw(plan, [1.0] * len(plan.kernels))
        if move is None:
            continue
        nodes = sorted(i for kernel in move.plan.kernels for i in kernel.nodes)
        assert nodes == list(range(len(graph.nodes))), move.what
        try:
            found = arranged(problem, kernels.numbered, move.plan)
        except ValueError:
            continue  # kernels wait for each other
        made += 1
        plan = found.plan
        wrong = [v for v in check_partition(problem, found.partition) if v.rule != "cost"]
        assert wrong == []  # its cost is not stated yet
        assert check_splits(found.partition, recompute_limit=1.25) == ()
        instances = instance_graph(kept_as(found.partition, types))
        stages = found.stages(instances, 8)
        assert len(stages) == sum(split.num_instances for split in found.partition.splits)
        assert sorted(i for n in found.plan.nests for k in n.kernels for i in k.nodes) == nodes
    assert made > 10


def test_kernels_of_the_same_structure_are_changed_together() -> None:
    """A cut of one of three equal blocks is mostly a cut of all three."""
    b = GraphBuilder()
    x = b.input(4, 4, 4, 4)
    for _ in range(3):
        x = b.op("Relu", b.op("MaxPool", b.conv(x, 4), kernel_shape=(1, 1)))
    graph = b.finish(x)
    kernels = kernels_of(graph)
    layers = [k.layers[0] for k in layer_by_layer(graph).kernels]
    size = len(layers) // 3
    whole = tuple(Kernel(tuple(layers[i : i + size]), Split(0, 4)) for i in range(0, 3 * size, size))
    plan = NestPlan((Nest(whole, "depth-first"),), MEMORY)
    moves = Moves(kernels, [], Ways([MEMORY], [""]), random.Random(0))
    sizes = set()
    for _ in range(300):
        move = moves.draw(plan, [1.0] * 3)
        if move is not None and "cut after" in move.what:
            sizes.add(len(move.plan.kernels))
    assert {4, 6} <= sizes <= {4, 5, 6}, "a cut of one, cuts of all three"


def test_what_waits_for_itself_is_no_plan() -> None:
    b = GraphBuilder()
    x = b.conv(b.input(4, 4, 4, 4), 4)
    y = b.op("MaxPool", x, kernel_shape=(1, 1))
    z = b.op("MaxPool", y, kernel_shape=(1, 1))
    graph = b.finish(b.op("Add", z, x))
    first, second, third, last = (k.layers[0] for k in layer_by_layer(graph).kernels)
    circle = (Kernel((first, third)), Kernel((second,)), Kernel((last,)))
    plan = NestPlan((Nest(circle, "depth-first"),), MEMORY)
    with pytest.raises(ValueError, match="cycle"):
        arranged(problem_of(graph), Numbered(graph), plan)
    nests = tuple(
        Nest((Kernel((x,)), Kernel((y,))), "depth-first") for x, y in ((first, third), (second, last))
    )
    with pytest.raises(ValueError, match="wait for each other"):
        arranged(problem_of(graph), Numbered(graph), NestPlan(nests, MEMORY))


def test_kernels_with_several_results_are_cut_where_all_of_these_can_be() -> None:
    b = GraphBuilder()
    x = b.conv(b.input(4, 4, 4, 4), 4)
    y = b.op("MaxPool", x, kernel_shape=(1, 1))
    graph = b.finish(b.op("Add", b.op("MaxPool", y, kernel_shape=(1, 1)), x))
    kernels = kernels_of(graph)
    first, second, *_ = (k.layers[0] for k in layer_by_layer(graph).kernels)
    assert len(kernels.outputs((first, second))) == 2
    assert kernels.fitting(Kernel((first, second), split_of([(0, 4)]))) is not None
    assert kernels.fitting(Kernel((first, second), split_of([(0, 8)]))) is None, "there are four samples"


@pytest.mark.parametrize("order", ["depth-first", "breadth-first", "min-delta"])
@pytest.mark.parametrize("seed", [2, 3])
def test_schedules_taken_apart_into_nests_run_in_the_same_order(seed: int, order: Rule) -> None:
    graph = integer_network(seed)
    schedule = compiled(graph, small_machine(), Recipe("graphturbo", order, MEMORY)).program.schedule
    plan = NestPlan(nests_of(Numbered(graph), schedule, order), MEMORY)
    found = arranged(problem_of(graph), Numbered(graph), plan)
    instances = instance_graph(kept_as(found.partition, element_types(small_machine())))
    named = {s.id: tuple(n.name for n in s.nodes) for s in found.partition.subgraphs}
    again = [(named[i.subgraph_id], i.index) for i in found.instances(instances)]
    before = {s.id: tuple(n.name for n in s.nodes) for s in schedule.partition.subgraphs}
    assert sorted(again) == sorted((before[i.subgraph_id], i.index) for i in schedule.instances())
    if order == "breadth-first":
        assert again == [(before[i.subgraph_id], i.index) for i in schedule.instances()]


def test_a_partition_is_a_seed_depth_first_and_with_branches_in_turns() -> None:
    b = GraphBuilder()
    x = b.input(1, 4, 4, 4)
    ends = [b.conv(b.conv(x, 4, name=f"{side}1"), 4, name=f"{side}2") for side in ("a", "b")]
    graph, target = b.finish(b.op("Concat", *ends, shape=(1, 8, 4, 4), axis=1)), NpuTarget(small_machine())
    backend = target.backend(graph, Options())
    judge = backend.nest_judge
    planner = Planner(graph, target, backend, Options(), PhaseClock(None, None))
    orders = []
    for seed in judge.seeds_of(planner.partition("layerwise")):
        schedule, *_ = judge.schedule(replace(seed, memory=MEMORY))
        made = [schedule.partition.subgraphs[i.subgraph_id].outputs[0].name for i in schedule.instances()]
        orders.append("".join(name[:2] for name in made if name[0] in "ab"))
    assert orders == ["b1b2a1a2", "a1b1a2b2"]


RECIPES = [
    GRAPHTURBO,
    Recipe("layerwise", "greedy", MEMORY),
    Recipe("graphturbo{rows=keep}", "breadth-first", MEMORY),
    Recipe("graphturbo{side_inputs=true}", "exact-order{max_states=100}", MEMORY),
    Recipe("graphturbo", "min-delta", "longest-liveness{pack=next-fit}", "resident_weights=true"),
    *(Recipe("graphturbo", order, MEMORY, "resident_weights=true") for order in IN_GROUPS),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_a_recipe_of_the_portfolio_is_a_plan_of_the_search_that_costs_the_same(recipe: Recipe) -> None:
    exact_plan(3, recipe)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_each_recipe_of_the_portfolio_is_a_plan_of_the_search(seed: int) -> None:
    graph = integer_network(seed)
    backend = NpuTarget(small_machine()).backend(graph, Options())
    planner = Planner(graph, NpuTarget(small_machine()), backend, Options(), PhaseClock(None, None))
    for recipe in backend.recipes(planner.partition):
        exact_plan(seed, recipe)


def exact_plan(seed: int, recipe: Recipe) -> None:
    """A recipe's plan, taken apart and judged, costs what it does, and a seed of it runs on its cores."""
    graph, target = integer_network(seed), NpuTarget(small_machine())
    backend = target.backend(graph, Options())
    program = Planner(graph, target, backend, Options(), PhaseClock(None, None)).program(recipe)
    judge, schedule = backend.nest_judge, program.schedule
    plan = judge.plan_of(schedule, recipe)
    assert plan is not None
    judged = judge(plan, float("inf"))
    assert judged is not None
    assert judged.cost == schedule.quality.cost
    again, *_ = judge.schedule(judged.plan)
    cores = [[(g.first_core, g.num_cores) for s in x.stages for g in s.groups] for x in (schedule, again)]
    assert cores[0] == cores[1]
    assert list(judge.seeds_of(schedule)) == [replace(plan, memory="", execution="")]


def test_neither_the_start_nor_the_best_plan_of_a_search_is_simulated_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A simulation of many samples takes as long as several looks for better plans."""
    graph, target = integer_network(3), NpuTarget(small_machine())
    backend = target.backend(graph, Options())
    planner = Planner(graph, target, backend, Options(), PhaseClock(None, None))
    start = planner.program(PLAIN_RECIPE)
    simulated: list[str] = []

    def counted(*args: object, **named: object) -> object:
        simulated.append(str(args[5]))
        return simulated_order(*args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr("tilewright.targets.npu.backend.simulated_order", counted)
    trials = Budget(6)
    found = backend.improve(start, planner.ordered, trials, seeds=[planner.partition("graphturbo")])
    assert found.program is not start
    assert 0 < len(simulated) <= 6, "trials alone"
    known = len(simulated)
    backend.plan(found.program.schedule, found.program.recipe)
    assert len(simulated) == known


def test_a_search_leaves_time_to_check_a_plan_of_more_runs_than_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph, target = integer_network(3), NpuTarget(small_machine())
    backend = target.backend(graph, Options())
    planner = Planner(graph, target, backend, Options(), PhaseClock(None, None))
    start = planner.program(PLAIN_RECIPE)
    now_s, checks = 0.0, list[SimulatedPlan]()

    def check(planned: SimulatedPlan, recipe: Recipe) -> None:
        nonlocal now_s
        now_s += 2.0
        checks.append(planned)

    monkeypatch.setattr(Budget, "start", lambda self, **_: Meter(self, lambda: now_s))
    monkeypatch.setattr(backend, "_require_right", check)
    backend.plan(start.schedule, start.recipe)
    (first,) = checks
    num_runs = len(first.simulation.runs)
    assert [backend._more_to_check_s(num_runs * times) for times in (0, 1, 3)] == [-2.0, 0.0, 4.0]
    seeds = [planner.partition("graphturbo")]
    found = [len(backend.improve(start, planner.ordered, Budget(6)).attempts)]
    for more_s in (50.0, 200.0):
        other = target.backend(graph, Options())
        monkeypatch.setattr(other, "_more_to_check_s", lambda _, more_s=more_s: more_s)
        monkeypatch.setattr(other, "_require_right", check)
        searched = other.improve(start, planner.ordered, Budget(6, deadline_s=100.0), seeds=seeds)
        found.append(len(searched.attempts))
    assert found == [6, 6, 0], "what is left is less than the check takes"


@pytest.mark.parametrize(("num_samples", "first"), [(1, []), (16, ["alpha=0.8", "capacity_bytes=2560KiB"])])
def test_with_several_samples_kernels_for_less_memory_are_the_first_that_a_search_is_given(
    num_samples: int, first: list[str]
) -> None:
    b = GraphBuilder()
    graph = b.finish(b.conv(b.conv(b.input(num_samples, 4, 8, 8), 4), 4))
    target = NpuTarget(load_preset("stcp920"))
    backend = target.backend(graph, Options())
    planner = Planner(graph, target, backend, Options(), PhaseClock(None, None))
    assert len([*itertools.islice(seeds_of(planner, Budget(8).start(), with_others=True), 3)]) == 3
    names = [f"graphturbo{{{options}}}" for options in first] or ["layerwise"]
    assert [*planner._partitions][: len(names)] == names


def test_plans_that_run_alike_are_simulated_once() -> None:
    """A nest that is cut runs in the same order: the same cost, and no trial."""
    graph = integer_network(3)
    judge = NpuTarget(small_machine()).backend(graph, Options()).nest_judge
    plan = layer_by_layer(graph)
    (nest,) = plan.nests
    halves = tuple(Nest(part, nest.rule) for part in (nest.kernels[:1], nest.kernels[1:]))
    first, second = (judge(p, float("inf")) for p in (plan, replace(plan, nests=halves)))
    assert first is not None
    assert second is not None
    assert (first.is_known, second.is_known) == (False, True)
    assert (first.cost, first.losses_s) == (second.cost, second.losses_s)
    assert len(second.plan.nests) == 2, "it is another plan, which moves may change otherwise"


def test_results_of_different_ranks_are_cut_apart_only() -> None:
    b = GraphBuilder()
    x = b.conv(b.input(4, 4, 4, 4), 4)
    flat = b.op("Flatten", b.op("MaxPool", x, kernel_shape=(1, 1)), shape=(4, 64))
    graph = b.finish(b.op("Relu", flat), x)
    kernels = kernels_of(graph)
    layers = tuple(k.layers[0] for k in layer_by_layer(graph).kernels)
    assert kernels.fitting(Kernel(layers, split_of([(0, 4)]))) is None


def test_each_plan_that_a_search_publishes_was_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that a checker refuses is an internal error, not an answer."""
    from tilewright.targets.npu import backend

    found: list[float] = []

    def refuse(planned: SimulatedPlan, machine: Machine) -> tuple[Violation, ...]:
        found.append(planned.simulation.time_s)
        return (Violation("wrong", "by order of the test"),)

    target = NpuTarget(small_machine())
    graph, options = integer_network(3), Options(budget=Budget(8))
    known = target.backend(graph, options)
    planner = Planner(graph, target, known, options, PhaseClock(None, None))
    start = planner.program(GRAPHTURBO)
    monkeypatch.setattr(backend, "check_plan", refuse)
    with pytest.raises(InternalError, match="by order of the test"):
        known.improve(start, planner.ordered, Budget(8))
    assert min(found) * 1e9 < start.schedule.quality.cost, "a better plan than the first was looked at"


@pytest.mark.parametrize(("check_s", "left_s"), [(5.0, 4.0), (98.0, 2.0), (101.0, None)])
def test_the_bound_of_a_program_has_the_time_that_its_check_leaves(
    check_s: float, left_s: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tilewright.targets.npu import backend

    now_s, asked = 0.0, []

    def searched(judge: object, best: Program, *_: object) -> Improved:
        nonlocal now_s
        now_s += check_s
        return Improved(best)

    def bounded(*question: Meter | object) -> None:
        meter = question[-1]
        assert isinstance(meter, Meter)
        asked.append(meter.left_s)

    monkeypatch.setattr(Budget.start, "__defaults__", (lambda: now_s,))
    monkeypatch.setattr(backend, "improved", searched)
    monkeypatch.setattr(backend, "bound_in_time", bounded)
    monkeypatch.setattr(backend, "_SHARE_OF_BOUND", 0.04)
    target = NpuTarget(small_machine())
    graph, options = integer_network(3), Options(plan="joint")
    planner = Planner(graph, target, target.backend(graph, options), options, PhaseClock(None, None))
    start = planner.program(GRAPHTURBO)
    planner.backend.improve(start, planner.ordered, Budget(8, deadline_s=100.0))
    assert asked == ([] if left_s is None else [pytest.approx(left_s)])


def test_a_partitioner_of_a_program_has_no_more_evaluations_than_its_plan_has_trials() -> None:
    graph, target = integer_network(3), NpuTarget(small_machine())
    counts = []
    for budget in (None, Budget(4)):
        options = Options(plan="joint", budget=budget)
        planner = Planner(graph, target, target.backend(graph, options), options, PhaseClock(None, None))
        counts.append(planner.partition("pcgc").provenance.num_evaluations)
    assert counts[0] > 4 >= counts[1]


def test_cores_share_a_second_result_of_another_shape_in_equal_parts() -> None:
    b = GraphBuilder()
    _, larger = b.ops(
        "Split", [b.input(1, 8, 27, 27), b.integers(2, 6)], [(1, 2, 27, 27), (1, 6, 27, 27)], axis=1
    )
    graph = b.finish(b.op("Relu", larger))
    whole = Kernel(((0,),))
    assert kernels_of(graph).shared(whole, (2,)) == whole


def test_cores_share_odd_extents_in_parts_that_are_nearly_equal() -> None:
    """Of 27 rows and columns equal parts leave channels alone, which fill no tile of the matrix unit."""
    b = GraphBuilder()
    x = b.op("Relu", b.conv(b.input(1, 16, 27, 27), 32))
    graph = b.finish(b.op("Relu", b.conv(x, 32)))
    machine = load_preset("stcp920")
    backend = NpuTarget(machine).backend(graph, Options())
    judge = backend.nest_judge
    even = layer_by_layer(graph)
    rows = Moves(kernels_of(graph), (), Ways([], []), random.Random(0)).shared(even, (2,))
    costs = []
    for plan in (even, rows):
        schedule, placed, _ = judge.schedule(plan)
        planned = backend.plan(schedule, recipe_of(placed))  # checked
        costs.append(planned.simulation.busy_s["MME"])
    assert [split.cores for split in schedule.splits] == [(1, 1, 7, 1)] * 2
    priced, _, _ = judge.schedule(rows)
    quality = Quality.of(1.0, Bound(0.0, SCHEDULES, "test"), unit="ns")
    program = Program(graph, priced.partition, replace(priced, quality=quality), Options())
    document = json.loads(json.dumps(encode_plan(program)))
    read = decode_plan(document, graph, Options())
    assert read.partition.splits == read.schedule.splits == schedule.splits
    document["partition"]["cores"][0].pop()
    with pytest.raises(FieldError, match="no subgraph with parts along all axes"):
        decode_plan(document, graph, Options())
    assert 3 * costs[1] < costs[0]
    bindings = planned.bindings
    assert check_bindings(planned.instances, bindings) == ()
    for wrong in ((1, 1, 8, 1), (1, 1, 7, 2)):
        other = replace(bindings, bindings=(wrong, *bindings.bindings[1:]))
        assert check_bindings(planned.instances, other) != ()
    equal = replace(planned.instances, splits=(WHOLE,) * 2)
    assert check_bindings(equal, bindings) != (), "nothing asks for parts that differ"
    feed = {graph.inputs[0].name: np.ones((1, 16, 27, 27), np.float32)}
    expected = run_graph(graph, feed)
    for name, array in execute(planned.scopes, feed).items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-5)


def test_a_search_from_a_plan_without_searched_mappings_may_keep_weights_on_the_chip() -> None:
    """Its mappings stay those of the rule, as its backend's are."""
    graph, target, options = integer_network(3), NpuTarget(small_machine()), Options(budget=Budget(6))
    execution, backend = target.backend(graph, options).without_searches()
    planner = Planner(graph, target, backend, options, PhaseClock(None, None))
    start = planner.program(Recipe("layerwise", "sequential", MEMORY, execution))
    found = backend.improve(start, planner.ordered, Budget(6))
    assert any(f"{execution}, resident_weights=true" in attempt.what for attempt in found.attempts)
    assert found.program.recipe.execution.startswith(execution)
