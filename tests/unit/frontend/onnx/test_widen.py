"""Weights of four bits load where they are only dequantised, and are refused elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from tilewright.errors import ModelRejected, UnsupportedOp
from tilewright.frontend.onnx import load_onnx
from tilewright.ir.interpret import run_graph

Array = np.ndarray[Any, Any]


def four_bits(name: str, values: Array, *, is_signed: bool, raw: bool) -> TensorProto:
    """An initializer of four bits; `raw` as bytes, else as numbers of the field for them."""
    kind = TensorProto.INT4 if is_signed else TensorProto.UINT4
    flat = np.concatenate([values.reshape(-1), np.zeros(values.size % 2, np.int64)]) & 15
    packed = (flat[::2] | flat[1::2] << 4).astype(np.uint8)
    tensor = TensorProto(name=name, data_type=kind, dims=values.shape)
    if raw:
        tensor.raw_data = packed.tobytes()
    else:
        tensor.int32_data.extend(packed.tolist())
    return tensor


def model_of(weights: TensorProto, zero: TensorProto, op_type: str = "DequantizeLinear") -> onnx.ModelProto:
    scale = numpy_helper.from_array(np.array([0.5, 0.25, 2], np.float32), "s")
    node = helper.make_node(op_type, ["w", "s", "z"], ["y"], axis=1)
    outputs = [helper.make_tensor_value_info("y", 1, (5, 3))]
    graph = helper.make_graph([node], "g", [], outputs, [weights, scale, zero])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 99), is_signed=st.booleans(), raw=st.booleans())
def test_what_is_only_dequantised_has_its_values(seed: int, is_signed: bool, raw: bool) -> None:
    rng = np.random.default_rng(seed)
    low, high = (-8, 8) if is_signed else (0, 16)
    values, zeros = rng.integers(low, high, (5, 3)), rng.integers(low, high, 3)
    tensors = [four_bits(n, v, is_signed=is_signed, raw=raw) for n, v in (("w", values), ("z", zeros))]
    graph = load_onnx(model_of(*tensors))
    wanted = (values - zeros) * np.array([0.5, 0.25, 2])
    np.testing.assert_array_equal(run_graph(graph, {})["y"], wanted.astype(np.float32))


def test_other_uses_are_refused() -> None:
    values, zeros = np.zeros((5, 3), np.int64), np.zeros(3, np.int64)
    tensors = [four_bits(n, v, is_signed=True, raw=True) for n, v in (("w", values), ("z", zeros))]
    model = model_of(*tensors)
    model.graph.output.append(helper.make_tensor_value_info("w", TensorProto.INT4, (5, 3)))
    with pytest.raises(UnsupportedOp, match="element type int4"):
        load_onnx(model)
    model = model_of(*tensors)
    x = helper.make_tensor_value_info("x", 1, (5, 3))
    model.graph.input.append(x)
    model.graph.node.append(helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], axis=1))
    with pytest.raises(UnsupportedOp, match="element type int4"):
        load_onnx(model)


@pytest.mark.parametrize("dims", [(5, 4), (-5, -3), (1 << 40, 1 << 40), (5, 2)])
def test_data_that_do_not_fit_are_refused(dims: tuple[int, ...]) -> None:
    values, zeros = np.zeros((5, 3), np.int64), np.zeros(3, np.int64)
    tensors = [four_bits(n, v, is_signed=True, raw=True) for n, v in (("w", values), ("z", zeros))]
    tensors[0].dims[:] = dims
    with pytest.raises((UnsupportedOp, ModelRejected)):
        load_onnx(model_of(*tensors))
