"""Pictures: every value is where it belongs, text cannot become markup, extreme values are drawn."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.report.figure import (
    HEIGHT,
    WIDTH,
    Bars,
    Line,
    Point,
    bar_chart,
    html_table,
    line_chart,
    page,
    scatter,
)

NAMESPACE = "{http://www.w3.org/2000/svg}"


@given(
    values=st.lists(
        st.tuples(st.floats(1e-9, 1e18), st.floats(1e-9, 1e18), st.booleans()), min_size=1, max_size=12
    )
)
def test_dots_lie_inside_and_in_the_order_of_their_values(values: list[tuple[float, float, bool]]) -> None:
    drawn = ET.fromstring(scatter("t", "x", "y", [Point(x, y, "p", m) for x, y, m in values]))
    dots = [(float(c.get("cx", "")), float(c.get("cy", ""))) for c in drawn.iter(f"{NAMESPACE}circle")]
    assert len(dots) == len(values)
    for cx, cy in dots:
        assert 0 <= cx <= WIDTH
        assert 0 <= cy <= HEIGHT
    for (x1, y1, _), (cx1, cy1) in zip(values, dots, strict=True):
        for (x2, y2, _), (cx2, cy2) in zip(values, dots, strict=True):
            assert x1 > x2 or cx1 <= cx2 + 0.1
            assert y1 > y2 or cy1 >= cy2 - 0.1


@pytest.mark.parametrize("is_logarithmic", [False, True])
def test_bars_are_as_high_as_their_values(is_logarithmic: bool) -> None:
    bars = [Bars("a", (1.0, 2.0, None)), Bars("b", (4.0, 8.0, 16.0))]
    drawn = ET.fromstring(bar_chart("t", "y", ["p", "q", "r"], bars, is_logarithmic=is_logarithmic))
    titles = {t.text: float(r.get("height", "")) for r in drawn.iter(f"{NAMESPACE}rect") for t in r}
    assert len(titles) == 5
    heights = [titles[f"{bar}, {group}: {value}"] for bar, group, value in (
        ("a", "p", 1), ("a", "q", 2), ("b", "p", 4), ("b", "q", 8), ("b", "r", 16))]  # fmt: skip
    assert heights == sorted(heights)
    if not is_logarithmic:
        assert heights[4] == pytest.approx(4 * heights[2], abs=0.3)


def test_text_stays_text() -> None:
    evil = '<script>alert("x")</script>&'
    drawn = page(evil, [scatter(evil, evil, evil, [Point(1, 1, evil)]), html_table([evil], [[evil]])])
    assert "<script" not in drawn
    drawn = bar_chart(evil, evil, [evil], [Bars(evil, (1.0,))])
    assert "<script" not in drawn
    assert ET.fromstring(drawn) is not None


def test_ticks_are_round_numbers() -> None:
    drawn = bar_chart("t", "y", ["a"], [Bars("b", (7.3,))])
    ticks = [float(t) for t in re.findall(r'text-anchor="end">([\d.e+-]+)<', drawn)]
    assert ticks == [0, 1, 2, 3, 4, 5, 6, 7, 8]


@given(
    st.lists(st.tuples(st.floats(1e-6, 1e9), st.floats(1, 1e12)), min_size=1, max_size=4),
    st.floats(1, 1.05),
)
def test_ticks_are_told_apart_and_have_room(values: list[tuple[float, float]], closeness: float) -> None:
    """Over many decades as well as where values are nearly equal."""
    near = values[0]
    points = [Point(x, y, "p") for x, y in (*values, (near[0] * closeness, near[1]))]
    drawn = ET.fromstring(scatter("t", "x", "y", points))
    for anchor in ("middle", "end"):
        texts = [t.text or "" for t in drawn.iter(f"{NAMESPACE}text") if t.get("text-anchor") == anchor]
        ticks = [text for text in texts if text not in ("x", "y")]
        assert 2 <= len(ticks) <= 12
        assert len(set(ticks)) == len(ticks)


def test_keys_of_many_bars_go_on_in_rows() -> None:
    bars = [Bars(f"part {n}", (1.0,)) for n in range(7)]
    drawn = ET.fromstring(bar_chart("t", "y", ["a"], bars))
    names = [t for t in drawn.iter(f"{NAMESPACE}text") if (t.text or "").startswith("part")]
    places = [(float(t.get("x", "")), float(t.get("y", ""))) for t in names]
    assert len(set(places)) == 7
    assert max(x for x, _ in places) + 100 <= WIDTH
    assert [y for _, y in places] == [31.0] * 4 + [47.0] * 3


def test_lines_have_a_dashed_one_that_rises_linearly() -> None:
    lines = [Line("a<b", ((10.0, 1.0), (1_000.0, 100.0))), Line("c", ((10.0, 2.0), (1_000.0, 20.0)))]
    picture = line_chart("time", "nodes", "s", lines)
    assert "a&lt;b" in picture
    assert picture.count("<polyline") == 2
    assert picture.count("<circle") == 4
    dashed = re.search(
        r'<line x1="([\d.]+)" y1="([\d.]+)" x2="([\d.]+)" y2="([\d.]+)" stroke="#999"', picture
    )
    assert dashed is not None
    x1, y1, x2, y2 = map(float, dashed.groups())
    drawn = re.search(r'<polyline points="([\d.]+),([\d.]+) ([\d.]+),([\d.]+)"', picture)
    assert drawn is not None
    a, b, c, d = map(float, drawn.groups())
    assert (y1 - y2) / (x2 - x1) == pytest.approx((b - d) / (c - a), rel=0.01)  # "a<b" is linear
