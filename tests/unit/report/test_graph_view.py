"""Graphs as pages: nothing overlaps, arcs lead down, every node is there, and no name becomes markup."""

from __future__ import annotations

import itertools
import json
import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.cli import tilewright
from tests.support.models import host_net, small_net

import tilewright as tw
from tilewright.report import graph_view
from tilewright.report.graph_layout import Arc, Box, Layout, layered
from tilewright.report.graph_view import graph_section

SIDES = st.tuples(st.integers(5, 300), st.integers(5, 300))
PAIRS = st.tuples(st.integers(0, 24), st.integers(0, 24))


def graph(sides: list[tuple[int, int]], pairs: list[tuple[int, int]]) -> tuple[list[Box], list[Arc]]:
    """Boxes, and arcs between those of them that there are."""
    arcs = [(min(pair), max(pair)) for pair in pairs if pair[0] != pair[1] and max(pair) < len(sides)]
    return [Box(*side) for side in sides], arcs


@given(st.lists(SIDES, max_size=25), st.lists(PAIRS, max_size=60))
def test_boxes_do_not_overlap_and_arcs_lead_down(
    sides: list[tuple[int, int]], pairs: list[tuple[int, int]]
) -> None:
    boxes, arcs = graph(sides, pairs)
    layout = layered(boxes, arcs)
    assert layout == layered(boxes, arcs)
    require_apart(boxes, layout)
    for source, sink in arcs:
        assert layout.corners[source][1] + boxes[source].height < layout.corners[sink][1]
    for box, (x, y) in zip(boxes, layout.corners, strict=True):
        assert -1e-6 <= x <= layout.width - box.width + 1e-6
        assert 0 <= y <= layout.height - box.height + 1e-6


def require_apart(boxes: list[Box], layout: Layout) -> None:
    placed = sorted(zip(layout.corners, boxes, strict=True), key=lambda item: (item[0][1], item[0][0]))
    for ((ax, ay), a), ((bx, by), _) in itertools.pairwise(placed):
        assert by >= ay + a.height or (by == ay and bx >= ax + a.width - 1e-6)


def test_a_chain_is_straight_and_branches_lie_beside_each_other() -> None:
    boxes = [Box(10, 10)] * 4
    chain = layered(boxes, [(0, 1), (1, 2), (2, 3)])
    assert {x for x, _ in chain.corners} == {0.0}
    diamond = layered(boxes, [(0, 1), (0, 2), (1, 3), (2, 3)])
    (top, left, right, bottom) = diamond.corners
    assert left[1] == right[1]
    assert top[0] == bottom[0] == pytest.approx((left[0] + right[0]) / 2)


def test_ten_thousand_boxes_are_placed() -> None:
    rng = random.Random(0)
    boxes = [Box(100, 40)] * 10_000
    arcs = [(rng.randrange(max(0, i - 8), i), i) for i in range(1, len(boxes))]
    layout = layered(boxes, arcs)
    assert len(layout.corners) == len(boxes)
    require_apart(boxes, layout)


def shown(text: str) -> dict:
    found = re.search(r'<script type="application/json" class="graph-data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def section(compiled: tw.CompiledModel, measured: dict[str, float] | None = None) -> str:
    return graph_section(compiled.program, compiled.kernels, compiled.explain().edges, measured)


@pytest.mark.parametrize("make", [small_net, host_net])
def test_every_node_is_in_one_box_and_every_arc_says_why(make) -> None:  # type: ignore[no-untyped-def]
    compiled = tw.compile(make(), threads=1)
    data = shown(section(compiled))
    told = [line for box in data["boxes"] for line in box["about"]]
    for node in compiled.program.graph.nodes:
        assert len([line for line in told if line.startswith(f"{node.op_type} {node.name} ->")]) == 1
    for kernel in compiled.kernels:
        assert any(kernel.id in box["about"][0] for box in data["boxes"]) or not kernel.nodes
    assert all(source < sink and passed for source, sink, passed in data["arcs"])
    assert any(": " in line for *_, passed in data["arcs"] for line in passed)


def test_measured_times_take_the_place_of_estimates() -> None:
    compiled = tw.compile(small_net(), threads=1)
    slow = compiled.kernels[1].id
    data = shown(
        section(compiled, {kernel.id: 1e3 if kernel.id == slow else 1.0 for kernel in compiled.kernels})
    )
    most = max(data["boxes"], key=lambda box: box["share"])
    assert slow in most["about"][0]
    assert most["about"][1].startswith("1.0 µs, 99.")


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node to run the page's script")
def test_the_script_draws_everything_and_finds_nodes(tmp_path: Path) -> None:
    compiled = tw.compile(small_net(), threads=1)
    data = shown(section(compiled))
    (tmp_path / "data.json").write_text(json.dumps(data))
    page, script = (
        Path(__file__).with_name("graph_view_page.js"),
        Path(graph_view.__file__).with_suffix(".js"),
    )
    done = subprocess.run(
        ["node", page, tmp_path / "data.json", script, "conv2 conv"],
        capture_output=True,
        text=True,
        check=True,
    )
    told = json.loads(done.stdout)
    assert told["first"]["boxes"] == len(data["boxes"])
    assert told["first"]["arcs"] == len(data["arcs"])
    assert told["found"] == "1 found"
    assert told["place"] == "1 of 1"
    assert "Conv conv2 -> " in told["about"]
    assert "reads r1 float32" in told["about"]
    assert any("conv2" in text for text in told["near"])
    assert told["cleared"]


@pytest.mark.parametrize("name", ["</script><script>alert(1)</script>", '"a&b"', "\u2028", "<!--"])
def test_names_are_text(name: str) -> None:
    model = small_net()
    model.graph.node[0].name = name
    text = section(tw.compile(model, "null"))
    assert text.count("<script") == text.count("</script>") == 2
    assert "alert(1)</script>" not in text
    assert shown(text)["boxes"]
    assert not re.search(r"https?://|@import|src=", text)


def test_the_command_line_writes_a_page(tmp_path: Path) -> None:
    compiled = tw.compile(small_net(), threads=1)
    path = compiled.save(tmp_path / "net.tw")
    told = tilewright("view", path)
    assert told.code == 0
    assert f"{len(compiled.program.graph.nodes)} nodes in {len(compiled.kernels)} kernels" in told.out
    text = (tmp_path / "net.html").read_text()
    assert "<summary>Kernels</summary>" in text
    assert shown(text)["boxes"]
    assert tilewright("view", path, "-o", tmp_path / "net.svg").complaint.endswith(
        "give a name that ends in .html."
    )
