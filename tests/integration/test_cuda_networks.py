"""Networks on the emulated GPU: every plan right in every order that its edges leave open."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import onnx
import pytest
from tests.support.cuda import EMULATED, needs_fibers

import tilewright as tw
from tilewright import zoo
from tilewright.compiler import compile_graph
from tilewright.frontend.onnx import load_onnx
from tilewright.options import Options
from tilewright.private_files import default_cache_directory
from tilewright.target_ref import TargetRef
from tilewright.targets.cuda.code import CudaCode
from tilewright.targets.cuda.emulated.device import EmulatedDevice
from tilewright.targets.llvm.cache import ObjectCache

pytestmark = needs_fibers
NETWORKS = {
    "squeezenet1_1": 64,
    "mobilenet_v2": 64,
    "resnet18": 64,
    "ios_squeezenet": 64,
    "bert_tiny": None,
    "ios_inception_v3": 75,
    "ios_randwire": 32,
}
FIRST_NODES = {"ios_inception_v3": 60, "ios_randwire": 150}
"""Of networks of which the first blocks are enough."""
PLANS = {
    "sequential": ("layerwise", "sequential"),
    "greedy": ("layerwise", "greedy"),
    "ios": ("layerwise", "ios{search=beam}"),
    "ago": ("ago", "greedy"),
    "pcgc": ("pcgc", "greedy"),
}
NUM_ORDERS = 12


def first_nodes(proto: onnx.ModelProto, count: int) -> onnx.ModelProto:
    """A network that ends behind so many nodes: it gives what the rest of them would have read."""
    nodes, rest = proto.graph.node[:count], proto.graph.node[count:]
    made = {name for node in nodes for name in node.output}
    ends = [name for node in rest for name in node.input if name in made]
    outputs = [
        onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None) for n in dict.fromkeys(ends)
    ]
    read = {name for node in nodes for name in node.input}
    weights = [array for array in proto.graph.initializer if array.name in read]
    graph = onnx.helper.make_graph(nodes, proto.graph.name, proto.graph.input, outputs, weights)
    return onnx.helper.make_model(graph, opset_imports=proto.opset_import, ir_version=proto.ir_version)


@functools.cache
def expected(name: str) -> tuple[Any, Any, Any]:
    """The network, inputs, and the interpreter's outputs."""
    proto = zoo.build(name, image=NETWORKS[name]) if NETWORKS[name] else zoo.build(name)
    if name in FIRST_NODES:
        proto = first_nodes(proto, FIRST_NODES[name])
    feed = zoo.example_inputs(proto, 0)
    return proto, feed, tw.compile(proto, target="interpreter").run(None, feed)


@pytest.mark.slow
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_is_right_under_every_plan_in_every_order(name: str, plan: str) -> None:
    proto, feed, wanted = expected(name)
    partition, schedule = PLANS[plan]
    options = Options(target=TargetRef.parse(EMULATED), partition=partition, schedule=schedule)
    code = compile_graph(load_onnx(proto), options).code
    assert isinstance(code, CudaCode)
    assert not code.placed.host_operators
    device = EmulatedDevice(cache=ObjectCache(default_cache_directory()))
    loaded = code.load_on(device)
    for seed in range(NUM_ORDERS):
        device.seed, device.copies = seed, ("early", "late")[seed % 2]
        for found, array in zip(loaded.run(feed).values(), wanted, strict=True):
            scale = max(1.0, float(np.abs(array).max()))
            np.testing.assert_allclose(found, array, atol=1e-5 * scale, rtol=0)
    loaded.close()
