"""Each example runs, and prints what its own text says it prints."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples"
EXAMPLES = sorted(FOLDER.glob("[0-9]*.py"))


def promised(path: Path) -> str:
    """The indented text at the end of the docstring; `...` stands for anything on that line."""
    text = ast.get_docstring(ast.parse(path.read_text()))
    assert text is not None
    _, found = re.split(r"^Prints.*:$", text, flags=re.MULTILINE)
    return textwrap.dedent(found).strip() + "\n"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_prints_what_it_says(path: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(path)]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""
    lines = [line for line in run.stdout.splitlines() if not line.startswith("note: ")]
    wanted = promised(path).splitlines()
    assert len(lines) == len(wanted), run.stdout
    for line, want in zip(lines, wanted, strict=True):
        pattern = r".+".join(re.escape(part) for part in want.split("..."))
        assert re.fullmatch(pattern, line), f"{line!r} is not {want!r}"


def test_examples_are_numbered_without_gaps() -> None:
    assert EXAMPLES
    assert [int(p.stem.split("_")[0]) for p in EXAMPLES] == list(range(1, len(EXAMPLES) + 1))
