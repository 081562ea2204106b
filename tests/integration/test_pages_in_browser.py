"""Reports in a real browser: every section is there, no diagnostics, nothing is wider than the page."""

from __future__ import annotations

import bisect
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import onnx
import pytest
from onnx import helper
from tests.support.browser import Browser, Page, needs_browser, running_browser
from tests.support.models import small_net
from tests.support.report_pages import MAPPED, many_boxes, profile_of, write_pages

import tilewright as tw
from tilewright.api.pages import model_report
from tilewright.report.figure import Bars, Line, Point, bar_chart, curves, drawn, page, scatter
from tilewright.report.graph_view import graph_frame
from tilewright.report.lanes import Time
from tilewright.report.limits import TimedKernel, times_section

pytestmark = [needs_browser, pytest.mark.sampled(12)]

PHONE, DESKTOP = 390, 1280
END = ("Edges: fused or cut", "Tables")
THREADS = ("worker 0 (caller)", "worker 1")
SECTIONS = {
    "compile": ("Graph", "Time of kernels", "Steps and memory over time", *END),
    "profile": ("Graph", "Time of kernels", "Roofline", "Steps, workers and memory over time", *END),
    "explain": ("Summary", "Kernels", "Nodes of the model", "Edges"),
    "bench": ("Distribution of latency", "Percentiles", "Rounds", "Did not run", "The machine meanwhile"),
    "simulate": (),
    "joint": ("Decisions",),
    "map": (),
    "sweep": ("The front", "All variants"),
}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with running_browser(tmp_path_factory.mktemp("browser")) as running:
        yield running


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_pages(tmp_path_factory.mktemp("pages"))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("width", [PHONE, DESKTOP])
@pytest.mark.parametrize("name", list(SECTIONS))
def test_a_page_has_its_sections_and_fits(
    browser: Browser, pages: dict[str, Path], tmp_path: Path, name: str, width: int
) -> None:
    for is_dark in (False, True):
        with browser.page(pages[name], width, is_dark=is_dark) as shown:
            shown.value("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
            shown.drawn()
            assert set(SECTIONS[name]) <= set(shown.headings())
            assert shown.overflowing() == []
            assert shown.unreadable() == []
            assert is_on(shown, is_dark)
            assert shown.diagnostics() == []
            picture = shown.screenshot(tmp_path / f"{name}-{width}-{is_dark}.png").read_bytes()
            assert picture[:8] == b"\x89PNG\r\n\x1a\n"
            assert int.from_bytes(picture[16:20], "big") == width


def is_on(shown: Page, is_dark: bool) -> bool:
    """Whether texts are light on dark, or dark on light."""
    colour = shown.value("getComputedStyle(document.body).color.match(/\\d+/g).slice(0, 3).map(Number)")
    return (sum(colour) > 3 * 128) == is_dark


def is_drawn(shown: Page) -> bool:
    """Whether there is anything on the canvas."""
    return bool(
        shown.value(
            "(() => { const c = document.querySelector('canvas'), e = document.createElement('canvas');"
            "e.width = c.width; e.height = c.height; return c.toDataURL() !== e.toDataURL(); })()"
        )
    )


def find(shown: Page, text: str) -> str:
    """Look for something in the graph; what is said of the first that is found."""
    shown.value(
        "(() => { const field = document.querySelector('.graph-tools input');"
        f"field.value = {text!r}; field.dispatchEvent(new Event('input')); }})()"
    )
    shown.drawn()
    return str(shown.value("document.querySelector('.graph-about').textContent"))


def placed(shown: Page) -> list[dict[str, float]]:
    """Where the boxes of the graph lie, as soon as all do."""
    shown.until("document.querySelector('.graph').placed")
    shown.drawn()
    places = "document.querySelector('.graph').placed.map(({ x, y, w, h }) => ({ x, y, w, h }))"
    boxes: list[dict[str, float]] = shown.value(places)
    return boxes


def require_apart(boxes: Sequence[Mapping[str, float]]) -> None:
    """No box lies on another one: compared with those that begin before it ends."""
    by_top = sorted(boxes, key=lambda box: box["y"])
    tops = [box["y"] for box in by_top]
    for n, box in enumerate(by_top):
        for other in by_top[n + 1 : bisect.bisect_left(tops, box["y"] + box["h"])]:
            assert other["x"] >= box["x"] + box["w"] or box["x"] >= other["x"] + other["w"]


def require_downwards(boxes: Sequence[Mapping[str, float]], arcs: Iterable[tuple[int, int]]) -> None:
    """Arcs lead to boxes below."""
    for source, sink in arcs:
        assert boxes[source]["y"] + boxes[source]["h"] < boxes[sink]["y"]


def drawn_again(shown: Page) -> tuple[int, int, list[str]]:
    """How many boxes and arcs are drawn when the whole graph is asked for, and which texts."""
    told = shown.value(
        "new Promise((done) => { const pen = CanvasRenderingContext2D.prototype;"
        "const { fillRect, stroke, fillText } = pen; let boxes = 0, arcs = 0; const texts = [];"
        "pen.fillRect = function (...a) { boxes += 1; fillRect.apply(this, a); };"
        "pen.stroke = function (...a) { arcs += 1; stroke.apply(this, a); };"
        "pen.fillText = function (...a) { texts.push(a[0]); fillText.apply(this, a); };"
        "document.querySelector('.graph-tools button').click();"
        "requestAnimationFrame(() => requestAnimationFrame(() => {"
        "Object.assign(pen, { fillRect, stroke, fillText }); done([boxes, arcs, texts]); })); })"
    )
    boxes, arcs, texts = told
    return boxes, arcs, texts


def zoom_out(shown: Page) -> None:
    """A wheel that turns while the picture is chosen."""
    shown.value(
        "(() => { const c = document.querySelector('canvas'); c.focus();"
        "for (let i = 0; i < 20; i += 1) c.dispatchEvent(new WheelEvent('wheel',"
        "{deltaY: 200, clientX: 200, clientY: 200, cancelable: true})); })()"
    )
    shown.drawn()


def test_the_graph_is_drawn_and_searched(browser: Browser, pages: dict[str, Path]) -> None:
    with browser.page(pages["profile"], DESKTOP) as shown:
        boxes = placed(shown)
        assert is_drawn(shown)
        data = shown.value("JSON.parse(document.querySelector('.graph-data').textContent)")
        require_apart(boxes)
        require_downwards(boxes, [(source, sink) for source, sink, _ in data["arcs"]])
        num_boxes, num_arcs, texts = drawn_again(shown)
        assert (num_boxes, num_arcs) == (len(data["boxes"]), len(data["arcs"]))
        assert texts == [line for box in data["boxes"] for line in box["lines"]]
        told = find(shown, "conv2 conv")
        assert "Conv conv2 -> " in told
        assert "reads r1 float32" in told
        count = "document.querySelector('.graph-count').textContent"
        assert shown.value(count) == "1 found"
        press(shown, "input", "Enter")
        assert shown.value(count) == "1 of 1"
        before = pixels(shown)
        for key in ("ArrowDown", "+", "-"):
            press(shown, "canvas", key)
            assert pixels(shown) != before, key
            before = pixels(shown)
        assert find(shown, "") == ""
        assert find(shown, "no such node") == ""
        assert shown.value(count) == "0 found"
        assert shown.diagnostics() == []


def press(shown: Page, place: str, key: str) -> None:
    """A key, pressed in an element."""
    event = f"new KeyboardEvent('keydown', {{key: {key!r}, bubbles: true, cancelable: true}})"
    inside = "[document.querySelector('.graph'), document.querySelector('.graph-tools')]"
    shown.value(f"{inside}.map((e) => e.querySelector({place!r})).find(Boolean).dispatchEvent({event})")
    shown.drawn()


def pixels(shown: Page) -> str:
    """What is on the canvas."""
    return str(shown.value("document.querySelector('canvas').toDataURL()"))


@pytest.mark.parametrize("number", [1, 2, 25, 40, 300])
def test_boxes_of_any_graph_are_placed_apart_and_arcs_lead_down(
    browser: Browser, tmp_path: Path, number: int
) -> None:
    """With boxes of any size, some arcs far, some boxes alone: in one piece and in several."""
    rng = random.Random(number)
    boxes, arcs = many_boxes(number)
    for box in boxes:
        box["lines"] = ["w" * rng.randint(1, 40)] * rng.randint(1, 10)
    pairs = [sorted(rng.sample(range(number), 2)) for _ in range(number // 5)]
    arcs = [arc for arc in arcs if rng.random() < 0.9] + [[*pair, ["far"]] for pair in pairs]
    path = tmp_path / "graph.html"
    path.write_text(page("graph", [graph_frame(boxes, arcs, "by estimate")]), encoding="utf-8")
    with browser.page(path, DESKTOP) as shown:
        found = placed(shown)
        assert len(found) == number
        require_apart(found)
        require_downwards(found, [(source, sink) for source, sink, _ in arcs])
        assert shown.diagnostics() == []


def test_a_chain_is_straight_and_branches_lie_beside_each_other(browser: Browser, tmp_path: Path) -> None:
    boxes, _ = many_boxes(4)
    middles = []
    branches = [(0, 1), (0, 2), (1, 3), (2, 3)]
    for arcs in ([(0, 1), (1, 2), (2, 3)], branches, branches):
        path = tmp_path / "graph.html"
        frame = graph_frame(boxes, [[*arc, ["v"]] for arc in arcs], "by estimate")
        path.write_text(page("graph", [frame]), encoding="utf-8")
        with browser.page(path, DESKTOP) as shown:
            middles.append([(box["x"] + box["w"] / 2, box["y"]) for box in placed(shown)])
    chain, diamond = middles[:2]
    assert middles[-1] == middles[1], "the same page looks the same"
    assert len({round(x) for x, _ in chain}) == 1
    top, left, right, bottom = diamond
    assert left[1] == right[1]
    assert top[0] == pytest.approx(bottom[0])
    assert top[0] == pytest.approx((left[0] + right[0]) / 2)


def test_boxes_that_read_each_other_are_placed(browser: Browser, tmp_path: Path) -> None:
    boxes, _ = many_boxes(3)
    path = tmp_path / "graph.html"
    frame = graph_frame(boxes, [[0, 1, ["v"]], [1, 0, ["w"]], [1, 2, ["x"]]], "by estimate")
    path.write_text(page("graph", [frame]), encoding="utf-8")
    with browser.page(path, DESKTOP) as shown:
        require_apart(placed(shown))
        assert drawn_again(shown)[:2] == (3, 3)
        assert shown.diagnostics() == []


def test_the_wheel_scrolls_the_page_until_the_graph_is_chosen(
    browser: Browser, pages: dict[str, Path]
) -> None:
    wheel = "new WheelEvent('wheel', {deltaY: 50, cancelable: true, bubbles: true})"
    with browser.page(pages["profile"], DESKTOP) as shown:
        assert shown.value(f"document.querySelector('canvas').dispatchEvent({wheel})") is True
        shown.value("document.querySelector('canvas').focus()")
        assert shown.value(f"document.querySelector('canvas').dispatchEvent({wheel})") is False


@pytest.mark.parametrize(("name", "rows"), [("simulate", None), ("profile", THREADS)])
@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_each_unit_or_thread_has_a_lane_of_what_it_does(
    browser: Browser, pages: dict[str, Path], name: str, rows: tuple[str, ...] | None, width: int
) -> None:
    if rows is None:
        rows = tuple(tw.simulate(small_net(), recipe="graphturbo").code.timeline().units)
    with browser.page(pages[name], width) as shown:
        shown.drawn()
        lanes = shown.value(
            "[...document.querySelectorAll('.lanes')].flatMap((all) => {"
            "const bodies = [...all.querySelectorAll('.lane')];"
            "return [...all.querySelectorAll('.names > div')].map((told, i) => {"
            "const a = told.getBoundingClientRect(), b = bodies[i].getBoundingClientRect();"
            "const bold = told.querySelector('b');"
            "return [bold ? bold.textContent : '', Math.abs(a.top - b.top) + Math.abs(a.bottom - b.bottom),"
            "[...bodies[i].querySelectorAll('rect')].filter((r) => r.getBoundingClientRect().width).length];"
            "}); })"
        )
        by_name = {name: (apart, num_blocks) for name, apart, num_blocks in lanes}
        for row in rows:
            apart, num_blocks = by_name[row]
            assert apart < 1, "the name stands beside its lane"
            assert num_blocks > 0


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_a_sweep_shows_its_front_and_leads_to_the_mappings(
    browser: Browser, pages: dict[str, Path], width: int
) -> None:
    with browser.page(pages["sweep"], width) as shown:
        axes = shown.value(
            "[...document.querySelectorAll('.drawn svg')].slice(0, 3).map((svg) =>"
            "[...svg.querySelectorAll('text')].map((t) => t.textContent.replace(/^↑ | →$/g, '')))"
        )
        latency, energy, area = "latency in ms", "energy in µJ", "area in mm²"
        for texts, named in zip(axes, ((latency, energy), (latency, area), (area, energy)), strict=True):
            assert set(named) <= set(texts)
            assert sum(text.replace(",", "").replace(".", "").isdigit() for text in texts) >= 6
        marked = "[...document.querySelectorAll('.drawn svg')].map((svg) => [%s].length)"
        fronts = shown.value(marked % "...svg.querySelectorAll('[aria-label=line] path')")
        dots = shown.value(marked % "...svg.querySelectorAll('circle[r=\"6\"]')")
        assert dots[0] == dots[1] == dots[2] >= 2, "variants of the front"
        assert sum(fronts[:3]) >= 1, "joined where one is better in this and another in that"
        led = shown.value(
            "(() => { const a = document.querySelector('.drawn svg a');"
            "a.dispatchEvent(new MouseEvent('click', {bubbles: true, cancelable: true}));"
            "const place = document.getElementById(a.href.baseVal.slice(1));"
            "return [location.hash, place.closest('details').open]; })()"
        )
        assert led[0].startswith("#variant")
        assert led[1] is True


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_the_loop_nest_is_drawn_level_by_level(browser: Browser, pages: dict[str, Path], width: int) -> None:
    drawing = tw.map(MAPPED, mapper="cosa").drawn()[0]
    with browser.page(pages["map"], width) as shown:
        shown.drawn()
        rows = shown.value(
            "[...document.querySelectorAll('.nest > div:not(.heads)')].map((row) => ({"
            "name: row.querySelector('b').textContent, top: row.getBoundingClientRect().top,"
            "loops: [...row.querySelectorAll('.loop')].map((loop) => loop.textContent),"
            "bars: [...row.querySelectorAll('rect')].map((bar) => bar.getBoundingClientRect().width) }))"
        )
        assert [row["name"] for row in rows] == [level.name for level in drawing.levels]
        tops = [row["top"] for row in rows]
        assert tops == sorted(set(tops)), "from the outermost inwards"
        for row, level in zip(rows, drawing.levels, strict=True):
            temporal = [f"for {loop.dim} in {loop.factor}" for loop in level.temporal]
            assert row["loops"][: len(temporal)] == temporal
            assert len(row["loops"]) == len(temporal) + bool(level.spatial)
            assert all(loop.startswith("spatial ") for loop in row["loops"][len(temporal) :])
            assert len(row["bars"]) >= len(level.tensors)


def test_ten_thousand_boxes_are_drawn_and_searched(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "many.html"
    boxes, arcs = many_boxes(10_000)
    path.write_text(page("many", [graph_frame(boxes, arcs, "by estimate")]), encoding="utf-8")
    with browser.page(path, DESKTOP) as shown:
        shown.drawn()
        assert is_drawn(shown), "the first are seen before the last are placed"
        found = placed(shown)
        require_apart(found)
        require_downwards(found, [(source, sink) for source, sink, _ in arcs])
        for width in (DESKTOP, PHONE):
            shown.resize(width)
            shown.drawn()
            assert find(shown, "relu9876").startswith("k9876 loops")
            zoom_out(shown)
            assert is_drawn(shown)
            assert shown.overflowing() == []
        assert shown.diagnostics() == []


@pytest.mark.slow
def test_the_report_of_ten_thousand_nodes(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    compiled = tw.compile(chain(10_000), "null", partition="none")
    assert len(compiled.kernels) == 10_000
    path.write_text(model_report(compiled, "chain"), encoding="utf-8")
    for width in (PHONE, DESKTOP):
        with browser.page(path, width) as shown:
            placed(shown)
            assert is_drawn(shown)
            assert "neg7777" in find(shown, "neg7777")
            assert {"Graph", "Edges: fused or cut", "Tables"} <= set(shown.headings())
            assert shown.overflowing() == []
            assert shown.diagnostics() == []


def chain(num_nodes: int) -> onnx.ModelProto:
    """Operators one after another, which no pass removes: each reads the one before and the input."""
    nodes = [helper.make_node("Add", ["x", "x"], ["v0"], "add0")]
    for n in range(1, num_nodes):
        kind, reads = ("Neg", [f"v{n - 1}"]) if n % 2 else ("Mul", [f"v{n - 1}", "x"])
        nodes.append(helper.make_node(kind, reads, [f"v{n}"], f"{kind.lower()}{n}"))
    info = helper.make_tensor_value_info
    ends = [info(name, onnx.TensorProto.FLOAT, [4]) for name in ("x", f"v{num_nodes - 1}")]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_a_page_that_is_wider_than_the_screen_or_throws_is_told(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "bad.html"
    wide = (
        '<div class="wide" style="width:2000px">x</div><script>null.x</script><img src="http://a.test/b.png">'
    )
    path.write_text(page("bad", [wide]), encoding="utf-8")
    with browser.page(path, PHONE) as shown:
        assert any("DIV wide to 20" in line for line in shown.overflowing())
        diagnostics = " ".join(shown.diagnostics())
        assert "TypeError" in diagnostics
        assert "b.png" in diagnostics or "ERR_" in diagnostics


EVIL = "</script><script>null.x</script>" + "\"'&<b>\n\x1b[2J\u202e" * 40


def odd_pictures() -> dict[str, str]:
    """Values that are alone, nearly equal, far apart; names that are long and harmful; many of everything."""
    rng = random.Random(0)
    near = [Point(5.0 * (1 + n * 1e-4), 7.0 * (1 + n * 1e-4), f"p{n}") for n in range(3)]
    far = [Point(10.0**n, 10.0 ** (9 - n), f"p{n}", is_marked=n % 2 == 0) for n in range(-9, 19, 3)]
    level, rising = Line("level", ((1e-9, 1e9), (1e18, 1e9))), Line("rising", ((1e-9, 1e-9), (1e18, 1e18)))
    groups = [f"a group of a long name {n}" for n in range(30)]
    times = [
        TimedKernel(f"k{n}", EVIL, 10.0**n, 10.0**n, 10.0 ** (n + 1), 10.0 ** (n - 1), "compute", 10, 10)
        for n in range(9)
    ]
    return {
        "one": scatter("one", "x", "y", [Point(5.0, 7.0, "p0")]),
        "near": scatter("near", "x", "y", near),
        "far": scatter("far", "x", "y", far, [level, rising]),
        "bars": bar_chart(
            "bars", "y", ["p", "q", "r"], [Bars("a", (1.0, 2.0, None)), Bars("b", (4.0, 8.0, 16.0))]
        ),
        "groups": bar_chart("groups", "y", groups, [Bars("b", tuple(map(float, range(30))))]),
        "evil": bar_chart(EVIL, "y", [EVIL, EVIL], [Bars(EVIL, (1.0, 1e12))], is_logarithmic=True),
        "curves": curves("curves", "x", "y", [Line("a", tuple((x, rng.random()) for x in range(1, 400)))]),
        "nothing": curves("nothing", "x", "y", [Line("a", ((1.0, 0.0), (1.0, 0.0)))], is_logarithmic=False),
        "times": "".join(times_section(times)),
    }


def circles(shown: Page, name: str) -> dict[str, tuple[float, float]]:
    """The middle of each dot of a picture by what is shown when it is pointed at."""
    found = shown.value(
        f"[...document.querySelectorAll('#{name} circle')].map((dot) =>"
        "[dot.querySelector('title').textContent, +dot.getAttribute('cx'), +dot.getAttribute('cy')])"
    )
    return {title: (x, y) for title, x, y in found}


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_odd_values_and_names_are_drawn(browser: Browser, tmp_path: Path, width: int) -> None:
    path = tmp_path / "odd.html"
    parts = [f'<div id="{name}">{drawn(html)}</div>' for name, html in odd_pictures().items()]
    path.write_text(page("odd", parts), encoding="utf-8")
    with browser.page(path, width) as shown:
        shown.drawn()
        assert shown.diagnostics() == []
        assert shown.overflowing() == []
        assert shown.unreadable() == []
        assert "\x1b" not in shown.value("document.body.textContent")
        for name in ("one", "near", "far", "curves"):
            across = f"document.querySelector('#{name} .chart').getBoundingClientRect().right"
            assert shown.value(across) <= width, "a picture without names is seen as a whole"
        for name in ("one", "near", "far"):
            dots = sorted((*circles(shown, name).values(),))
            size = shown.value(
                f"(({{ width, height }}) => [width, height])"
                f"(document.querySelector('#{name} svg').viewBox.baseVal)"
            )
            assert all(0 < x < size[0] and 0 < y < size[1] for x, y in dots)
            assert len({x for x, _ in dots}) == len({y for _, y in dots}) == len(dots)
            for axis in ("x", "y"):
                ticks = shown.value(
                    f"[...document.querySelectorAll('#{name} [aria-label=\"{axis}-axis tick label\"] text')]"
                    ".map((text) => text.textContent).filter(Boolean)"
                )
                assert 2 <= len(ticks) <= 20
                assert len(set(ticks)) == len(ticks)
        bars = shown.value(
            "[...document.querySelectorAll('#bars rect')].map((bar) =>"
            "[bar.querySelector('title').textContent, +bar.getAttribute('height')])"
        )
        heights = dict(bars)
        assert heights["b, r: 16"] == pytest.approx(16 * heights["a, p: 1"], rel=0.01)
        assert heights["b, q: 8"] == pytest.approx(2 * heights["b, p: 4"], rel=0.01)


@pytest.mark.parametrize("end_us", [100.1, 101.3, 104])
def test_the_last_number_of_an_axis_of_time_is_whole(browser: Browser, tmp_path: Path, end_us: float) -> None:
    path = tmp_path / "lanes.html"
    axis = Time.of(end_us * 1e-6).lane().body
    path.write_text(page("lanes", [drawn(f'<div style="overflow:hidden">{axis}</div>')]), encoding="utf-8")
    with browser.page(path, DESKTOP) as shown:
        shown.drawn()
        ends = shown.value(
            "[document.querySelector('svg'), ...document.querySelectorAll('svg text')]"
            ".map((drawn) => drawn.getBoundingClientRect().right)"
        )
        assert max(ends[1:]) <= ends[0]
        assert shown.value("[...document.querySelectorAll('svg text')].at(-1).textContent") == "100"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_names_that_are_code_or_very_long_stay_names(browser: Browser, tmp_path: Path, width: int) -> None:
    model = small_net()
    for node in model.graph.node:
        node.name = f"{EVIL}{'n' * 3_000}{node.name}"
    compiled = tw.compile(model, threads=1)
    path = tmp_path / "evil.html"
    path.write_text(model_report(compiled, EVIL, profile_of(compiled)), encoding="utf-8")
    with browser.page(path, width) as shown:
        shown.value("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        require_apart(placed(shown))
        assert "conv1" in find(shown, "conv1")
        assert shown.overflowing() == []
        assert shown.unreadable() == []
        assert shown.diagnostics() == []
        assert "\x1b" not in shown.value("document.documentElement.outerHTML")
