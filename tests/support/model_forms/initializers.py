"""Constants."""

from __future__ import annotations

import numpy as np
from onnx import helper as h
from tests.support.model_forms.base import F, Form, T, c, form, model, relu, vi


@form
def initializer_listed_as_input() -> Form:
    return model(
        [h.make_node("Add", ["x", "w"], ["y"])],
        [vi("x"), vi("w", (3,))],
        [vi("y")],
        [c(np.ones((3,), np.float32), "w")],
    )


@form
def initializer_listed_as_input_other_shape() -> Form:
    return model(
        [h.make_node("Add", ["x", "w"], ["y"])],
        [vi("x"), vi("w", (5,))],
        [vi("y")],
        [c(np.ones((3,), np.float32), "w")],
    )


@form
def initializer_listed_as_input_other_rank() -> Form:
    return model(
        [h.make_node("Add", ["x", "w"], ["y"])],
        [vi("x"), vi("w", (1, 3))],
        [vi("y")],
        [c(np.ones((3,), np.float32), "w")],
    )


@form
def initializer_listed_as_input_other_dtype() -> Form:
    return model(
        [h.make_node("Add", ["x", "w"], ["y"])],
        [vi("x"), vi("w", (3,), T.DOUBLE)],
        [vi("y")],
        [c(np.ones((3,), np.float32), "w")],
    )


@form
def initializer_listed_as_input_scalar_shape() -> Form:
    return model(
        [h.make_node("Add", ["x", "w"], ["y"])],
        [vi("x"), vi("w", ())],
        [vi("y")],
        [c(np.ones((3,), np.float32), "w")],
    )


@form
def initializer_twice_equal() -> Form:
    return model(
        [h.make_node("Add", ["x", "w"], ["y"])], [vi("x")], [vi("y")], [c(np.ones((3,), np.float32), "w")] * 2
    )


@form
def initializer_twice_differs() -> Form:
    return model(
        [h.make_node("Add", ["x", "w"], ["y"])],
        [vi("x")],
        [vi("y")],
        [c(np.ones((3,), np.float32), "w"), c(np.zeros((3,), np.float32), "w")],
    )


@form
def initializer_unused() -> Form:
    return model([relu()], [vi("x")], [vi("y")], [c(np.ones((3,), np.float32), "w")])


@form
def initializer_without_name() -> Form:
    return model([relu()], [vi("x")], [vi("y")], [c(np.ones((3,), np.float32), "")])


@form
def initializer_unused_of_unknown_type() -> Form:
    t = c(np.ones((3,), np.float32), "w")
    t.data_type = 99
    return model([relu()], [vi("x")], [vi("y")], [t])


@form
def initializer_of_a_nodes_result() -> Form:
    return model([relu()], [vi("x")], [vi("y")], [c(np.ones((2, 3), np.float32), "y")])


@form
def initializer_data_too_long() -> Form:
    t = T(name="w", data_type=F, dims=[3], float_data=[1, 2, 3, 4])
    return model([h.make_node("Add", ["x", "w"], ["y"])], [vi("x")], [vi("y")], [t])


@form
def initializer_data_too_short() -> Form:
    t = T(name="w", data_type=F, dims=[3], float_data=[1, 2])
    return model([h.make_node("Add", ["x", "w"], ["y"])], [vi("x")], [vi("y")], [t])


@form
def initializer_negative_dim() -> Form:
    t = T(name="w", data_type=F, dims=[-1], float_data=[1, 2])
    return model([h.make_node("Add", ["x", "w"], ["y"])], [vi("x")], [vi("y")], [t])


@form
def initializer_zero_dim_unused() -> Form:
    return model([relu()], [vi("x")], [vi("y")], [c(np.ones((0, 3), np.float32), "w")])


@form
def initializer_dims_missing_one_element() -> Form:
    t = T(name="w", data_type=F, float_data=[2.0])
    return model([h.make_node("Add", ["x", "w"], ["y"])], [vi("x")], [vi("y")], [t])


@form
def initializer_raw_and_typed_data() -> Form:
    t = c(np.ones((3,), np.float32), "w")
    t.float_data.extend([1, 1, 1])
    return model([h.make_node("Add", ["x", "w"], ["y"])], [vi("x")], [vi("y")], [t])


@form
def initializer_string_unused() -> Form:
    return model([relu()], [vi("x")], [vi("y")], [h.make_tensor("w", T.STRING, [1], [b"a"])])


@form
def sparse_initializer() -> Form:
    v = c(np.array([1.0, 2.0], np.float32), "w")
    i = c(np.array([0, 2], np.int64), "wi")
    m = model([h.make_node("Add", ["x", "w"], ["y"])], [vi("x")], [vi("y")])
    m.graph.sparse_initializer.append(h.make_sparse_tensor(v, i, [3]))
    return m


@form
def sparse_initializer_two_index_columns() -> Form:
    v = c(np.array([1.0, 2.0], np.float32), "w")
    i = c(np.array([[0, 0], [1, 2]], np.int64), "wi")
    m = model([h.make_node("Add", ["x", "w"], ["y"])], [vi("x")], [vi("y")])
    m.graph.sparse_initializer.append(h.make_sparse_tensor(v, i, [2, 3]))
    return m


@form
def sparse_constant() -> Form:
    v = c(np.array([1.0, 2.0], np.float32), "v")
    i = c(np.array([0, 2], np.int64), "i")
    return model(
        [
            h.make_node("Constant", [], ["w"], sparse_value=h.make_sparse_tensor(v, i, [3])),
            h.make_node("Add", ["x", "w"], ["y"]),
        ],
        [vi("x")],
        [vi("y")],
    )


@form
def raw_and_typed_differ() -> Form:
    t = c(np.ones((3,), np.float32), "w")
    t.float_data.extend([5, 5, 5])
    return model([h.make_node("Add", ["x", "w"], ["y"])], [vi("x")], [vi("y")], [t])


@form
def raw_and_stray_int32() -> Form:
    t = c(np.ones((3,), np.float32), "w")
    t.int32_data.extend([5, 5, 5])
    return model([h.make_node("Add", ["x", "w"], ["y"])], [vi("x")], [vi("y")], [t])


@form
def typed_and_stray() -> Form:
    t = T(name="w", data_type=F, dims=[3], float_data=[1, 1, 1], int64_data=[4])
    return model([h.make_node("Add", ["x", "w"], ["y"])], [vi("x")], [vi("y")], [t])


@form
def sparse_constant_2d() -> Form:
    v = c(np.array([1.0, 2.0], np.float32), "v")
    i = c(np.array([[0, 0], [1, 2]], np.int64), "i")
    return model(
        [
            h.make_node("Constant", [], ["w"], sparse_value=h.make_sparse_tensor(v, i, [2, 3])),
            h.make_node("Add", ["x", "w"], ["y"]),
        ],
        [vi("x")],
        [vi("y")],
    )
