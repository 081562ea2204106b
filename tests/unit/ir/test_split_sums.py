"""Sums in parts: the same values in another order, and only where a sum may be cut."""

# mypy: disable-error-code="arg-type"

import numpy as np
import pytest
from tests.support.graphs import GraphBuilder, feed_of

from tilewright.ir.derive import macs
from tilewright.ir.graph import Graph
from tilewright.ir.interpret import run_graph
from tilewright.ir.split_sums import split_sums, summed_channels
from tilewright.ir.verify import require_valid


def convolution(*, group: int = 1, has_bias: bool = True, samples: int = 2) -> Graph:
    """A strided one with borders, whose weights and bias all differ, and what follows."""
    b = GraphBuilder()
    x = b.input(samples, 8, 5, 4)
    weight, bias = b.constant(6, 8 // group, 3, 3), b.constant(6)
    rng = np.random.default_rng(1)
    for value in (weight, bias):
        assert value.data is not None
        value.data = rng.integers(-3, 4, value.shape).astype(value.data.dtype)
    y = b.op(
        "Conv",
        *((x, weight, bias) if has_bias else (x, weight)),
        shape=(samples, 6, 3, 2),
        pads=(1, 1, 1, 1),
        strides=(2, 2),
        group=group,
    )
    return b.finish(b.op("Relu", y))


def product(op_type: str, *, transposed: bool = False, has_bias: bool = False) -> Graph:
    b = GraphBuilder()
    x = b.input(2, 3, 8) if op_type == "MatMul" else b.input(3, 8)
    weight = b.constant(5, 8) if transposed else b.constant(8, 5)
    rng = np.random.default_rng(2)
    weight.data = rng.integers(-3, 4, weight.shape).astype(np.float32)
    said = {"transB": 1} if transposed else {}
    inputs = (x, weight, b.constant(5, value=3.0)) if has_bias else (x, weight)
    return b.finish(b.op("Relu", b.op(op_type, *inputs, shape=(*x.shape[:-1], 5), **said)))


CASES = {
    "plain": (convolution(has_bias=False), ["Conv", "Reshape", "ReduceSum", "Relu"]),
    "with bias": (convolution(), ["Conv", "Reshape", "ReduceSum", "Relu"]),
    "product": (product("MatMul"), ["Reshape", "Einsum", "ReduceSum", "Relu"]),
    "gemm": (product("Gemm", transposed=True), ["Reshape", "Einsum", "ReduceSum", "Relu"]),
    "gemm with bias": (product("Gemm", has_bias=True), ["Reshape", "Einsum", "ReduceSum", "Add", "Relu"]),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("count", [2, 8])
def test_parts_add_up_to_the_same_values(count: int, case: str) -> None:
    graph, operators = CASES[case]
    node = graph.nodes[0]
    assert summed_channels(node) == 8
    found = split_sums(graph, {node: count})
    require_valid(found.graph, after="splitting")
    assert [n.op_type for n in found.graph.nodes] == operators
    assert list(found.sums) == [node]
    assert macs(found.sums[node]) == macs(node)
    assert [v.name for v in found.graph.outputs] == [v.name for v in graph.outputs]
    feed = {name: np.round(4 * array) for name, array in feed_of(graph).items()}
    expected, parts = run_graph(graph, feed), run_graph(found.graph, feed)
    for name, array in expected.items():  # of integers, so that no order rounds
        np.testing.assert_array_equal(parts[name], array)
    priced = split_sums(graph, {node: count}, is_priced_only=True).graph
    require_valid(priced, after="splitting")
    assert [v.shape for n in priced.nodes for v in (*n.operands(), *n.results())] == [
        v.shape for n in found.graph.nodes for v in (*n.operands(), *n.results())
    ]


def test_sums_that_may_not_be_cut_stay_whole() -> None:
    graph = convolution()
    with pytest.raises(ValueError, match="do not divide by 3"):
        split_sums(graph, {graph.nodes[0]: 3})
    assert summed_channels(convolution(group=2).nodes[0]) == 1
    assert summed_channels(graph.nodes[1]) == 1
    b = GraphBuilder()
    given = b.op("Conv", b.input(1, 4, 4, 4), b.input(4, 4, 1, 1, name="w"), shape=(1, 4, 4, 4))
    assert summed_channels(b.node(given)) == 1
