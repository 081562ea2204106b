"""More of what a machine has never costs time: what a larger machine tries holds what a smaller one does."""

from __future__ import annotations

from itertools import pairwise

import pytest
from tests.support.accelerator import best_plan
from tests.support.graphs import GraphBuilder

from tilewright import zoo
from tilewright.frontend.onnx import load_onnx
from tilewright.hardware.machine import Machine
from tilewright.hardware.presets import load_preset
from tilewright.hardware.variants import parse_axis, variants
from tilewright.ir.graph import Graph
from tilewright.options import Options
from tilewright.passes import run_passes
from tilewright.planner import Planner, cost_of
from tilewright.planning.portfolio import Recipe
from tilewright.progress import PhaseClock
from tilewright.targets.npu.recipes import GRAPHTURBO, MEMORY, RESIDENT, smaller_capacities
from tilewright.targets.npu.target import NpuTarget
from tilewright.targets.npu.variants import PlanFigures

TOLERANCE = 0.005

AXES = {
    "bandwidth": (
        "levels.DDR.read_bytes_per_s=20GB/s,27GB/s,54GB/s",
        "levels.DDR.write_bytes_per_s=20GB/s,27GB/s,54GB/s",
        "units.DMA.bytes_per_s=20GB/s,27GB/s,54GB/s",
    ),
    "cores": ("num_cores_per_cluster=4,8,16", "levels.L1.num_instances_per_parent=4,8,16"),
    "local": ("levels.L1.capacity_bytes=768KiB,1280KiB,2560KiB",),
    "shared": ("levels.LLB.capacity_bytes=4MiB,8MiB,16MiB",),
}


def network(name: str, **sizes: int) -> Graph:
    graph = load_onnx(zoo.build(name, **sizes))
    run_passes(graph)
    return graph


def is_monotone(graph: Graph, axis: str) -> None:
    machine = load_preset("stcp920")
    axes = [parse_axis(text, machine) for text in AXES[axis]]
    alike = [v.machine for v in variants(machine, axes) if len(set(v.values)) == 1]
    assert len(alike) == 3
    times = [best_plan(graph, larger).planned.simulation.time_s for larger in alike]
    for less_s, more_s in pairwise(times):
        assert more_s <= less_s * (1 + TOLERANCE), (axis, times)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet50", "mobilenet_v2", "bert_base"])
@pytest.mark.parametrize("axis", AXES)
def test_more_of_anything_never_hurts(name: str, axis: str) -> None:
    is_monotone(network(name, batch=4), axis)


@pytest.mark.parametrize("local_kib", [512, 1000, 1280, 8192])
def test_what_a_smaller_machine_plans_for_a_larger_one_does_too(local_kib: int) -> None:
    """All but what is less than the least share of the larger one."""
    small = smaller_capacities(local_kib << 10)
    assert small[-1] < (local_kib << 10) // 4
    for more in (1.1, 1.5, 2.0, 3.0):
        larger = int((local_kib << 10) * more)
        kept = {size for size in small if size >= larger // 8}
        assert len(kept) >= len(small) - 4
        assert kept <= set(smaller_capacities(larger))


@pytest.mark.parametrize(("machine", "is_tried"), [("stcp920", True), ("a310", False)])
def test_the_papers_own_is_tried_with_weights_that_stay_where_they_can(machine: str, is_tried: bool) -> None:
    graph = network("squeezenet1_1", image=32)
    backend = NpuTarget(load_preset(machine)).backend(graph, Options())
    best = Recipe("layerwise", "sequential", MEMORY)
    backend._figures[best] = PlanFigures(0, 0, 0, is_mapped=False, is_waiting=False)
    found = [recipe for recipe in backend.variants(best) if recipe.execution == RESIDENT]
    assert [recipe.partition for recipe in found] == (["layerwise", GRAPHTURBO.partition] if is_tried else [])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("image", [96, 130, 224])
def test_an_input_comes_beside_work_however_much_the_buffers_hold(image: int) -> None:
    """With larger buffers as a whole, or a larger part of it at a time, work would begin later."""
    b = GraphBuilder()
    side = (image - 3) // 2 + 1
    x = b.op(
        "Conv",
        b.input(1, 3, image, image),
        b.constant(64, 3, 3, 3),
        shape=(1, 64, side, side),
        strides=(2, 2),
    )
    half = (side - 3) // 2 + 1
    x = b.op("MaxPool", x, shape=(1, 64, half, half), kernel_shape=(3, 3), strides=(2, 2))
    graph, machine = b.finish(b.conv(x, 16)), load_preset("stcp920")
    axis = parse_axis("levels.L1.capacity_bytes=640KiB,960KiB,1280KiB,1920KiB,3840KiB", machine)
    times = [
        plan_of(graph, variant.machine, Recipe("layerwise", "sequential", MEMORY, RESIDENT))
        for variant in variants(machine, [axis])
    ]
    for less_ns, more_ns in pairwise(times):
        assert more_ns <= less_ns * (1 + TOLERANCE), times


def plan_of(graph: Graph, machine: Machine, recipe: Recipe) -> float:
    """The ns that the plan of a recipe takes."""
    target = NpuTarget(machine)
    planner = Planner(graph, target, target.backend(graph, Options()), Options(), PhaseClock(None, None))
    return cost_of(planner.program(recipe))
