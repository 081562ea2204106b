"""Regions of all values of several nodes: remembered, but not without end."""

from __future__ import annotations

import pytest
from tests.support.graphs import GraphBuilder

from tilewright.ir import graph_regions
from tilewright.ir.graph_regions import RegionMaps, value_regions


def test_as_many_values_are_remembered_as_there_is_place_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_regions, "_MOST_REGIONS", 30)
    b = GraphBuilder()
    x = b.input(64, 8)
    for _ in range(9):
        x = b.op("Relu", x)
    graph, maps = b.finish(x), RegionMaps()
    (result,) = graph.outputs
    for start in (*range(5), *range(5)):
        wanted = {result: ((start, start + 2), (0, 8))}
        found = maps.values_of(graph.nodes, wanted)
        assert found == value_regions(graph.nodes, wanted, maps)
        assert maps.values_of(graph.nodes, wanted) is found
        assert 10 * len(maps.known._facts) == maps.known._size <= 30
