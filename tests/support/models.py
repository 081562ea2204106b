"""Small ONNX models for tests of the public API."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

F32, I64 = TensorProto.FLOAT, TensorProto.INT64


def tensor(rng: np.random.Generator, name: str, *shape: int) -> onnx.TensorProto:
    return numpy_helper.from_array((rng.standard_normal(shape) * 0.3).astype(np.float32), name)


def model(
    nodes: list, inputs: list, outputs: list, initializers: list, name: str = "small"
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, name, inputs, outputs, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def small_net(channels: int = 24, size: int = 12, *, seed: int = 0) -> onnx.ModelProto:
    """Two convolutions with a residual sum, pooled, and a product: several kernels, some in parallel."""
    rng = np.random.default_rng(seed)
    nodes = [
        helper.make_node("Conv", ["image", "w1", "b1"], ["c1"], "conv1", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"], "relu1"),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], "conv2", pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["c2", "r1"], ["sum"], "residual"),
        helper.make_node("GlobalAveragePool", ["sum"], ["pooled"], "pool"),
        helper.make_node("Flatten", ["pooled"], ["flat"], "flatten"),
        helper.make_node("Gemm", ["flat", "w3", "b3"], ["logits"], "classify"),
    ]
    weights = [
        tensor(rng, "w1", channels, 3, 3, 3),
        tensor(rng, "b1", channels),
        tensor(rng, "w2", channels, channels, 3, 3),
        tensor(rng, "w3", channels, 10),
        tensor(rng, "b3", 10),
    ]
    inputs = [helper.make_tensor_value_info("image", F32, [1, 3, size, size])]
    outputs = [
        helper.make_tensor_value_info("logits", F32, [1, 10]),
        helper.make_tensor_value_info("r1", F32, [1, channels, size, size]),
    ]
    return model(nodes, inputs, outputs, weights)


def host_net() -> onnx.ModelProto:
    """A product, then the largest of each row, too many for anything but the host, then the positive ones."""
    rng = np.random.default_rng(3)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"], "product"),
        helper.make_node("TopK", ["y", "k"], ["top", "where"], "largest"),
        helper.make_node("Relu", ["top"], ["positive"], "relu"),
    ]
    weights = [tensor(rng, "w", 8, 2000), numpy_helper.from_array(np.array([12], np.int64), "k")]
    inputs = [helper.make_tensor_value_info("x", F32, [4, 8])]
    outputs = [
        helper.make_tensor_value_info("positive", F32, [4, 12]),
        helper.make_tensor_value_info("where", I64, [4, 12]),
    ]
    return model(nodes, inputs, outputs, weights)


def mixed_outputs() -> onnx.ModelProto:
    """Outputs that no kernel computes: an input, a constant, and a value given twice."""
    rng = np.random.default_rng(4)
    nodes = [helper.make_node("Relu", ["x"], ["y"], "relu")]
    constant = tensor(rng, "c", 2, 3)
    outputs = [helper.make_tensor_value_info(n, F32, [2, 3]) for n in ("y", "x", "c")]
    return model(nodes, [helper.make_tensor_value_info("x", F32, [2, 3])], outputs, [constant])


def feed_for(proto: onnx.ModelProto, seed: int = 0) -> dict[str, np.ndarray]:
    """Normal values for every input."""
    rng = np.random.default_rng(seed)
    return {
        i.name: rng.standard_normal([d.dim_value for d in i.type.tensor_type.shape.dim]).astype(np.float32)
        for i in proto.graph.input
    }
