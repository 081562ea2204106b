"""The report of a compilation: complete, the same each time, one page that needs no network."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import onnx
import pytest
from tests.support.models import host_net, small_net

import tilewright as tw
from tilewright.errors import UsageError


class Page(HTMLParser):
    """Tags that are open, all texts, and whatever a browser would fetch."""

    VOID = ("meta", "br", "link", "img", "input")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.tags: set[str] = set()
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.fetched += [str(value) for name, value in attrs if name in ("src", "href", "data", "action")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open[-1] != tag and self.open[-1] in ("tr", "td", "th", "p"):
            self.open.pop()
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def named(proto: onnx.ModelProto, name: str) -> onnx.ModelProto:
    proto.graph.node[0].name = name
    return proto


@pytest.fixture(scope="module")
def compiled() -> tw.CompiledModel:
    return tw.compile(small_net(), threads=1)


def test_equal_compilations_give_equal_bytes(compiled: tw.CompiledModel, tmp_path: Path) -> None:
    other = tw.compile(small_net(), threads=1)
    for name in ("r.html", "r.json"):
        first = compiled.report().save(tmp_path / name).read_bytes()
        assert other.report().save(tmp_path / name).read_bytes() == first


def test_every_node_kernel_and_edge_is_in_it(compiled: tw.CompiledModel) -> None:
    page = Page(compiled.report().html())
    explanation = compiled.explain()
    for text in (
        *(n.name for n in small_net().graph.node),
        *(k.id for k in compiled.kernels),
        *(e.text for e in explanation.edges),
        compiled.model_sha256,
    ):
        assert any(text in found for found in page.texts), text
    document = compiled.report().to_json()
    assert len(document["explanation"]["edges"]) == len(explanation.edges)
    assert json.loads(json.dumps(document))["model_sha256"] == compiled.model_sha256


def test_the_page_fetches_nothing_and_is_well_formed(compiled: tw.CompiledModel) -> None:
    text = compiled.report().html()
    page = Page(text)
    assert page.open == []
    assert page.fetched == []
    assert "script" not in page.tags
    assert not re.search(r"https?://|url\(|@import", text)


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "a&b", '"quoted"', "</td></table>"])
def test_names_of_nodes_are_text(name: str) -> None:
    compiled = tw.compile(named(small_net(), name), "null")
    for text in (compiled.report().html(), compiled.report()._repr_html_(), compiled._repr_html_()):
        page = Page(text)
        assert "script" not in page.tags
    assert any(name in found for found in Page(compiled.report().html()).texts)


def test_operators_on_the_host_are_counted() -> None:
    page = Page(tw.compile(host_net(), threads=1).report().html())
    assert any("of which 1 on the host" in text for text in page.texts)


def test_a_report_that_cannot_be_written_names_the_file(compiled: tw.CompiledModel, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere/r\.html: cannot be written"):
        compiled.report().save(tmp_path / "nowhere" / "r.html")
