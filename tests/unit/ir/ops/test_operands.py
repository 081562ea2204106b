"""Operands, attributes and declared results that do not fit each other are refused in one line."""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from tests.support.run_time import Case

import tilewright as tw
from tilewright.errors import ModelRejected
from tilewright.testing.kernel_runner import guarded

F, I64, U8, I32 = np.float32, np.int64, np.uint8, np.int32


def given(*shapes: Sequence[int]) -> list[np.ndarray[Any, Any]]:
    return [np.ones(shape, F) for shape in shapes]


def indices(*shape: int) -> np.ndarray[Any, Any]:
    return np.zeros(shape, I64)


def refused(case: Case, mentions: str) -> None:
    with pytest.raises(ModelRejected, match=mentions) as caught:
        tw.compile(case.model(), target="cpu")
    message = str(caught.value)
    assert "\n" not in message
    assert "'node'" in message or "'y0'" in message


@pytest.mark.parametrize(
    ("operator", "inputs", "result", "attributes", "mentions"),
    [
        ("Gemm", given((2, 3), (3, 40000), (1, 17)), (2, 40000), {}, r"'i2' has shape \[1, 17\]"),
        ("Gemm", given((2, 3), (4, 5)), (2, 5), {}, "Gemm"),
        ("MatMul", given((2, 3), (4, 5)), (2, 5), {}, "MatMul"),
        (
            "ScatterND",
            [*given((1000,)), indices(1000, 1), *given((1,))],
            (1000,),
            {},
            r"'i2' has shape \[1\]",
        ),
        (
            "ScatterElements",
            [*given((5, 4)), indices(2, 4), *given((1, 4))],
            (5, 4),
            {},
            r"'i2' has shape \[1, 4\], but \[2, 4\]",
        ),
        (
            "ScatterElements",
            [*given((5, 4)), indices(2, 6), *given((2, 6))],
            (5, 4),
            {},
            "reach beyond axis 1",
        ),
        ("GatherElements", [*given((5, 4)), indices(2, 400)], (2, 400), {}, "reach beyond axis 1"),
        ("GatherND", [*given((2, 3)), indices(1000, 1)], (1000,), {"batch_dims": 1}, "batch_dims"),
        ("InstanceNormalization", given((1, 300, 4), (1,), (300,)), (1, 300, 4), {}, r"'i1'"),
        ("LayerNormalization", given((2, 300), (7,)), (2, 300), {}, r"'i1' has shape \[7\]"),
        (
            "BatchNormalization",
            given((1, 300, 4), (300,), (300,), (300,), (2,)),
            (1, 300, 4),
            {},
            "does not fit its inputs",
        ),
        ("PRelu", given((2, 300), (7,)), (2, 300), {}, "do not broadcast"),
        ("LSTM", given((2, 1, 3), (1, 8, 4), (1, 8, 2)), (2, 1, 1, 2), {"hidden_size": 2}, r"'i1' has shape"),
        ("GRU", given((2, 1, 3), (1, 6, 3), (1, 6, 2), (1, 5)), (2, 1, 1, 2), {"hidden_size": 2}, r"'i3'"),
        ("RNN", given((2, 1, 3), (1, 2, 3), (1, 2, 2)), (2, 1, 1, 5), {"hidden_size": 5}, "hidden_size is 5"),
        ("Concat", given((2, 3), (4, 3)), (2, 6), {"axis": 1}, "does not fit its inputs"),
        (
            "DepthToSpace",
            given((1, 6, 2, 2)),
            (1, 1, 4, 4),
            {"blocksize": 2},
            "blocksize=2 does not divide 6",
        ),
        ("Transpose", given((2, 3)), (3, 2), {"perm": [1, 1]}, "does not fit its inputs"),
        ("Softmax", given((2, 3)), (2, 3), {"axis": 5}, "does not fit its inputs"),
        ("LRN", given((1, 3, 4)), (1, 3, 4), {"size": 0}, "size is 0"),
        ("Einsum", given((2, 3), (4, 5)), (2, 5), {"equation": "ij,jk->ik"}, "'j' stands for"),
        ("ReverseSequence", [*given((4, 3)), indices(3)], (4, 3), {"time_axis": 7}, "time_axis is 7"),
        ("ReverseSequence", [*given((4, 3)), indices(2)], (4, 3), {}, r"'i1' has shape \[2\]"),
        (
            "MatMulInteger",
            [np.ones((2, 3), U8), np.ones((3, 4), U8), np.ones(3, U8)],
            (2, 4),
            {},
            r"'i2' has shape \[3\], but \[2\]",
        ),
        (
            "ConvInteger",
            [np.ones((1, 2, 4), U8), np.ones((300, 2, 1), U8), np.ones((), U8), np.ones(7, U8)],
            (1, 300, 4),
            {},
            r"'i3' has shape \[7\], but \[300\]",
        ),
        ("GridSample", given((1, 1, 4, 4), (2, 3, 3, 2)), (1, 1, 3, 3), {}, "does not fit its inputs"),
        ("RoiAlign", [*given((1, 1, 4, 4), (3, 4)), indices(1)], (3, 1, 1, 1), {}, "does not fit its inputs"),
    ],
)
def test_operands_that_do_not_fit_are_refused(
    operator: str,
    inputs: Sequence[np.ndarray[Any, Any]],
    result: tuple[int, ...],
    attributes: Mapping[str, Any],
    mentions: str,
) -> None:
    dtype: Any = I32 if operator.endswith("Integer") else F
    refused(Case(operator, inputs, [(dtype, result)], attributes, 17), mentions)


