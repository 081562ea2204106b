"""Functions that a model brings along."""

from __future__ import annotations

from typing import Any

import onnx
from onnx import helper as h
from tests.support.model_forms.base import Form, form, model, relu, vi


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
def function_attribute_of_double_default() -> Form:
    n = h.make_node("LeakyRelu", ["a"], ["b"])
    n.attribute.append(onnx.AttributeProto(name="alpha", ref_attr_name="al", type=1))
    f = fn([n])
    f.attribute_proto.append(h.make_attribute("al", 0.25))
    return model(
        [h.make_node("F", ["x"], ["y"], domain="loc", al=0.75)], [vi("x")], [vi("y")], opsets=L, functions=[f]
    )


@form
def nodes_unsorted_in_function_and_empty_name_in_variadic() -> Form:
    return model([h.make_node("Concat", ["x", ""], ["y"], axis=0)], [vi("x")], [vi("y")])
