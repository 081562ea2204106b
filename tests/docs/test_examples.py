"""Each example runs, and prints what its own text says it prints."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import textwrap
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "examples"
EXAMPLES = sorted(FOLDER.glob("[0-9]*.py"))


def promised(path: Path) -> str:
    """The indented text at the end of the docstring; `...` stands for anything on that line."""
    text = ast.get_docstring(ast.parse(path.read_text()))
    assert text is not None
    _, found = re.split(r"^Prints.*:$", text, flags=re.MULTILINE)
    return textwrap.dedent(found).strip() + "\n"


# One process runs all, as most of an example's time is imports; a mark and a path precede what each prints.
MARK = "\x1e"
ALL = f"""
import runpy, sys
for path in sys.argv[1:]:
    print({MARK!r} + path, flush=True)
    runpy.run_path(path, run_name="__main__")
"""


def test_every_example_prints_what_it_says(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ALL, *map(str, EXAMPLES)]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""
    _, *printed = run.stdout.split(MARK)
    assert len(printed) == len(EXAMPLES)
    for path, text in zip(EXAMPLES, printed, strict=True):
        name, *lines = (line for line in text.splitlines() if not line.startswith("note: "))
        assert name == str(path)
        wanted = promised(path).splitlines()
        assert len(lines) == len(wanted), text
        for line, want in zip(lines, wanted, strict=True):
            pattern = r".+".join(re.escape(part) for part in want.split("..."))
            assert re.fullmatch(pattern, line), f"{path.stem}: {line!r} is not {want!r}"


def test_examples_are_numbered_without_gaps() -> None:
    assert EXAMPLES
    assert [int(p.stem.split("_")[0]) for p in EXAMPLES] == list(range(1, len(EXAMPLES) + 1))
