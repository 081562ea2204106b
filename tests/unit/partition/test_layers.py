"""Layers: which operators join, what may be written in place, an order that follows the graph alone."""

import pytest
from tests.support.graphs import GraphBuilder, random_graph
from tests.unit.partition.residual import residual

from tilewright.ir.graph import Node
from tilewright.partition.layers import canonical_order, cut_layers


def names(nodes: tuple[Node, ...]) -> str:
    return "+".join(n.op_type for n in nodes)


def test_element_wise_operators_join_the_layer_that_makes_their_operand() -> None:
    _, graph = residual()
    layers = cut_layers(graph)
    assert [names(layer.nodes) for layer in layers] == ["Conv+Relu", "Conv+Relu", "Conv", "Add+Relu"]
    fused = cut_layers(graph, fuse_joins=True)
    assert [names(layer.nodes) for layer in fused] == ["Conv+Relu", "Conv+Relu", "Conv+Add+Relu"]


def test_a_sum_may_be_written_over_an_operand_and_a_product_may_not() -> None:
    _, graph = residual()
    *products, total = cut_layers(graph)
    assert all(not layer.overwrites for layer in products)
    assert total.overwrites == set(total.inputs)


@pytest.mark.parametrize("shape", [(1, 3, 4, 4), (1, 1, 4, 4), (2, 1, 4, 1)])
def test_one_sample_is_written_over_as_several_are(shape: tuple[int, ...]) -> None:
    b = GraphBuilder()
    x, y = b.input(*shape), b.input(*shape)
    (layer,) = cut_layers(b.finish(b.op("Relu", b.op("Add", x, y))))
    assert layer.overwrites == {x, y}


def test_softmax_may_be_written_over_its_operand_and_a_transpose_may_not() -> None:
    b = GraphBuilder()
    x = b.input(4, 4)
    softmax = b.op("Softmax", x)
    graph = b.finish(b.op("Transpose", softmax))
    first, second = cut_layers(graph)
    assert first.overwrites == {x}
    assert second.overwrites == set()


def test_the_canonical_order_does_not_depend_on_how_nodes_are_kept() -> None:
    for seed in range(10):
        graph = random_graph(seed, 12)
        order = canonical_order(graph)
        place = {n: i for i, n in enumerate(order)}
        assert len(place) == len(graph.nodes)
        assert all(place[v.producer] < place[n] for n in order for v in n.operands() if v.producer)
