"""Caches that grow: a graph made for the longest past that a run may have, whose runs have shorter ones.

The caches of a run, inputs and outputs, lie in memory as arrays of their own shapes, without gaps. Only
attention may touch them. In all other values of the graph whose extent follows the past, masks mostly, the
places of a run are the last ones, and those before them are not read.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir.fuse import NestGroup
from tilewright.ir.graph import Graph, Value
from tilewright.ir.nest import Nest, RowsOf, dim_of


def past_inputs(graph: Graph) -> dict[Value, int]:
    """Caches that a graph reads, with the axis of their places."""
    return {v: graph.past_axes[v.name] for v in graph.inputs if v.name in graph.past_axes}


def with_past_loops(group: NestGroup, pasts: dict[Value, int]) -> NestGroup:
    """The group, whose copies of a past say along which loop a run may have fewer places."""
    axes = {
        ("input", number): pasts.get(value) for number, value in enumerate(group.inputs) if value in pasts
    }
    return replace(group, nests=tuple(_marked(nest, axes) for nest in group.nests)) if axes else group


def _marked(nest: Nest, axes: dict[tuple[str, int], int | None]) -> Nest:
    access = nest.reads[0] if len(nest.reads) == 1 else None
    axis = None if access is None else axes.get(access.operand.key)
    if access is None or axis is None or access.view is not None:
        return nest
    name, extent = dim_of(access.index[axis]), access.operand.shape[axis]
    dims = tuple(replace(d, rows=RowsOf(extent)) if d.name == name else d for d in nest.dims)
    return replace(nest, dims=dims)
