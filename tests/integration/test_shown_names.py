"""Names that move cursors, set titles or turn the direction of writing are text wherever they are shown."""

from __future__ import annotations

import json
import os
import pty
import random
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from tests.hostile.names import NamedModel, named_model
from tests.support.cli import tilewright

import tilewright as tw
from tilewright.ir.text import parse_graph, print_graph
from tilewright.text.printable import html_text, printable

EVIL = (
    *("\x1b]0;evil\x07", "\x1b[2J", "\x9b31m", "a\nfake line", "\r", "\b\b", "\x7f", "\u202eevil", "\u2066x"),
    *("\u200b", "\u2028", "\ufeff", "<script>alert(1)</script>", "\x00", "\x85", "[bold]x[/bold]", ":boom:"),
)


@pytest.fixture
def evil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NamedModel:
    monkeypatch.chdir(tmp_path)
    rng = random.Random(0)
    names = iter([f"{EVIL[i % len(EVIL)]}{i}{rng.choice(EVIL)}" for i in range(30)])
    made = named_model(names)
    onnx.save(made.proto, tmp_path / "\x1b]0;evil\x07\u202e.onnx")
    return made


MODEL = "\x1b]0;evil\x07\u202e.onnx"


def assert_clean(text: str, what: object) -> None:
    found = sorted({c for c in text if c != "\n" and not c.isprintable()})
    assert found == [], f"{what} shows {found}: {text[:2000]!r}"


VERBS = (
    *(
        "check MODEL",
        "inspect MODEL",
        "explain MODEL",
        "run MODEL",
        "compare MODEL interpreter",
        "export MODEL",
    ),
    *("compile MODEL -o out.tw", "compile MODEL -o out.tw --dump-after dead-code", "inspect out.tw"),
    *("run out.tw", "explain out.tw", "profile MODEL --duration 0.1", "simulate MODEL -t simba-cosa-repo"),
    *("map MODEL -t simba-cosa-repo --budget 5trials", "explain MODEL nothing\x1b[2J", "check \x1b[2J.onnx"),
    *("run MODEL -i \x1b[2J.npz", "compile MODEL -t \x1b[2J", "compile MODEL --shapes \x1b[2J:1", "\x1b[2J"),
    *("compile MODEL --disable-pass \u202e", "compile MODEL -o /no/\x1b[2J.tw", "compile MODEL --\x1b[2J"),
)


@pytest.mark.sampled(0)
def test_no_verb_shows_what_a_terminal_obeys(evil: NamedModel, tmp_path: Path) -> None:
    tw.compile(tmp_path / MODEL).save(tmp_path / "out.tw")
    for line in VERBS:
        arguments = [MODEL if a == "MODEL" else a for a in line.split(" ")]
        for more in (("--verbose",), ("--json",)):
            result = tilewright(*arguments, *more)
            assert_clean(result.out + result.err, (line, more, result.code))
            if more == ("--json",) and result.code == 0 and result.out.startswith("{"):
                json.loads(result.out)


LONG = "x" * 5000
LONG_ARGUMENTS = (
    *("LONG", "compile LONG", "compile aLONG.onnx", "compile --LONG m", "compile MODEL -o LONG"),
    *("compile MODEL -t LONG", "compile MODEL --partition LONG", "compile MODEL --schedule ios{LONG=1}"),
    *("compile MODEL --shapes LONG:1", "compile MODEL --threads LONG", "compile MODEL --disable-pass LONG"),
    *("run MODEL -i LONG.npz", "run MODEL -i LONG", "map LONG", "map MODEL -t LONG", "zoo LONG"),
    *("explain MODEL LONG", "trust add LONG", "schema LONG", "planners LONG", "doctor LONG"),
)


def test_what_is_wrong_is_no_longer_than_one_can_read(tmp_path: Path) -> None:
    onnx.save(named_model(iter([f"{LONG}{i}" for i in range(30)])).proto, tmp_path / "m.onnx")
    for line in LONG_ARGUMENTS:
        named = line.replace("MODEL", str(tmp_path / "m.onnx")).replace("LONG", LONG)
        result = tilewright(*named.split(" "))
        assert result.code == 2, line
        assert result.err.count("\n") == 1, line
        assert len(result.err) < 2000, line


def test_a_real_terminal_gets_our_colours_only(evil: NamedModel, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}
    process = subprocess.Popen(
        [sys.executable, "-m", "tilewright.cli.main", "inspect", MODEL],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment,
    )
    os.close(theirs)
    got = b""
    try:
        while piece := os.read(ours, 65536):
            got += piece
    except OSError:  # how a terminal ends
        pass
    os.close(ours)
    assert process.wait() == 0
    text = got.decode()
    assert "evil" in text
    assert re.findall(r"\x1b(?!\[[\d;?]*[mKhlAGJ])", text) == []
    assert "\x1b[2J" not in text
    assert not {"\u202e", "\x9b", "\x07", "\x00", "\b"} & set(text)


def test_texts_and_pages_of_the_library_are_clean(evil: NamedModel) -> None:
    model = tw.load(evil.proto)
    compiled = tw.compile(model)
    report = compiled.report()
    for what in (compiled.explain(), model.summary(), tw.check(model), compiled, *compiled.get_inputs()):
        assert_clean(str(what), type(what))
        assert_clean(repr(what), type(what))
    for page in (report.html(), model._repr_html_(), tw.check(model)._repr_html_(), compiled._repr_html_()):
        assert_clean(page, "a page")
        assert "<script>" not in page
    text = print_graph(model.graph, weights=True)
    assert_clean(text, "a graph")
    assert print_graph(parse_graph(text), weights=True) == text
    with pytest.raises(tw.UsageError) as caught:
        compiled.run(["\x1b[2J"], {})
    assert_clean(str(caught.value), "an error")
    with pytest.raises(tw.UsageError) as caught:
        compiled.run(None, {})
    assert_clean(str(caught.value), "an error")


def test_names_themselves_are_as_they_were(evil: NamedModel) -> None:
    compiled = tw.compile(evil.proto)
    x = evil.names["x"]
    assert [i.name for i in compiled.get_inputs()] == [x]
    assert len(compiled.run([evil.names["z"]], {x: np.zeros((2, 4), np.float32)})) == 1


def test_what_is_printable_stays() -> None:
    for text in ("plain", "größe", "名前", "🦊", "a b", "C:\\x"):
        assert printable(text) == text
    assert printable("\x1b[2J\u202e\n") == r"\x1b[2J\u202e\n"
    assert printable(printable("\x1b")) == printable("\x1b")
    assert html_text("\u202e<") == r"\u202e&lt;"
