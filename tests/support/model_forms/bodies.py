"""Bodies of If, Loop and Scan."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper as h
from tests.support.model_forms.base import Form, T, c, form, model, relu, vi


def branch(nodes: Any, outs: Any, name: str = "b", inits: Any = (), ins: Any = ()) -> onnx.GraphProto:
    return h.make_graph(nodes, name, list(ins), outs, list(inits))


def cond() -> tuple[onnx.NodeProto, onnx.NodeProto]:
    return h.make_node("ReduceSum", ["x"], ["s"], keepdims=0), h.make_node("Greater", ["s", "zero"], ["c"])


Z = c(np.float32(0), "zero")


def either(then: onnx.GraphProto, otherwise: onnx.GraphProto | None = None) -> Form:
    """A model whose result is that of one of two branches, of which the other negates unless it is given."""
    otherwise = otherwise or branch([h.make_node("Neg", ["x"], ["o2"])], [vi("o2")])
    chosen = h.make_node("If", ["c"], ["y"], then_branch=then, else_branch=otherwise)
    return model([*cond(), chosen], [vi("x")], [vi("y")], [Z])


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
    return either(b, d)


@form
def body_result_named_as_the_nodes() -> Form:
    b = branch([h.make_node("Abs", ["x"], ["y"])], [vi("y")])
    d = branch([h.make_node("Neg", ["x"], ["y"])], [vi("y")])
    return either(b, d)


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
    return either(b)


@form
def body_output_is_its_initializer() -> Form:
    b = branch([], [vi("w")], inits=[c(np.ones((2, 3), np.float32), "w")])
    return either(b)


@form
def body_output_shape_contradicts() -> Form:
    b = branch([h.make_node("Abs", ["x"], ["o"])], [vi("o", (7,))])
    return either(b)


@form
def body_output_without_type() -> Form:
    b = branch([h.make_node("Abs", ["x"], ["o"])], [onnx.ValueInfoProto(name="o")])
    d = branch([h.make_node("Neg", ["x"], ["o2"])], [onnx.ValueInfoProto(name="o2")])
    return either(b, d)


@form
def body_nodes_unsorted() -> Form:
    b = branch([h.make_node("Abs", ["q"], ["o"]), h.make_node("Neg", ["x"], ["q"])], [vi("o")])
    return either(b)


@form
def body_with_inputs_of_if() -> Form:
    b = branch([h.make_node("Abs", ["x"], ["o"])], [vi("o")], ins=[vi("k")])
    return either(b)


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
    return either(b)


@form
def body_output_rank_contradicts() -> Form:
    b = branch([h.make_node("Abs", ["x"], ["o"])], [vi("o", (7,))])
    d = branch([h.make_node("Neg", ["x"], ["o2"])], [vi("o2", (7,))])
    return either(b, d)


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
