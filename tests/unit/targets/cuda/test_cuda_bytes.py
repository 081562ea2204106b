"""Products of bytes on tensor cores: bit for bit what the interpreter computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from benchmarks.cuda import feed_of, quantised
from onnx import TensorProto, helper, numpy_helper
from tests.support.cuda import compiled, error, needs_fibers, templates

pytestmark = needs_fibers

CASES: dict[str, dict[str, Any]] = {
    "padded with the zero point": {"shape": (16, 24, 5, 3)},
    "pointwise, half a tile": {"shape": (24, 40, 7, 1), "zero": 0},
    "signed": {"shape": (16, 32, 4, 1), "zero": -128, "signed": (True, True)},
    "weights about 128": {"shape": (64, 32, 6, 1), "weight_zero": 128, "signed": (False, False)},
    "groups": {"shape": (32, 32, 4, 1), "groups": 2},
    "sums in parts": {"shape": (512, 32, 4, 3)},
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", CASES)
def test_a_quantised_convolution_is_exact_on_tensor_cores(case: str) -> None:
    model = quantised(**CASES[case])
    found = compiled(model)
    assert templates(found)[0] == "product"
    (note,) = found.steps[0].kernels[0].notes
    assert note.startswith("s8 " if "signed" in case else "u8.s8 ")
    feed = feed_of(model)
    assert error(model, feed, found.run(None, feed)) == 0.0


def matmul(weights: np.ndarray[Any, Any], w_zero: int, *, is_dynamic: bool) -> onnx.ModelProto:
    """A product of bytes whose zero point is data, or known."""
    arrays = {"w": weights, "w_zero": np.asarray(w_zero, weights.dtype), "x_zero": np.uint8(7)}
    zero = "zero" if is_dynamic else "x_zero"
    node = helper.make_node("MatMulInteger", ["x", "w", zero, "w_zero"], ["y"], "product")
    inputs = [helper.make_tensor_value_info("x", TensorProto.UINT8, (20, weights.shape[0]))]
    if is_dynamic:
        inputs.append(helper.make_tensor_value_info("zero", TensorProto.UINT8, ()))
    y = helper.make_tensor_value_info("y", TensorProto.INT32, None)
    stored = [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()]
    graph = helper.make_graph([node], "g", inputs, [y], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("is_dynamic", [False, True])
@pytest.mark.parametrize("w_zero", [0, -100])
def test_a_linear_layer_takes_a_zero_point_that_is_data(is_dynamic: bool, w_zero: int) -> None:
    weights = np.random.default_rng(1).integers(-100, 100, (48, 24)).astype(np.int8)
    model = matmul(weights, w_zero, is_dynamic=is_dynamic)
    found = compiled(model)
    # Weights further than a byte from their zero point are no factor of tensor cores.
    assert templates(found) == (["product"] if w_zero == 0 else ["loop-nest"])
    feed = feed_of(model)
    assert error(model, feed, found.run(None, feed)) == 0.0
