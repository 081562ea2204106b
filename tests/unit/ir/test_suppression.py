"""NonMaxSuppression keeps the boxes that onnx's own reference keeps, in its order."""

# mypy: disable-error-code="arg-type, attr-defined"

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, SubgraphAttribute, Value
from tilewright.ir.interpret import run_node


@pytest.mark.parametrize("moved", [0, 12])  # boxes of three classes, of which those of two may touch
@pytest.mark.parametrize("is_center", [0, 1])
@pytest.mark.parametrize(
    ("most", "overlap", "least"), [(5, 0.3, 0.4), (100, 0.0, -1.0), (0, 0.5, 0.0), (3, 1.0, 2.0)]
)
def test_the_same_boxes_are_kept_in_the_same_order(
    most: int, overlap: float, least: float, is_center: int, moved: int
) -> None:
    rng = np.random.default_rng(most)
    boxes = rng.integers(-6, 7, (2, 40, 4)).astype(np.float32)  # corners in any order, some without area
    boxes[:, :, [0] if is_center else [0, 2]] += moved * rng.integers(0, 3, (2, 40, 1)).astype(np.float32)
    scores = rng.integers(0, 5, (2, 3, 40)).astype(np.float32) / 4  # many are equal
    limits = (np.array([most]), np.array([overlap], np.float32), np.array([least], np.float32))
    proto = helper.make_node("NonMaxSuppression", list("abcde"), ["y"], name="n", center_point_box=is_center)
    arrays = dict(zip("abcde", (boxes, scores, *limits), strict=True))
    fed = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in arrays.items()
    ]
    result = helper.make_tensor_value_info("y", TensorProto.INT64, None)
    graph = helper.make_graph([proto], "g", fed, [result])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    (wanted,) = ReferenceEvaluator(model).run(None, arrays)
    values = [Value(n, DType.from_numpy(a.dtype), a.shape) for n, a in arrays.items()]
    node = Node(
        "NonMaxSuppression",
        values,
        [Value("y", DType.INT64, ())],
        {"center_point_box": is_center},
        name="n",
        opset=17,
    )
    (found,) = run_node(node, list(arrays.values()))
    assert found is not None
    np.testing.assert_array_equal(found, wanted)


def test_in_a_branch_boxes_are_kept_by_the_same_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Branches run in onnx.reference, whose own suppression takes minutes for the boxes of a detector."""
    from onnx.reference.ops.op_non_max_suppression import NonMaxSuppression

    boxes = np.array([[[0, 0, 1, 1], [0, 0, 1, 0.9], [2, 2, 3, 3]]], np.float32)
    scores = np.array([[[0.5, 0.9, 0.7]]], np.float32)
    limits = (np.array(10), np.array([0.5], np.float32))  # the least score is omitted
    arrays = dict(zip("abcd", (boxes, scores, *limits), strict=True))
    kept = helper.make_tensor_value_info("y", TensorProto.INT64, None)
    proto = helper.make_node("NonMaxSuppression", list("abcd"), ["y"], name="n")
    branch = SubgraphAttribute(helper.make_graph([proto], "then", [], [kept]).SerializeToString())
    captures = [Value(n, DType.from_numpy(a.dtype), a.shape) for n, a in arrays.items()]
    node = Node(
        "If",
        [Value("c", DType.BOOL, ())],
        [Value("z", DType.INT64, ())],
        {"then_branch": branch, "else_branch": branch},
        opset=17,
        captures=captures,
    )
    monkeypatch.delattr(NonMaxSuppression, "_run")
    (found,) = run_node(node, [np.array(True)], captures=list(arrays.values()))
    assert found is not None
    np.testing.assert_array_equal(found, [[0, 0, 1], [0, 0, 2]])
