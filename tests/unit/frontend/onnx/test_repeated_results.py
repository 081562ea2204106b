"""Bodies that give one value for several results: onnxruntime takes them for Loop, exporters write them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

import tilewright as tw

ROW, ROWS = [2], [3, 2]
X = np.array([1, -2], np.float32)


def _value(name: str, shape: list[int], dtype: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, dtype, shape)


def _model(node: NodeProto, inputs: list[Any], outputs: list[Any], *constants: Any) -> ModelProto:
    graph = helper.make_graph([node], "g", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def _body(node: NodeProto, inputs: list[Any], outputs: list[Any], *before: NodeProto) -> GraphProto:
    return helper.make_graph([*before, node], "body", inputs, outputs)


def _loop(trips: int | None) -> tuple[ModelProto, dict[str, Any]]:
    body = _body(
        helper.make_node("Add", ["s", "one"], ["t"]),
        [
            _value("i", [], TensorProto.INT64),
            _value("c", [], TensorProto.BOOL),
            _value("s", ROW),
            _value("r", ROW),
        ],
        [_value("again", [], TensorProto.BOOL), *(_value("t", ROW) for _ in range(3))],
        helper.make_node("Identity", ["c"], ["again"]),
    )
    node = helper.make_node("Loop", ["n", "", "x", "x"], ["a", "b", "rows"], body=body)
    constants = [numpy_helper.from_array(np.ones(2, np.float32), "one")]
    inputs, feed = [_value("x", ROW)], {"x": X}
    if trips is None:
        inputs.append(_value("n", [], TensorProto.INT64))
        feed["n"] = np.array(3)
    else:
        constants.append(numpy_helper.from_array(np.array(trips), "n"))
    return _model(node, inputs, [_value("a", ROW), _value("b", ROW), _value("rows", ROWS)], *constants), feed


def _scan() -> tuple[ModelProto, dict[str, Any]]:
    add = helper.make_node("Add", ["s", "e"], ["t"])
    body = _body(add, [_value("s", ROW), _value("e", ROW)], [_value("t", ROW), _value("t", ROW)])
    node = helper.make_node("Scan", ["x", "ones"], ["a", "rows"], body=body, num_scan_inputs=1)
    ones = numpy_helper.from_array(np.ones(ROWS, np.float32), "ones")
    return _model(node, [_value("x", ROW)], [_value("a", ROW), _value("rows", ROWS)], ones), {"x": X}


def _if() -> tuple[ModelProto, dict[str, Any]]:
    branches = {
        name: _body(helper.make_node(kind, ["x"], ["t"]), [], [_value("t", ROW), _value("t", ROW)])
        for name, kind in (("then_branch", "Neg"), ("else_branch", "Relu"))
    }
    node = helper.make_node("If", ["p"], ["a", "b"], **branches)
    inputs = [_value("p", [], TensorProto.BOOL), _value("x", ROW)]
    return _model(node, inputs, [_value("a", ROW), _value("b", ROW)]), {"p": np.array(True), "x": X}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("target", ["cpu", "interpreter"])
@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (_loop(None), [X + 3, X + 3, [X + 1, X + 2, X + 3]]),
        (_loop(3), [X + 3, X + 3, [X + 1, X + 2, X + 3]]),
        (_scan(), [X + 3, [X + 1, X + 2, X + 3]]),
        (_if(), [-X, -X]),
    ],
    ids=["loop", "unrolled", "scan", "if"],
)
def test_one_value_may_be_several_results(
    made: tuple[ModelProto, dict[str, Any]], expected: list[Any], target: str
) -> None:
    model, feed = made
    found = tw.compile(model, target=target).run(None, feed)
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)
