"""A Scan whose attributes do not fit its inputs or its body is refused in one line."""

from __future__ import annotations

from typing import Any

import pytest
from onnx import ModelProto, TensorProto, helper

from tilewright.errors import ModelRejected
from tilewright.frontend.onnx import load_onnx

F = TensorProto.FLOAT


def scan(*, x: list[int], num_scan_inputs: int = 1, **attributes: Any) -> ModelProto:
    """Sums along the first axis, with every partial sum."""
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "x"], ["t"]), helper.make_node("Identity", ["t"], ["u"])],
        "body",
        [helper.make_tensor_value_info(n, F, None) for n in ("s", "x")],
        [helper.make_tensor_value_info(n, F, None) for n in ("t", "u")],
    )
    node = helper.make_node(
        "Scan", ["a", "b"], ["y", "z"], "scan", body=body, num_scan_inputs=num_scan_inputs, **attributes
    )
    inputs = [helper.make_tensor_value_info("a", F, [2]), helper.make_tensor_value_info("b", F, x)]
    outputs = [helper.make_tensor_value_info(n, F, None) for n in ("y", "z")]
    graph = helper.make_graph([node], "g", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_what_fits_is_loaded() -> None:
    graph = load_onnx(scan(x=[3, 2], scan_output_axes=[-1], scan_input_directions=[1]))
    assert [v.shape for v in graph.outputs] == [(2,), (2, 3)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("model", "mentions"),
    [
        (scan(x=[3, 2], num_scan_inputs=0), "num_scan_inputs"),
        (scan(x=[3, 2], num_scan_inputs=3), "num_scan_inputs"),
        (scan(x=[3, 2], num_scan_inputs=-1), "num_scan_inputs"),
        (scan(x=[]), "scan_input_axes"),
        (scan(x=[3, 2], scan_input_axes=[2]), "scan_input_axes"),
        (scan(x=[3, 2], scan_input_axes=[0, 0]), "scan_input_axes"),
        (scan(x=[3, 2], scan_output_axes=[5]), "5"),
    ],
)
def test_what_does_not_fit_is_refused(model: ModelProto, mentions: str) -> None:
    with pytest.raises(ModelRejected, match="scan") as caught:
        load_onnx(model)
    message = str(caught.value)
    assert mentions in message
    assert "\n" not in message
