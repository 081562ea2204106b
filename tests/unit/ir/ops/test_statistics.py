"""Numerical behaviour that the order of operations decides: softmax, norms, extremes, requantisation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Attribute, Node, Value
from tilewright.ir.interpret import run_node
from tilewright.ir.nest import Opaque
from tilewright.ir.nest_interpreter import run_described
from tilewright.ir.ops import describe

INF, NAN = np.inf, np.nan


def both(
    op_type: str,
    inputs: Sequence[Any],
    dtype: DType,
    shape: tuple[int, ...],
    attributes: Mapping[str, Attribute] | None = None,
    opset: int = 21,
) -> list[np.ndarray]:
    """The result through the reference and through the nests."""
    arrays = [np.asarray(a) for a in inputs]
    values = [
        Value(f"x{i}", DType.from_numpy(a.dtype), a.shape, a if i else None) for i, a in enumerate(arrays)
    ]
    node = Node(op_type, values, [Value("y", dtype, shape)], attributes, opset=opset)
    results = [run_node(node, arrays)[0], run_described(node, arrays)[0]]
    assert all(r is not None for r in results)
    return [r for r in results if r is not None]


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax"])
def test_softmax_of_large_numbers_does_not_overflow(op_type: str) -> None:
    for result in both(op_type, [f32(1000, 1000)], DType.FLOAT32, (2,)):
        np.testing.assert_allclose(result, [0.5] * 2 if op_type == "Softmax" else [-np.log(2)] * 2, rtol=1e-6)


@pytest.mark.parametrize("opset", [13, 18])
def test_log_sum_exp_takes_infinities(opset: int) -> None:
    for x, want in [(f32(-INF, -INF), -INF), (f32(INF, 1), INF), (f32(200, 200), 200 + np.log(2))]:
        for result in both("ReduceLogSumExp", [x], DType.FLOAT32, (1,), opset=opset):
            np.testing.assert_allclose(result, [want], rtol=1e-6)


def test_layer_norm_keeps_its_digits_far_from_zero() -> None:
    x = f32(10000, 10001, 10002, 10003)
    ones = np.ones(4, np.float32)
    centred = np.array([-1.5, -0.5, 0.5, 1.5])
    for result in both("LayerNormalization", [x, ones], DType.FLOAT32, (4,), {"epsilon": 0.0}):
        np.testing.assert_allclose(result, centred / np.sqrt(1.25), rtol=1e-5)


@pytest.mark.parametrize(
    ("last", "x", "want"),
    [
        (0, f32(1, 3, 3), 1),
        (1, f32(1, 3, 3), 2),
        (0, f32(1, NAN, 3), 1),
        (0, f32(-INF, -INF), 0),
    ],
)
def test_the_index_of_the_maximum_is_first_or_last_and_nan_wins(last: int, x: np.ndarray, want: int) -> None:
    attributes = {"select_last_index": last, "keepdims": 0}
    for result in both("ArgMax", [x], DType.INT64, (), attributes, 13):
        assert result.tolist() == want


def test_reducing_an_empty_axis_gives_the_neutral_element() -> None:
    x = np.zeros((2, 0), np.float32)
    for op_type, want in [("ReduceSum", 0), ("ReduceProd", 1), ("ReduceMax", -INF), ("ReduceMin", INF)]:
        for result in both(op_type, [x, np.array([1])], DType.FLOAT32, (2, 1), opset=20):
            assert result.tolist() == [[want], [want]]


def test_no_axes_mean_all_axes_or_none() -> None:
    x = f32(1, 2)
    for noop, shape, want in [(0, (1,), [3]), (1, (2,), [1, 2])]:
        for result in both("ReduceSum", [x], DType.FLOAT32, shape, {"noop_with_empty_axes": noop}, 13):
            assert result.tolist() == want


def test_axes_that_are_only_known_at_run_time_leave_a_reduction_opaque() -> None:
    values = [Value("x", DType.FLOAT32, (2, 3)), Value("axes", DType.INT64, (1,))]
    description = describe(Node("ReduceSum", values, [Value("y", DType.FLOAT32, (1, 3))], opset=13))
    assert description == Opaque("ReduceSum whose axes are computed while the model runs")


def test_requantisation_rounds_halves_to_even_and_saturates() -> None:
    one, zero = np.float32(1), np.uint8(0)
    a = np.array([[1], [3], [5], [255]], np.uint8)
    inputs = [a, one, zero, np.array([[1]], np.uint8), one, zero, np.float32(2), zero]
    for result in both("QLinearMatMul", inputs, DType.UINT8, (4, 1)):
        assert result.ravel().tolist() == [0, 2, 2, 128]
    inputs[6] = np.float32(0.5)
    for result in both("QLinearMatMul", inputs, DType.UINT8, (4, 1)):
        assert result.ravel().tolist() == [2, 6, 10, 255]


def test_a_query_that_may_attend_to_no_key_gets_zeros() -> None:
    q = np.ones((1, 1, 2, 1), np.float32)
    mask = np.array([[False, False], [True, False]])
    values = np.array([5, 7], np.float32).reshape(1, 1, 2, 1)
    for result in both("Attention", [q, q, values, mask], DType.FLOAT32, (1, 1, 2, 1), opset=23):
        assert result.ravel().tolist() == [0, 5]


def test_averages_count_padding_only_when_asked() -> None:
    x = np.ones((1, 1, 3), np.float32)
    base: dict[str, Attribute] = {"kernel_shape": (2,), "pads": (1, 1)}
    for include, want in [(0, [1, 1, 1, 1]), (1, [0.5, 1, 1, 0.5])]:
        attributes = base | {"count_include_pad": include}
        for result in both("AveragePool", [x], DType.FLOAT32, (1, 1, 4), attributes, 22):
            assert result.ravel().tolist() == want


def test_padding_never_wins_a_maximum() -> None:
    x = np.full((1, 1, 2), -128, np.int8)
    for result in both("MaxPool", [x], DType.INT8, (1, 1, 3), {"kernel_shape": (2,), "pads": (1, 1)}, 22):
        assert result.ravel().tolist() == [-128] * 3


def test_a_diagonal_is_one_dim_in_two_indices() -> None:
    x = np.arange(9, dtype=np.float32).reshape(3, 3)
    for result in both("Einsum", [x], DType.FLOAT32, (3,), {"equation": "ii->i"}, 12):
        assert result.tolist() == [0, 4, 8]
