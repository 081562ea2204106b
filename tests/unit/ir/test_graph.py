"""Graphs keep producers and uses right, whatever is done to them."""

from __future__ import annotations

import time

import numpy as np
import pytest

from tilewright.errors import InternalError
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ir.ops import describe
from tilewright.ir.verify import verify


def chain(length: int) -> Graph:
    """x -> n0 -> n1 -> ... -> output."""
    graph = Graph("chain")
    value = graph.add_input(Value("x", DType.FLOAT32, (2,)))
    for i in range(length):
        result = graph.value(f"v{i}", DType.FLOAT32, (2,))
        graph.append(Node("Relu", [value], [result], name=f"n{i}"))
        value = result
    graph.outputs = [value]
    return graph


def test_appending_a_node_records_producer_and_uses() -> None:
    graph = chain(2)
    first, second = graph.nodes
    assert first.output.producer is first
    assert first.output.users == (second,)
    assert verify(graph) == ()


def test_a_value_read_twice_by_a_node_has_one_user_until_both_reads_are_gone() -> None:
    graph = Graph()
    x = graph.add_input(Value("x", DType.FLOAT32, (2,)))
    y = graph.value("y", DType.FLOAT32, (2,))
    node = graph.append(Node("Add", [x, x], [y]))
    graph.outputs = [y]
    assert x.users == (node,)
    graph.set_inputs(node, [x, y])
    assert x.users == (node,)
    graph.set_inputs(node, [])
    assert x.users == ()


def test_a_value_cannot_get_a_second_producer() -> None:
    graph = chain(1)
    with pytest.raises(InternalError, match="already has a producer"):
        graph.append(Node("Neg", [graph.inputs[0]], [graph.outputs[0]]))


def test_fresh_names_never_repeat() -> None:
    graph = chain(1)
    names = {graph.value("v0", DType.FLOAT32, (2,)).name for _ in range(5)} | {"v0", "x"}
    assert len(names) == 7


def test_thousands_of_names_from_one_stem_are_found_at_once() -> None:
    graph = Graph("g")
    graph.value("v_3", DType.FLOAT32, ())
    start_s = time.process_time()
    names = [graph.value("v", DType.FLOAT32, ()).name for _ in range(20_000)]
    assert time.process_time() - start_s < 5  # counted from 1 for each, it takes 30 s
    assert names[:4] == ["v", "v_1", "v_2", "v_4"]
    assert len(set(names)) == len(names)


def test_insert_before_keeps_the_order() -> None:
    graph = chain(2)
    first, second = graph.nodes
    between = Node("Neg", [first.output], [graph.value("b", DType.FLOAT32, (2,))], name="between")
    graph.insert_before(second, between)
    assert [n.name for n in graph.nodes] == ["n0", "between", "n1"]
    assert verify(graph) == ()


def test_a_node_whose_result_is_used_cannot_be_removed() -> None:
    graph = chain(2)
    with pytest.raises(InternalError, match="still used"):
        graph.remove(graph.nodes[0])
    with pytest.raises(InternalError, match="still used"):
        graph.remove(graph.nodes[1])


def test_removing_a_node_frees_its_operands() -> None:
    graph = chain(2)
    last = graph.nodes[1]
    graph.outputs = [graph.nodes[0].output]
    graph.remove(last)
    assert graph.nodes[0].output.users == ()
    assert last.output.producer is None
    assert verify(graph) == ()


def test_replace_uses_moves_readers_and_outputs() -> None:
    graph = chain(3)
    middle = graph.nodes[1].output
    graph.replace_uses(middle, graph.nodes[0].output)
    assert middle.users == ()
    assert graph.nodes[2].inputs == (graph.nodes[0].output,)
    graph.replace_uses(graph.outputs[0], middle)
    assert graph.outputs == [middle]
    assert verify(graph) == ()


def test_a_captured_value_cannot_be_replaced() -> None:
    graph = Graph()
    x = graph.add_input(Value("x", DType.FLOAT32, (2,)))
    c = graph.add_input(Value("c", DType.BOOL, ()))
    y = graph.value("y", DType.FLOAT32, (2,))
    graph.append(Node("If", [c], [y], captures=[x]))
    with pytest.raises(InternalError, match="captured"):
        graph.replace_uses(x, y)


def test_sort_restores_topological_order_and_is_stable() -> None:
    graph = chain(4)
    names = [n.name for n in graph.nodes]
    graph._nodes.reverse()
    graph.sort()
    assert [n.name for n in graph.nodes] == names
    graph.sort()
    assert [n.name for n in graph.nodes] == names


def test_sort_refuses_a_cycle() -> None:
    graph = chain(2)
    first, second = graph.nodes
    graph.set_inputs(first, [second.output])
    with pytest.raises(InternalError, match="cycle"):
        graph.sort()


def test_a_clone_shares_data_but_nothing_else() -> None:
    graph = Graph("g")
    x = graph.add_input(Value("x", DType.FLOAT32, (2,)))
    w = graph.constant(np.ones(2, np.float32), "w")
    y = graph.value("y", DType.FLOAT32, (2,))
    graph.append(Node("Add", [x, w], [y], {"note": 1}, name="add", opset=17))
    graph.outputs = [y]
    clone = graph.clone()
    assert verify(clone) == ()
    assert clone.nodes[0] is not graph.nodes[0]
    assert clone.nodes[0].attributes == {"note": 1}
    assert clone.nodes[0].opset == 17
    assert clone.initializers[0] is not w
    assert clone.initializers[0].data is w.data
    clone.set_inputs(clone.nodes[0], [clone.inputs[0], clone.inputs[0]])
    assert graph.nodes[0].inputs == (x, w)
    assert verify(graph) == ()


def test_initializers_come_in_order_of_first_use_and_once() -> None:
    graph = Graph()
    x = graph.add_input(Value("x", DType.FLOAT32, (2,)))
    b, a = (graph.constant(np.ones(2, np.float32), name) for name in ("b", "a"))
    value = x
    for operand in (a, b, a):
        result = graph.value("v", DType.FLOAT32, (2,))
        graph.append(Node("Add", [value, operand], [result]))
        value = result
    graph.outputs = [value, b]
    assert graph.initializers == (a, b)


def test_what_is_remembered_of_a_node_is_shared_with_copies_until_inputs_change() -> None:
    graph = Graph()
    x = graph.add_input(Value("x", DType.FLOAT32, (2,)))
    node = graph.append(Node("Relu", [x], [graph.value("y", DType.FLOAT32, (2,))]))
    graph.outputs = [node.output]
    asked: list[Node] = []

    def fact(of: Node) -> str:
        asked.append(of)
        return of.op_type

    early = graph.clone().nodes[0]
    early.attributes["alpha"] = 1.0  # nobody has described it
    describe(node)
    late = graph.clone().nodes[0]
    assert [n.remembered(fact) for n in (node, late, node, early)] == ["Relu"] * 4
    assert asked == [node, early]
    graph.set_inputs(node, [x])
    assert node.remembered(fact) == "Relu"
    assert asked == [node, early, node]
