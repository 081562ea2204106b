"""Types and shapes of inputs, outputs and values, as they are declared."""

from __future__ import annotations

import numpy as np
from onnx import helper as h
from tests.support.model_forms.base import F, Form, T, X, c, form, model, relu, vi


@form
def output_shape_contradicts() -> Form:
    return model([relu()], [vi("x")], [vi("y", (5, 7))])


@form
def output_rank_contradicts() -> Form:
    return model([relu()], [vi("x")], [vi("y", (2, 3, 1))])


@form
def output_scalar_declared() -> Form:
    return model([relu()], [vi("x")], [vi("y", ())])


@form
def output_dtype_contradicts() -> Form:
    return model([relu()], [vi("x")], [vi("y", (2, 3), T.DOUBLE)])


@form
def output_without_type() -> Form:
    m = model([relu()], [vi("x")], [vi("y")])
    m.graph.output[0].ClearField("type")
    return m


@form
def output_type_without_shape() -> Form:
    return model([relu()], [vi("x")], [vi("y", None)])


@form
def output_elem_type_zero() -> Form:
    m = model([relu()], [vi("x")], [vi("y")])
    m.graph.output[0].type.tensor_type.elem_type = 0
    return m


@form
def value_info_shape_contradicts() -> Form:
    return model([relu(o="t"), relu("t")], [vi("x")], [vi("y")], vinfo=[vi("t", (9, 9))])


@form
def value_info_rank_contradicts() -> Form:
    return model([relu(o="t"), relu("t")], [vi("x")], [vi("y")], vinfo=[vi("t", (9,))])


@form
def value_info_dtype_contradicts() -> Form:
    return model([relu(o="t"), relu("t")], [vi("x")], [vi("y")], vinfo=[vi("t", (2, 3), T.DOUBLE)])


@form
def value_info_of_nothing() -> Form:
    return model([relu()], [vi("x")], [vi("y")], vinfo=[vi("nowhere", (9, 9))])


@form
def value_info_twice() -> Form:
    return model([relu(o="t"), relu("t")], [vi("x")], [vi("y")], vinfo=[vi("t"), vi("t")])


@form
def value_info_twice_differs() -> Form:
    return model([relu(o="t"), relu("t")], [vi("x")], [vi("y")], vinfo=[vi("t"), vi("t", (4, 4))])


@form
def value_info_of_input_contradicts() -> Form:
    return model([relu()], [vi("x")], [vi("y")], vinfo=[vi("x", (9, 9))])


@form
def value_info_of_initializer_contradicts() -> Form:
    return model(
        [h.make_node("Add", ["x", "w"], ["y"])],
        [vi("x")],
        [vi("y")],
        [c(np.ones((3,), np.float32), "w")],
        vinfo=[vi("w", (9, 9))],
    )


@form
def value_info_without_name() -> Form:
    return model([relu()], [vi("x")], [vi("y")], vinfo=[vi("", (9, 9))])


@form
def value_info_sequence_type_of_tensor() -> Form:
    v = h.make_value_info("t", h.make_sequence_type_proto(h.make_tensor_type_proto(F, (2, 3))))
    return model([relu(o="t"), relu("t")], [vi("x")], [vi("y")], vinfo=[v])


@form
def input_dim_minus_one() -> Form:
    return model([relu()], [vi("x", (-1, 3))], [vi("y", (-1, 3))])


@form
def input_dims_all_minus_one() -> Form:
    return model([relu()], [vi("x", (-1, -1))], [vi("y", (-1, -1))])


@form
def input_dim_minus_two() -> Form:
    return model([relu()], [vi("x", (-2, 3))], [vi("y", (-2, 3))])


@form
def input_dim_zero_meaning_open() -> Form:
    return model([relu()], [vi("x", (0, 3))], [vi("y", (0, 3))])


@form
def input_dim_zero_fed_empty() -> Form:
    return model([relu()], [vi("x", (0, 3))], [vi("y", (0, 3))]), {"x": np.zeros((0, 3), np.float32)}


@form
def dim_param_question_mark_twice() -> Form:
    return model([relu()], [vi("x", ("?", "?"))], [vi("y", ("?", "?"))])


@form
def dim_param_empty_twice() -> Form:
    m = model([relu()], [vi("x", ("a", "b"))], [vi("y", ("a", "b"))])
    for v in (*m.graph.input, *m.graph.output):
        for d in v.type.tensor_type.shape.dim:
            d.dim_param = ""
    return m


@form
def dim_param_minus_one_twice() -> Form:
    return model([relu()], [vi("x", ("-1", "-1"))], [vi("y", ("-1", "-1"))])


@form
def dim_param_same_name_twice_differs() -> Form:
    return model([relu()], [vi("x", ("N", "N"))], [vi("y", ("N", "N"))])


