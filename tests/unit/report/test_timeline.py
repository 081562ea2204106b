"""The picture of a run: everything at its time, many runs in little space, names that stay text."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.models import small_net
from tests.support.pictures import marks, own_text, pictures

import tilewright as tw
from tilewright.report.lanes import SPAN, LaneBlock, Time, block_lanes, stack_lane

EVIL = '<script>alert("x")</script>&\n\x1b[2J'


SIZES = st.tuples(*[st.integers(0, 10**9)] * 3)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.floats(0, 1), SIZES, max_size=40))
def test_a_stack_is_as_high_as_the_most_that_is_there(known: dict[float, tuple[int, int, int]]) -> None:
    points = sorted(known.items())
    lane = stack_lane("t", "title", Time.of(1.0), ("#a", "#b", "#c"), points, None)
    (drawn,) = pictures(lane.body)
    kinds = marks(drawn, "areaY")
    for below, above in itertools.pairwise(kinds):
        assert below["y2"] == above["y1"]
        assert below["x"] == above["x"]
    heights = kinds[-1]["y2"]
    most = max((sum(sizes) for _, sizes in points), default=0)
    assert max(heights, default=0) == most <= drawn["y"]["domain"][1]
    if points and points[-1][0] < 0.999:
        assert heights[-1] == sum(points[-1][1])


@pytest.mark.parametrize(("limit_bytes", "is_drawn"), [(1 << 10, True), (1 << 30, False), (None, False)])
def test_a_capacity_is_a_line_where_it_is_not_far_above(limit_bytes: int | None, is_drawn: bool) -> None:
    lane = stack_lane("LB", "title", Time.of(1.0), ("#a",), [(0.0, (1 << 9,)), (0.5, (0,))], limit_bytes)
    limits = [found for found in marks(pictures(lane.body)[0], "ruleY") if "strokeDasharray" in found]
    assert [limit["y"] for limit in limits] == ([[limit_bytes]] if is_drawn else [])
    assert ("of 1.0 GiB" in lane.name) == (limit_bytes == 1 << 30)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 30_000))
def test_blocks_of_any_number_are_few_shapes_that_cover_their_time(number: int) -> None:
    blocks = [LaneBlock(i / number, (i + 0.5) / number, "#123456", f"b{i}") for i in range(number)]
    (lane,) = block_lanes(Time.of(1.0), [("u", blocks)])
    (found,) = marks(pictures(lane.body)[0], "rect")
    drawn = list(zip(found["x1"], found["x2"], strict=True))
    assert len(drawn) <= min(number, 10_000)
    for block in blocks[:: max(1, number // 50)]:
        middle = (block.start + block.end) / 2 * SPAN
        assert any(start - 13 <= middle <= end + 13 for start, end in drawn)


def test_short_blocks_are_as_dark_as_they_are_dense() -> None:
    blocks = [LaneBlock(i / 40_000, (i + 0.25) / 40_000, "#123456", "b") for i in range(20_000)]
    (lane,) = block_lanes(Time.of(1.0), [("u", blocks)])
    (found,) = marks(pictures(lane.body)[0], "rect")
    assert max(found["fillOpacity"]) <= 0.5


def test_names_stay_text_and_the_page_needs_nothing_else(tmp_path: Path) -> None:
    proto = small_net()
    old = {name: f"{EVIL}{name}" for n in proto.graph.node for name in n.output}
    outputs = {o.name for o in proto.graph.output}
    for node in proto.graph.node:
        node.name = f"{EVIL}{node.name}"
        node.input[:] = [old.get(x, x) if x not in outputs else x for x in node.input]
        node.output[:] = [old[x] if x not in outputs else x for x in node.output]
    page = tw.simulate(proto, recipe="graphturbo").save_page(tmp_path / "p.html").read_text()
    text = own_text(page)
    assert "&lt;script&gt;" in text
    assert "<script>alert" not in text
    assert "\x1b" not in text
    assert "http" not in text


def test_levels_that_hold_nothing_are_not_drawn(tmp_path: Path) -> None:
    def drawn(target: str, recipe: str) -> set[str]:
        page = tw.simulate(small_net(), target, recipe=recipe).save_page(tmp_path / "p.html").read_text()
        return set(re.findall(r"<b>(?:L1|LLB|DDR)</b> ([\w ]+)<br>", page))

    assert "main memory" in drawn("stcp920", "tvm")
    assert drawn("stcp920", "graphturbo") >= {"buffers of the cores"}
    assert "main memory" not in drawn("stcp920", "graphturbo")


def test_counters_of_the_trace_are_the_curves_of_the_picture(tmp_path: Path) -> None:
    result = tw.simulate(small_net(), recipe="graphturbo")
    events = json.loads(result.save_trace(tmp_path / "t.json").read_text())["traceEvents"]
    for level in result.code.timeline().levels:
        counted = [e for e in events if e["ph"] == "C" and e["name"] == f"{level.level.name} bytes"]
        assert [(e["ts"], tuple(e["args"].values())) for e in counted] == [
            (at_s * 1e6, sizes) for at_s, sizes in level.totals()
        ]
