"""Independent check of a graph of kernels: what touches the same bytes is ordered by a path of edges.

Shares no code with what makes graphs and places buffers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewright.planning import Violation
from tilewright.targets.cuda.device import Copy, GraphNode, Launch, Span


def check_graph(nodes: Sequence[GraphNode]) -> tuple[Violation, ...]:
    """Everything wrong with a graph: nothing, if it is valid.

    Checked: edges come from nodes before; each address that a kernel is given lies in what it says it reads
    or writes; copies are between spans of one size; of any two nodes that touch a byte which one of them
    writes, one comes before the other by edges.
    """
    backwards = tuple(
        Violation("edge", f"node {node.name!r} follows node {before}, which is not before it")
        for number, node in enumerate(nodes)
        for before in node.after
        if not 0 <= before < number
    )
    if backwards:
        return backwards
    return (*_check_spans(nodes), *_check_conflicts(nodes))


def _check_spans(nodes: Sequence[GraphNode]) -> Iterator[Violation]:
    for node in nodes:
        work = node.work
        if isinstance(work, Copy) and work.source.size_bytes != work.target.size_bytes:
            yield Violation("copy", f"node {node.name!r} copies {work.source} to {work.target}")
        if isinstance(work, Launch):
            spans = (*work.reads, *work.writes)
            for place, address in enumerate(work.arguments):
                if not any(span.address <= address < span.end for span in spans):
                    yield Violation(
                        "argument", f"node {node.name!r}: argument {place} lies in none of its spans"
                    )


def _check_conflicts(nodes: Sequence[GraphNode]) -> Iterator[Violation]:
    uses: list[tuple[int, int, Span, bool]] = []  # address, node, span, writes
    for number, node in enumerate(nodes):
        uses += [(span.address, number, span, False) for span in node.work.reads if span.size_bytes]
        uses += [(span.address, number, span, True) for span in node.work.writes if span.size_bytes]
    uses.sort(key=lambda use: (use[0], use[1], use[3]))
    reached: dict[int, set[int]] = {}
    open_uses: list[tuple[int, Span, bool]] = []
    told: set[tuple[int, int]] = set()
    for address, number, span, writes in uses:
        open_uses = [use for use in open_uses if use[1].end > address]
        for other, other_span, other_writes in open_uses:
            first, last = min(number, other), max(number, other)
            if first == last or not (writes or other_writes) or (first, last) in told:
                continue
            if last not in reached:
                reached[last] = _all_before(nodes, last)
            if first not in reached[last]:
                told.add((first, last))
                yield Violation(
                    "order",
                    f"nodes {nodes[first].name!r} and {nodes[last].name!r} touch bytes of {span.name!r} and "
                    f"{other_span.name!r} that are the same, and no path of edges orders them",
                )
        open_uses.append((number, span, writes))


def _all_before(nodes: Sequence[GraphNode], number: int) -> set[int]:
    """The nodes from which a path leads to a node, found backwards from it."""
    found: set[int] = set()
    left = [*nodes[number].after]
    while left:
        node = left.pop()
        if node not in found:
            found.add(node)
            left += nodes[node].after
    return found
