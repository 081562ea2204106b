"""Pictures: every value is described where it belongs, text cannot become markup."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.pictures import marks, own_text, pictures

from tilewright.report.charts import chart, mark, scripts
from tilewright.report.figure import Bars, Line, Point, bar_chart, curves, html_table, page, scatter

VALUES = st.floats(1e-9, 1e18)


@given(st.lists(st.tuples(VALUES, VALUES, st.booleans()), min_size=1, max_size=12))
def test_dots_are_at_their_values_and_the_front_is_joined(values: list[tuple[float, float, bool]]) -> None:
    (drawn,) = pictures(scatter("t", "x", "y", [Point(x, y, "p", m) for x, y, m in values]))
    (dots,) = marks(drawn, "dot")
    assert list(zip(dots["x"], dots["y"], strict=True)) == [(x, y) for x, y, _ in values]
    for axis, place in (("x", 0), ("y", 1)):
        ends = [value[place] for value in values]
        assert drawn[axis]["type"] == ("log" if max(ends) >= 10 * min(ends) else "linear")
        low, high = drawn[axis]["domain"]
        assert all(low < value[place] < high for value in values)
    best = {
        (x, y)
        for x, y, m in values
        if m and not any(n and (a <= x and b <= y) and (a, b) != (x, y) for a, b, n in values)
    }
    fronts = marks(drawn, "line")
    assert len(fronts) == (len(best) > 1)
    for front in fronts:
        assert set(zip(front["x"], front["y"], strict=True)) == best
        assert front["x"] == sorted(front["x"])


@pytest.mark.parametrize("is_logarithmic", [False, True])
def test_bars_are_as_high_as_their_values(is_logarithmic: bool) -> None:
    bars = [Bars("a", (1.0, 2.0, None)), Bars("b", (4.0, 8.0, 16.0))]
    (drawn,) = pictures(bar_chart("t", "y", ["p", "q", "r"], bars, is_logarithmic=is_logarithmic))
    (shown,) = marks(drawn, "barY")
    places = zip(shown["fx"], shown["x"], shown["y2"], shown["title"], strict=True)
    assert list(places) == [
        (0, 0, 1, "a, p: 1"),
        (1, 0, 2, "a, q: 2"),
        (0, 1, 4, "b, p: 4"),
        (1, 1, 8, "b, q: 8"),
        (2, 1, 16, "b, r: 16"),
    ]
    low, high = drawn["y"]["domain"]
    assert shown["y1"] == low < 1
    assert high > 16
    assert (low == 0) == (not is_logarithmic)
    assert drawn["y"]["type"] == ("log" if is_logarithmic else "linear")


def test_long_names_of_groups_are_turned_and_shortened() -> None:
    names = ["a", "n" * 5_000]
    (drawn,) = pictures(bar_chart("t", "y", names, [Bars("b", (1.0, 2.0))]))
    told = marks(drawn, "text")[-1]
    assert told["text"][0] == "a"
    assert len(told["text"][1]) <= 24
    assert told["title"] == names
    assert told["rotate"] == -60


def test_text_stays_text() -> None:
    evil = '<script>alert("x")</script>&\x1b[2J\u2028'
    dot = Point(1, 1, evil, anchor=evil)
    drawn = page(
        evil,
        [
            scatter(evil, evil, evil, [dot], [Line(evil, ((0.1, 1.0), (10.0, 1.0)))]),
            bar_chart(evil, evil, [evil], [Bars(evil, (1.0,))]),
            curves(evil, evil, evil, [Line(evil, ((1.0, 1.0), (2.0, 2.0)))]),
            html_table([evil], [[evil]]),
        ],
    )
    text = own_text(drawn)
    assert "<script>alert" not in text
    assert "\x1b" not in text
    assert "\u2028" not in text
    shown = '<script>alert("x")</script>&\\x1b[2J\\u2028'
    assert marks(pictures(drawn)[0], "dot")[0]["title"] == [shown]


def test_a_page_holds_the_scripts_that_it_needs_once_and_no_others() -> None:
    drawn = scatter("t", "x", "y", [Point(1, 1, "p")])
    assert scripts("<p>words</p>") == ""
    assert page("t", [drawn, drawn]).count("https://d3js.org") == 1
    assert "dagre" not in page("t", [drawn])
    assert "sourceMappingURL" not in scripts('<div class="graph">')
    assert page("t", ["<p>words</p>"]).count("<script") == 0


def test_what_is_no_number_cannot_be_described() -> None:
    with pytest.raises(ValueError, match="JSON"):
        chart("t", [mark("dot", 1, x=[math.nan])], height_px=10)
    assert json.loads(json.dumps(mark("gridX"))) == ["gridX", None, {}]


@given(st.lists(st.tuples(st.floats(1e-6, 1e6), st.floats(0, 1e6)), min_size=1, max_size=30), st.booleans())
def test_curves_go_through_their_values(places: list[tuple[float, float]], is_logarithmic: bool) -> None:
    lines = [Line("a", tuple(sorted(places)))]
    (drawn,) = pictures(curves("t", "x", "y", lines, is_logarithmic=is_logarithmic))
    (line,) = marks(drawn, "line")
    assert list(zip(line["x"], line["y"], strict=True)) == sorted(places)
    assert drawn["y"]["domain"][0] == 0
    assert max(y for _, y in places) <= drawn["y"]["domain"][1]


def test_several_curves_are_named_by_their_colours() -> None:
    one, two = Line("one", ((0.0, 1.0), (1.0, 2.0))), Line("two & more", ((0.0, 2.0), (1.0, 1.0)))
    both = curves("t", "x", "y", [one, two], is_logarithmic=False)
    for name in ("one", "two &amp; more"):
        assert f"</i>{name}</span>" in both
    assert "</i>one" not in curves("t", "x", "y", [one], is_logarithmic=False)
