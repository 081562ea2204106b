"""One layer costs the same mapped and simulated, level by level, on every machine that does both."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.hardware.missing_fields import missing_fields
from tilewright.hardware.presets import load_preset, preset_names
from tilewright.loops.problem import layer
from tilewright.targets.npu.mapped_products import SEARCH, fitted
from tilewright.targets.simulated import MappedCosts

MACHINES = [name for name in preset_names() if not missing_fields(load_preset(name))]
DTYPES = {"goya": "int8", "zcu102": "int8", "tpu-v4i": "bfloat16", "k80": "float32"}
WITHIN = 0.02


def _model(
    op_type: str, shapes: dict[str, tuple[int, ...]], out: tuple[int, ...], **attributes: object
) -> ModelProto:
    weights = [
        numpy_helper.from_array(np.full(shape, 0.5, np.float32), name)
        for name, shape in shapes.items()
        if name == "w"
    ]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in shapes.items()
        if name != "w"
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, out)]
    node = helper.make_node(op_type, list(shapes), ["y"], "layer", **attributes)
    graph = helper.make_graph([node], "one", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


LAYERS = {
    "3x3": _model("Conv", {"x": (1, 32, 16, 16), "w": (64, 32, 3, 3)}, (1, 64, 14, 14)),
    "1x1": _model("Conv", {"x": (1, 64, 14, 14), "w": (128, 64, 1, 1)}, (1, 128, 14, 14)),
    "depthwise": _model("Conv", {"x": (1, 64, 16, 16), "w": (64, 1, 3, 3)}, (1, 64, 14, 14), group=64),
    "linear": _model("Gemm", {"x": (16, 256), "w": (256, 64)}, (16, 64)),
    "batched": _model("MatMul", {"a": (4, 32, 64), "b": (4, 64, 32)}, (4, 32, 32)),
}


def mapped_costs(name: str, model: ModelProto) -> tuple[tw.SimulationResult, MappedCosts]:
    found = tw.simulate(
        model,
        name,
        dtype=DTYPES.get(name, "float16"),
        partition="layerwise",
        schedule="greedy",
        mappings=True,
    )
    assert found.mappings is not None
    return found, found.mappings


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("name", MACHINES)
def test_a_layer_costs_the_same_mapped_and_simulated(name: str, kind: str) -> None:
    result, costs = mapped_costs(name, LAYERS[kind])
    assert (costs.num_products, costs.num_whole) == (1, 1)
    for level in costs.levels:
        assert level.simulated_j == pytest.approx(level.mapped_j, rel=WITHIN), level.level
    assert costs.simulated_j == pytest.approx(costs.mapped_j, rel=WITHIN)
    machine = load_preset(name)
    is_in_blocks = machine.threads is not None and bool(machine.threads.block_tiles)
    ports = {x.name: x.has_shared_port for x in machine.levels}
    tiles = {unit.name: unit.tile for unit in machine.units}
    for level in costs.levels:
        if not level.mapped_s or level.simulated_s is None:
            continue
        ratio = level.simulated_s / level.mapped_s
        assert ratio >= 1 - WITHIN, level.level
        if is_in_blocks:
            continue  # library kernels leave multiprocessors idle, and with them a part of the way to them
        if level.level in ports:
            # One engine has both ways in turn, each at the slower rate.
            assert ratio <= (1 + WITHIN) * (1 if ports[level.level] else 3), level.level
        elif not tiles[level.level]:
            assert ratio <= 1 + WITHIN, level.level
    told_s = sum(d.time_s or 0.0 for d in costs.differences)
    assert told_s == pytest.approx(result.time_s - costs.mapped_s), "all is told"


def test_differences_of_energy_make_up_what_is_simulated() -> None:
    def told_j(model: ModelProto, name: str) -> tuple[float, float]:
        costs = mapped_costs(name, model)[1]
        told = [d for d in costs.differences if d.what != "static power"]
        return sum(d.energy_j or 0.0 for d in told), costs.simulated_j - costs.mapped_j

    padded = _model("Conv", {"x": (3, 16, 7, 7), "w": (24, 16, 5, 5)}, (3, 24, 7, 7), pads=[2, 2, 2, 2])
    for name in ("stcp920", "jetson-nano"):
        told, differs = told_j(padded, name)
        assert differs < 0, "what windows are padded with is not moved"
        assert told == pytest.approx(differs)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["jetson-nano", "a310", "stcp920", "v100"])
def test_a_longer_layer_takes_little_more_time_than_mapped(name: str) -> None:
    model = _model("Conv", {"x": (1, 128, 30, 30), "w": (256, 128, 3, 3)}, (1, 256, 28, 28))
    result, costs = mapped_costs(name, model)
    launches_s = sum(d.time_s or 0.0 for d in costs.differences if "waits" not in d.what)
    assert result.time_s - launches_s == pytest.approx(costs.mapped_s, rel=0.1)


def test_what_differs_is_told_in_text_and_json() -> None:
    result, costs = mapped_costs("stcp920", LAYERS["3x3"])
    assert "1 sums of products, 1 of them run their whole mapping" in str(result)
    document = result.to_json()["mappings"]
    assert [level["level"] for level in document["levels"]] == ["DDR", "LLB", "L1", "MME"]
    assert [d["what"] for d in document["differences"]] == [d.what for d in costs.differences]


def test_a_mapping_fitted_to_fewer_and_more_iterations_covers_them() -> None:
    whole = layer("3_14_8_8_1")
    found = tw.map("3_14_8_8_1", "eyeriss")
    for text in ("3_7_8_8_1", "3_13_3_8_1", "3_28_8_16_1"):
        problem = layer(text)
        factors = fitted(found.layers[0].solution.mapping, problem).factors()
        assert all(factors.get(dim, 1) >= extent for dim, extent in problem.dims), text
    assert fitted(found.layers[0].solution.mapping, whole).factors() == (
        found.layers[0].solution.mapping.factors()
    )


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", MACHINES)
def test_mapping_the_layer_alone_says_the_same(name: str) -> None:
    _, costs = mapped_costs(name, LAYERS["3x3"])
    found = tw.map("K=64,C=32,P=14,Q=14,R=3,S=3", name, mapper=SEARCH)
    cost = found.layers[0].solution.cost
    assert found.description.clock_hz is not None
    assert costs.mapped_j == pytest.approx(cost.energy_pj * 1e-12, rel=WITHIN)
    assert costs.mapped_s == pytest.approx(cost.cycles / found.description.clock_hz, rel=WITHIN)
    by_level = {level.level: sum(t.energy_pj for t in level.tensors.values()) for level in cost.levels}
    for level in costs.levels:
        if level.level in by_level:
            assert level.mapped_j == pytest.approx(by_level[level.level] * 1e-12, rel=WITHIN), level.level
