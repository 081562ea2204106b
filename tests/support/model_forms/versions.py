"""Versions of opsets and of the format, domains, operators that are not there."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import ModelProto
from onnx import helper as h
from tests.support.model_forms.base import Form, X, c, form, model, relu, vi


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
def opset_import_of_used_ms_domain_missing() -> Form:
    return model([h.make_node("Gelu", ["x"], ["y"], domain="com.microsoft")], [vi("x")], [vi("y")])


@form
def opset_import_of_ml_domain_missing() -> Form:
    return model(
        [h.make_node("Scaler", ["x"], ["y"], domain="ai.onnx.ml", offset=[1.0], scale=[2.0])],
        [vi("x")],
        [vi("y")],
    )
