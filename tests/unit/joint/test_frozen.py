"""Joint searches with frozen decisions: they reproduce the published searches, and change nothing else."""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import isclose

import pytest
from tests.support.accelerator import with_local_bytes
from tests.support.graphs import GraphBuilder
from tests.support.launched_kernels import fork, product, siblings
from tests.unit.joint.test_proof import GRAPHS

from tilewright.api import simulate
from tilewright.compiler import Planned, plan_optimised
from tilewright.cost.base import Estimate
from tilewright.errors import UsageError
from tilewright.hardware.presets import load_preset
from tilewright.ir.graph import Graph, Value
from tilewright.joint.launched.content import Numbered
from tilewright.joint.launched.frozen import Frozen, FrozenProof, search_frozen
from tilewright.joint.launched.moves import Moves
from tilewright.joint.launched.pricer import LaunchedPricer, Machine
from tilewright.joint_blocks import frozen_of
from tilewright.joint_plan import begun
from tilewright.options import AUTO, Choice, Options
from tilewright.partition.base import Partition
from tilewright.partition.split import WHOLE, Split
from tilewright.planner import Planner, machine_of
from tilewright.planning import UNLIMITED, Budget, Status
from tilewright.planning.portfolio import Recipe
from tilewright.progress import PhaseClock
from tilewright.schedule.base import Stage, merges
from tilewright.schedule.space import within_blocks
from tilewright.target_ref import TargetRef
from tilewright.targets import find_target
from tilewright.targets.npu.target import NpuTarget

MACHINES = ("v100", "jetson-nano", "a310")


def planned(
    graph: Graph, machine: str, *only: Choice, partition: str = "auto", schedule: str = "auto"
) -> Planned:
    plan = "joint" if only else "portfolio"
    options = Options(
        target=TargetRef.parse(machine), plan=plan, only=only, partition=partition, schedule=schedule
    )
    return plan_optimised(graph, options)


def cells() -> Graph:
    """Two cells of branches of several products behind each other."""
    b = GraphBuilder()
    x = b.input(64, 64)
    for _ in range(2):
        left = product(b, product(b, x, 64, 64, 64), 64, 64, 64)
        right = b.op("Tanh", product(b, x, 64, 64, 64))
        x = b.op("Add", b.op("Add", left, right), b.op("Sigmoid", x))
    return b.finish(x)


STAGED = {**GRAPHS, "cells": cells}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", STAGED)
@pytest.mark.parametrize(
    ("only", "strategy"), [(("stages",), "parallel"), (("stages", "merges"), "both"), (("merges",), "merge")]
)
def test_with_stages_and_merges_alone_the_proven_cost_is_that_of_ios(
    only: tuple[Choice, ...], strategy: str, name: str, machine: str
) -> None:
    graph = STAGED[name]()
    joint = planned(graph, machine, *only).program.schedule.quality
    ios = f"ios{{strategy={strategy}}}"
    published = planned(graph, machine, partition="layerwise", schedule=ios).program.schedule.quality
    assert isclose(joint.cost, published.cost, rel_tol=1e-12)
    # On the other machines results may wait for the places of values that died, which blocks do not say.
    assert joint.status is Status.OPTIMAL or machine != "v100"
    assert joint.bounds[-1].source == "shortest path"


def convolutions() -> Graph:
    b = GraphBuilder()
    x = b.input(1, 64, 28, 28)
    for _ in range(3):
        x = b.op("Relu", conv(b, x, 64, 3))
    return b.finish(x)


def branches() -> Graph:
    b = GraphBuilder()
    x = conv(b, b.input(1, 128, 14, 14), 128, 1)
    both = b.op("Add", conv(b, conv(b, x, 128, 1), 128, 3), conv(b, x, 128, 1))
    return b.finish(b.op("Relu", conv(b, both, 128, 1)))


