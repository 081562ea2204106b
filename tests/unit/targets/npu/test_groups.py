"""Programs on groups of cores: their values, what they hold, what helps, and what their checker notices."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from tests.support.accelerator import best_plan, checked, compiled, plan, with_capacities
from tests.support.graphs import GraphBuilder
from tests.support.integer_networks import integer_network

from tilewright.artifact.plan import decode_plan, encode_plan
from tilewright.frontend.onnx import load_onnx
from tilewright.hardware.machine import Machine
from tilewright.hardware.presets import load_preset
from tilewright.ir.graph import Graph
from tilewright.ir.interpret import run_graph
from tilewright.planning.portfolio import Recipe
from tilewright.schedule.binding import Scope
from tilewright.targets.npu.check_run import check_run
from tilewright.targets.npu.execute import execute
from tilewright.targets.npu.plan import SimulatedPlan
from tilewright.targets.npu.recipes import MEMORY, RESIDENT, Baseline
from tilewright.zoo import build, example_inputs

pytestmark = pytest.mark.sampled(4)

STCP920 = load_preset("stcp920")
ORDERS = ("core-groups{number=4}", "core-groups{number=2, order=depth-first}", "core-pipeline{stages=4}")


def machine(local_kib: int, shared_kib: int) -> Machine:
    """The STCP920 with other buffers."""
    return with_capacities(STCP920, {"L1": local_kib << 10, "LLB": shared_kib << 10})


def chain(rows: int, width: int, depth: int) -> Graph:
    """Products one after another."""
    b = GraphBuilder()
    x = b.input(rows, width)
    for _ in range(depth):
        x = b.op("MatMul", x, b.constant(width, width), shape=x.shape)
    return b.finish(x)


def on(
    machine: Machine, graph: Graph, order: str, execution: str = "", cut: str = "layerwise"
) -> SimulatedPlan:
    return plan(graph, machine, Baseline(Recipe(cut, order, MEMORY), execution))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("execution", ["", RESIDENT, "launches=each subgraph"])
@pytest.mark.parametrize("cut", ["layerwise", "graphturbo{capacity_bytes=4096, rows=keep, dims=any}"])
def test_values_are_those_of_the_network(order: str, execution: str, cut: str) -> None:
    small = machine(4, 16)
    for seed in (1, 5):
        graph = integer_network(seed, 12, batch=4)
        rng = np.random.default_rng(seed)
        feed = {v.name: rng.integers(-4, 4, v.shape).astype(v.dtype.numpy) for v in graph.inputs}
        planned = on(small, graph, order, execution, cut)
        found, expected = execute(planned.scopes, feed), run_graph(graph, feed)
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value)


def test_values_of_a_real_network_in_a_pipeline() -> None:
    model = build("squeezenet1_1", image=48, batch=4)
    graph, feed = load_onnx(model), example_inputs(model)
    planned = on(machine(64, 512), graph, "core-pipeline{stages=4}", cut="graphturbo{capacity_bytes=65536}")
    assert planned.bindings.cores is not None
    assert planned.bindings.cores.crossing
    found, expected = execute(planned.scopes, feed), run_graph(graph, feed)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-4)


@cache
def pipeline() -> SimulatedPlan:
    """Eight layers on eight cores, whose weights do not fit the shared buffer beside what passes."""
    return on(machine(384, 1024), chain(2048, 256, 8), "core-pipeline{stages=8, instances=32}")


def test_a_pipeline_fetches_each_weight_once_and_its_stages_overlap() -> None:
    planned = pipeline()
    fetched = [r for r in planned.simulation.runs if r.what == "weights"]
    assert sum(r.size_bytes for r in fetched) == 8 * 256 * 256 * 2
    busy = [r for r in planned.simulation.runs if r.unit == "MME"]
    middle_s = planned.simulation.time_s / 2
    assert len({r.step for r in busy if r.start_s <= middle_s < r.end_s}) >= 3


def test_a_pipeline_helps_where_weights_would_be_fetched_again() -> None:
    small, graph = machine(384, 1024), chain(4096, 256, 8)
    pipelined = on(small, graph, "core-pipeline{stages=8, instances=64}")
    plain = [
        on(small, graph, "depth-first", cut=cut)
        for cut in ("layerwise", "graphturbo", "graphturbo{group=false}")
    ]
    assert pipelined.simulation.time_s < 0.8 * min(p.simulation.time_s for p in plain)


def test_nothing_helps_where_every_layer_fills_all_cores() -> None:
    graph = chain(512, 512, 6)
    plain = on(STCP920, graph, "breadth-first").simulation.time_s
    for order in ("core-groups{number=2}", "core-pipeline{stages=2}"):
        assert on(STCP920, graph, order).simulation.time_s > plain


def test_groups_have_places_and_weights_of_their_own() -> None:
    planned = on(machine(384, 1024), chain(512, 128, 4), "core-groups{number=4}")
    cores = planned.bindings.cores
    assert cores is not None
    assert not cores.crossing
    of_core_bytes = (384 << 10) - -(-(384 << 10) // 5)
    for buffer in planned.scopes.buffers:
        if buffer.scope is Scope.LOCAL:
            group = cores.of(buffer.node)
            assert group.first_core * of_core_bytes <= buffer.offset_bytes
            assert buffer.end_bytes <= (group.first_core + group.num_cores) * of_core_bytes
    # Main memory delivers a weight once, whatever the number of groups that get it from the shared buffer.
    main = sum(r.size_bytes for r in planned.simulation.runs if r.what == "fetch")
    assert main == 4 * 128 * 128 * 2


def test_weights_that_stay_are_never_fetched() -> None:
    graph = chain(2048, 256, 8)
    planned = on(machine(384, 1024), graph, "core-pipeline{stages=8, instances=32}", RESIDENT)
    assert not [r for r in planned.simulation.runs if r.what in ("fetch", "weights")]
    assert planned.simulation.time_s <= pipeline().simulation.time_s


def best_in_groups(machine: Machine) -> float:
    """The time of the best plan on groups of cores, of three large layers, over that of the best other."""
    b = GraphBuilder()
    x = b.input(4096, 2048)
    for _ in range(3):
        x = b.op("Relu", b.op("MatMul", x, b.constant(2048, 2048), shape=x.shape))
    tried = best_plan(b.finish(x), machine).tried.items()
    in_groups = [s for what, s in tried if "core-" in what and s is not None]
    return min(in_groups) / min(s for what, s in tried if "core-" not in what and s is not None)


def test_the_portfolio_tries_groups_only_where_all_units_wait() -> None:
    machine = load_preset("ipu-mk2")
    assert best_in_groups(machine) < 1
    local = machine.levels[0]
    assert local.read_bytes_per_s is not None
    rate = {"read_bytes_per_s": 32 * local.read_bytes_per_s, "write_bytes_per_s": None}
    fed = machine.model_copy(update={"levels": (local.model_copy(update=rate), *machine.levels[1:])})
    assert best_in_groups(fed) < 0.95, "where buffers keep up with the units, these wait for what passes"
    launched = STCP920.model_copy(update={"launches": "each subgraph"})
    assert not any("core-" in what for what in best_plan(chain(64, 128, 2), launched).tried)


def test_an_artifact_names_the_cores() -> None:
    planned = compiled(chain(64, 32, 2), STCP920, Recipe("layerwise", "core-groups{number=2}", MEMORY))
    program = planned.program
    again = decode_plan(encode_plan(program), program.graph, program.options)
    assert {g.first_core for s in again.schedule.stages for g in s.groups} == {0, 4}
    assert again.schedule.stages == program.schedule.stages


def damaged(planned: SimulatedPlan, **changes: object) -> set[str]:
    found = check_run(replace(planned, **changes), machine(384, 1024))  # type: ignore[arg-type]
    return {violation.rule for violation in found}


def test_the_checker_notices_what_groups_may_not_do() -> None:
    planned = checked(pipeline(), machine(384, 1024))
    simulation, cores = planned.simulation, planned.bindings.cores
    assert cores is not None
    # A weight that is held is not brought at all.
    without = tuple(r for r in simulation.runs if r.what != "weights")
    assert "bytes" in damaged(planned, simulation=replace(simulation, runs=without))
    # All groups on the cores of one: their places, and what they hold, are not these cores'.
    merged = replace(cores, of_nodes=(0,) * len(cores.of_nodes))
    assert {"unit"} <= damaged(planned, bindings=replace(planned.bindings, cores=merged))
    # A step on all cores instead of those of its group.
    whole = tuple(replace(r, num_cores=8) if r.what == "compute" else r for r in simulation.runs)
    assert "unit" in damaged(planned, simulation=replace(simulation, runs=whole))
    # Products faster than the cores of one group multiply.
    compute = next(r for r in simulation.runs if r.what == "compute")
    faster = replace(compute, end_s=compute.start_s + (compute.end_s - compute.start_s) / 4)
    fast = tuple(faster if r is compute else r for r in simulation.runs)
    assert "rate" in damaged(planned, simulation=replace(simulation, runs=fast))
    # More weights than the cores of a group have place for.
    weight = simulation.steps[0].weights[0]
    large = replace(simulation.steps[0], weights=(replace(weight, num_copies=9),))
    assert "capacity" in damaged(
        planned, simulation=replace(simulation, steps=(large, *simulation.steps[1:]))
    )
