"""Small models in forms that exporters write and ONNX does not quite allow, and some that mean nothing.

Each is a model and what to feed it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import ModelProto
from onnx import helper as h
from onnx import numpy_helper as nh

T = onnx.TensorProto
F = T.FLOAT
X = np.arange(6, dtype=np.float32).reshape(2, 3) - 2
Feed = dict[str, np.ndarray[Any, Any]]
Form: TypeAlias = "ModelProto | tuple[ModelProto, Feed]"
FORMS: dict[str, tuple[ModelProto, Feed]] = {}


def form(make: Callable[[], Form]) -> Callable[[], Form]:
    made = make()
    FORMS[make.__name__] = made if isinstance(made, tuple) else (made, {"x": X})
    return make


def vi(n: str, shape: Any = (2, 3), t: int = F) -> onnx.ValueInfoProto:
    return h.make_tensor_value_info(n, t, shape)


def relu(i: str = "x", o: str = "y", name: str = "") -> onnx.NodeProto:
    return h.make_node("Relu", [i], [o], name=name)


def model(
    nodes: Any,
    ins: Any,
    outs: Any,
    inits: Any = (),
    vinfo: Any = (),
    opsets: Any = (("", 17),),
    functions: Any = (),
    **kw: Any,
) -> ModelProto:
    g = h.make_graph(nodes, kw.pop("graph", "g"), ins, outs, list(inits), value_info=list(vinfo))
    m = h.make_model(g, opset_imports=[h.make_opsetid(d, v) for d, v in opsets], functions=list(functions))
    m.ir_version = kw.pop("ir", 8)
    return m


def c(a: Any, name: str) -> onnx.TensorProto:
    return nh.from_array(np.asarray(a), name)


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
def opset_twice_equal() -> Form:
    return model([relu()], [vi("x")], [vi("y")], opsets=(("", 17), ("", 17)))


@form
def opset_twice_both_names() -> Form:
    return model([relu()], [vi("x")], [vi("y")], opsets=(("", 17), ("ai.onnx", 17)))


@form
def opset_twice_differs() -> Form:
    return model([relu()], [vi("x")], [vi("y")], opsets=(("", 17), ("", 13)))


@form
def opset_twice_differs_older_first() -> Form:
    return model([relu()], [vi("x")], [vi("y")], opsets=(("", 13), ("", 17)))


@form
def opset_named_ai_onnx() -> Form:
    return model([relu()], [vi("x")], [vi("y")], opsets=(("ai.onnx", 17),))


@form
def opset_unknown_domain_unused() -> Form:
    return model([relu()], [vi("x")], [vi("y")], opsets=(("", 17), ("com.acme", 3)))


@form
def opset_unknown_domain_twice_differs() -> Form:
    return model([relu()], [vi("x")], [vi("y")], opsets=(("", 17), ("com.acme", 3), ("com.acme", 4)))


@form
def opset_unused_domain_version_zero() -> Form:
    return model([relu()], [vi("x")], [vi("y")], opsets=(("", 17), ("com.acme", 0)))


@form
def opset_missing() -> Form:
    return model([relu()], [vi("x")], [vi("y")], opsets=())


@form
def opset_version_zero() -> Form:
    return model([relu()], [vi("x")], [vi("y")], opsets=(("", 0),))


@form
def opset_too_new() -> Form:
    return model([relu()], [vi("x")], [vi("y")], opsets=(("", 99),))


@form
def opset_of_unused_domain_too_new() -> Form:
    return model([relu()], [vi("x")], [vi("y")], opsets=(("", 17), ("ai.onnx.ml", 99)))


@form
def opset_old_six() -> Form:
    return model([relu()], [vi("x")], [vi("y")], opsets=(("", 6),))


@form
def opset_one() -> Form:
    return model(
        [h.make_node("Relu", ["x"], ["y"], consumed_inputs=[0])],
        [vi("x")],
        [vi("y")],
        opsets=(("", 1),),
        ir=3,
    )


@form
def ir_version_missing() -> Form:
    m = model([relu()], [vi("x")], [vi("y")])
    m.ClearField("ir_version")
    return m


@form
def ir_version_one() -> Form:
    return model([relu()], [vi("x")], [vi("y")], ir=1)


@form
def ir_version_three_initializer_not_input() -> Form:
    return model(
        [h.make_node("Add", ["x", "w"], ["y"])],
        [vi("x")],
        [vi("y")],
        [c(np.ones((3,), np.float32), "w")],
        ir=3,
    )


@form
def ir_version_three_opset_nine_initializer_not_input() -> Form:
    return model(
        [h.make_node("Add", ["x", "w"], ["y"])],
        [vi("x")],
        [vi("y")],
        [c(np.ones((3,), np.float32), "w")],
        ir=3,
        opsets=(("", 9),),
    )


@form
def ir_version_too_new() -> Form:
    return model([relu()], [vi("x")], [vi("y")], ir=99)


@form
def graph_without_name() -> Form:
    return model([relu()], [vi("x")], [vi("y")], graph="")


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


def branch(nodes: Any, outs: Any, name: str = "b", inits: Any = (), ins: Any = ()) -> onnx.GraphProto:
    return h.make_graph(nodes, name, list(ins), outs, list(inits))


def cond() -> tuple[onnx.NodeProto, onnx.NodeProto]:
    return h.make_node("ReduceSum", ["x"], ["s"], keepdims=0), h.make_node("Greater", ["s", "zero"], ["c"])


Z = c(np.float32(0), "zero")


@form
def body_shadows_a_name() -> Form:
    b = branch([h.make_node("Neg", ["x"], ["t"]), h.make_node("Relu", ["t"], ["o"])], [vi("o")])
    d = branch([h.make_node("Neg", ["x"], ["o2"])], [vi("o2")])
    return model(
        [
            relu(o="t"),
            *cond(),
            h.make_node("If", ["c"], ["i"], then_branch=b, else_branch=d),
            h.make_node("Add", ["t", "i"], ["y"]),
        ],
        [vi("x")],
        [vi("y")],
        [Z],
    )


@form
def body_initializer_shadows() -> Form:
    b = branch(
        [h.make_node("Add", ["x", "w"], ["o"])], [vi("o")], inits=[c(np.full((3,), 5, np.float32), "w")]
    )
    d = branch([h.make_node("Neg", ["x"], ["o2"])], [vi("o2")])
    return model(
        [
            *cond(),
            h.make_node("If", ["c"], ["i"], then_branch=b, else_branch=d),
            h.make_node("Add", ["w", "i"], ["y"]),
        ],
        [vi("x")],
        [vi("y")],
        [Z, c(np.ones((3,), np.float32), "w")],
    )


@form
def body_names_equal_in_both() -> Form:
    b = branch([h.make_node("Abs", ["x"], ["o"])], [vi("o")])
    d = branch([h.make_node("Neg", ["x"], ["o"])], [vi("o")])
    return model(
        [*cond(), h.make_node("If", ["c"], ["y"], then_branch=b, else_branch=d)], [vi("x")], [vi("y")], [Z]
    )


@form
def body_result_named_as_the_nodes() -> Form:
    b = branch([h.make_node("Abs", ["x"], ["y"])], [vi("y")])
    d = branch([h.make_node("Neg", ["x"], ["y"])], [vi("y")])
    return model(
        [*cond(), h.make_node("If", ["c"], ["y"], then_branch=b, else_branch=d)], [vi("x")], [vi("y")], [Z]
    )


@form
def body_names_a_later_result() -> Form:
    b = branch([h.make_node("Abs", ["x"], ["late"])], [vi("late")])
    d = branch([h.make_node("Neg", ["x"], ["o2"])], [vi("o2")])
    return model(
        [
            *cond(),
            h.make_node("If", ["c"], ["i"], then_branch=b, else_branch=d),
            h.make_node("Neg", ["i"], ["late"]),
            h.make_node("Relu", ["late"], ["y"]),
        ],
        [vi("x")],
        [vi("y")],
        [Z],
    )


@form
def body_output_is_outer_value() -> Form:
    b = branch([], [vi("x")])
    d = branch([h.make_node("Neg", ["x"], ["o2"])], [vi("o2")])
    return model(
        [*cond(), h.make_node("If", ["c"], ["y"], then_branch=b, else_branch=d)], [vi("x")], [vi("y")], [Z]
    )


@form
def body_output_is_its_initializer() -> Form:
    b = branch([], [vi("w")], inits=[c(np.ones((2, 3), np.float32), "w")])
    d = branch([h.make_node("Neg", ["x"], ["o2"])], [vi("o2")])
    return model(
        [*cond(), h.make_node("If", ["c"], ["y"], then_branch=b, else_branch=d)], [vi("x")], [vi("y")], [Z]
    )


@form
def body_output_shape_contradicts() -> Form:
    b = branch([h.make_node("Abs", ["x"], ["o"])], [vi("o", (7,))])
    d = branch([h.make_node("Neg", ["x"], ["o2"])], [vi("o2")])
    return model(
        [*cond(), h.make_node("If", ["c"], ["y"], then_branch=b, else_branch=d)], [vi("x")], [vi("y")], [Z]
    )


@form
def body_output_without_type() -> Form:
    b = branch([h.make_node("Abs", ["x"], ["o"])], [onnx.ValueInfoProto(name="o")])
    d = branch([h.make_node("Neg", ["x"], ["o2"])], [onnx.ValueInfoProto(name="o2")])
    return model(
        [*cond(), h.make_node("If", ["c"], ["y"], then_branch=b, else_branch=d)], [vi("x")], [vi("y")], [Z]
    )


@form
def body_nodes_unsorted() -> Form:
    b = branch([h.make_node("Abs", ["q"], ["o"]), h.make_node("Neg", ["x"], ["q"])], [vi("o")])
    d = branch([h.make_node("Neg", ["x"], ["o2"])], [vi("o2")])
    return model(
        [*cond(), h.make_node("If", ["c"], ["y"], then_branch=b, else_branch=d)], [vi("x")], [vi("y")], [Z]
    )


@form
def body_with_inputs_of_if() -> Form:
    b = branch([h.make_node("Abs", ["x"], ["o"])], [vi("o")], ins=[vi("k")])
    d = branch([h.make_node("Neg", ["x"], ["o2"])], [vi("o2")])
    return model(
        [*cond(), h.make_node("If", ["c"], ["y"], then_branch=b, else_branch=d)], [vi("x")], [vi("y")], [Z]
    )


@form
def condition_of_one_element() -> Form:
    b = branch([h.make_node("Abs", ["x"], ["o"])], [vi("o")])
    d = branch([h.make_node("Neg", ["x"], ["o2"])], [vi("o2")])
    return model(
        [
            h.make_node("ReduceSum", ["x"], ["s"], keepdims=0),
            h.make_node("Unsqueeze", ["s", "ax"], ["s1"]),
            h.make_node("Greater", ["s1", "zero"], ["c"]),
            h.make_node("If", ["c"], ["y"], then_branch=b, else_branch=d),
        ],
        [vi("x")],
        [vi("y")],
        [Z, c(np.array([0], np.int64), "ax")],
    )


def fn(
    nodes: Any,
    i: Any = ("a",),
    o: Any = ("b",),
    attrs: Any = (),
    name: str = "F",
    domain: str = "loc",
    opsets: Any = (("", 17),),
) -> onnx.FunctionProto:
    return h.make_function(
        domain, name, list(i), list(o), nodes, [h.make_opsetid(d, v) for d, v in opsets], list(attrs)
    )


L = (("", 17), ("loc", 1))


@form
def function_plain() -> Form:
    return model(
        [h.make_node("F", ["x"], ["y"], domain="loc")],
        [vi("x")],
        [vi("y")],
        opsets=L,
        functions=[fn([h.make_node("Relu", ["a"], ["b"])])],
    )


@form
def function_unused_of_unknown_operators() -> Form:
    return model(
        [relu()],
        [vi("x")],
        [vi("y")],
        opsets=L,
        functions=[fn([h.make_node("Wobble", ["a"], ["b"], domain="acme")], opsets=(("", 17), ("acme", 1)))],
    )


@form
def function_extra_attribute() -> Form:
    return model(
        [h.make_node("F", ["x"], ["y"], domain="loc", colour="red")],
        [vi("x")],
        [vi("y")],
        opsets=L,
        functions=[fn([h.make_node("Relu", ["a"], ["b"])])],
    )


@form
def function_attribute_missing() -> Form:
    n = h.make_node("LeakyRelu", ["a"], ["b"])
    n.attribute.append(onnx.AttributeProto(name="alpha", ref_attr_name="al", type=1))
    return model(
        [h.make_node("F", ["x"], ["y"], domain="loc")],
        [vi("x")],
        [vi("y")],
        opsets=L,
        functions=[fn([n], attrs=["al"])],
    )


@form
def function_attribute_passed() -> Form:
    n = h.make_node("LeakyRelu", ["a"], ["b"])
    n.attribute.append(onnx.AttributeProto(name="alpha", ref_attr_name="al", type=1))
    return model(
        [h.make_node("F", ["x"], ["y"], domain="loc", al=0.5)],
        [vi("x")],
        [vi("y")],
        opsets=L,
        functions=[fn([n], attrs=["al"])],
    )


@form
def function_attribute_default() -> Form:
    n = h.make_node("LeakyRelu", ["a"], ["b"])
    n.attribute.append(onnx.AttributeProto(name="alpha", ref_attr_name="al", type=1))
    f = fn([n])
    f.attribute_proto.append(h.make_attribute("al", 0.25))
    return model(
        [h.make_node("F", ["x"], ["y"], domain="loc")], [vi("x")], [vi("y")], opsets=L, functions=[f]
    )


@form
def function_other_opset() -> Form:
    return model(
        [h.make_node("F", ["x"], ["y"], domain="loc")],
        [vi("x")],
        [vi("y")],
        opsets=L,
        functions=[fn([h.make_node("Relu", ["a"], ["b"])], opsets=(("", 13),))],
    )


@form
def function_opset_missing() -> Form:
    return model(
        [h.make_node("F", ["x"], ["y"], domain="loc")],
        [vi("x")],
        [vi("y")],
        opsets=L,
        functions=[fn([h.make_node("Relu", ["a"], ["b"])], opsets=())],
    )


@form
def function_domain_not_imported() -> Form:
    return model(
        [h.make_node("F", ["x"], ["y"], domain="loc")],
        [vi("x")],
        [vi("y")],
        functions=[fn([h.make_node("Relu", ["a"], ["b"])])],
    )


@form
def function_calls_itself() -> Form:
    return model(
        [h.make_node("F", ["x"], ["y"], domain="loc")],
        [vi("x")],
        [vi("y")],
        opsets=L,
        functions=[fn([h.make_node("F", ["a"], ["b"], domain="loc")], opsets=L)],
    )


@form
def function_twice() -> Form:
    return model(
        [h.make_node("F", ["x"], ["y"], domain="loc")],
        [vi("x")],
        [vi("y")],
        opsets=L,
        functions=[fn([h.make_node("Relu", ["a"], ["b"])])] * 2,
    )


@form
def function_named_as_standard_operator() -> Form:
    return model(
        [h.make_node("Relu", ["x"], ["y"])],
        [vi("x")],
        [vi("y")],
        opsets=L,
        functions=[fn([h.make_node("Neg", ["a"], ["b"])], name="Relu", domain="")],
    )


@form
def function_missing_optional_input() -> Form:
    return model(
        [h.make_node("F", ["x"], ["y"], domain="loc")],
        [vi("x")],
        [vi("y")],
        opsets=L,
        functions=[fn([h.make_node("Clip", ["a", "lo"], ["b"])], i=("a", "lo"))],
    )


@form
def function_extra_output_unused() -> Form:
    return model(
        [h.make_node("F", ["x"], ["y"], domain="loc")],
        [vi("x")],
        [vi("y")],
        opsets=L,
        functions=[fn([h.make_node("Relu", ["a"], ["b"]), h.make_node("Neg", ["a"], ["d"])], o=("b", "d"))],
    )


@form
def function_nodes_unsorted() -> Form:
    return model(
        [h.make_node("F", ["x"], ["y"], domain="loc")],
        [vi("x")],
        [vi("y")],
        opsets=L,
        functions=[fn([h.make_node("Relu", ["t"], ["b"]), h.make_node("Neg", ["a"], ["t"])])],
    )


@form
def identity_reshape_minus_one_twice() -> Form:
    return model(
        [h.make_node("Reshape", ["x", "s"], ["y"])],
        [vi("x")],
        [vi("y")],
        [c(np.array([-1, -1], np.int64), "s")],
    )


@form
def operator_domain_spelled_ai_onnx() -> Form:
    return model([h.make_node("Relu", ["x"], ["y"], domain="ai.onnx")], [vi("x")], [vi("y")])


@form
def operator_unknown() -> Form:
    return model([h.make_node("Wobble", ["x"], ["y"])], [vi("x")], [vi("y")])


@form
def operator_unknown_unused() -> Form:
    return model([relu(), h.make_node("Wobble", ["x"], ["z"])], [vi("x")], [vi("y")])


@form
def operator_deprecated_upsample() -> Form:
    return model(
        [h.make_node("Upsample", ["x", "s"], ["y"], mode="nearest")],
        [vi("x")],
        [vi("y", (4, 6))],
        [c(np.array([2, 2], np.float32), "s")],
    )


@form
def metadata_twice() -> Form:
    m = model([relu()], [vi("x")], [vi("y")])
    m.metadata_props.add(key="a", value="1")
    m.metadata_props.add(key="a", value="2")
    return m


@form
def quantization_annotation_of_nothing() -> Form:
    m = model([relu()], [vi("x")], [vi("y")])
    a = m.graph.quantization_annotation.add(tensor_name="nope")
    a.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="nope2")
    return m


@form
def training_info_present() -> Form:
    m = model([relu()], [vi("x")], [vi("y")])
    m.training_info.add()
    return m


@form
def name_with_spaces() -> Form:
    return model([h.make_node("Relu", ["a b"], ["y\n"])], [vi("a b")], [vi("y\n")]), {"a b": X}


@form
def cast_to_string_dtype() -> Form:
    return model([h.make_node("Cast", ["x"], ["t"], to=T.STRING), relu()], [vi("x")], [vi("y")])


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


def sm(a: Any, b: Any, n1: str = "", n2: str = "") -> ModelProto:
    return model(
        [h.make_node("Softmax", ["x"], ["y"])],
        [vi("x", (1, 2, 3))],
        [vi("y", (1, 2, 3))],
        opsets=((n1, a), (n2, b)),
    ), {"x": X[None]}


@form
def opset_11_then_17() -> Form:
    return sm(11, 17)


@form
def opset_17_then_11() -> Form:
    return sm(17, 11)


@form
def opset_11_then_17_names() -> Form:
    return sm(11, 17, "", "ai.onnx")


@form
def opset_17_then_11_names() -> Form:
    return sm(17, 11, "", "ai.onnx")


@form
def loop_body_input_shadows() -> Form:
    b = h.make_graph(
        [h.make_node("Identity", ["co"], ["c2"]), h.make_node("Add", ["x", "s"], ["s2"])],
        "b",
        [vi("i", (), T.INT64), vi("co", (), T.BOOL), vi("s")],
        [vi("c2", (), T.BOOL), vi("s2")],
    )
    return model(
        [h.make_node("Relu", ["x"], ["s"]), h.make_node("Loop", ["m", "", "s"], ["y"], body=b)],
        [vi("x")],
        [vi("y")],
        [c(np.int64(3), "m")],
    )


@form
def loop_body_input_shadows_initializer() -> Form:
    b = h.make_graph(
        [h.make_node("Identity", ["co"], ["c2"]), h.make_node("Add", ["x", "s"], ["s2"])],
        "b",
        [vi("m", (), T.INT64), vi("co", (), T.BOOL), vi("s")],
        [vi("c2", (), T.BOOL), vi("s2")],
    )
    return model(
        [h.make_node("Loop", ["m", "", "x"], ["y"], body=b)], [vi("x")], [vi("y")], [c(np.int64(3), "m")]
    )


@form
def value_info_of_body_contradicts() -> Form:
    b = branch([h.make_node("Abs", ["x"], ["t"]), h.make_node("Abs", ["t"], ["o"])], [vi("o")])
    b.value_info.append(vi("t", (9, 9)))
    d = branch([h.make_node("Neg", ["x"], ["o2"])], [vi("o2")])
    return model(
        [*cond(), h.make_node("If", ["c"], ["y"], then_branch=b, else_branch=d)], [vi("x")], [vi("y")], [Z]
    )


@form
def body_output_rank_contradicts() -> Form:
    b = branch([h.make_node("Abs", ["x"], ["o"])], [vi("o", (7,))])
    d = branch([h.make_node("Neg", ["x"], ["o2"])], [vi("o2", (7,))])
    return model(
        [*cond(), h.make_node("If", ["c"], ["y"], then_branch=b, else_branch=d)], [vi("x")], [vi("y")], [Z]
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
def body_initializer_shadows_input() -> Form:
    b = branch(
        [h.make_node("Add", ["x", "x"], ["o"])], [vi("o")], inits=[c(np.full((2, 3), 5, np.float32), "x")]
    )
    d = branch([h.make_node("Neg", ["x"], ["o2"])], [vi("o2")])
    return model(
        [
            *cond(),
            h.make_node("If", ["c"], ["i"], then_branch=b, else_branch=d),
            h.make_node("Add", ["x", "i"], ["y"]),
        ],
        [vi("x")],
        [vi("y")],
        [Z],
    )


@form
def two_nodes_same_body_initializer() -> Form:
    b = branch(
        [h.make_node("Add", ["x", "k"], ["o"])], [vi("o")], inits=[c(np.full((3,), 5, np.float32), "k")]
    )
    d = branch(
        [h.make_node("Sub", ["x", "k"], ["o2"])], [vi("o2")], inits=[c(np.full((3,), 7, np.float32), "k")]
    )
    return model(
        [
            *cond(),
            h.make_node("If", ["c"], ["i"], then_branch=b, else_branch=d),
            h.make_node("Add", ["x", "i"], ["y"]),
        ],
        [vi("x")],
        [vi("y")],
        [Z],
    )


@form
def function_attribute_of_double_default() -> Form:
    n = h.make_node("LeakyRelu", ["a"], ["b"])
    n.attribute.append(onnx.AttributeProto(name="alpha", ref_attr_name="al", type=1))
    f = fn([n])
    f.attribute_proto.append(h.make_attribute("al", 0.25))
    return model(
        [h.make_node("F", ["x"], ["y"], domain="loc", al=0.75)], [vi("x")], [vi("y")], opsets=L, functions=[f]
    )


@form
def input_dim_value_and_no_param_zero_rank() -> Form:
    return model([h.make_node("Mul", ["x", "k"], ["y"])], [vi("x"), vi("k", ())], [vi("y")]), {
        "x": X,
        "k": np.float32(3),
    }


@form
def opset_import_of_used_ms_domain_missing() -> Form:
    return model([h.make_node("Gelu", ["x"], ["y"], domain="com.microsoft")], [vi("x")], [vi("y")])


@form
def opset_import_of_ml_domain_missing() -> Form:
    return model(
        [h.make_node("Scaler", ["x"], ["y"], domain="ai.onnx.ml", offset=[1.0], scale=[2.0])],
        [vi("x")],
        [vi("y")],
    )


@form
def output_twice_and_other() -> Form:
    return model([relu(), h.make_node("Neg", ["x"], ["z"])], [vi("x")], [vi("y"), vi("z"), vi("y")])


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


@form
def output_elem_type_differs_int32_int64() -> Form:
    return model([h.make_node("Shape", ["x"], ["y"])], [vi("x")], [vi("y", (2,), T.INT32)])


@form
def nodes_unsorted_in_function_and_empty_name_in_variadic() -> Form:
    return model([h.make_node("Concat", ["x", ""], ["y"], axis=0)], [vi("x")], [vi("y")])