def conv(b: GraphBuilder, x: Value, channels: int, side: int) -> Value:
    pads = (side // 2,) * 4
    weights, shape = b.constant(channels, channels, side, side), tuple(x.shape)
    attributes = {"kernel_shape": (side, side), "pads": pads, "strides": (1, 1)}
    return b.op("Conv", x, weights, shape=shape, **attributes)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("make", [convolutions, branches])
def test_with_kernels_cut_again_alone_the_cost_is_that_of_the_exact_cutting(
    make: Callable[[], Graph],
) -> None:
    """By the prices that PCGC asks for; by simulated ones it is no more."""
    target = NpuTarget(with_local_bytes(load_preset("a310"), 2048))
    given, cut = (f"pcgc{{recut={recut},start=rules-alone}}" for recut in ("none", "exact"))
    options = Options(plan="joint", only=("kernels",), partition=given)
    backend = target.backend(make(), options)
    planner = Planner(backend.partition_problem.graph, target, backend, options, PhaseClock(None, None))
    recipe = begun(planner, Recipe(given, AUTO, AUTO)).recipe

    def fused(partition: Partition, stages: Sequence[Stage], splits: Sequence[Split]) -> Estimate:
        return functools.reduce(Estimate.then, map(backend.costs.fused, partition.subgraphs))

    simulated = machine_of(backend, options)
    costs = []
    for machine in (replace(simulated, price=fused, launch_ns=0.0), simulated):
        frozen, _, found = _searched(planner, recipe, machine)
        costs.append(found.cost)
    published = planner.partition(cut)
    assert len(published.subgraphs) > len(frozen.partition.subgraphs)
    assert isclose(costs[0], published.quality.cost, rel_tol=1e-12)
    assert costs[1] <= planner.schedule(published, replace(recipe, partition=cut)).quality.cost


def _searched(
    planner: Planner, recipe: Recipe, machine: Machine
) -> tuple[Frozen, LaunchedPricer, FrozenProof]:
    """What is frozen, what its blocks cost on a machine, and the best that is left."""
    numbered = Numbered(planner.graph)
    frozen = frozen_of(planner, numbered)
    assert frozen is not None
    pricer = frozen.pricer(numbered, machine)
    for content in frozen.contents:
        pricer.add(content)
    problem = planner.schedule_problem(frozen.partition, recipe)
    meter = Budget(UNLIMITED).start()
    found = search_frozen(frozen, pricer, problem, Moves(pricer, 4), meter, lambda: False)
    assert found is not None
    return frozen, pricer, found


def test_stages_that_take_more_than_their_kernels_say_are_given_up_and_nothing_is_proven() -> None:
    options = Options(target=TargetRef.parse("v100"), plan="joint", only=("stages",))
    target = find_target(options.target)
    b = GraphBuilder()
    x = product(b, b.input(64, 128), 64, 128, 128)  # at the ends of a network blocks are simulated at once
    both = [product(b, product(b, x, 64, 128, 128), 64, 128, 128) for _ in range(2)]
    backend = target.backend(b.finish(*both), options)
    planner = Planner(backend.partition_problem.graph, target, backend, options, PhaseClock(None, None))
    recipe = begun(planner, Recipe("layerwise", "sequential", AUTO)).recipe
    simulated = machine_of(backend, options)

    def slowly(partition: Partition, stages: Sequence[Stage], splits: Sequence[Split]) -> Estimate:
        found = simulated.price(partition, stages, splits)
        return found if len(stages[0].groups) == 1 else replace(found, time_ns=2 * found.time_ns)

    answers = []
    for machine in (simulated, replace(simulated, price=slowly)):
        frozen, pricer, found = _searched(planner, recipe, machine)
        answers.append((found, sum(map(pricer.cost, frozen.contents))))
    (staged, alone), (given_up, _) = answers
    assert staged.cost < alone
    assert staged.bound is not None
    assert isclose(given_up.cost, alone, rel_tol=1e-12)
    assert given_up.bound is None


@pytest.mark.sampled(2)
@pytest.mark.parametrize("only", ["kernels", "slices", "stages", "lanes", "merges"])
def test_what_is_frozen_stays_as_it_is(only: Choice) -> None:
    given = planned(siblings(), "v100", partition="pcgc", schedule="sequential").program
    program = planned(siblings(), "v100", only, partition="pcgc").program
    assert program.schedule.quality.cost <= given.schedule.quality.cost
    if only == "merges":
        return
    stages = program.schedule.stages
    assert not any(map(merges, stages))
    assert only == "stages" or all(len(stage.groups) == 1 for stage in stages)
    assert only == "lanes" or not any(group.inside for stage in stages for group in stage.groups)
    assert only == "slices" or all(split == WHOLE for split in program.schedule.splits)
    numbered = Numbered(program.graph)
    kernels, whole = (
        (
            {frozenset(k.nodes) for c in numbered.contents(p.schedule) for k in c.kernels}
            for p in (program, given)
        )
        if program.graph is given.graph
        else (set(), set())
    )
    assert only == "kernels" or kernels == whole


def test_open_kernels_take_blocks_of_all_planners_that_leave_the_rest() -> None:
    program = planned(siblings(), "v100", "kernels").program
    assert all(len(stage.groups) == 1 for stage in program.schedule.stages)
    assert all(split == WHOLE for split in program.schedule.splits)
    whole = planned(siblings(), "v100", partition="pcgc", schedule="sequential").program
    assert program.schedule.quality.cost <= whole.schedule.quality.cost
    assert program.schedule.quality.status is Status.OPTIMAL
    assert "leave slices, stages, lanes, merges, sums, tilings as given" in str(
        program.schedule.quality.among
    )


def test_a_budget_that_ends_leaves_the_given_plan() -> None:
    options = Options(target=TargetRef.parse("v100"), plan="joint", only=("stages",))
    found = plan_optimised(cells(), options, portfolio=Budget(0))
    assert found.program.schedule.quality.status is not Status.OPTIMAL
    given = planned(cells(), "v100", partition="layerwise", schedule="sequential").program
    assert found.program.schedule.quality.cost == given.schedule.quality.cost


def test_what_cannot_be_frozen_is_said() -> None:
    with pytest.raises(UsageError, match="only 'tiles': expected one of kernels, slices"):
        Options(plan="joint", only="tiles")  # type: ignore[arg-type]  # parsed
    with pytest.raises(UsageError, match="only is for plan joint"):
        Options(only=("stages",))
    with pytest.raises(UsageError, match="only names sums, which no-split-sums leaves whole"):
        simulate(b"", "v100", recipe="joint", only="stages,sums", split_sums=False)
    with pytest.raises(UsageError, match="only: target 'stcp920' does not launch kernels one by one"):
        planned(fork(), "stcp920", "stages")
    with pytest.raises(UsageError, match="only: objective 'energy' is no sum over blocks; take latency"):
        plan_optimised(
            fork(), Options(target=TargetRef.parse("v100"), plan="joint", only=("stages",), hint="energy")
        )
    with pytest.raises(UsageError, match="--only is for --recipe joint"):
        simulate(b"", "v100", only="stages")


def test_where_a_network_is_cut_into_blocks_the_bound_is_of_stages_within_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tilewright.joint.launched import frozen

    monkeypatch.setattr(frozen, "MOST_IN_BLOCK", 3)
    joint = planned(cells(), "v100", "stages").program.schedule.quality
    ios = "ios{strategy=parallel,max_block_size=3}"
    published = planned(cells(), "v100", partition="layerwise", schedule=ios).program.schedule.quality
    assert isclose(joint.cost, published.cost, rel_tol=1e-12)
    assert within_blocks(3) in joint.bounds[-1].space.rules
