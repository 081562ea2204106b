"""Where tensors lie: temporaries in one arena, as far as edges of the graph let them share its memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.ir.graph import Graph, Value
from tilewright.memory.base import ARENA, MemoryLevel
from tilewright.planning import Infeasible
from tilewright.targets.cuda.arena import GraphArena, GraphBuffer, Solve, place_in_graph
from tilewright.targets.cuda.graph import PlannedGraph
from tilewright.targets.cuda.lower import Lowered, Tensor
from tilewright.targets.cuda.placed import PlacedModel


def place_tensors(
    graph: Graph,
    lowered: Lowered,
    planned: PlannedGraph,
    durations_ns: Sequence[float],
    solve: Solve,
    max_bytes: int | None,
) -> PlacedModel | Infeasible:
    """Every tensor between kernels in the arena; edges that this needs are in the graph then."""
    outside = {lowered.root(v) for v in (*graph.inputs, *graph.outputs)}
    users: dict[Tensor, list[int]] = {}
    for number, node in enumerate(planned.nodes):
        for tensor in () if node.work is None else (*node.work.reads, *node.work.writes):
            root = lowered.root(tensor)
            is_constant = isinstance(root, Value) and root.is_constant
            if root not in outside and not is_constant and root.size_bytes:
                users.setdefault(root, []).append(number)
    names = {tensor: f"{tensor.name}#{number}" for number, tensor in enumerate(users)}
    buffers = [
        GraphBuffer(names[tensor], tensor.size_bytes, tuple(sorted(set(numbers))))
        for tensor, numbers in users.items()
    ]
    level = ARENA if max_bytes is None else MemoryLevel("arena", max_bytes)
    after = [node.after for node in planned.nodes]
    arena = place_in_graph(after, buffers, durations_ns, solve, level)
    if isinstance(arena, Infeasible):
        return arena
    offsets = {tensor: arena.plan.offsets[name] for tensor, name in names.items()}
    return PlacedModel(graph, lowered, _with_edges(planned, arena), arena.plan, buffers, offsets)


def _with_edges(planned: PlannedGraph, arena: GraphArena) -> PlannedGraph:
    nodes = list(planned.nodes)
    for first, last in arena.added:
        nodes[last] = replace(nodes[last], after=(*nodes[last].after, first))
    return PlannedGraph(tuple(nodes))
