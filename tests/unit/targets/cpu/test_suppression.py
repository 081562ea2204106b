"""NonMaxSuppression in machine code keeps the boxes that its reference keeps, and onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from tilewright.errors import InputError
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, Value
from tilewright.ir.interpret import run_node
from tilewright.targets import host_runner
from tilewright.targets.cpu.runtime import suppression

Array = np.ndarray[Any, Any]


def node(arrays: Sequence[Array], *, is_center: bool = False) -> Node:
    values = [
        Value(name, DType.from_numpy(a.dtype), a.shape) for name, a in zip("abcde", arrays, strict=False)
    ]
    result = Value("y", DType.INT64, ())
    attributes = {"center_point_box": int(is_center)}
    return Node("NonMaxSuppression", values, [result], attributes, name="n", opset=17)


def operands(
    boxes: Array, scores: Array, most: int, overlap: float, least: float | None = None
) -> tuple[Array, ...]:
    limits = [np.array([most]), np.array([overlap], np.float32)]
    if least is not None:
        limits.append(np.array([least], np.float32))
    return (boxes, scores, *limits)


def boxes_of(rng: np.random.Generator, *shape: int, size: float = 0.2, is_center: bool = False) -> Array:
    """Boxes within the unit square, and their corners in either order."""
    center, sides = rng.random((*shape, 2)), size * rng.random((*shape, 2))
    if is_center:
        return np.concatenate([center, sides], -1).astype(np.float32)
    corners = np.stack([center - sides / 2, center + sides / 2], -2)
    turned = np.take_along_axis(corners, np.argsort(rng.random(corners.shape), -2), -2)
    return np.ascontiguousarray(turned.reshape(*shape, 4), np.float32)


def require_equal(arrays: Sequence[Array], *, is_center: bool = False) -> Array:
    """What the code keeps, which is what the reference keeps."""
    found = suppression.suppressed(node(arrays, is_center=is_center), arrays)
    (expected,) = run_node(node(arrays, is_center=is_center), arrays)
    assert found is not None
    assert expected is not None
    np.testing.assert_array_equal(found, expected)
    return found


@pytest.mark.parametrize("is_center", [False, True])
@pytest.mark.parametrize(
    ("shape", "most", "overlap", "least"),
    [
        ((1, 1, 100), 100, 0.5, None),
        ((2, 3, 100), 7, 0.3, 0.4),
        ((1, 80, 333), 20, 0.45, 0.9),
        ((1, 2, 1500), 1500, 0.6, 0.05),
        ((1, 1, 1), 3, 0.0, None),
        ((1, 4, 17), 5, 1.0, 0.999),
        ((1, 2, 40), 0, 0.5, None),
        ((1, 2, 0), 4, 0.5, None),
    ],
    ids=str,
)
def test_onnxruntime_keeps_the_same_boxes(
    shape: tuple[int, int, int], most: int, overlap: float, least: float | None, is_center: bool
) -> None:
    num_batches, num_classes, num_boxes = shape
    rng = np.random.default_rng(num_boxes)
    boxes = boxes_of(rng, num_batches, num_boxes, is_center=is_center)
    scores = (rng.integers(0, 4096, (num_batches, num_classes, num_boxes)) / 4096).astype(np.float32)
    arrays = operands(boxes, scores, most, overlap, least)
    n = node(arrays, is_center=is_center)
    (found,) = host_runner()(n, arrays)
    names = list("abcde"[: len(arrays)])
    proto = helper.make_node("NonMaxSuppression", names, ["y"], center_point_box=int(is_center))
    fed = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for name, a in zip(names, arrays, strict=True)
    ]
    result = helper.make_tensor_value_info("y", TensorProto.INT64, [None, 3])
    model = helper.make_model(
        helper.make_graph([proto], "g", fed, [result]),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, dict(zip(names, arrays, strict=True)))
    assert found is not None
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_boxes_and_scores_are_the_reference_keeps_the_same(seed: int) -> None:
    """Corners in any order, boxes without area, infinite ones, what is no number, equal scores and zeros of
    both signs."""
    rng = np.random.default_rng(seed)
    num_boxes = int(rng.integers(1, 200))
    boxes = rng.integers(-6, 7, (2, num_boxes, 4)).astype(np.float32)
    scores = rng.choice([-1.0, -0.0, 0.0, 0.5, 1.0], (2, 3, num_boxes)).astype(np.float32)
    odd = np.array([np.nan, np.inf, -np.inf, 3e38, 1e-40], np.float32)
    if seed % 2:
        boxes = np.where(rng.random(boxes.shape) < 0.05, rng.choice(odd, boxes.shape), boxes)
        scores = np.where(rng.random(scores.shape) < 0.05, rng.choice(odd, scores.shape), scores)
    least = (None, 0.0, -1.0, float("nan"))[seed % 4]
    most = int(rng.integers(1, num_boxes + 2))
    require_equal(operands(boxes, scores, most, 0.3, least), is_center=seed % 3 == 0)


@pytest.mark.parametrize("is_center", [False, True])
def test_boxes_of_groups_that_do_not_meet_are_kept_in_order(
    is_center: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of many classes, moved to where no other class has any, as detectors do."""
    monkeypatch.setattr(suppression, "MAX_TOGETHER", 8)
    rng = np.random.default_rng(5)
    boxes = boxes_of(rng, 2, 400, is_center=is_center)
    moved = 2 * rng.integers(0, 9, (2, 400, 1)).astype(np.float32)
    boxes[:, :, [0] if is_center else [0, 2]] += moved
    scores = rng.integers(0, 50, (2, 3, 400)).astype(np.float32)
    for most in (8, 60, 1000):
        found = require_equal(operands(boxes, scores, most, 0.1), is_center=is_center)
        assert len(found)


def test_operands_that_do_not_lie_as_code_reads_them_give_the_same() -> None:
    rng = np.random.default_rng(1)
    boxes, scores = boxes_of(rng, 1, 60), rng.random((1, 60, 2)).astype(np.float32)
    require_equal(operands(boxes[:, ::-2], scores.transpose(0, 2, 1)[..., ::2], 9, 0.4))


def test_what_the_reference_is_to_say_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    boxes, scores = boxes_of(rng, 1, 60), rng.random((1, 2, 60)).astype(np.float32)
    fewer = operands(boxes[:, :50], scores, 9, 0.4)
    assert suppression.suppressed(node(fewer), fewer) is None
    with pytest.raises(InputError):
        host_runner()(node(fewer), fewer)
    doubles = operands(boxes, scores.astype(np.float64), 9, 0.4)
    assert suppression.suppressed(node(doubles), doubles) is None
    monkeypatch.setattr(suppression, "MAX_PAIRS", 1000)
    many = operands(boxes, scores, 9, 0.4)
    assert suppression.suppressed(node(many), many) is None
