"""Pages of mappings and of sweeps: well-formed, in one file, and with what is behind each point."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.support.pictures import marks, own_text, pictures

import tilewright as tw
from tilewright.mapping.sweep.results import MapSweep
from tilewright.report.mapping import map_page
from tilewright.report.sweep import sweep_page

LAYERS = ["1_1_4_4_1", "3_4_8_8_1"]


def elements(page: str) -> ElementTree.Element:
    """A page as a tree, which only a well-formed one is."""
    assert page.startswith("<!DOCTYPE html>\n")
    text = re.sub(r"<script.*?</script>", "", own_text(page), flags=re.DOTALL)
    return ElementTree.fromstring(re.sub("<meta [^>]*>", "", text.split("\n", 1)[1]))


def alone(page: str) -> bool:
    """Whether a page needs nothing else, in light and in dark."""
    text = own_text(page)
    return "http" not in text and "color-scheme:light dark" in text


@pytest.mark.parametrize("machine", ["simba-cosa-repo", "k80"])
def test_every_layer_is_drawn_with_its_loops(machine: str) -> None:
    result = tw.map(LAYERS, machine, mapper="cosa")
    page = map_page(result)
    tree = elements(page)
    assert alone(page)
    drawn = [div.get("aria-label") for div in tree.iter("div") if div.get("role") == "group"]
    assert drawn == LAYERS
    for drawing in result.drawn():
        for level in drawing.levels:
            assert level.name in page
            for tensor in level.tensors:
                assert f"{tensor.name}: {tensor.moved_words:,} words, at least" in page
    moved = [marks(drawn, "barX")[0] for drawn in pictures(page) if marks(drawn, "barX")]
    for drawing in result.drawn():
        text = "\n".join(drawing.lines())
        assert f"<pre>{text}</pre>" in page
    levels = [level for drawing in result.drawn() for level in drawing.levels]
    assert [bars["x2"] for bars in moved] == [[max(1, t.moved_words) for t in x.tensors] for x in levels]


@pytest.fixture(scope="module")
def sweep() -> MapSweep:
    axes = ["levels.GlobalBuffer.capacity=4KiB,64KiB", "levels.AccumulationBuffer.capacity=2,192"]
    return tw.map(LAYERS, sweep=axes, mapper="cosa")


def test_every_dot_leads_to_its_mapping(sweep: MapSweep) -> None:
    page = sweep_page(sweep)
    tree = elements(page)
    assert alone(page)
    links = [link for drawn in pictures(page) for dots in marks(drawn, "dot") for link in dots["href"]]
    places = {div.get("id") for div in tree.iter("div")}
    assert len(links) == 9 * 2, "nine pictures of the two variants onto which everything fits"
    assert {link.removeprefix("#") for link in links} <= places
    for variant in sweep.variants:
        for layer in variant.layers:
            assert page.count(f"{layer.name}: {layer.cycles:,} cycles") >= 1
    assert "area in mm²" in page
    assert "latency in cycles" in page
    assert "AccumulationBuffer" in page[page.index("Nothing could be mapped") :]


def test_the_front_is_drawn_and_the_rest_is_text(sweep: MapSweep) -> None:
    page = sweep_page(sweep)
    labelled = re.findall(r'role="group" aria-label="([^"]+)"', page)
    assert len(labelled) == len(LAYERS) * len(sweep.front)
    assert 0 < len(sweep.front) <= 2


def test_pages_are_written_where_they_are_asked_for(tmp_path: Path) -> None:
    tw.map(LAYERS[0], mapper="cosa", plot=tmp_path / "map.html")
    tw.map(LAYERS[0], "eyeriss", mapper="cosa", sweep=["clock_hz=1GHz,2GHz"], plot=tmp_path / "sweep.html")
    assert "Mappings onto simba-cosa-repo" in (tmp_path / "map.html").read_text()
    assert "latency in ms" in (tmp_path / "sweep.html").read_text()
