"""Nodes: names, order, attributes, operands that are left out or of another type."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper as h
from tests.support.model_forms.base import Form, T, X, c, form, model, relu, vi


@form
def node_names_twice() -> Form:
    return model([relu(o="t", name="n"), relu("t", name="n")], [vi("x")], [vi("y")])


@form
def node_names_empty() -> Form:
    return model([relu(o="t"), relu("t")], [vi("x")], [vi("y")])


@form
def node_name_of_a_value() -> Form:
    return model([relu(name="x")], [vi("x")], [vi("y")])


@form
def nodes_unsorted() -> Form:
    return model([relu("t"), relu(o="t")], [vi("x")], [vi("y")])


@form
def nodes_in_a_circle() -> Form:
    return model(
        [h.make_node("Add", ["x", "b"], ["a"]), h.make_node("Relu", ["a"], ["b"]), relu()],
        [vi("x")],
        [vi("y")],
    )


@form
def node_reads_nothing_known() -> Form:
    return model([relu("q")], [vi("x")], [vi("y")])


@form
def result_twice() -> Form:
    return model([relu(), relu()], [vi("x")], [vi("y")])


@form
def node_unknown_attribute() -> Form:
    return model([h.make_node("Relu", ["x"], ["y"], colour="red")], [vi("x")], [vi("y")])


@form
def node_unknown_attribute_double_underscore() -> Form:
    return model([h.make_node("Relu", ["x"], ["y"], __colour="red")], [vi("x")], [vi("y")])


@form
def node_unknown_attribute_annotations() -> Form:
    return model([h.make_node("Relu", ["x"], ["y"], _output_shapes=["a"])], [vi("x")], [vi("y")])


@form
def node_deprecated_attribute_consumed_inputs() -> Form:
    return model([h.make_node("Relu", ["x"], ["y"], consumed_inputs=[0, 0])], [vi("x")], [vi("y")])


@form
def node_deprecated_attribute_axis_broadcast() -> Form:
    return model(
        [h.make_node("Add", ["x", "w"], ["y"], axis=1, broadcast=1)],
        [vi("x")],
        [vi("y")],
        [c(np.ones((3,), np.float32), "w")],
    )


@form
def node_deprecated_attribute_spatial() -> Form:
    p = [c(np.full((3,), v, np.float32), n) for n, v in zip("abcd", (1, 0, 0, 1), strict=True)]
    return model(
        [h.make_node("BatchNormalization", ["x", "a", "b", "c", "d"], ["y"], spatial=1)],
        [vi("x")],
        [vi("y")],
        p,
    )


@form
def node_attribute_twice() -> Form:
    n = h.make_node("LeakyRelu", ["x"], ["y"], alpha=0.1)
    n.attribute.append(h.make_attribute("alpha", 0.2))
    return model([n], [vi("x")], [vi("y")])


@form
def node_attribute_int_where_float() -> Form:
    n = h.make_node("LeakyRelu", ["x"], ["y"])
    n.attribute.append(h.make_attribute("alpha", 1))
    return model([n], [vi("x")], [vi("y")])


@form
def node_attribute_float_where_int() -> Form:
    n = h.make_node("Softmax", ["x"], ["y"])
    n.attribute.append(h.make_attribute("axis", 1.0))
    return model([n], [vi("x")], [vi("y")])


@form
def node_attribute_scalar_where_list() -> Form:
    n = h.make_node("Transpose", ["x"], ["y"])
    n.attribute.append(h.make_attribute("perm", 1))
    return model([n], [vi("x")], [vi("y", (3, 2))])


@form
def node_attribute_without_type() -> Form:
    n = h.make_node("LeakyRelu", ["x"], ["y"], alpha=0.1)
    n.attribute[0].ClearField("type")
    return model([n], [vi("x")], [vi("y")])


@form
def node_attribute_empty_list() -> Form:
    n = h.make_node("Transpose", ["x"], ["y"])
    n.attribute.append(onnx.AttributeProto(name="perm", type=onnx.AttributeProto.INTS))
    return model([n], [vi("x")], [vi("y", (3, 2))])


@form
def node_attribute_without_name() -> Form:
    n = relu()
    n.attribute.append(onnx.AttributeProto(name="", type=onnx.AttributeProto.INT, i=1))
    return model([n], [vi("x")], [vi("y")])


@form
def node_missing_required_attribute() -> Form:
    return model([h.make_node("Cast", ["x"], ["y"])], [vi("x")], [vi("y")])


@form
def node_attribute_out_of_range() -> Form:
    return model([h.make_node("Softmax", ["x"], ["y"], axis=5)], [vi("x")], [vi("y")])


@form
def optional_outputs_trailing_empty() -> Form:
    return model([h.make_node("Dropout", ["x"], ["y", ""])], [vi("x")], [vi("y")])


@form
def optional_outputs_trailing_empty_maxpool() -> Form:
    return model(
        [h.make_node("MaxPool", ["x"], ["y", ""], kernel_shape=[1])],
        [vi("x", (1, 2, 3))],
        [vi("y", (1, 2, 3))],
    ), {"x": X[None]}


@form
def optional_inputs_trailing_empty() -> Form:
    return model([h.make_node("Clip", ["x", "", ""], ["y"])], [vi("x")], [vi("y")])


@form
def outputs_too_many() -> Form:
    return model([h.make_node("Relu", ["x"], ["y", "z"])], [vi("x")], [vi("y")])


@form
def outputs_too_many_empty() -> Form:
    return model([h.make_node("Relu", ["x"], ["y", ""])], [vi("x")], [vi("y")])


@form
def inputs_too_many() -> Form:
    return model([h.make_node("Relu", ["x", "x"], ["y"])], [vi("x")], [vi("y")])


@form
def inputs_too_many_empty() -> Form:
    return model([h.make_node("Relu", ["x", ""], ["y"])], [vi("x")], [vi("y")])


@form
def first_output_omitted() -> Form:
    return model(
        [h.make_node("TopK", ["x", "k"], ["", "y"])],
        [vi("x")],
        [vi("y", (2, 1), T.INT64)],
        [c(np.array([1], np.int64), "k")],
    )


@form
def outputs_all_omitted() -> Form:
    return model([h.make_node("Relu", ["x"], [""]), relu()], [vi("x")], [vi("y")])


@form
def double_scalar_where_float() -> Form:
    return model([h.make_node("Mul", ["x", "s"], ["y"])], [vi("x")], [vi("y")], [c(np.float64(2), "s")])


@form
def int_scalar_where_float() -> Form:
    return model([h.make_node("Mul", ["x", "s"], ["y"])], [vi("x")], [vi("y")], [c(np.int64(2), "s")])


@form
def int32_axes_where_int64() -> Form:
    return model(
        [h.make_node("ReduceSum", ["x", "a"], ["y"])],
        [vi("x")],
        [vi("y", (2, 1))],
        [c(np.array([1], np.int32), "a")],
    )


@form
def int32_shape_where_int64() -> Form:
    return model(
        [h.make_node("Reshape", ["x", "a"], ["y"])],
        [vi("x")],
        [vi("y", (3, 2))],
        [c(np.array([3, 2], np.int32), "a")],
    )


@form
def scalar_axes_where_list() -> Form:
    return model(
        [h.make_node("ReduceSum", ["x", "a"], ["y"])],
        [vi("x")],
        [vi("y", (2, 1))],
        [c(np.array(1, np.int64), "a")],
    )


@form
def scalar_axes_of_unsqueeze() -> Form:
    return model(
        [h.make_node("Unsqueeze", ["x", "a"], ["y"])],
        [vi("x")],
        [vi("y", (2, 1, 3))],
        [c(np.array(1, np.int64), "a")],
    )


@form
def scalar_axes_of_squeeze() -> Form:
    return model(
        [h.make_node("Squeeze", ["x", "a"], ["y"])],
        [vi("x", (2, 1, 3))],
        [vi("y")],
        [c(np.array(1, np.int64), "a")],
    ), {"x": X[:, None]}


@form
def scalar_k_of_topk() -> Form:
    return model(
        [h.make_node("TopK", ["x", "k"], ["y", "i"])],
        [vi("x")],
        [vi("y", (2, 1))],
        [c(np.array(1, np.int64), "k")],
    )


@form
def scalar_repeats_of_tile() -> Form:
    return model(
        [h.make_node("Tile", ["x", "k"], ["y"])],
        [vi("x", (6,))],
        [vi("y", (12,))],
        [c(np.array(2, np.int64), "k")],
    ), {"x": X.ravel()}


@form
def scalar_starts_of_slice() -> Form:
    return model(
        [h.make_node("Slice", ["x", "a", "b", "a"], ["y"])],
        [vi("x")],
        [vi("y", (1, 3))],
        [c(np.array(0, np.int64), "a"), c(np.array(1, np.int64), "b")],
    )


@form
def list_of_one_where_scalar() -> Form:
    return model(
        [h.make_node("Clip", ["x", "a", "b"], ["y"])],
        [vi("x")],
        [vi("y")],
        [c(np.array([0], np.float32), "a"), c(np.array([1], np.float32), "b")],
    )


@form
def list_of_one_where_scalar_range() -> Form:
    return model(
        [h.make_node("Range", ["a", "b", "d"], ["y"]), relu("x", "z")],
        [vi("x")],
        [vi("y", (3,), T.INT64)],
        [c(np.array([0], np.int64), "a"), c(np.array([3], np.int64), "b"), c(np.array([1], np.int64), "d")],
    )


@form
def list_of_one_where_scalar_pad() -> Form:
    return model(
        [h.make_node("Pad", ["x", "a", "b"], ["y"])],
        [vi("x")],
        [vi("y", (2, 4))],
        [c(np.array([0, 0, 0, 1], np.int64), "a"), c(np.array([7], np.float32), "b")],
    )


@form
def list_of_one_where_scalar_trilu() -> Form:
    return model(
        [h.make_node("Trilu", ["x", "k"], ["y"])], [vi("x")], [vi("y")], [c(np.array([0], np.int64), "k")]
    )


@form
def list_of_one_depth_of_onehot() -> Form:
    return model(
        [h.make_node("OneHot", ["x", "a", "b"], ["y"])],
        [vi("x", (2,), T.INT64)],
        [vi("y", (2, 3))],
        [c(np.array([3], np.int64), "a"), c(np.array([0, 1], np.float32), "b")],
    ), {"x": np.array([0, 2])}


@form
def axis_equals_rank_concat() -> Form:
    return model([h.make_node("Concat", ["x", "x"], ["y"], axis=2)], [vi("x")], [vi("y")])


@form
def name_with_spaces() -> Form:
    return model([h.make_node("Relu", ["a b"], ["y\n"])], [vi("a b")], [vi("y\n")]), {"a b": X}


@form
def cast_to_string_dtype() -> Form:
    return model([h.make_node("Cast", ["x"], ["t"], to=T.STRING), relu()], [vi("x")], [vi("y")])