@form
def dim_param_number_text() -> Form:
    return model([relu()], [vi("x", ("2", "3"))], [vi("y", ("2", "3"))])


@form
def dim_param_none_text_twice() -> Form:
    return model([relu()], [vi("x", ("None", "None"))], [vi("y", ("None", "None"))])


@form
def dim_param_expression() -> Form:
    return model([relu()], [vi("x", ("N", "N+1"))], [vi("y", ("N", "N+1"))])


@form
def dim_unset() -> Form:
    return model([relu()], [vi("x", (None, None))], [vi("y", (None, None))])


@form
def symbol_of_output_contradicts() -> Form:
    return model([relu()], [vi("x", ("N", "M"))], [vi("y", ("M", "M"))])


@form
def input_without_shape() -> Form:
    return model([relu()], [vi("x", None)], [vi("y", None)])


@form
def graph_without_name() -> Form:
    return model([relu()], [vi("x")], [vi("y")], graph="")


@form
def output_is_input() -> Form:
    return model([relu()], [vi("x")], [vi("y"), vi("x")])


@form
def output_is_only_input() -> Form:
    return model([], [vi("x")], [vi("x")])


@form
def output_is_initializer() -> Form:
    return model([relu()], [vi("x")], [vi("y"), vi("w", (3,))], [c(np.ones((3,), np.float32), "w")])


@form
def output_is_initializer_other_shape() -> Form:
    return model([relu()], [vi("x")], [vi("y"), vi("w", (4,))], [c(np.ones((3,), np.float32), "w")])


@form
def output_twice() -> Form:
    return model([relu()], [vi("x")], [vi("y"), vi("y")])


@form
def output_of_nothing() -> Form:
    return model([relu()], [vi("x")], [vi("y"), vi("z")])


@form
def output_without_name() -> Form:
    return model([relu()], [vi("x")], [vi("y"), vi("")])


@form
def outputs_none() -> Form:
    return model([relu()], [vi("x")], [])


@form
def graph_empty() -> Form:
    return model([], [], []), {}


@form
def inputs_none() -> Form:
    return model([relu("w")], [], [vi("y", (3,))], [c(np.ones((3,), np.float32), "w")]), {}


@form
def input_unused() -> Form:
    return model([relu()], [vi("x"), vi("u")], [vi("y")]), {"x": X, "u": X}


@form
def input_twice() -> Form:
    return model([relu()], [vi("x"), vi("x")], [vi("y")])


@form
def input_without_name() -> Form:
    return model([relu()], [vi("x"), vi("")], [vi("y")])


@form
def input_without_type() -> Form:
    m = model([relu()], [vi("x")], [vi("y")])
    m.graph.input[0].ClearField("type")
    return m


@form
def identity_reshape_minus_one_twice() -> Form:
    return model(
        [h.make_node("Reshape", ["x", "s"], ["y"])],
        [vi("x")],
        [vi("y")],
        [c(np.array([-1, -1], np.int64), "s")],
    )


@form
def declared_shape_of_data_dependent_result() -> Form:
    return model([h.make_node("NonZero", ["x"], ["y"])], [vi("x")], [vi("y", (2, 4), T.INT64)])


@form
def declared_rank_of_data_dependent_result() -> Form:
    return model([h.make_node("NonZero", ["x"], ["y"])], [vi("x")], [vi("y", (7,), T.INT64)])


@form
def declared_shape_of_reshape_by_data() -> Form:
    return model(
        [h.make_node("Reshape", ["x", "s"], ["y"])], [vi("x"), vi("s", (2,), T.INT64)], [vi("y", (6, 1))]
    ), {"x": X, "s": np.array([3, 2])}


@form
def declared_impossible_shape_of_reshape_by_data() -> Form:
    return model(
        [h.make_node("Reshape", ["x", "s"], ["y"])], [vi("x"), vi("s", (2,), T.INT64)], [vi("y", (5, 7))]
    ), {"x": X, "s": np.array([3, 2])}


@form
def declared_negative_output_dims() -> Form:
    return model([h.make_node("NonZero", ["x"], ["y"])], [vi("x")], [vi("y", (2, -1), T.INT64)])


@form
def input_dim_value_and_no_param_zero_rank() -> Form:
    return model([h.make_node("Mul", ["x", "k"], ["y"])], [vi("x"), vi("k", ())], [vi("y")]), {
        "x": X,
        "k": np.float32(3),
    }


@form
def output_twice_and_other() -> Form:
    return model([relu(), h.make_node("Neg", ["x"], ["z"])], [vi("x")], [vi("y"), vi("z"), vi("y")])


@form
def output_elem_type_differs_int32_int64() -> Form:
    return model([h.make_node("Shape", ["x"], ["y"])], [vi("x")], [vi("y", (2,), T.INT32)])
