"""Machine code that is kept on disk follows every file it comes from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_INNER = """
from tilewright.cost.machine_code import compiled


@compiled
def number():
    return {value}
"""
_OUTER = """
from inner import number
from tilewright.cost.machine_code import compiled


@compiled
def twice():
    return 2 * number()


print(twice(), sum(twice.stats.cache_hits.values()))
"""


def test_code_is_compiled_anew_when_a_function_that_it_calls_has_changed(tmp_path: Path) -> None:
    (tmp_path / "outer.py").write_text(_OUTER)

    def result(value: int) -> str:
        (tmp_path / "inner.py").write_text(_INNER.format(value=value))
        command = [sys.executable, "-B", "outer.py"]
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    assert result(1) == "2 0\n"
    assert result(1) == "2 1\n"
    assert result(21) == "42 0\n"
