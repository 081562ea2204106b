"""Graphs as pages: every node is there, every arc says why, and no name becomes markup."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.support.cli import tilewright
from tests.support.models import host_net, small_net

import tilewright as tw
from tilewright.report.graph_view import graph_section


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


@pytest.mark.parametrize("name", ["</script><script>alert(1)</script>", '"a&b"', "\u2028", "<!--"])
def test_names_are_text(name: str) -> None:
    model = small_net()
    model.graph.node[0].name = name
    text = section(tw.compile(model, "null"))
    assert text.count("<script") == text.count("</script>") == 1
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
