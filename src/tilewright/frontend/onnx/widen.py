"""Weights of four bits as bytes, where nothing but their values counts.

There is no element type of four bits here, but what is only dequantised is the same by bytes of its values.
These are signed bytes also where the numbers are not: unsigned ones may hold two numbers each.
"""

from __future__ import annotations

import math

import numpy as np
from onnx import GraphProto, ModelProto, TensorProto

from tilewright.arrays import Array
from tilewright.frontend.onnx.limits import MAX_VALUE_BYTES
from tilewright.frontend.onnx.protos import model_nodes
from tilewright.ir.bodies import body_graphs

_FOUR_BITS = (TensorProto.INT4, TensorProto.UINT4)
_BY_VALUE = frozenset({"DequantizeLinear", "GatherBlockQuantized"})


def widen_initializers(model: ModelProto, data: dict[int, Array]) -> dict[int, Array]:
    """Make bytes of initializers of four bits that are only dequantised; gives the data that lie apart.

    Others stay, and are refused as what they are.
    """
    numbers = [i for i, t in enumerate(model.graph.initializer) if t.data_type in _FOUR_BITS]
    if not numbers:
        return data
    kept = _otherwise_used(model)
    remaining = dict(data)
    for number in numbers:
        tensor = model.graph.initializer[number]
        packed = None if tensor.name in kept else _packed(tensor, data.get(number))
        count = math.prod(tensor.dims) if packed is not None and min(tensor.dims, default=1) >= 0 else -1
        if packed is None or not 0 <= count <= MAX_VALUE_BYTES or len(packed) != (count + 1) // 2:
            continue
        values = np.stack([packed & 15, packed >> 4], axis=1).reshape(-1)[:count]
        if tensor.data_type == TensorProto.INT4:
            values = values.astype(np.int8)
            values -= (values > 7) * np.int8(16)
        remaining.pop(number, None)
        tensor.ClearField("int32_data")
        tensor.data_type, tensor.raw_data = TensorProto.INT8, values.astype(np.int8).tobytes()
    return remaining


def _packed(tensor: TensorProto, apart: Array | None) -> Array | None:
    """The bytes that hold two numbers each."""
    if tensor.data_location == TensorProto.EXTERNAL or tensor.HasField("segment"):
        return None
    if apart is not None:
        return apart.view(np.uint8)
    if tensor.HasField("raw_data"):
        return np.frombuffer(tensor.raw_data, np.uint8)
    return (np.array(tensor.int32_data, np.int64) & 255).astype(np.uint8)


def _otherwise_used(model: ModelProto) -> set[str]:
    """Names that something reads for more than their values."""
    names = {value.name for value in (*model.graph.output, *model.graph.input)}
    graphs: list[GraphProto] = [g for node in model_nodes(model) for g in body_graphs(node)]
    names.update(value.name for graph in graphs for value in graph.output)
    for node in model_nodes(model):
        if node.op_type not in _BY_VALUE:
            names.update(node.input)
    return names
