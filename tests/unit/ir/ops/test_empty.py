"""Operators that look for the largest element have nothing to look for in a tensor without elements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tilewright as tw
from tilewright.frontend.onnx import load_onnx
from tilewright.ir.interpret import run_graph

CASES: tuple[tuple[str, Mapping[str, Any], tuple[int, ...], tuple[tuple[int, ...], ...]], ...] = (
    ("Hardmax", {"axis": 1}, (2, 0, 3), ((2, 0, 3),)),
    ("Hardmax", {"axis": 0}, (2, 0, 3), ((2, 0, 3),)),
    ("ArgMax", {"axis": 0, "keepdims": 0}, (2, 0), ((0,),)),
    ("MaxPool", {"kernel_shape": [2, 2]}, (1, 0, 4, 4), ((1, 0, 3, 3),) * 2),
    ("MaxPool", {"kernel_shape": [3, 1]}, (1, 2, 2, 5), ((1, 2, 0, 5),) * 2),
    ("MaxPool", {"kernel_shape": [2]}, (0, 3, 4), ((0, 3, 3),) * 2),
)


@pytest.mark.parametrize(("op_type", "attributes", "shape", "results"), CASES)
def test_an_empty_tensor_gives_an_empty_tensor(
    op_type: str,
    attributes: Mapping[str, Any],
    shape: tuple[int, ...],
    results: tuple[tuple[int, ...], ...],
) -> None:
    names = [f"y{i}" for i in range(len(results))]
    node = helper.make_node(op_type, ["x"], names, **attributes)
    integers = op_type == "ArgMax"
    outputs = [
        helper.make_tensor_value_info(n, TensorProto.INT64 if i or integers else TensorProto.FLOAT, None)
        for i, n in enumerate(names)
    ]
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)], outputs
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    assert isinstance(model, onnx.ModelProto)
    feed = {"x": np.zeros(shape, np.float32)}
    expected = run_graph(load_onnx(model), feed)
    assert tuple(expected[n].shape for n in names) == results
    found = tw.compile(model, no_cache=True, threads=1).run(None, feed)
    assert tuple(a.shape for a in found) == results
