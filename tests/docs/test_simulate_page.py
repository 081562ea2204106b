"""docs/simulate.md: what it tells people to type in Python runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.support.integer_networks import integer_network

PAGE = Path(__file__).parents[2] / "docs" / "simulate.md"


def test_the_example_simulates_a_schedule(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    exec(compile(code, str(PAGE), "exec"), {"graph": integer_network(1)})
    time_s, bound_s = map(float, capsys.readouterr().out.split())
    assert time_s >= bound_s > 0
