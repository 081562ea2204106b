"""docs/simulate.md: what it tells people to type in Python runs."""

from __future__ import annotations

import re
from pathlib import Path

import onnx
import pytest
from tests.support.models import small_net

PAGE = Path(__file__).parents[2] / "docs" / "simulate.md"


def test_the_examples_simulate_and_compile(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated, compiled = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    onnx.save(small_net(), tmp_path / "small.onnx")
    monkeypatch.chdir(tmp_path)
    exec(compile(simulated, str(PAGE), "exec"), {})
    printed = capsys.readouterr().out
    assert "equal to the network's" in printed
    assert re.search(r"^[\d.]+ us, \d+ % above its bound \(\w+\)$", printed, re.MULTILINE)
    exec(compile(compiled, str(PAGE), "exec"), {})
    assert re.search(r"^[\d.e+]+ ns \(\w+", capsys.readouterr().out)
