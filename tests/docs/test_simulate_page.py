"""docs/simulate.md: what it tells people to type in Python runs."""

from __future__ import annotations

import re
from pathlib import Path

import onnx
import pytest
from tests.support.models import small_net

PAGE = Path(__file__).parents[2] / "docs" / "simulate.md"


def test_the_example_simulates_a_schedule(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    onnx.save(small_net(), tmp_path / "small.onnx")
    monkeypatch.chdir(tmp_path)
    exec(compile(code, str(PAGE), "exec"), {})
    assert re.search(r"^[\d.e+]+ ns \(\w+", capsys.readouterr().out)
