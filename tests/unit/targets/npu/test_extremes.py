"""Whole networks through the simulator where something is extreme: size, shape, memory, what is dead."""

from __future__ import annotations

import cProfile
import pstats
from pathlib import Path

import numpy as np
import onnx
import pytest
from tests.support.accelerator import graphturbo, plan
from tests.support.cli import tilewright
from tests.support.graphs import GraphBuilder
from tests.support.integer_networks import integer_feed, integer_network
from tests.support.models import mixed_outputs

from tilewright.errors import InfeasibleMapping
from tilewright.hardware.element_types import element_types
from tilewright.hardware.machine import Machine, Share, TensorKind
from tilewright.hardware.presets import load_preset
from tilewright.ir.graph import Graph
from tilewright.ir.interpret import run_graph
from tilewright.memory.check_scopes import check_scopes
from tilewright.partition.graphturbo import GraphTurbo
from tilewright.planning.portfolio import Recipe
from tilewright.schedule.binding import Scope
from tilewright.targets.npu.execute import execute
from tilewright.targets.npu.plan import SimulatedPlan
from tilewright.targets.npu.pools import pool_sizes
from tilewright.targets.npu.recipes import BASELINES, GRAPHTURBO, Baseline
from tilewright.targets.npu.simulate import simulate
from tilewright.targets.npu.steps import lower
from tilewright.targets.npu.work import Works

MACHINE = load_preset("stcp920")
SEEDS = range(8)


def with_level(name: str, capacity_bytes: int, weight_bytes: int = 0) -> Machine:
    shares = (Share(holds=(TensorKind.WEIGHT,), capacity_bytes=weight_bytes),) if weight_bytes else ()
    changes = {"capacity_bytes": capacity_bytes, "shares": shares}
    levels = tuple(x.model_copy(update=changes) if x.name == name else x for x in MACHINE.levels)
    return MACHINE.model_copy(update={"levels": levels})


def recipes(graph: Graph) -> list[Recipe | Baseline]:
    largest = max(v.size_bytes for v in graph.values())
    some = GraphTurbo(capacity_bytes=largest // 2, dims="any")
    return [GRAPHTURBO, graphturbo(some), *BASELINES.values()]


def right(graph: Graph, machine: Machine = MACHINE) -> list[SimulatedPlan]:
    """Plans by several recipes, all of them valid, with the network's values and a time above their bound."""
    feed = integer_feed(graph)
    expected = run_graph(graph, feed)
    found = []
    for recipe in recipes(graph):
        planned = plan(graph, machine, recipe)
        assert check_scopes(planned.scopes, planned.bindings) == ()
        results = execute(planned.scopes, feed)
        assert results.keys() == expected.keys()
        for name, array in expected.items():
            np.testing.assert_array_equal(results[name], array)
        assert planned.simulation.time_s >= planned.simulation.lower_bound_s
        found.append(planned)
    return found


def blocks(num_nodes: int) -> Graph:
    """Residual blocks of four operators."""
    b = GraphBuilder()
    x = b.input(8, 4, 6, 6)
    for _ in range(num_nodes // 4):
        x = b.op("Add", b.conv(b.op("Relu", b.conv(x, 4)), 4), x)
    return b.finish(x)


@pytest.mark.slow
def test_ten_thousand_operators_are_planned_and_simulated() -> None:
    planned = plan(blocks(10_000), MACHINE)
    assert len(planned.simulation.steps) == 7500
    assert planned.simulation.time_s >= planned.simulation.lower_bound_s > 0
    assert check_scopes(planned.scopes, planned.bindings) == ()


def num_calls(num_nodes: int) -> int:
    """Calls of Python functions to lower a plan and to simulate it."""
    planned = plan(blocks(num_nodes), MACHINE)
    profile = cProfile.Profile()
    profile.enable()
    steps = lower(planned.scopes, planned.bindings, Works(MACHINE, element_types(MACHINE)))
    simulate(steps, MACHINE, pool_sizes(MACHINE, planned.scopes))
    profile.disable()
    return pstats.Stats(profile).total_calls  # type: ignore[attr-defined,no-any-return]


@pytest.mark.sampled(0)
def test_simulating_takes_as_much_longer_as_there_are_more_steps() -> None:
    assert num_calls(1600) < 5 * num_calls(400)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", SEEDS)
def test_operators_that_reach_no_output_change_no_value(seed: int) -> None:
    graph = integer_network(seed)
    alive = graph.outputs
    graph.outputs = alive[: (len(alive) + 1) // 2]
    right(graph)


def test_outputs_that_no_operator_makes(tmp_path: Path) -> None:
    """An input, a constant."""
    path = tmp_path / "mixed.onnx"
    onnx.save(mixed_outputs(), path)
    result = tilewright("simulate", path, "--check", "--compare")
    assert result.code == 0, result.err


def test_a_network_without_operators_takes_the_launch() -> None:
    b = GraphBuilder()
    graph = b.finish(b.input(2, 3))
    for planned in right(graph):
        assert planned.simulation.steps == ()
        assert planned.simulation.gap == 0


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "shape", [(1, 3, 13, 11), (5, 7, 17, 1), (3, 1, 197, 2), (11, 5, 1, 1), (7, 2, 9, 9)]
)
def test_extents_that_nothing_divides(shape: tuple[int, ...]) -> None:
    b = GraphBuilder()
    x = b.input(*shape)
    n, c, h, w = shape
    y = b.op(
        "Relu", b.op("Conv", x, b.constant(c + 2, c, 3, 3, value=1.0), shape=(n, c + 2, h, w), pads=(1,) * 4)
    )
    y = b.op(
        "MaxPool",
        y,
        shape=(n, c + 2, -(-h // 2), -(-w // 2)),
        kernel_shape=(3, 3),
        strides=(2, 2),
        pads=(1,) * 4,
    )
    rows = n * y.shape[2] * y.shape[3]
    y = b.op("Transpose", y, shape=(n, y.shape[2], y.shape[3], c + 2), perm=(0, 2, 3, 1))
    y = b.op("Reshape", y, b.integers(rows, c + 2), shape=(rows, c + 2))
    y = b.op("MatMul", y, b.constant(c + 2, 13, value=2.0), shape=(rows, 13))
    plans = right(b.finish(y))
    assert max(len(p.instances.nodes) for p in plans) > 1


@pytest.mark.sampled(1)
@pytest.mark.parametrize("batch", [3, 6, 7, 11])
def test_a_batch_that_does_not_divide(batch: int) -> None:
    graph = integer_network(3, batch=batch)
    plans = right(graph)
    assert any(len(p.instances.nodes) > len(p.partition.subgraphs) for p in plans)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("data_bytes", [0, 128])
def test_buffers_of_cores_without_room_for_data(seed: int, data_bytes: int) -> None:
    """Nothing, and 1 KiB in all 8 cores of a cluster."""
    machine = with_level("L1", 2**18 + data_bytes, weight_bytes=2**18)
    for planned in right(integer_network(seed), machine):
        use = planned.scopes.levels[Scope.LOCAL]
        assert use.level.capacity_bytes in (0, 8 * data_bytes)
        assert use.live_bytes <= 8 * data_bytes


def test_a_main_memory_that_is_too_small_is_named() -> None:
    graph = integer_network(1)
    with pytest.raises(InfeasibleMapping, match="DDR of 'stcp920'"):
        plan(graph, with_level("DDR", 1024), BASELINES["tvm"])
