"""Local search over cut points and factors: valid plans, values, never slower, the same every time."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from tests.support.accelerator import best_plan, with_local_bytes
from tests.support.graphs import GraphBuilder
from tests.support.integer_networks import integer_feed, integer_network

from tilewright.hardware.machine import Machine
from tilewright.hardware.presets import load_preset
from tilewright.ir.graph import Graph
from tilewright.ir.interpret import run_graph
from tilewright.memory.check_scopes import check_scopes
from tilewright.partition import PartitionProblem, check_partition
from tilewright.partition.analysis import Analysis
from tilewright.partition.base import Partition
from tilewright.partition.check_splits import check_splits
from tilewright.partition.graphturbo import GraphTurbo
from tilewright.partition.graphturbo.regroup import Group, Regrouper
from tilewright.partition.split import Split
from tilewright.planning import Budget
from tilewright.schedule.check_instances import check_instances, check_order
from tilewright.targets.npu.execute import execute
from tilewright.targets.npu.joint_splits import JointSplits
from tilewright.targets.npu.search import joint_moves, moves


@cache
def small_machine() -> Machine:
    """So little room in the cores that networks of a few rows are cut."""
    return with_local_bytes(load_preset("stcp920"), 64)


def regrouper_of(graph: Graph) -> tuple[Regrouper, Partition]:
    planner = GraphTurbo(alpha=1.25)
    problem = PartitionProblem(graph, small_machine(), known=Analysis(graph))
    return Regrouper(problem, planner), planner.solve(problem, Budget())


@pytest.mark.parametrize(
    "seed",
    [1, 2, 3, 6, 7, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (0, 4, 5, *range(8, 16)))],
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
        best_plan(integer_network(1), small_machine(), Budget(max_evaluations=8)) for _ in range(2)
    )
    assert first.tried == second.tried
    assert first.planned.order == second.planned.order


@pytest.mark.parametrize("seed", range(8))
def test_every_move_holds_each_layer_once(seed: int) -> None:
    regrouper, partition = regrouper_of(integer_network(seed))
    groups = regrouper.groups_of(partition)
    everything = sorted(i for g in groups for i in g.layers)
    again = regrouper.partition(groups)
    assert again is not None
    assert again.splits == partition.splits
    tried = 0
    joint = joint_moves(regrouper, groups, JointSplits(regrouper))
    for move in (*moves(regrouper, groups), *joint):
        candidate = move.applied(groups)
        assert sorted(i for g in candidate for i in g.layers) == everything, move
        made = regrouper.partition(candidate)
        if made is not None:
            tried += 1
            assert check_splits(made, recompute_limit=1.25) == ()
    assert tried


def test_blocks_of_the_same_structure_are_changed_together() -> None:
    """A cut of one of three equal blocks is a cut of all three."""
    b = GraphBuilder()
    x = b.input(4, 4, 4, 4)
    for _ in range(3):
        x = b.op("Relu", b.op("MaxPool", b.conv(x, 4), kernel_shape=(1, 1)))
    regrouper, _ = regrouper_of(b.finish(x))
    num_layers = len(regrouper.layers) // 3
    whole = tuple(
        Group(tuple(range(i, i + num_layers)), Split(0, 4)) for i in range(0, 3 * num_layers, num_layers)
    )
    sizes = {len(move.applied(whole)) for move in moves(regrouper, whole) if len(move.removed) == 3}
    assert sizes == {3, 6}, "slices of all three, cuts of all three"


def test_what_waits_for_itself_or_has_two_results_is_no_partition() -> None:
    b = GraphBuilder()
    x = b.conv(b.input(4, 4, 4, 4), 4)
    y = b.op("MaxPool", x, kernel_shape=(1, 1))
    z = b.op("MaxPool", y, kernel_shape=(1, 1))
    graph = b.finish(b.op("Add", z, x))
    regrouper, _ = regrouper_of(graph)
    by_four = Split(0, 4)
    circle = (Group((0, 2), by_four), Group((1,), by_four), Group((3,), by_four))
    assert regrouper.partition(circle) is None
    two = (Group((0, 1), by_four), Group((2,), by_four), Group((3,), by_four))
    assert regrouper.partition(two) is None
    assert regrouper.partition(tuple(Group((i,), by_four) for i in range(4))) is not None
