"""Caches of a model, found by walking its graphs for a short past and for the longest side by side."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from tilewright.ir.graph import Graph, Node, Value
from tilewright.specialise.graph_pairing import NO_AXES, GraphPairing, follow
from tilewright.specialise.masked import PaddedBefore, real_axes

LEAST_PAST = 2
"""Places: graphs for one are written in another way."""


def grown_caches(
    graph: Graph, larger: Graph, inputs: Mapping[str, frozenset[int]], growth: int, num_past: int = LEAST_PAST
) -> dict[str, int] | None:
    """Inputs and outputs that are caches, with the axis of their places; None where the graphs do more with
    the past than attention does, or with masks. The first has a past of `num_past`, the second of `growth`
    more.
    """
    if len(graph.nodes) != len(larger.nodes) or len(graph.inputs) != len(larger.inputs):
        return None
    pairing = GraphPairing(growth, partial(real_axes, is_at_end=True))
    for a, b in zip(graph.inputs, larger.inputs, strict=True):
        if a.name != b.name or not pairing.pair(a, b, inputs.get(a.name, NO_AXES)):
            return None
    caches: dict[str, int] = {}
    for node, twin in zip(graph.nodes, larger.nodes, strict=True):
        if node.op_type == "Attention" and node.input(4) is not None:
            found = _cached_attention(node, twin, pairing, larger, num_past)
            if found is None:
                return None
            caches.update(found)
        elif not _follows(node, twin, pairing):
            return None
    for a, b in zip(graph.outputs, larger.outputs, strict=True):
        axes = pairing.axes(a, b)
        if axes is None or (axes and b.name not in caches):
            return None
    users = {v: len(v.users) for v in larger.inputs if v.name in caches}
    return caches if caches and all(count == 1 for count in users.values()) else None


def _cached_attention(
    node: Node, twin: Node, pairing: GraphPairing, larger: Graph, num_past: int
) -> dict[str, int] | None:
    """The caches of an attention of both graphs; None where that is not all that grows."""
    if not _is_same_operator(node, twin) or node.input(6) is not None:
        return None
    for position in range(6):
        a, b = node.input(position), twin.input(position)
        if a is None and b is not None and position == 3 and _hides_none(b, node.require(4).shape[2]):
            continue
        if a is None or b is None:
            if a is not b:
                return None
            continue
        axes = pairing.axes(a, b)
        wanted = {4: {2}, 5: {2}}.get(position, set())
        if position == 3 and b.shape[-1] > 1:
            wanted = {len(b.shape) - 1}
        if axes is None or axes != wanted:
            return None
    caches: dict[str, int] = {}
    for position in (4, 5):
        value = twin.require(position)
        if value not in larger.inputs or value.name in caches:
            return None
        if node.require(position).shape[2] != num_past:  # of another length, which kernels are not told
            return None
        caches[value.name] = 2
    for position, (a, b) in enumerate(zip(node.outputs, twin.outputs, strict=True)):
        if a is None or b is None:
            if a is not b:
                return None
            continue
        if not pairing.pair(a, b, frozenset({2}) if position in (1, 2) else NO_AXES):
            return None
        if position in (1, 2):
            if b not in larger.outputs or b.users:
                return None
            caches[b.name] = 2
    return caches


def _hides_none(mask: Value, num_past: int) -> bool:
    """Whether a mask hides none of the last keys, so that a graph for few has none: a window, say."""
    return mask.data is not None and mask.dtype.is_float and not np.any(mask.data[..., -num_past - 1 :])


def _follows(node: Node, twin: Node, pairing: GraphPairing) -> bool:
    """Whether two nodes do the same; if values grow in them, place by place."""
    if not _is_same_operator(node, twin):
        return False
    pairs = list(zip(node.inputs, twin.inputs, strict=True))
    if any((a is None) != (b is None) for a, b in pairs):
        return False
    known = [pairing.axes(a, b) for a, b in pairs if a is not None and b is not None]
    if all(axes == NO_AXES for axes in known):
        results = zip(node.outputs, twin.outputs, strict=True)
        return all(
            (a is None and b is None) or (a is not None and b is not None and pairing.pair(a, b, NO_AXES))
            for a, b in results
        )
    places = PaddedBefore(pairing, node, twin)
    return follow(places) and not places.reduced


def _is_same_operator(node: Node, twin: Node) -> bool:
    return (
        (node.op_type, node.domain, node.opset, len(node.inputs), len(node.outputs))
        == (twin.op_type, twin.domain, twin.opset, len(twin.inputs), len(twin.outputs))
        and not node.captures
        and not twin.captures
        and repr(node.attributes) == repr(twin.attributes)
    )
