"""No machine is simulated faster than its roofline, which is worked out here from the shapes of the file.

Nothing of the simulator's bound takes part: products and bytes are counted on the ONNX model, rates are the
figures of the machine's description.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import prod

import onnx
import pytest
from tests.integration.test_presets_simulate import FOR_MAPPING

import tilewright as tw
from tilewright.hardware.machine import Machine
from tilewright.hardware.presets import load_preset, preset_names

STORED: Mapping[str, str] = {
    "a100": "float32",
    "a310": "float16",
    "ascend910": "float16",
    "goya": "int8",
    "h200": "float32",
    "ipu-mk1": "float32",
    "ipu-mk2": "float32",
    "jetson-nano": "float32",
    "k80": "float32",
    "rtx2080ti": "float32",
    "stcp920": "float16",
    "stcp920-paper": "float16",
    "tpu-v4i": "bfloat16",
    "v100": "float32",
    "zcu102": "int8",
}
"""As what each machine that runs networks keeps a float32 file's numbers."""

LOWERED = ("goya", "zcu102")
"""Machines that run floats only if they are lowered; inputs and results are kept so, too."""

BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}

NETWORKS: Mapping[str, Mapping[str, int]] = {
    "resnet50": {},
    "mobilenet_v2": {},
    "bert_base": {"sequence": 64},
    "inception_v3": {},
    "squeezenet1_1": {},
    "densenet121": {},
}

SMALL: Mapping[str, Mapping[str, int]] = {
    "mobilenet_v2": {"image": 32},
    "bert_tiny": {"sequence": 32},
    "squeezenet1_1": {"image": 48},
}

RECIPE = "astitch"
"""The cheapest to plan that keeps values on the chip."""


@dataclass(frozen=True)
class Counted:
    """What a network needs whatever runs it: products, and elements of weights, inputs and results."""

    macs: int
    weights: int
    border_bytes: int
    border: int


@cache
def counted(network: str, image: int | None, sequence: int | None) -> tuple[onnx.ModelProto, Counted]:
    """A network of the zoo and what the shapes of its file say."""
    model = tw.zoo.build(network, image=image, sequence=sequence)
    graph = onnx.shape_inference.infer_shapes(model).graph
    constants = {i.name: tuple(i.dims) for i in graph.initializer}
    typed = [*graph.input, *graph.output, *graph.value_info]
    shapes = {v.name: tuple(d.dim_value for d in v.type.tensor_type.shape.dim) for v in typed} | constants
    macs = 0
    weights: dict[str, int] = {}
    for node in graph.node:
        if node.op_type not in ("Conv", "MatMul", "Gemm"):
            continue
        made, left, right = (shapes[name] for name in (node.output[0], *node.input[:2]))
        transposed = any(a.name == "transA" and a.i for a in node.attribute)
        terms = prod(right[1:]) if node.op_type == "Conv" else left[-2 if transposed else -1]
        macs += prod(made) * terms
        weights.update((name, prod(constants[name])) for name in node.input[:2] if name in constants)
    inputs = {v.name: prod(needed(graph, v, shapes)) for v in graph.input if v.name not in constants}
    outputs = {v.name: prod(shapes[v.name]) for v in graph.output}
    types = {v.name: v.type.tensor_type.elem_type for v in (*graph.input, *graph.output)}
    border = {**inputs, **outputs}
    floats = sum(n for name, n in border.items() if types[name] == onnx.TensorProto.FLOAT)
    others = sum(n * 8 for name, n in border.items() if types[name] == onnx.TensorProto.INT64)
    return model, Counted(macs, sum(weights.values()), others, floats)


def needed(
    graph: onnx.GraphProto, value: onnx.ValueInfoProto, shapes: Mapping[str, tuple[int, ...]]
) -> list[int]:
    """The extents of an input that its only reader reaches: windows with strides may leave out the border."""
    (reader,) = (n for n in graph.node if value.name in n.input) if len(shapes[value.name]) == 4 else (None,)
    extents = list(shapes[value.name])
    if reader is None or reader.op_type != "Conv":
        return extents
    attributes = {a.name: list(a.ints) for a in reader.attribute}
    for axis in (2, 3):
        window, stride = shapes[reader.input[1]][axis], attributes["strides"][axis - 2]
        before = attributes.get("pads", [0] * 4)[axis - 2]
        last = (shapes[reader.output[0]][axis] - 1) * stride + window - before
        extents[axis] = min(extents[axis], last)
    return extents


def roofline_s(machine: Machine, found: Counted, *, are_weights_resident: bool) -> float:
    """Seconds that one cluster needs at least: all its units multiply, its memory moves bytes one way."""
    stored = STORED[machine.name]
    assert machine.clock_hz is not None
    rate = 0.0
    for unit in machine.units:
        rates = [r for name, r in unit.macs_per_cycle.items() if BYTES[name] >= BYTES[stored]]
        rate += max(rates, default=0.0) * machine.num_units(unit) / machine.num_clusters * machine.clock_hz
    memory = machine.outermost
    directions = [machine.read_bytes_per_s(memory), machine.write_bytes_per_s(memory)]
    bytes_per_s = max(filter(None, directions)) * float(machine.num_instances_per_cluster(memory))
    border_type = stored if machine.name in LOWERED else "float32"
    size_bytes = found.border * BYTES[border_type] + found.border_bytes
    if not are_weights_resident:
        size_bytes += found.weights * BYTES[stored]
    return max(found.macs / rate, size_bytes / bytes_per_s)


def above_the_roofline(name: str, network: str, sizes: Mapping[str, int], execution: str = "") -> None:
    machine = load_preset(name)
    model, found = counted(network, sizes.get("image"), sizes.get("sequence"))
    options = ", ".join(filter(None, ("dtype=int8" if name in LOWERED else "", execution)))
    result = tw.simulate(model, f"{name}{{{options}}}", recipe=RECIPE if not execution else "graphturbo")
    least_s = roofline_s(machine, found, are_weights_resident=bool(execution))
    assert result.time_s >= least_s > 0


@pytest.mark.sampled(1)
@pytest.mark.parametrize("network", SMALL)
@pytest.mark.parametrize("name", STORED)
def test_small_networks_are_not_faster_than_the_roofline(name: str, network: str) -> None:
    above_the_roofline(name, network, SMALL[network])


@pytest.mark.slow
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("name", STORED)
def test_networks_are_not_faster_than_the_roofline(name: str, network: str) -> None:
    above_the_roofline(name, network, NETWORKS[network])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["stcp920", "ipu-mk2"])
def test_weights_that_stay_on_the_chip_are_not_compulsory(name: str) -> None:
    above_the_roofline(name, "bert_tiny", SMALL["bert_tiny"], "resident_weights=true")


def test_every_machine_that_runs_networks_is_here() -> None:
    assert set(STORED) == set(preset_names()) - FOR_MAPPING
