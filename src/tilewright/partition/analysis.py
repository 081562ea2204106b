"""What all partitions of one graph have in common, found out once."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from tilewright.ir.graph import Graph, Value
from tilewright.ir.graph_regions import RegionMaps
from tilewright.partition.axes import IndependentAxes
from tilewright.partition.footprint import Footprints
from tilewright.partition.layers import Layer, LayerRegions, cut_layers


class Analysis:
    """Regions through nodes, independent axes, layers. The graph must not change meanwhile."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.maps = RegionMaps()
        self.regions = LayerRegions(self.maps)
        self._layers: dict[bool, tuple[Layer, ...]] = {}
        self._footprints: dict[tuple[frozenset[tuple[str, int]] | None, bool], Footprints] = {}

    @cached_property
    def axes(self) -> IndependentAxes:
        """Which axes can be cut without computing anything twice."""
        return IndependentAxes(self.graph, self.maps)

    def layers(self, *, fuse_joins: bool) -> tuple[Layer, ...]:
        """See `cut_layers`."""
        if fuse_joins not in self._layers:
            self._layers[fuse_joins] = cut_layers(self.graph, fuse_joins=fuse_joins)
        return self._layers[fuse_joins]

    def footprints(self, sizes_bytes: Mapping[str, int] | None, *, in_place: bool) -> Footprints:
        """What instances of parts need, where elements of a type take so many bytes; None: as types say."""
        key = None if sizes_bytes is None else frozenset(sizes_bytes.items()), in_place

        def element_bytes(value: Value) -> int:
            return value.dtype.size_bytes if sizes_bytes is None else sizes_bytes[str(value.dtype)]

        if key not in self._footprints:
            self._footprints[key] = Footprints(self.regions, element_bytes, in_place=in_place)
        return self._footprints[key]
