"""What is computed while compiling has the bits that the interpreter gives for the same numbers in a run."""

from __future__ import annotations

import pytest
from tests.property.checks import for_all
from tests.property.strategies import Array, Case, generators

from tilewright.frontend.onnx.fold import fold
from tilewright.ir.graph import Graph, Node
from tilewright.ir.interpret import run_graph
from tilewright.passes.fold_constants import FoldConstants


def constant_graph(one: Case) -> Graph:
    """The case's node on constants."""
    graph = Graph("constants")
    inputs = [None if a is None else graph.constant(a, f"c{i}") for i, a in enumerate(one.inputs)]
    outputs = [
        None if v is None else graph.value(f"y{i}", v.dtype, v.shape) for i, v in enumerate(one.node.outputs)
    ]
    node = one.node
    graph.append(
        Node(node.op_type, inputs, outputs, node.attributes, name="n", opset=node.opset, domain=node.domain)
    )
    graph.outputs = [v for v in outputs if v is not None]
    return graph


def fed_graph(one: Case) -> tuple[Graph, dict[str, Array]]:
    """The same node on inputs, and what to feed them."""
    graph = constant_graph(one)
    feed: dict[str, Array] = {}
    for value in graph.nodes[0].operands():
        if value.data is not None:
            feed[value.name], value.data = value.data, None
            graph.inputs.append(value)
    return graph, feed


def assert_same_bits(found: Array, expected: Array, label: str) -> None:
    assert found.dtype == expected.dtype, label
    assert found.shape == expected.shape, label
    assert found.tobytes() == expected.tobytes(), label


def folds_alike(one: Case) -> bool:
    graph = constant_graph(one)
    expected = run_graph(*fed_graph(one))
    known = fold(graph.nodes[0], [None if v is None else v.shape for v in graph.nodes[0].outputs])
    for value, array in zip(graph.nodes[0].outputs, known or (), strict=False):
        if value is not None and array is not None:
            assert_same_bits(array, expected[value.name], f"{one} at import")
    if FoldConstants().run(graph).num_changes == 0:
        return False
    for name, array in run_graph(graph, {}).items():
        assert_same_bits(array, expected[name], str(one))
    return True


@pytest.mark.sampled(18)
@pytest.mark.parametrize("key", sorted(generators()), ids="".join)
def test_folding_gives_the_bits_of_a_run(key: tuple[str, str]) -> None:
    assert for_all(key, folds_alike, examples=8) > 0
