"""Whole networks on the emulated GPU: equal bits in every order of nodes, blocks and warps."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tests.support.cuda import error, needs_fibers
from tests.support.models import feed_for, model, tensor

import tilewright as tw
from tilewright.private_files import default_cache_directory
from tilewright.targets.cuda.devices import open_device
from tilewright.targets.cuda.emulated.device import EmulatedDevice
from tilewright.zoo import build

pytestmark = needs_fibers

PLANS = [
    pytest.param("stages", "layerwise", "sequential", id="sequential"),
    pytest.param("stages", "layerwise", "greedy", id="greedy"),
    pytest.param("data", "layerwise", "ios", id="ios-relaxed"),
    pytest.param("data", "ago", "sequential", id="ago"),
    pytest.param("stages", "pcgc", "greedy", id="pcgc"),
]
ORDERS = 12


def branches() -> onnx.ModelProto:
    """Four branches of one input, joined, and a residual."""
    rng = np.random.default_rng(3)
    nodes, weights = [], []

    def convolution(x: str, name: str, channels: int, of: int, size: int) -> str:
        weights.append(tensor(rng, f"{name}.w", channels, of, size, size))
        nodes.append(helper.make_node("Conv", [x, f"{name}.w"], [f"{name}.c"], name, pads=[size // 2] * 4))
        nodes.append(helper.make_node("Relu", [f"{name}.c"], [name], f"{name}.relu"))
        return name

    one = convolution("x", "one", 4, 8, 1)
    two = convolution(convolution("x", "two", 4, 8, 1), "two_b", 4, 4, 3)
    three = convolution(
        convolution(convolution("x", "three", 4, 8, 1), "three_b", 4, 4, 3), "three_c", 4, 4, 3
    )
    nodes.append(
        helper.make_node(
            "MaxPool", ["x"], ["pool"], "pool", kernel_shape=[3, 3], pads=[1] * 4, strides=[1, 1]
        )
    )
    four = convolution("pool", "four", 4, 8, 1)
    nodes.append(helper.make_node("Concat", [one, two, three, four], ["all"], "concat", axis=1))
    nodes.append(helper.make_node("Add", [convolution("all", "five", 8, 16, 1), "x"], ["y"], "add"))
    kinds = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8, 6, 6]) for name in "xy"]
    return model(nodes, kinds[:1], kinds[1:], weights)


def in_every_order(proto: onnx.ModelProto, edges: str, partition: str, schedule: str) -> None:
    """Compile, and run in many orders, with copies early and late."""
    found = tw.compile(
        proto, target=f"cuda{{device=emulated,edges={edges}}}", partition=partition, schedule=schedule
    )
    device = open_device("emulated", str(default_cache_directory()))
    assert isinstance(device, EmulatedDevice)
    kinds = {v.name: helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type) for v in proto.graph.input}
    feed = {name: abs(array).astype(kinds[name]) for name, array in feed_for(proto).items()}
    first: list[Any] = []
    try:
        for device.seed in range(ORDERS):
            device.copies = "early" if device.seed % 2 else "late"
            outputs = found.run(None, feed)
            first = first or outputs
            for a, b in zip(first, outputs, strict=True):
                np.testing.assert_array_equal(a, b)
    finally:
        device.seed, device.copies = 0, "late"
    assert error(proto, feed, first) < 1e-5
    assert not [note for kernel in found.explain().kernels for note in kernel.notes if "RACES" in note]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("edges", "partition", "schedule"), PLANS)
def test_branches_are_right_in_every_order(edges: str, partition: str, schedule: str) -> None:
    in_every_order(branches(), edges, partition, schedule)


@pytest.mark.slow
@pytest.mark.parametrize(("edges", "partition", "schedule"), PLANS)
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("squeezenet1_1", {"image": (64, 64)}),
        ("resnet18", {"image": (64, 64)}),
        ("mobilenet_v2", {"image": (64, 64)}),
        ("googlenet", {"image": (64, 64)}),
        ("bert_tiny", {"sequence": 16}),
        ("ios_randwire", {"image": (32, 32)}),
    ],
)
def test_networks_are_right_in_every_order(
    name: str, shape: dict[str, Any], edges: str, partition: str, schedule: str
) -> None:
    in_every_order(build(name, **shape), edges, partition, schedule)
