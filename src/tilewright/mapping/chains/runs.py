"""Runs of operators in a graph that may be tiled together, and the stages at whose ends they may be cut."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence, Set

from tilewright.ir.derive import is_complex, is_pointwise
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ir.graph_regions import kernel_structure

Stage = tuple[Node, ...]
"""An operator and the pointwise ones that follow it: what is computed before a value is stored."""


def runs_of(graph: Graph) -> list[tuple[Node, ...]]:
    """Longest runs with two sums of products or more, each operator reading what the last one computed.

    Of several readers the first one goes on, as in a residual block; so what others read leaves the run, or
    comes back further on. A run ends before an operator that needs what is computed beside it.
    """
    taken: set[Node] = set()
    place = {node: number for number, node in enumerate(graph.nodes)}
    runs = []
    for node in graph.nodes:
        if node in taken or not is_complex(node):
            continue
        run = _trimmed(list(_followed(node, place, taken)))
        taken.update(run)
        if sum(map(is_complex, run)) > 1:
            runs.append(tuple(run))
    return runs


def _followed(node: Node, place: Mapping[Node, int], taken: Set[Node]) -> Iterator[Node]:
    """An operator, then always the first reader of what was computed."""
    start, inside = place[node], set[Node]()
    while True:
        yield node
        inside.add(node)
        values = list(node.results())
        readers = {reader for value in values for reader in value.users} - inside
        if len(values) != 1 or not readers:
            return
        node = min(readers, key=place.__getitem__)
        makers = [value.producer for value in node.operands() if value.producer not in inside]
        if node in taken or node.captures or any(m is not None and place[m] > start for m in makers):
            return


def _trimmed(run: list[Node]) -> list[Node]:
    """Without what follows the last sum of products and is not pointwise."""
    last = max(place for place, node in enumerate(run) if is_complex(node))
    end = last + 1
    while end < len(run) and is_pointwise(run[end]):
        end += 1
    return run[:end]


def stages_of(nodes: Sequence[Node]) -> tuple[Stage, ...]:
    """A run in stages: each begins with an operator that is not pointwise."""
    stages: list[list[Node]] = []
    for node in nodes:
        if not stages or not is_pointwise(node):
            stages.append([])
        stages[-1].append(node)
    return tuple(map(tuple, stages))


def alike_key(nodes: Sequence[Node], results: frozenset[Value]) -> Hashable:
    """What operators have in common that are tiled alike: what they touch, and which values leave."""
    inside = set(nodes)
    made = [value for node in nodes for value in node.results()]
    leaving = (v for v in made if v in results or not v.users or not inside.issuperset(v.users))
    return kernel_structure(nodes, leaving)
