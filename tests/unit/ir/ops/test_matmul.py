"""Products of matrices: what their attributes leave out."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw


@pytest.mark.parametrize("alpha", [1.0, 0.5])
@pytest.mark.parametrize("is_constant", [True, False])
@pytest.mark.parametrize("target", ["cpu", "interpreter"])
def test_a_gemm_with_a_beta_of_zero_does_not_read_what_it_would_add(
    target: str, is_constant: bool, alpha: float
) -> None:
    a, b = np.ones((2, 3), np.float32), np.ones((3, 4), np.float32)
    c = np.array([np.nan, np.inf, -np.inf, 1], np.float32)
    nodes = [
        helper.make_node("Gemm", ["a", "b", "c"], ["g"], alpha=alpha, beta=0.0),
        helper.make_node("Mul", ["g", "two"], ["y"]),  # which is folded into the product
    ]
    inputs = [helper.make_tensor_value_info("a", TensorProto.FLOAT, [2, 3])]
    constants = [numpy_helper.from_array(b, "b"), numpy_helper.from_array(np.float32(2), "two")]
    if is_constant:
        constants.append(numpy_helper.from_array(c, "c"))
    else:
        inputs.append(helper.make_tensor_value_info("c", TensorProto.FLOAT, [4]))
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    feed = {"a": a} if is_constant else {"a": a, "c": c}
    (found,) = tw.compile(model, target=target).run(None, feed)
    assert found.tolist() == (np.ones((2, 4)) * 6 * alpha).tolist()
