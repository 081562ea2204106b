"""Buffers of ResNet-50 at 16 images per cluster by scope, beside those of GraphTurbo's Table 3."""

# mypy: disable-error-code="arg-type"

from functools import cache

import pytest

from tilewright import zoo
from tilewright.frontend.onnx import load_onnx
from tilewright.hardware.presets import load_preset
from tilewright.memory import MEMORY_PLANNERS
from tilewright.memory.check_scopes import check_scopes
from tilewright.memory.scopes import place
from tilewright.partition import PARTITIONERS, PartitionProblem
from tilewright.passes import run_passes
from tilewright.planning import Budget
from tilewright.schedule.binding import Scope, bind
from tilewright.schedule.instance_orders import demand_of
from tilewright.schedule.instances import InstanceGraph, instance_graph
from tilewright.schedule.orders import breadth_first, depth_first

MACHINE = load_preset("stcp920")
MEBI = 2**20


@cache
def resnet50() -> InstanceGraph:
    graph = load_onnx(zoo.build("resnet50", batch=16))
    run_passes(graph)
    found = PARTITIONERS.get("graphturbo").solve(PartitionProblem(graph, MACHINE), Budget())
    return instance_graph(found)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("find", "policy", "buffers", "spilled_mebibytes"),
    [
        (depth_first, "longest-liveness", (1, 7, 288), 10.7),  # the paper has 1/11/284
        (depth_first, "largest-size", (1, 35, 260), 105.7),
        (breadth_first, "longest-liveness", (10, 4, 282), 19.9),
    ],
)
def test_resnet50_has_296_buffers_and_spills_as_much_as_the_specification_says(
    find: object, policy: str, buffers: tuple[int, int, int], spilled_mebibytes: float
) -> None:
    graph = resnet50()
    assert callable(find)
    order = find(demand_of(graph))
    bindings = bind(graph, order, MACHINE.num_cores_per_cluster)
    plan = place(graph, order, bindings, MACHINE, MEMORY_PLANNERS.get(policy))
    assert check_scopes(plan, bindings) == ()
    assert plan.levels[Scope.LOCAL].level.capacity_bytes == 8 * MEBI
    assert tuple(plan.num_buffers[s] for s in (Scope.MAIN, Scope.SHARED, Scope.LOCAL)) == buffers
    assert len(plan.buffers) == len(plan.steps) == sum(buffers) == 296
    assert plan.memory.quality.cost == plan.spilled_bytes
    assert round(plan.spilled_bytes / MEBI, 1) == spilled_mebibytes


def test_of_two_siblings_the_one_that_waits_lies_in_the_shared_buffer() -> None:
    """The vendor's hand schedule: of each pair of slices that are collected, the first to run."""
    graph = resnet50()
    order = depth_first(demand_of(graph))
    plan = place(graph, order, bind(graph, order, MACHINE.num_cores_per_cluster), MACHINE)
    when = {node: i for i, node in enumerate(order)}
    waiting = {p.node for p in plan.buffers if p.scope is Scope.SHARED}
    pairs = [{e.producer for e in graph.reads(n.id)} for n in graph.nodes if len(graph.reads(n.id)) == 2]
    assert len(waiting) == len(pairs) == 7
    assert waiting == {min(pair, key=when.__getitem__) for pair in pairs}
