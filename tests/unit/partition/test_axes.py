"""Independent axes: what runs through a network slice by slice, and what mixes slices."""

from tests.support.graphs import GraphBuilder
from tests.unit.partition.residual import residual

from tilewright.ir.graph_regions import RegionMaps
from tilewright.partition.axes import IndependentAxes


def test_the_batch_is_independent_and_rows_under_a_window_are_not() -> None:
    _, graph = residual()
    axes = IndependentAxes(graph, RegionMaps())
    for value in (*graph.inputs, *(n.output for n in graph.nodes)):
        assert [axes.units_of(value, d) for d in range(4)] == [4, 1, 1, 1]


def test_an_axis_is_followed_through_reshapes_in_whole_slices() -> None:
    b = GraphBuilder()
    x = b.input(4, 6, 8)
    rows = b.op("Reshape", x, b.integers(24, 8), shape=(24, 8))
    product = b.op("MatMul", rows, b.constant(8, 8))
    graph = b.finish(b.op("Reshape", product, b.integers(4, 6, 8), shape=(4, 6, 8)))
    axes = IndependentAxes(graph, RegionMaps())
    assert axes.units_of(rows, 0) == 4
    assert axes.class_of(rows, 0) == axes.class_of(x, 0) == axes.class_of(graph.outputs[0], 0)


def test_queries_and_keys_of_one_sequence_keep_it_whole() -> None:
    b = GraphBuilder()
    x = b.input(2, 6, 8)
    turned = b.op("Transpose", x, shape=(2, 8, 6), perm=(0, 2, 1))
    graph = b.finish(b.op("MatMul", x, turned, shape=(2, 6, 6)))
    axes = IndependentAxes(graph, RegionMaps())
    assert [axes.units_of(graph.outputs[0], d) for d in range(3)] == [2, 1, 1]
