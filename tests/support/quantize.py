"""Float networks in quantised form: QuantizeLinear and DequantizeLinear around what integers compute.

Ranges come from one seeded run in ONNX Runtime. Weights are signed and symmetric, per output channel or per
tensor, activations asymmetric, biases in steps of the sums.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from tilewright.quantization import prepared

Array = np.ndarray[Any, Any]

LAYERS = ("Conv", "Gemm", "MatMul")
POINTS = (*LAYERS, "Add", "MaxPool", "AveragePool", "GlobalAveragePool", "Concat")


def quantize(
    model: onnx.ModelProto,
    feeds: dict[str, Array],
    *,
    per_channel: bool = True,
    activation: type = np.uint8,
) -> onnx.ModelProto:
    """The network with every input of a layer, sum, pool or concatenation quantised to bytes."""
    model = prepared(model)
    ranges = _ranges(model, feeds)
    constants = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    nodes: list[onnx.NodeProto] = []
    new: dict[str, Array] = {}
    scales: dict[str, np.float32] = {}

    def activation_of(name: str) -> str:
        if f"{name}_scale" not in new:
            low, high = min(ranges[name][0], 0.0), max(ranges[name][1], 0.0)
            info = np.iinfo(activation)
            scale = np.float32(max(high - low, 1e-6) / 255)
            scales[name] = new[f"{name}_scale"] = scale
            new[f"{name}_zero"] = np.asarray(np.clip(np.rint(info.min - low / scale), info.min, info.max))
            new[f"{name}_zero"] = new[f"{name}_zero"].astype(activation)
            parameters = [f"{name}_scale", f"{name}_zero"]
            nodes.append(helper.make_node("QuantizeLinear", [name, *parameters], [f"{name}_q"]))
            nodes.append(helper.make_node("DequantizeLinear", [f"{name}_q", *parameters], [f"{name}_dq"]))
        return f"{name}_dq"

    def weight_of(name: str, axis: int, where: str) -> tuple[str, Array]:
        data = constants[name]
        others = tuple(a for a in range(data.ndim) if a != axis)
        largest = np.abs(data).max(axis=others) if per_channel else np.abs(data).max()
        scale = np.maximum(largest / 127, 1e-8).astype(np.float32)
        spread = scale.reshape([-1 if a == axis else 1 for a in range(data.ndim)]) if per_channel else scale
        new[f"{where}_w"] = np.clip(np.rint(data / spread), -127, 127).astype(np.int8)
        new[f"{where}_ws"] = scale
        new[f"{where}_wz"] = np.zeros(scale.shape, np.int8)
        parameters = [f"{where}_w", f"{where}_ws", f"{where}_wz"]
        nodes.append(helper.make_node("DequantizeLinear", parameters, [f"{where}_wdq"], axis=axis))
        return f"{where}_wdq", scale

    def bias_of(name: str, scale: Array, where: str) -> str:
        new[f"{where}_b"] = np.rint(constants[name] / scale).astype(np.int32)
        new[f"{where}_bs"] = np.broadcast_to(scale, constants[name].shape).astype(np.float32)
        nodes.append(
            helper.make_node("DequantizeLinear", [f"{where}_b", f"{where}_bs"], [f"{where}_bdq"], axis=0)
        )
        return f"{where}_bdq"

    for number, original in enumerate(model.graph.node):
        node = onnx.NodeProto()
        node.CopyFrom(original)
        if node.op_type in POINTS and all(i in constants or i in ranges for i in node.input):
            inputs = list(node.input)
            for position, name in enumerate(inputs):
                if name in ranges:
                    inputs[position] = activation_of(name)
            if node.op_type in LAYERS and node.input[1] in constants:
                axis = _channel_axis(node, constants[node.input[1]])
                inputs[1], scale = weight_of(node.input[1], axis, f"n{number}")
                if len(inputs) > 2:
                    inputs[2] = bias_of(node.input[2], scale * scales[node.input[0]], f"n{number}")
            del node.input[:]
            node.input.extend(inputs)
        nodes.append(node)
    kept = {i for n in nodes for i in n.input}
    initializers = [t for t in model.graph.initializer if t.name in kept]
    initializers += [numpy_helper.from_array(np.asarray(v), k) for k, v in new.items()]
    graph = helper.make_graph(nodes, "quantized", model.graph.input, model.graph.output, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def _channel_axis(node: onnx.NodeProto, weight: Array) -> int:
    if node.op_type == "Conv":
        return 0
    transposed = any(a.name == "transB" and a.i for a in node.attribute)
    return 0 if transposed else weight.ndim - 1


def _ranges(model: onnx.ModelProto, feeds: dict[str, Array]) -> dict[str, tuple[float, float]]:
    """Smallest and largest value of every float tensor that nodes read or make."""
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    del wide.graph.output[:]
    inferred = onnx.shape_inference.infer_shapes(model)
    floats = [v for v in inferred.graph.value_info if v.type.tensor_type.elem_type == TensorProto.FLOAT]
    floats += [v for v in model.graph.output if v.type.tensor_type.elem_type == TensorProto.FLOAT]
    made = {o for n in model.graph.node for o in n.output}
    wide.graph.output.extend(v for v in floats if v.name in made)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3  # constants that folding left over are no news
    session = onnxruntime.InferenceSession(wide.SerializeToString(), options, ["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    values = dict(zip(names, session.run(names, feeds), strict=True))
    values |= {k: v for k, v in feeds.items() if v.dtype == np.float32}
    return {k: (float(v.min(initial=0)), float(v.max(initial=0))) for k, v in values.items()}
