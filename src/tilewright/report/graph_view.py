"""A model's graph as a part of a page, to zoom and search: a box for each kernel, coloured by time."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.explain import EdgeStory
from tilewright.ir.graph import Graph, Node
from tilewright.program import Program
from tilewright.report.charts import script_json
from tilewright.steps import KernelInfo
from tilewright.text.formatting import format_ms, format_shape
from tilewright.text.printable import html_text, printable

Arc = tuple[int, int]
"""From a box to another, by their numbers."""

SHOWN_NODES = 8
"""Lines of a box; of larger kernels the rest is shown when the box is chosen."""
_STYLE = (
    ".graph{position:relative;height:75vh;border:1px solid #8886;border-radius:4px;overflow:hidden}"
    ".graph canvas{width:100%;height:100%;display:block;touch-action:none;cursor:grab}"
    ".graph-tools{display:flex;flex-wrap:wrap;gap:.5em;align-items:center;margin:.5em 0}"
    ".graph-tools input{flex:1;min-width:9em;font:inherit}.graph-tools button{font:inherit}"
    ".graph-about{position:absolute;right:0;top:0;max-width:min(28em,90%);max-height:90%;overflow:auto;"
    "background:Canvas;color:CanvasText;border:1px solid #8886;padding:.5em .8em;margin:.5em;font-size:13px;"
    "white-space:pre-wrap;overflow-wrap:anywhere}.graph-about:empty{display:none}"
)


@dataclass(frozen=True, slots=True)
class DrawnKernel:
    """A box: kernels, the nodes they run, and their time, measured or by estimate."""

    title: str
    nodes: tuple[Node, ...]
    details: tuple[str, ...]
    time_ns: float | None


def graph_section(
    program: Program,
    kernels: Sequence[KernelInfo],
    edges: Sequence[EdgeStory],
    measured_ns: Mapping[str, float] | None = None,
) -> str:
    """The graph as HTML with its data.

    `measured_ns` are times of kernels by their id; without them boxes are coloured by estimate.
    """
    drawn = in_order(_drawn(program.graph, kernels, measured_ns), program.graph)
    arcs = _arcs(program.graph, _owners(drawn))
    why = {(edge.producer, edge.consumer): edge for edge in edges}
    total_ns = sum(box.time_ns or 0.0 for box in drawn)
    boxes = [_described(box, total_ns) for box in drawn]
    described = [[*arc, _reasons(values, why)] for arc, values in arcs.items()]
    source = "measured" if measured_ns else "by estimate"
    return graph_frame(boxes, described, f"{source}, {format_ms(total_ns / 1e6)} in all")


def block_section(graph: Graph, blocks: Sequence[DrawnKernel], said: str) -> str:
    """Blocks that hold every node of a graph, as HTML; `said` is what is said of their times."""
    ordered = in_order(blocks, graph)
    total_ns = sum(block.time_ns or 0.0 for block in ordered)
    arcs = _arcs(graph, _owners(ordered))
    described = [[*arc, [value for _, _, value in values]] for arc, values in arcs.items()]
    boxes = [_described(block, total_ns) for block in ordered]
    return graph_frame(boxes, described, f"{said}, {format_ms(total_ns / 1e6)} in all")


def graph_frame(boxes: Sequence[Mapping[str, Any]], arcs: Sequence[Sequence[Any]], said: str) -> str:
    """The picture of boxes, of which most arcs lead to a later one; `said` is what is said of their times.

    The page's script places them, with dagre.
    """
    return (
        f"<style>{_STYLE}</style>"
        f'<div class="graph-tools"><input type="search" placeholder="find a node, operator or kernel" '
        f'aria-label="find in the graph"><span class="graph-count"></span>'
        f'<button type="button">whole graph</button>'
        f"<span>{len(boxes):,} box{'' if len(boxes) == 1 else 'es'}; the redder, the longer "
        f"({html_text(said)})</span></div>"
        '<div class="graph"><canvas tabindex="0" role="img" aria-label="the model\'s graph"></canvas>'
        '<div class="graph-about" aria-live="polite"></div></div>'
        '<script type="application/json" class="graph-data">'
        f"{script_json({'boxes': boxes, 'arcs': arcs})}</script>"
    )


def _drawn(
    graph: Graph, kernels: Sequence[KernelInfo], measured_ns: Mapping[str, float] | None
) -> list[DrawnKernel]:
    """A box for each set of nodes whose kernels share some; a node that no kernel runs is one by itself."""
    names = {node.name: node for node in graph.nodes}
    first_of: dict[str, int] = {}
    groups: dict[int, list[KernelInfo]] = {}
    for number, kernel in enumerate(kernels):
        known = [name for name in kernel.nodes if name in names]
        if known:
            group = next((first_of[name] for name in known if name in first_of), number)
            groups.setdefault(group, []).append(kernel)
            for name in known:
                first_of.setdefault(name, group)
    members: dict[object, list[Node]] = {}
    for node in graph.nodes:
        members.setdefault(first_of.get(node.name, node), []).append(node)
    boxes = []
    for key, nodes in members.items():
        made_by = groups.get(key, []) if isinstance(key, int) else []
        boxes.append(_kernel(nodes, made_by, measured_ns))
    return boxes


def in_order(boxes: Sequence[DrawnKernel], graph: Graph) -> list[DrawnKernel]:
    """Boxes so that arcs lead to later ones, as far as none lead in a circle; else as they were."""
    arcs = _arcs(graph, _owners(boxes))
    waits = [0] * len(boxes)
    readers: list[list[int]] = [[] for _ in boxes]
    for source, sink in arcs:
        waits[sink] += 1
        readers[source].append(sink)
    ready = [number for number, count in enumerate(waits) if not count]
    order: dict[int, None] = {}
    while ready:
        number = heapq.heappop(ready)
        order[number] = None
        for reader in readers[number]:
            waits[reader] -= 1
            if not waits[reader]:
                heapq.heappush(ready, reader)
    return [boxes[number] for number in (*order, *(n for n in range(len(boxes)) if n not in order))]


def _owners(boxes: Sequence[DrawnKernel]) -> dict[Node, int]:
    return {node: number for number, box in enumerate(boxes) for node in box.nodes}


def _kernel(
    nodes: Sequence[Node], kernels: Sequence[KernelInfo], measured_ns: Mapping[str, float] | None
) -> DrawnKernel:
    times = [k.estimate_ns if measured_ns is None else measured_ns.get(k.id) for k in kernels]
    known = [time for time in times if time is not None]
    title = ", ".join(f"{k.id} {k.template}" for k in kernels) or "no kernel"
    details = [f"{k.id} {k.template}: {note}" for k in kernels for note in k.notes]
    for node in nodes:
        results = ", ".join(f"{v.name} {v.dtype}[{format_shape(v.shape)}]" for v in node.results())
        details.append(f"{node.op_type} {node.name} -> {results}")
    return DrawnKernel(title, tuple(nodes), tuple(details), sum(known) if known else None)


def _arcs(graph: Graph, owner: Mapping[Node, int]) -> dict[Arc, list[tuple[str, str, str]]]:
    """What passes between boxes: producer, consumer and value by the arc."""
    arcs: dict[Arc, list[tuple[str, str, str]]] = {}
    for node in graph.nodes:
        for value in dict.fromkeys(node.operands()):
            if value.producer is not None and owner[value.producer] != owner[node]:
                passed = arcs.setdefault((owner[value.producer], owner[node]), [])
                passed.append((value.producer.name, node.name, f"{value.name} {value.dtype}"))
    return arcs


def _lines(box: DrawnKernel) -> list[str]:
    shown = [f"{node.op_type}  {node.name}" for node in box.nodes[:SHOWN_NODES]]
    if len(box.nodes) > SHOWN_NODES:
        shown.append(f"and {len(box.nodes) - SHOWN_NODES} more")
    lines = [box.title, *shown]
    return [line if len(line) <= 40 else f"{line[:38]}..." for line in map(printable, lines)]


def _described(box: DrawnKernel, total_ns: float) -> dict[str, Any]:
    share = (box.time_ns or 0.0) / total_ns if total_ns else 0.0
    time = "" if box.time_ns is None else f"{format_ms(box.time_ns / 1e6)}, {100 * share:.1f} %"
    return {
        "lines": _lines(box),
        "share": round(share, 4),
        "about": [printable(line) for line in (box.title, *filter(None, [time]), *box.details)],
        "find": " ".join(f"{node.op_type} {node.name}" for node in box.nodes).lower()
        + f" {box.title.lower()}",
    }


def _reasons(passed: Sequence[tuple[str, str, str]], why: Mapping[tuple[str, str], EdgeStory]) -> list[str]:
    """A line for each value of an arc, with the reason why it was cut there."""
    lines = []
    for producer, consumer, value in passed:
        edge = why.get((producer, consumer))
        lines.append(value if edge is None else f"{value}: {edge.text}")
    return [printable(line) for line in lines]
