"""The bound of any plan holds for every other plan of the same network that the machine runs the same way."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.property.machines import accelerators
from tests.property.test_simulated_runs import networks
from tests.support.accelerator import compiled, graphturbo
from tests.support.graphs import GraphBuilder

from tilewright.errors import InfeasibleMapping
from tilewright.hardware.machine import Machine
from tilewright.hardware.presets import load_preset
from tilewright.ir.graph import Graph
from tilewright.ir.region import Region, union_volume
from tilewright.partition.graphturbo import GraphTurbo
from tilewright.planning.portfolio import PLAIN_RECIPE, Recipe
from tilewright.targets.npu.backend import NpuBackend
from tilewright.targets.npu.recipes import GRAPHTURBO, MEMORY, Baseline
from tilewright.targets.npu.simulate import Simulation

EXECUTIONS = ("", "resident_weights=true", "overlap=none", "overlap=tiles, launches=each step",
              "launches=each subgraph", "launches=once")  # fmt: skip


def ways(graph: Graph) -> list[Recipe]:
    """Plans that have little in common: whole layers, one kernel, slices along all axes."""
    largest = max(v.size_bytes for v in graph.values())
    sliced = [graphturbo(GraphTurbo(capacity_bytes=int(largest * s), dims="any")) for s in (0.1, 0.4)]
    return [GRAPHTURBO, PLAIN_RECIPE, Recipe("none", "greedy", MEMORY), *sliced]


def simulated(graph: Graph, machine: Machine, recipe: Recipe, execution: str) -> Simulation | None:
    try:
        planned = compiled(graph, machine, Baseline(recipe, execution))
        assert isinstance(planned.backend, NpuBackend)
        return planned.backend.generate(planned.program).planned.simulation
    except InfeasibleMapping:
        return None


def bounded(graph: Graph, machine: Machine, execution: str) -> None:
    found = [simulated(graph, machine, recipe, execution) for recipe in ways(graph)]
    runs = [run for run in found if run is not None]
    for bounding in runs:
        least = needed(bounding)
        for run in runs:
            # Slices may leave out what whole layers read or compute between what is needed.
            if all(has >= wanted for has, wanted in zip(needed(run), least, strict=True)):
                assert bounding.lower_bound_s <= run.time_s * (1 + 1e-9)


def needed(run: Simulation) -> tuple[float, ...]:
    """Elements of inputs and weights that a run reads, however often, and what it computes."""
    regions: dict[str, set[Region]] = {}
    for step in run.steps:
        for load in step.loads:
            if load.producer is None:
                regions.setdefault(load.value, set()).add(load.region)
        for weight in step.weights:
            regions.setdefault(f"weight {weight.name}", set()).add(weight.region)
    read = sum(union_volume(parts) for parts in regions.values())
    works = [work for step in run.steps for work in step.works]
    return read, run.macs * (1 + 1e-9), sum(work.ops for work in works) * (1 + 1e-9)


@given(graph=networks(), machine=accelerators(), execution=st.sampled_from(EXECUTIONS))
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_bound_of_a_plan_holds_for_all(graph: Graph, machine: Machine, execution: str) -> None:
    bounded(graph, machine, execution)


@pytest.mark.slow
@given(graph=networks(), machine=accelerators(), execution=st.sampled_from(EXECUTIONS))
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_bound_of_a_plan_holds_for_all_of_many(graph: Graph, machine: Machine, execution: str) -> None:
    bounded(graph, machine, execution)


@pytest.mark.parametrize(("rows", "columns", "tiles"), [(64, 32, 1), (65, 32, 2), (1, 40, 2), (130, 65, 9)])
def test_products_fill_whole_tiles_of_the_matrix_unit(rows: int, columns: int, tiles: int) -> None:
    machine = load_preset("stcp920")
    levels = tuple(x.model_copy(update={"num_instances_per_parent": 1}) for x in machine.levels)
    machine = machine.model_copy(update={"num_cores_per_cluster": 1, "num_clusters": 1, "levels": levels})
    b = GraphBuilder()
    x = b.input(rows, 256)
    graph = b.finish(b.op("MatMul", x, b.constant(256, columns), shape=(rows, columns)))
    planned = compiled(graph, machine, GRAPHTURBO)
    assert isinstance(planned.backend, NpuBackend)
    works = planned.backend.works.least(graph.nodes, graph.outputs, planned.backend.analysis.maps)
    (work,) = works
    unit = next(u for u in machine.units if u.name == "MME")
    full_s = 256 * 64 * 32 / (unit.macs_per_cycle["float16"] * unit.efficiency) / 1e9
    assert work.seconds == pytest.approx(tiles * full_s)


def test_where_nothing_overlaps_all_units_follow_each_other() -> None:
    machine = load_preset("stcp920")
    b = GraphBuilder()
    x = b.input(64, 2048)
    y = b.op("Relu", b.op("MatMul", x, b.constant(2048, 2048), shape=x.shape))
    graph = b.finish(y)
    serial = simulated(graph, machine, GRAPHTURBO, "overlap=none")
    overlapped = simulated(graph, machine, GRAPHTURBO, "")
    assert serial is not None
    assert overlapped is not None
    assert serial.time_s >= serial.lower_bound_s > overlapped.time_s >= overlapped.lower_bound_s
