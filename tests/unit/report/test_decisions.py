"""The decisions of a joint plan on its page: blocks on the graph, alternatives of blocks and of planners."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tests.support.graphs import GraphBuilder
from tests.support.models import small_net
from tests.unit.report.test_mapping_pages import alone

import tilewright as tw
from tilewright.joint.launched.decisions import Decision
from tilewright.planning.portfolio import Recipe
from tilewright.report.decisions import decision_parts, planner_parts
from tilewright.report.figure import page


def data_of(text: str) -> dict[str, Any]:
    """What the picture of a graph is drawn of."""
    (found,) = re.findall(r'class="graph-data">(.*?)</script>', text, flags=re.DOTALL)
    document: dict[str, Any] = json.loads(found)
    return document


def test_blocks_are_boxes_with_what_else_they_would_cost() -> None:
    b = GraphBuilder()
    x = b.input(4, 4)
    y = b.op("Relu", x, shape=(4, 4))
    graph = b.finish(b.op("Add", b.op("Exp", y, shape=(4, 4)), y, shape=(4, 4)))
    relu, exp, add = (node.name for node in graph.nodes)
    decisions = [
        Decision((exp, add), "a kernel, lanes", 3000.0, 4500.0, 250.0),
        Decision((relu,), "a kernel", 1000.0, None, None),
    ]
    parts = decision_parts(graph, decisions)
    text = page("p", parts)
    assert alone(text)
    drawn = data_of(text)
    first, second = drawn["boxes"]
    assert first["lines"][0] == "block 1: a kernel", "blocks are drawn in the order of the graph"
    assert (first["share"], second["share"]) == (0.25, 0.75)
    assert "the next best way to run these operators: +1.50 µs" in second["about"]
    assert "the best plan without this block: +0.25 µs" in second["about"]
    assert "the best plan without this block: - µs" in first["about"]
    assert [arc[:2] for arc in drawn["arcs"]] == [[0, 1]]
    assert decision_parts(graph, []) == []


def test_each_kind_of_planner_is_beside_the_best_of_the_others() -> None:
    tried = [
        (Recipe("pcgc", "ios", "m", splits_sums=True), 100.0),
        (Recipe("pcgc", "ios", "m"), 180.0),
        (Recipe("ago{k=1}", "ios", "m"), 150.0),
        (Recipe("ago{k=2}", "ios", "m"), 140.0),
    ]
    (_, _, table) = planner_parts(tried[0][0], tried, "ns")
    rows = [re.findall(r"<td>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", table)]
    assert [row for row in rows if row] == [
        ["sums", "in parts", "100", "1.000"],
        ["sums", "whole", "140", "1.400"],
        ["partition", "pcgc", "100", "1.000"],
        ["partition", "ago", "140", "1.400"],
    ]
    assert planner_parts(tried[0][0], tried[:1], "ns") == []


def test_the_page_of_a_joint_plan_has_every_operator_in_a_block(tmp_path: Path) -> None:
    found = tw.simulate(small_net(), "k80", recipe="joint", budget="2trials")
    text = found.save_page(tmp_path / "plan.html").read_text()
    boxes = data_of(text)["boxes"]
    assert len(boxes) == len(found.decisions) > 0
    told = [line for box in boxes for line in box["about"]]
    assert all(f"{node.op_type} {node.name}" in told for node in found.code.program.graph.nodes)
    assert all(word in text for word in ("Blocks on the graph", "Decisions", "Planners"))
