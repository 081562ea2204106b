"""Independent check of forms: the cut of each subgraph into kernels, and the blocks of those."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewright.ir.graph import Graph, Node, Value
from tilewright.partition.base import Partition, Subgraph
from tilewright.partition.form import MAX_BLOCKS, Blocking
from tilewright.planning import Violation


def check_forms(partition: Partition) -> Iterator[Violation]:
    """Everything wrong with the forms of a partition's subgraphs."""
    for subgraph in partition.subgraphs:
        for text in form_violations(partition.graph, subgraph):
            yield Violation("form", f"subgraph {subgraph.id}: {text}")


def form_violations(graph: Graph, subgraph: Subgraph) -> Iterator[str]:
    """What is wrong with a subgraph's form, a sentence each.

    Checked: every node is in exactly one kernel, nodes stand in order, no kernel reads what a later makes,
    blocks fit the last result of their kernel.
    """
    if subgraph.form is None:
        return
    num_nodes = len(subgraph.nodes)
    waiting = {id(node) for node in subgraph.nodes}
    seen: set[int] = set()
    for kernel in subgraph.form.kernels:
        places = kernel.nodes
        if not places or list(places) != sorted(set(places)) or not 0 <= places[0] <= places[-1] < num_nodes:
            yield f"{str(places)[:80]} are no positions of {num_nodes} nodes in order"
            return
        if seen & set(places):
            yield f"nodes {sorted(seen & set(places))} are in two kernels"
        seen.update(places)
        nodes = [subgraph.nodes[place] for place in places]
        waiting.difference_update(id(node) for node in nodes)
        for node in nodes:
            for value in node.operands():
                if id(value.producer) in waiting:
                    yield f"{node!r} reads {value.name!r}, which a later kernel makes"
        if kernel.blocking is not None:
            results = _results(graph, nodes)
            if not results or not _fits(kernel.blocking, results[-1].shape):
                shapes = [value.shape for value in results[-1:]]
                yield f"{str(kernel.blocking)[:80]} is no blocking of results {shapes}"
    if len(seen) != num_nodes:
        yield f"nodes {sorted(set(range(num_nodes)) - seen)} are in no kernel"


def _results(graph: Graph, nodes: Sequence[Node]) -> list[Value]:
    """What nodes make that others read, or the user."""
    inside = {id(node) for node in nodes}
    return [
        value
        for node in nodes
        for value in node.results()
        if any(value is output for output in graph.outputs) or any(id(u) not in inside for u in value.users)
    ]


def _fits(blocking: Blocking, shape: Sequence[int]) -> bool:
    if len(blocking.block) != len(shape) or blocking.strip < 1:
        return False
    if not all(0 < size <= extent for size, extent in zip(blocking.block, shape, strict=True)):
        return False
    return blocking.num_blocks(shape) <= MAX_BLOCKS
