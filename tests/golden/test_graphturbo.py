"""ResNet-50 at 16 images per cluster, as GraphTurbo's paper and the chip's vendor cut it."""

# mypy: disable-error-code="arg-type, return-value"

from functools import cache

import pytest

from tilewright import zoo
from tilewright.frontend.onnx import load_onnx
from tilewright.hardware.presets import load_preset
from tilewright.ir.graph import Graph
from tilewright.partition import PARTITIONERS, PartitionProblem, check_partition
from tilewright.partition.base import Partition
from tilewright.partition.check_splits import check_splits
from tilewright.passes import run_passes
from tilewright.planning import Budget
from tilewright.schedule.binding import Scope, bind, transfers
from tilewright.schedule.check_instances import check_bindings, check_instances
from tilewright.schedule.exact_order import exact_order
from tilewright.schedule.instance_orders import demand_of
from tilewright.schedule.instances import Kind, instance_graph
from tilewright.schedule.orders import breadth_first, depth_first


@cache
def resnet50() -> Graph:
    graph = load_onnx(zoo.build("resnet50", batch=16))
    run_passes(graph)
    return graph


@pytest.fixture(scope="module")
def partition() -> Partition:
    problem = PartitionProblem(resnet50(), load_preset("stcp920"))
    found = PARTITIONERS.get("graphturbo").solve(problem, Budget())
    assert check_partition(problem, found) == ()
    return found


def test_four_subgraphs_run_as_8_4_2_and_1_instances(partition: Partition) -> None:
    assert [str(s) for s in partition.splits] == ["axis 0 by 8", "axis 0 by 4", "axis 0 by 2", "whole"]
    shapes = [s.outputs[0].shape for s in partition.subgraphs]
    assert shapes == [(16, 512, 28, 28), (16, 1024, 14, 14), (16, 2048, 7, 7), (16, 1000)]
    assert check_splits(partition, recompute_limit=1.0) == ()


def test_the_instances_and_concatenations_are_22_nodes(partition: Partition) -> None:
    instances = instance_graph(partition)
    assert check_instances(instances) == ()
    assert (len(instances.nodes), len(instances.edges)) == (22, 21)
    layers = sum(
        split.factor * len(partition.layers_of(subgraph))
        for subgraph, split in zip(partition.subgraphs, partition.splits, strict=True)
    )
    assert layers + sum(n.kind is Kind.CONCAT for n in instances.nodes) == 296


def test_depth_first_prints_figure_7f(partition: Partition) -> None:
    """The paper's letters are subgraphs, its numbers instances, counted from 1."""
    instances = instance_graph(partition)
    order = depth_first(demand_of(instances))
    shown = [instances.nodes[i] for i in order if instances.nodes[i].kind is Kind.INSTANCE]
    text = " ".join(f"{'abcd'[n.subgraph_id]}{n.index + 1}" for n in shown)
    assert text == "a8 a7 b4 a6 a5 b3 c2 a4 a3 b2 a2 a1 b1 c1 d1"


def test_depth_first_is_the_best_order_and_breadth_first_far_from_it(partition: Partition) -> None:
    demand = demand_of(instance_graph(partition))
    assert partition.weighed is not None
    capacity_bytes = partition.weighed.capacity_bytes
    found = exact_order(demand, capacity_bytes)
    deep = demand.cost_of(depth_first(demand), capacity_bytes)
    wide = demand.cost_of(breadth_first(demand), capacity_bytes)
    assert found.is_exact
    assert found.cost == deep
    assert wide.overflow_bytes > 5 * deep.overflow_bytes


def test_bindings_are_those_of_figure_9(partition: Partition) -> None:
    """Images first, then rows: the paper's `[2, 4]` is 2 images on 4 cores each. Axes are N, C, H, W."""
    instances = instance_graph(partition)
    bindings = bind(instances, depth_first(demand_of(instances)), 8)
    assert check_bindings(instances, bindings) == ()
    made = {n.subgraph_id: bindings.bindings[n.id] for n in instances.nodes if n.kind is Kind.INSTANCE}
    assert made == {0: (2, 1, 4, 1), 1: (4, 1, 2, 1), 2: (8, 1, 1, 1), 3: (8, 1)}
    collected = [n for n in instances.nodes if n.kind is Kind.CONCAT and n.subgraph_id == 1]
    wanted = {bindings.wanted[e] for n in collected for e in instances.reads(n.id)}
    assert wanted == {(2, 1, 2, 1)}
    assert {bindings.bindings[n.id] for n in collected} == {(4, 1, 2, 1)}
    assert [s for s in bindings.scopes if s is not Scope.LOCAL] == [Scope.MAIN]


def test_every_piece_is_dealt_anew_before_it_is_collected(partition: Partition) -> None:
    instances = instance_graph(partition)
    moved = transfers(instances, bind(instances, depth_first(demand_of(instances)), 8))
    assert [t.kind for e in moved.values() for t in e] == [Kind.REDISTRIBUTE] * 14
    assert {instances.nodes[e.consumer].kind for e in moved} == {Kind.CONCAT}
    first = [t.binding for e, ts in moved.items() for t in ts if instances.nodes[e.consumer].subgraph_id == 1]
    assert set(first) == {(2, 1, 2, 1)}
