"""Each invariant of a graph is noticed when it breaks, and only then."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import TensorProto, helper

from tilewright.errors import InternalError
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, SubgraphAttribute, Value
from tilewright.ir.verify import require_valid, verify


def sample() -> Graph:
    """t = x + w; y = Relu(t)."""
    graph = Graph("sample")
    x = graph.add_input(Value("x", DType.FLOAT32, (2,)))
    w = graph.constant(np.ones(2, np.float32), "w")
    t = graph.value("t", DType.FLOAT32, (2,))
    y = graph.value("y", DType.FLOAT32, (2,))
    graph.append(Node("Add", [x, w], [t], name="add"))
    graph.append(Node("Relu", [t], [y], name="relu"))
    graph.outputs = [y]
    return graph


def rename_to_a_taken_name(graph: Graph) -> None:
    graph.nodes[0].output.name = "x"


def reverse_nodes(graph: Graph) -> None:
    graph._nodes.reverse()


def list_a_node_twice(graph: Graph) -> None:
    graph._nodes.append(graph._nodes[1])


def forget_a_use(graph: Graph) -> None:
    graph.inputs[0]._uses.clear()


def invent_a_use(graph: Graph) -> None:
    graph.inputs[0]._uses.append(graph.nodes[1])


def name_a_wrong_producer(graph: Graph) -> None:
    graph.nodes[1].output.producer = graph.nodes[0]


def ask_for_an_undefined_output(graph: Graph) -> None:
    graph.outputs.append(Value("ghost", DType.FLOAT32, (2,)))


def drop_a_node_whose_result_is_read(graph: Graph) -> None:
    del graph._nodes[0]


def drop_the_node_of_an_output(graph: Graph) -> None:
    del graph._nodes[1]


def make_a_shape_negative(graph: Graph) -> None:
    graph.nodes[0].output.shape = (-1,)


def make_a_shape_symbolic(graph: Graph) -> None:
    graph.nodes[0].output.shape = ("N",)  # type: ignore[assignment]  # the mistake under test


def change_a_constants_shape(graph: Graph) -> None:
    graph.initializers[0].shape = (3,)


def change_a_constants_type(graph: Graph) -> None:
    graph.initializers[0].dtype = DType.FLOAT64


def make_a_result_constant(graph: Graph) -> None:
    graph.nodes[0].output.data = np.ones(2, np.float32)


def list_an_input_twice(graph: Graph) -> None:
    graph.inputs.append(graph.inputs[0])


def produce_an_input(graph: Graph) -> None:
    graph.inputs.append(graph.nodes[0].output)


def empty_a_name(graph: Graph) -> None:
    graph.nodes[0].output.name = ""


def list_a_result_twice(graph: Graph) -> None:
    graph.nodes[0].outputs = (graph.nodes[0].output,) * 2


def forget_an_element_type(graph: Graph) -> None:
    graph.nodes[0].output.dtype = "float32"  # type: ignore[assignment]  # the mistake under test


def capture_without_a_body(graph: Graph) -> None:
    graph.nodes[1].captures = (graph.inputs[0],)
    graph.inputs[0]._uses.append(graph.nodes[1])


def call_an_unread_result_as_another_value(graph: Graph) -> None:
    unread = Value("w", DType.FLOAT32, (2,))
    graph.append(Node("Relu", [graph.inputs[0]], [unread]))


def call_an_output_that_nothing_reads_as_another_value(graph: Graph) -> None:
    graph.outputs.append(Value("w", DType.FLOAT32, (2,), data=np.ones(2, np.float32)))


BREAKERS: list[tuple[str, Callable[[Graph], None]]] = [
    ("unique-names", rename_to_a_taken_name),
    ("topological-order", reverse_nodes),
    ("node-once", list_a_node_twice),
    ("uses", forget_a_use),
    ("uses", invent_a_use),
    ("producer", name_a_wrong_producer),
    ("output-defined", ask_for_an_undefined_output),
    ("topological-order", drop_a_node_whose_result_is_read),
    ("output-defined", drop_the_node_of_an_output),
    ("static-shape", make_a_shape_negative),
    ("static-shape", make_a_shape_symbolic),
    ("constant", change_a_constants_shape),
    ("constant", change_a_constants_type),
    ("constant", make_a_result_constant),
    ("input-once", list_an_input_twice),
    ("input-free", produce_an_input),
    ("named", empty_a_name),
    ("producer", list_a_result_twice),
    ("type", forget_an_element_type),
    ("captures", capture_without_a_body),
    ("unique-names", call_an_unread_result_as_another_value),
    ("unique-names", call_an_output_that_nothing_reads_as_another_value),
]


def test_a_good_graph_has_no_violations() -> None:
    assert verify(sample()) == ()
    assert verify(Graph("empty")) == ()
    require_valid(sample(), after="nothing")


def test_a_value_may_have_no_elements() -> None:
    graph = Graph("nothing")
    graph.outputs = [graph.add_input(Value("x", DType.FLOAT32, (0, 2)))]
    assert verify(graph) == ()


def test_an_operand_is_made_later_or_nowhere() -> None:
    late, lost = sample(), sample()
    reverse_nodes(late)
    drop_a_node_whose_result_is_read(lost)
    assert "it runs before" in str(verify(late)[0])
    assert "nothing in the graph produces" in " ".join(map(str, verify(lost)))


@pytest.mark.parametrize(("rule", "spoil"), BREAKERS, ids=[f.__name__ for _, f in BREAKERS])
def test_a_broken_invariant_is_named(rule: str, spoil: Callable[[Graph], None]) -> None:
    graph = sample()
    spoil(graph)
    assert rule in {violation.rule for violation in verify(graph)}
    with pytest.raises(InternalError, match=r"'sample' is invalid after spoiling: .*please report"):
        require_valid(graph, after="spoiling")


def test_a_cycle_is_a_broken_order() -> None:
    graph = sample()
    first, second = graph.nodes
    graph.set_inputs(first, [second.output, first.inputs[1]])
    assert {v.rule for v in verify(graph)} == {"topological-order"}


def body_reading(name: str) -> SubgraphAttribute:
    node = helper.make_node("Relu", [name], ["inner"])
    result = helper.make_tensor_value_info("inner", TensorProto.FLOAT, [2])
    return SubgraphAttribute(helper.make_graph([node], "body", [], [result]).SerializeToString())


@pytest.mark.parametrize("captured", [[], ["x"], ["z"], ["x", "z"]])
def test_a_body_captures_what_it_reads_and_nothing_else(captured: list[str]) -> None:
    graph = Graph()
    values = {name: graph.add_input(Value(name, DType.FLOAT32, (2,))) for name in ("x", "z")}
    condition = graph.add_input(Value("c", DType.BOOL, ()))
    result = graph.value("y", DType.FLOAT32, (2,))
    branches = {"then_branch": body_reading("x"), "else_branch": body_reading("x")}
    captures = [values[name] for name in captured]
    graph.append(Node("If", [condition], [result], branches, captures=captures))
    graph.outputs = [result]
    wrong = {name for name in ("x", "z") if (name in captured) != (name == "x")}
    assert len(verify(graph)) == len(wrong)
    assert all(v.rule == "captures" for v in verify(graph))
