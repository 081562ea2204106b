"""Networks that onnxruntime's tools quantised compute what onnxruntime computes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

import tilewright as tw

Array = np.ndarray[Any, Any]


def recurrent_network(steps: int, batch: int, width: int, size: int, *, layers: int = 2) -> onnx.ModelProto:
    """Layers of LSTM in both directions."""
    rng = np.random.default_rng(0)
    nodes, weights, x, columns = [], [], "x", width
    for layer in range(layers):
        shapes = {"w": (2, 4 * size, columns), "r": (2, 4 * size, size), "b": (2, 8 * size)}
        for name, shape in shapes.items():
            data = rng.uniform(-1, 1, shape) / size**0.5
            weights.append(numpy_helper.from_array(data.astype(np.float32), f"{name}{layer}"))
        given = [x, *(f"{name}{layer}" for name in shapes)]
        attributes = {"direction": "bidirectional", "hidden_size": size}
        nodes.append(helper.make_node("LSTM", given, [f"every{layer}"], f"lstm{layer}", **attributes))
        nodes.append(helper.make_node("Transpose", [f"every{layer}"], [f"turned{layer}"], perm=[0, 2, 1, 3]))
        nodes.append(helper.make_node("Reshape", [f"turned{layer}", "shape"], [f"x{layer + 1}"]))
        x, columns = f"x{layer + 1}", 2 * size
    weights.append(numpy_helper.from_array(np.array([steps, batch, 2 * size]), "shape"))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, (steps, batch, width))],
        [helper.make_tensor_value_info(x, 1, (steps, batch, 2 * size))],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def computed_by_onnxruntime(model: onnx.ModelProto, feed: dict[str, Array]) -> list[Array]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return list(session.run(None, feed))


@pytest.mark.parametrize(("batch", "per_channel"), [(1, False), (1, True), (3, True)])
def test_recurrent_layers_that_are_quantised_dynamically(
    batch: int, per_channel: bool, tmp_path: Path
) -> None:
    path = tmp_path / "quantised.onnx"
    network = recurrent_network(6, batch, 10, 40)
    quantize_dynamic(network, path, per_channel=per_channel, weight_type=QuantType.QInt8)
    model = onnx.load(path)
    assert [n.op_type for n in model.graph.node].count("DynamicQuantizeLSTM") == 2
    feed = {"x": np.random.default_rng(1).standard_normal((6, batch, 10)).astype(np.float32)}
    (expected,) = computed_by_onnxruntime(model, feed)
    results = [tw.compile(model, threads=threads) for threads in (1, 2)]
    found = [compiled.run(None, feed)[0] for compiled in results]
    # A state that is rounded to another byte moves others by a step of its range times a weight.
    np.testing.assert_allclose(found[0], expected, rtol=0, atol=1e-3)
    assert np.median(abs(found[0] - expected)) < 1e-6
    np.testing.assert_array_equal(found[0], found[1])
    assert not [kernel for kernel in results[0].kernels if kernel.is_host]
    assert [kernel.template for kernel in results[0].kernels].count("recurrent") == 2
