"""What the passes make of whole graphs, one after another: `tests/golden/ir/<graph>.txt`.

A file begins with a graph written by hand; after it comes the graph after each pass that changed it, with the
pass's remarks, and the work of what is left. `python -m tests.golden.rewrite` writes all but the first part.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.ir.derive import flops, macs
from tilewright.ir.graph import Graph
from tilewright.ir.text import parse_graph, print_graph
from tilewright.passes import PIPELINE, run_passes

FOLDER = Path(__file__).parent / "ir"
GRAPHS = sorted(path.stem for path in FOLDER.glob("*.txt"))
SECTION = "--- "


def before_of(name: str) -> str:
    """The part that is written by hand."""
    return (FOLDER / f"{name}.txt").read_text().partition(SECTION)[0]


def rendered(before: str) -> str:
    graph = parse_graph(before)
    report = run_passes(graph, dump_after=PIPELINE)
    text = before
    for name, result in report.results:
        if result.num_changes:
            remarks = "".join(f"{remark}\n" for remark in result.remarks)
            text += f"{SECTION}after {name}\n{remarks}{report.dumps[name]}"
    return f"{text}{SECTION}work\n{work(graph)}"


def work(graph: Graph) -> str:
    return "".join(f"{node.name}: {macs(node)} macs, {flops(node)} flop\n" for node in graph.nodes)


@pytest.mark.parametrize("name", GRAPHS)
def test_passes_make_of_a_graph_what_the_text_says(name: str) -> None:
    assert rendered(before_of(name)) == (FOLDER / f"{name}.txt").read_text()


@pytest.mark.parametrize("name", GRAPHS)
def test_every_graph_printed_is_read_back_as_it_was(name: str) -> None:
    graph = parse_graph(before_of(name))
    report = run_passes(graph, dump_after=PIPELINE)
    assert all(print_graph(parse_graph(text)) == text for text in report.dumps.values())


def write() -> None:
    """Write all texts anew."""
    for name in GRAPHS:
        (FOLDER / f"{name}.txt").write_text(rendered(before_of(name)))
