"""Windows: their outputs follow from operands and attributes, whatever a file or inference says."""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper

import tilewright as tw
from tilewright.errors import ModelRejected
from tilewright.ir.ops.window import Window

WIDE = 10**9


def one_node(
    op_type: str, shapes: list[list[int]], declared: list[int] | None = None, **attributes: Any
) -> ModelProto:
    names = [f"x{i}" for i in range(len(shapes))]
    node = helper.make_node(op_type, names, ["y"], **attributes)
    inputs = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in zip(names, shapes, strict=True)
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, declared)
    return helper.make_model(
        helper.make_graph([node], "g", inputs, [output]),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=9,
    )


def run(model: ModelProto) -> np.ndarray[Any, Any]:
    shapes = [[d.dim_value for d in i.type.tensor_type.shape.dim] for i in model.graph.input]
    feed = {f"x{i}": np.arange(1, 1 + np.prod(s), dtype=np.float32).reshape(s) for i, s in enumerate(shapes)}
    (result,) = tw.compile(model, target="cpu").run(None, feed)
    return result


@pytest.mark.parametrize("op_type", ["MaxPool", "LpPool"])
@pytest.mark.parametrize("stride", [2, 1000, WIDE])
def test_a_stride_wider_than_the_input_leaves_one_window(op_type: str, stride: int) -> None:
    attributes = {"ceil_mode": 1} if op_type == "MaxPool" else {}
    model = one_node(op_type, [[1, 1, 2]], kernel_shape=[1], strides=[stride], **attributes)
    assert run(model).tolist() == [[[1.0]]]


def test_windows_that_would_begin_in_the_end_padding_do_not_exist() -> None:
    attributes = {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1}
    assert run(one_node("MaxPool", [[1, 1, 3, 3]], **attributes)).tolist() == [[[[1, 3], [7, 9]]]]


@pytest.mark.parametrize("dilation", [1, 7, WIDE])
def test_a_window_wider_than_its_input_gives_nothing(dilation: int) -> None:
    model = one_node("Conv", [[1, 1, 1], [1, 1, 2]], dilations=[dilation], strides=[dilation + 1])
    assert run(model).shape == (1, 1, 0)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("op_type", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (4, 3), (5, 3)])
def test_a_pool_whose_window_lacks_less_than_a_stride_has_one_output(
    op_type: str, kernel: int, stride: int
) -> None:
    model = one_node(op_type, [[1, 1, 2]], kernel_shape=[kernel], strides=[stride])
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (expected,) = session.run(None, {"x0": np.array([[[1, 2]]], np.float32)})
    found = run(model)
    assert found.shape == expected.shape == (1, 1, 1 if kernel - 2 < stride else 0)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("lowest", [np.uint8(0), np.int8(-128), np.float32(-np.inf)])
@pytest.mark.parametrize("storage_order", [0, 1])
@pytest.mark.parametrize("dilation", [1, 2])
def test_indices_of_a_maximum_name_places_of_their_own_plane(
    lowest: np.generic, storage_order: int, dilation: int
) -> None:
    x = np.full((2, 3, 5, 4), lowest)
    x[0, 1, 2, 2] = 7
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    node = helper.make_node(
        "MaxPool",
        ["x"],
        ["y", "i"],
        kernel_shape=[3, 3],
        strides=[2, 2],
        pads=[2, 2, 2, 2],
        dilations=[dilation, dilation],
        storage_order=storage_order,
    )
    outputs = [
        helper.make_tensor_value_info("y", kind, None),
        helper.make_tensor_value_info("i", TensorProto.INT64, None),
    ]
    graph = helper.make_graph([node], "g", [helper.make_tensor_value_info("x", kind, x.shape)], outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    values, indices = tw.compile(model, target="cpu").run(None, {"x": x})
    plane, place = np.divmod(indices, 5 * 4)
    assert (plane == np.arange(6).reshape(2, 3, 1, 1)).all()
    row, column = np.divmod(place, 4) if storage_order == 0 else np.divmod(place, 5)[::-1]
    n, c = np.divmod(plane, 3)
    assert (x[n, c, row, column] == values).all()
    # Each lies in its own window.
    for at, out_axis in ((row, 2), (column, 3)):
        start = (np.arange(values.shape[out_axis]) * 2 - 2).reshape((-1, 1) if out_axis == 2 else (1, -1))
        assert ((at - start) % dilation == 0).all()
        assert ((at >= start) & (at - start <= 2 * dilation)).all()


def test_same_padding_of_a_transposed_convolution_counts_output_padding() -> None:
    model = one_node(
        "ConvTranspose", [[1, 1, 3], [1, 1, 3]], auto_pad="SAME_UPPER", strides=[2], output_padding=[1]
    )
    assert run(model).tolist() == [[[2, 5, 4, 9, 6, 9]]]


@pytest.mark.parametrize(
    ("op_type", "shapes", "attributes", "message"),
    [
        ("Conv", [[1, 2, 4], [8, 300, 1]], {}, r"'x1' has shape \[8, 300, 1\], but \[\?, 2, 1\]"),
        ("Conv", [[1, 2, 4], [1000, 2, 1], [1]], {}, r"'x2' has shape \[1\], but \[1000\]"),
        ("Conv", [[1, 6, 4], [8, 2, 1]], {"group": 3}, "group=3 does not divide 8 output channels"),
        ("Conv", [[1, 2, 4], [8, 2, 1]], {"group": 0}, "group is 0"),
        ("Conv", [[1, 2, 4], [8, 2, 1]], {"group": -1}, "group is -1"),
        ("Conv", [[1, 2, 4], [8, 2, 3]], {"kernel_shape": [2]}, r"kernel_shape is \[2\]"),
        ("ConvTranspose", [[1, 2, 4], [2, 1000, 1], [1]], {}, r"'x2' has shape \[1\], but \[1000\]"),
        ("ConvTranspose", [[1, 2, 4], [3, 4, 1]], {}, r"'x1' has shape \[3, 4, 1\], but \[2, 4, 1\]"),
        ("ConvTranspose", [[1, 2, 4], [2, 4, 1]], {"group": 0}, "group"),
    ],
)
def test_operands_that_do_not_fit_are_named(
    op_type: str, shapes: list[list[int]], attributes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelRejected, match=message) as caught:
        tw.compile(one_node(op_type, shapes, **attributes))
    assert "\n" not in str(caught.value)


def test_an_operators_own_shape_counts_before_the_declared_one() -> None:
    attributes = {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1}
    compiled = tw.compile(one_node("MaxPool", [[1, 1, 3, 3]], [1, 1, 3, 3], **attributes))
    (y,) = compiled.run(None, {"x0": np.ones((1, 1, 3, 3), np.float32)})
    assert y.shape == (1, 1, 2, 2)


@pytest.mark.parametrize("include_pad", [False, True])
def test_taps_that_count_are_those_between_the_borders(include_pad: bool) -> None:
    for kernel in (1, 2, 5):
        for stride, dilation, begin, end in ((1, 1, 0, 0), (2, 3, 4, 1), (3, 2, 1, 2)):
            window = Window((kernel,), (stride,), (dilation,), (begin,), (end,), (6,))
            low, high = (-begin, 4 + end) if include_pad else (0, 4)
            expected = [
                sum(low <= o * stride + k * dilation - begin < high for k in range(kernel)) for o in range(6)
            ]
            assert list(window.counts(0, 4, include_pad)) == expected
