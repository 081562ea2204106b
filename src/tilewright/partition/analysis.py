"""What all partitions of one graph have in common, found out once."""

from __future__ import annotations

from functools import cached_property

from tilewright.ir.graph import Graph
from tilewright.ir.graph_regions import RegionMaps
from tilewright.partition.axes import IndependentAxes
from tilewright.partition.layers import Layer, LayerRegions, cut_layers


class Analysis:
    """Regions through nodes, independent axes, layers. The graph must not change meanwhile."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.maps = RegionMaps()
        self.regions = LayerRegions(self.maps)
        self._layers: dict[bool, tuple[Layer, ...]] = {}

    @cached_property
    def axes(self) -> IndependentAxes:
        """Which axes can be cut without computing anything twice."""
        return IndependentAxes(self.graph, self.maps)

    def layers(self, *, fuse_joins: bool) -> tuple[Layer, ...]:
        """See `cut_layers`."""
        if fuse_joins not in self._layers:
            self._layers[fuse_joins] = cut_layers(self.graph, fuse_joins=fuse_joins)
        return self._layers[fuse_joins]
