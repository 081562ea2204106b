"""The README is true: its Python runs and prints what it says, its links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text()


def test_the_python_prints_what_the_readme_says(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    (expected,) = re.findall(r"```text\n(.*?)```", TEXT, re.DOTALL)
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=300
    )
    assert result.stdout == expected


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^)#]+)\)", TEXT))))
def test_links_lead_somewhere(link: str) -> None:
    assert (ROOT / link).exists()


@pytest.mark.slow
def test_commands_run_in_order_in_an_empty_folder(tmp_path: Path) -> None:
    block = next(b for b in re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL) if "zoo build" in b)
    lines = [line.split("  #")[0].split(" #")[0].split() for line in block.splitlines()]
    assert len(lines) > 10
    for program, *arguments in lines:
        assert program == "tilewright"
        command = [sys.executable, "-m", "tilewright", *arguments]
        result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert result.returncode == 0, (arguments, result.stderr)
