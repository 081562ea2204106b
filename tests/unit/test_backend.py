"""The ONNX backend interface."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper
from onnx.parser import parse_model

from tilewright import backend
from tilewright.errors import UnsupportedOp, UsageError

MODEL = '<ir_version: 8, opset_import: ["": 17]> g (float[2] a, float[2] b) => (float[2] y) { y = Sub(a, b) }'
A, B = np.array([1, 2], np.float32), np.array([10, 20], np.float32)


@pytest.mark.parametrize("device", ["CPU", "CPU:0", "INTERPRETER", "STCP920", "ipu-mk1"])
def test_a_model_runs_on_each_device(device: str) -> None:
    assert backend.supports_device(device)
    (y,) = backend.prepare(parse_model(MODEL), device).run([A, B])
    np.testing.assert_array_equal(y, A - B)
    outputs = backend.run_model(parse_model(MODEL), [A, B], device)
    np.testing.assert_array_equal(outputs.y, A - B)  # type: ignore[attr-defined]  # a named tuple


def test_a_node_runs_alone() -> None:
    (y,) = backend.run_node(helper.make_node("Sub", ["a", "b"], ["y"]), [A, B])
    np.testing.assert_array_equal(y, A - B)
    node = helper.make_node("NonZero", ["a"], ["y"])
    (found,) = backend.run_node(node, [A], "INTERPRETER", outputs_info=[(np.dtype(np.int64), (1, 2))])
    assert found.tolist() == [[0, 1]]


def test_an_unknown_device_is_unsupported() -> None:
    assert not backend.supports_device("TPU")
    with pytest.raises(UnsupportedOp, match="device 'TPU:1' is not supported; use one of CPU"):
        backend.prepare(parse_model(MODEL), "TPU:1")


def test_a_wrong_number_of_inputs_is_explained() -> None:
    with pytest.raises(UsageError, match="takes 2 inputs, 1 are given: a, b"):
        backend.run_model(parse_model(MODEL), [A])


def test_compatible_means_that_prepare_succeeds() -> None:
    assert backend.is_compatible(parse_model(MODEL), "INTERPRETER")
    random = MODEL.replace("Sub(a, b)", "RandomNormalLike(a)")
    assert not backend.is_compatible(parse_model(random), "INTERPRETER")
