"""Layers whose weights are constants, and a model made ready for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper, version_converter

from tilewright.arrays import Array
from tilewright.errors import UsageError
from tilewright.ir.bodies import body_graphs, free_names
from tilewright.records import dataclass

MIN_OPSET = 13
"""Of scales for each channel in QuantizeLinear and DequantizeLinear."""


@dataclass(frozen=True, slots=True)
class QuantizableLayer:
    """A node with constant weights: `axis` is that of its output channels in them, `number` its position."""

    name: str
    op_type: str
    number: int
    weight: str
    axis: int
    num_weights: int


def prepared(model: ModelProto) -> ModelProto:
    """A copy of a model whose opset has scales for each channel, with normalisation folded into convolutions
    and weights among the initializers.

    Raises:
        UsageError: its opset is older, and it cannot be converted.
    """
    opset = next((known.version for known in model.opset_import if known.domain in ("", "ai.onnx")), 1)
    if opset < MIN_OPSET:
        try:
            model = version_converter.convert_version(model, MIN_OPSET)
        except Exception as error:
            reason = " ".join(str(error).split())
            raise UsageError(
                f"opset {opset} has no scales for each channel, and the model cannot be converted to opset "
                f"{MIN_OPSET} ({reason}): export it again with a newer opset."
            ) from error
    result = ModelProto()
    result.CopyFrom(model)
    _store_constants(result.graph)
    _fold_batch_norms(result)
    return result


def quantizable_layers(model: ModelProto) -> tuple[QuantizableLayer, ...]:
    """Conv, Gemm and MatMul of float32 with constant weights, in the model's order."""
    return tuple(_layers(model))


def label_of(node: NodeProto) -> str:
    """What people call a node: its name, or that of its result where it has none."""
    return str(node.name or node.output[0])


def constants_of(model: ModelProto) -> dict[str, Array]:
    """Initializers of the model's main graph that are float32, by name."""
    return {
        tensor.name: numpy_helper.to_array(tensor)
        for tensor in model.graph.initializer
        if tensor.data_type == TensorProto.FLOAT
    }


def _layers(model: ModelProto) -> Iterator[QuantizableLayer]:
    constants = {t.name: t.dims for t in model.graph.initializer if t.data_type == TensorProto.FLOAT}
    for number, node in enumerate(model.graph.node):
        if node.domain or node.op_type not in ("Conv", "Gemm", "MatMul") or node.input[1] not in constants:
            continue
        shape = constants[node.input[1]]
        if node.input[0] in constants or len(shape) < 2 or 0 in shape:
            continue
        if node.op_type == "Gemm" and not _is_plain(node):
            continue
        axis = 0 if node.op_type == "Conv" or _attribute(node, "transB", 0) else len(shape) - 1
        if node.op_type == "MatMul" and len(shape) > 2:
            continue  # a batch of weights has no channels of its own
        yield QuantizableLayer(
            label_of(node), node.op_type, number, node.input[1], axis, int(np.prod(shape, dtype=np.int64))
        )


def _is_plain(node: NodeProto) -> bool:
    """Whether a Gemm is a product and a bias, with nothing scaled or transposed but the weights."""
    factors = (_attribute(node, "alpha", 1.0), _attribute(node, "beta", 1.0))
    return factors == (1.0, 1.0) and not _attribute(node, "transA", 0)


def _attribute(node: NodeProto, name: str, default: Any) -> Any:
    return next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)


def transposes_weights(node: NodeProto) -> bool:
    """Whether a Gemm has its weights as (outputs, inputs)."""
    return bool(_attribute(node, "transB", 0))


def _store_constants(graph: GraphProto) -> None:
    """Float32 of Constant nodes become initializers, in place."""
    for node in [node for node in graph.node if node.op_type == "Constant" and not node.domain]:
        data = _attribute(node, "value", None)
        if data is not None and data.data_type == TensorProto.FLOAT:
            graph.initializer.append(data)
            graph.initializer[-1].name = node.output[0]
            graph.node.remove(node)


def _reads(graph: GraphProto) -> Counter[str]:
    """How often values are read: by nodes and their bodies, or as outputs."""
    found = Counter(name for node in graph.node for name in node.input)
    found.update(name for node in graph.node for body in body_graphs(node) for name in free_names(body))
    found.update(output.name for output in graph.output)
    return found


def _fold_batch_norms(model: ModelProto) -> None:
    """Each BatchNormalization behind a Conv that nothing else reads goes into its weights, in place."""
    graph = model.graph
    data = constants_of(model)
    producers = {name: node for node in graph.node for name in node.output}
    num_reads = _reads(graph)
    folded: list[NodeProto] = []
    for node in graph.node:
        conv = producers.get(node.input[0]) if node.op_type == "BatchNormalization" else None
        if conv is None or conv.op_type != "Conv" or num_reads[node.input[0]] != 1:
            continue
        if len(node.output) > 1 or _attribute(node, "training_mode", 0):
            continue
        parameters: Sequence[str] = (*node.input[1:5], *conv.input[1:3])
        if any(name not in data for name in parameters):
            continue
        gamma, beta, mean, variance = (data[name].astype(np.float64) for name in node.input[1:5])
        factor = gamma / np.sqrt(variance + _attribute(node, "epsilon", 1e-5))
        weight = data[conv.input[1]]
        bias = data[conv.input[2]] if len(conv.input) > 2 else 0.0
        arrays = (weight * factor.reshape(-1, *(1,) * (weight.ndim - 1)), (bias - mean) * factor + beta)
        names = [f"{node.output[0]}_folded_{part}" for part in ("weight", "bias")]
        for name, array in zip(names, arrays, strict=True):
            data[name] = array.astype(np.float32)
            graph.initializer.append(numpy_helper.from_array(data[name], name))
        x = conv.input[0]
        del conv.input[:]
        conv.input.extend([x, *names])
        conv.output[0] = node.output[0]
        producers[node.output[0]] = conv
        folded.append(node)
    for node in folded:
        graph.node.remove(node)
    drop_unread(model)


def drop_unread(model: ModelProto) -> None:
    """Remove initializers that nothing reads, in place."""
    graph = model.graph
    unread = {tensor.name for tensor in graph.initializer} - _reads(graph).keys()
    for tensor in [tensor for tensor in graph.initializer if tensor.name in unread]:
        graph.initializer.remove(tensor)
    for info in [info for info in graph.input if info.name in unread]:
        graph.input.remove(info)