@pytest.mark.parametrize(
    ("value_heads", "mask"), [((1, 1, 3, 4), None), ((1, 2, 7, 4), None), ((1, 2, 3, 4), (5, 300))]
)
def test_values_and_masks_of_attention_fit_its_keys(
    value_heads: tuple[int, ...], mask: tuple[int, ...] | None
) -> None:
    inputs = given((1, 2, 5, 4), (1, 2, 3, 4), value_heads, *([mask] if mask else []))
    refused(Case("Attention", inputs, [(F, (1, 2, 5, 4))], {}, 23), "Attention 'node'")


def test_one_hot_is_as_wide_as_its_depth() -> None:
    model = Case("OneHot", [indices(3), np.asarray(5, I64), np.ones(2, F)], [(F, (3, 100001))]).model()
    model.graph.initializer.add().CopyFrom(_constant("i1", np.asarray(5, I64)))
    del model.graph.input[1]
    assert tw.compile(model).get_outputs()[0].shape == (3, 5)


def test_repeats_that_are_data_make_whole_multiples() -> None:
    case = Case("Tile", [np.ones(3, F), np.ones(1, I64)], [(F, (100001,))])
    feed = {"i0": np.ones(3, F), "i1": np.ones(1, I64)}
    assert tw.compile(case.model()).run(None, feed)[0].shape == (3,)


@pytest.mark.parametrize(
    ("scale", "extent"), [(0.1, 0), (0.5, 1), (2.0, 6)], ids=["to nothing", "smaller", "larger"]
)
def test_resizing_to_nothing_gives_an_empty_tensor(scale: float, extent: int) -> None:
    found = tw.compile(_resize(scale)).run(None, {"x": guarded(np.ones((1, 1, 3), F))})[0]
    assert found.shape == (1, 1, extent)


@pytest.mark.parametrize("scale", [1e9, float("inf"), float("nan"), -1.0])
def test_scales_that_no_tensor_can_have_are_refused(scale: float) -> None:
    with pytest.raises(ModelRejected, match=r"Resize") as caught:
        tw.compile(_resize(scale))
    assert "\n" not in str(caught.value)


def _constant(name: str, data: np.ndarray[Any, Any]) -> Any:
    from onnx import numpy_helper

    return numpy_helper.from_array(data, name)


def _resize(scale: float) -> Any:
    from onnx import TensorProto, helper

    graph = helper.make_graph(
        [helper.make_node("Resize", ["x", "", "scales"], ["y"], "node", mode="linear")],
        "resize",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [_constant("scales", np.asarray([1, 1, scale], F))],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
