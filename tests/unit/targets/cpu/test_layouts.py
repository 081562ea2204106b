"""Layouts that copies wish for: merging axes behind a transpose moves nothing where the source allows it."""

from __future__ import annotations

from tests.support.graphs import GraphBuilder

from tilewright.ir.fuse import NestGroup, fuse_nodes
from tilewright.ir.graph import Graph, Value
from tilewright.targets.cpu.kernel import Layout
from tilewright.targets.cpu.lower.layouts import Tensor, assign_layouts


def layouts_of(graph: Graph, *sizes: int) -> dict[Tensor, Layout]:
    """Of a graph whose first so many nodes are a group, the next another, and so on."""
    nodes, groups = iter(graph.nodes), []
    for size in sizes:
        members = [next(nodes) for _ in range(size)]
        group = fuse_nodes(members, [members[-1].output])
        assert isinstance(group, NestGroup)
        groups.append(group)
    return assign_layouts(groups, frozenset())


def heads_side_by_side(b: GraphBuilder, x: Value) -> Value:
    """[batch, heads, length, size] to [batch, length, heads * size]."""
    batch, heads, length, size = x.shape
    turned = b.op("Transpose", x, shape=(batch, length, heads, size), perm=(0, 2, 1, 3))
    shape = b.integers(batch, length, heads * size)
    return b.op("Reshape", turned, shape, shape=(batch, length, heads * size))


def test_heads_lie_as_the_copy_behind_them_wants_them() -> None:
    for batch in (1, 2):
        b = GraphBuilder()
        made = b.op("Relu", b.input(batch, 3, 5, 8))
        graph = b.finish(b.op("Exp", heads_side_by_side(b, made)))
        assert layouts_of(graph, 1, 2, 1)[made].order == (0, 2, 1, 3)


def test_a_reshape_alone_wishes_for_nothing() -> None:
    b = GraphBuilder()
    made = b.op("Relu", b.input(1, 5, 3, 8))
    flat = b.op("Reshape", made, b.integers(1, 5, 24), shape=(1, 5, 24))
    graph = b.finish(b.op("Exp", flat))
    assert all(layout.is_row_major for layout in layouts_of(graph, 1, 1, 1).values())
