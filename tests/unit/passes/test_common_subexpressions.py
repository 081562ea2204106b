"""What is computed twice becomes one, in time that grows with the nodes, not with readers of a value."""

from __future__ import annotations

import time

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, Value
from tilewright.passes.common_subexpressions import CommonSubexpressions

COUNT = 20_000


def test_thousands_of_equal_readers_of_one_value_are_merged_at_once() -> None:
    graph = Graph("star")
    x = graph.add_input(Value("x", DType.FLOAT32, (4,)))
    for number in range(COUNT):
        first = graph.value(f"y{number}", DType.FLOAT32, (4,))
        graph.append(Node("Relu", [x], [first]))
        graph.append(Node("Exp", [first], [graph.value(f"z{number}", DType.FLOAT32, (4,))]))
    graph.outputs = [graph.nodes[-1].output]
    start_s = time.process_time()
    CommonSubexpressions().run(graph)
    assert time.process_time() - start_s < 8  # a look at all readers each time takes 20 s
    assert [node.op_type for node in graph.nodes] == ["Relu", "Exp"]
