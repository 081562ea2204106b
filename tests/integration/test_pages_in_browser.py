"""Reports in a real browser: every section is there, no diagnostics, nothing is wider than the page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
from onnx import helper
from tests.support.browser import Browser, Page, needs_browser, running_browser
from tests.support.models import small_net
from tests.support.report_pages import MAPPED, many_boxes, write_pages

import tilewright as tw
from tilewright.api.pages import model_report
from tilewright.report.figure import page
from tilewright.report.graph_view import graph_frame

pytestmark = needs_browser

PHONE, DESKTOP = 390, 1280
END = ("Edges: fused or cut", "Tables")
THREADS = ("worker 0 (caller)", "worker 1")
SECTIONS = {
    "compile": ("Graph", "Time of kernels", "Steps and memory over time", *END),
    "profile": ("Graph", "Time of kernels", "Roofline", "Steps, workers and memory over time", *END),
    "explain": ("Summary", "Kernels", "Nodes of the model", "Edges"),
    "bench": ("Distribution of latency", "Percentiles", "Rounds", "Did not run", "The machine meanwhile"),
    "simulate": (),
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
        shown.drawn()
        assert is_drawn(shown)
        told = find(shown, "conv2 conv")
        assert "Conv conv2 -> " in told
        assert "reads r1 float32" in told
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
            "[...svg.querySelectorAll('text')].map((t) => t.textContent))"
        )
        latency, energy, area = "latency in ms", "energy in µJ", "area in mm² at 45 nm"
        for texts, named in zip(axes, ((latency, energy), (latency, area), (area, energy)), strict=True):
            assert set(named) <= set(texts)
            assert sum(text.replace(",", "").replace(".", "").isdigit() for text in texts) >= 6
        marked = "[...document.querySelectorAll('.drawn svg')].map((svg) => [%s].length)"
        fronts = shown.value(marked % "...svg.querySelectorAll('polyline')")
        dots = shown.value(marked % "...svg.querySelectorAll('circle[r=\"6\"]')")
        assert dots[0] == dots[1] == dots[2] >= 2, "variants of the front"
        assert sum(fronts[:3]) >= 1, "joined where one is better in this and another in that"
        led = shown.value(
            "(() => { const a = document.querySelector('.drawn svg a');"
            "a.dispatchEvent(new MouseEvent('click', {bubbles: true, cancelable: true}));"
            "const place = document.getElementById(a.getAttribute('href').slice(1));"
            "return [location.hash, place.closest('details').open]; })()"
        )
        assert led[0].startswith("#variant")
        assert led[1] is True


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_the_loop_nest_is_drawn_level_by_level(browser: Browser, pages: dict[str, Path], width: int) -> None:
    drawing = tw.map(MAPPED, mapper="cosa").drawn()[0]
    with browser.page(pages["map"], width) as shown:
        texts = shown.value(
            "[...document.querySelectorAll('.drawn svg text')].map((t) =>"
            "[t.textContent, t.getBoundingClientRect().top])"
        )
        tops = dict(reversed(texts))
        levels = [tops[level.name] for level in drawing.levels]
        assert levels == sorted(set(levels)), "from the outermost inwards"
        loops = [text for text, _ in texts if text.startswith("for ")]
        assert loops == [f"for {x.dim} in {x.factor}" for level in drawing.levels for x in level.temporal]
        assert sum(text.startswith("spatial ") for text, _ in texts) == sum(
            bool(level.spatial) for level in drawing.levels
        )


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_ten_thousand_boxes_are_drawn_and_searched(browser: Browser, tmp_path: Path, width: int) -> None:
    path = tmp_path / "many.html"
    frame = graph_frame(many_boxes(10_000), "by estimate")
    path.write_text(page("many", [frame], follows_system=True), encoding="utf-8")
    with browser.page(path, width) as shown:
        shown.drawn()
        assert is_drawn(shown)
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
            shown.drawn()
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
    path.write_text(page("bad", [wide], follows_system=True), encoding="utf-8")
    with browser.page(path, PHONE) as shown:
        assert any("DIV wide to 20" in line for line in shown.overflowing())
        diagnostics = " ".join(shown.diagnostics())
        assert "TypeError" in diagnostics
        assert "b.png" in diagnostics or "ERR_" in diagnostics
