"""The page about Timeloop is true: its files are read, its commands print what it says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from tests.support.cli import tilewright

PAGE = Path(__file__).parents[2] / "docs" / "timeloop.md"
FILE = re.compile(r"`([\w.]+)`:\n\n```yaml\n(.*?)```", re.DOTALL)
COMMAND = re.compile(r"```console\n\$ tilewright ([^\n]*)\n(.*?)```", re.DOTALL)
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the page's files are."""
    monkeypatch.chdir(tmp_path)
    for name, text in FILE.findall(PAGE.read_text()):
        (tmp_path / name).write_text(text)
    return tmp_path


def test_commands_print_what_the_page_says(folder: Path) -> None:
    commands = COMMAND.findall(PAGE.read_text())
    assert len(commands) == 3
    for command, expected in commands:
        result = tilewright(*shlex.split(command))
        assert result.code == 0, result.err
        found = result.out.splitlines()
        wanted = expected.splitlines()
        assert len(found) == len(wanted), result.out
        for line, want in zip(found, wanted, strict=True):
            pattern = ".+".join(re.escape(" ".join(part.split())) for part in want.split("..."))
            assert re.fullmatch(pattern, " ".join(line.split())), (line, want)
    assert {path.name for path in (folder / "found").iterdir()} == {"arch.yaml", "problem.yaml", "map.yaml"}


def test_the_python_runs(folder: Path) -> None:
    (code,) = PYTHON.findall(PAGE.read_text())
    names: dict[str, object] = {}
    exec(compile(code, str(PAGE), "exec"), names)  # the page's own code
    assert names["mapping"] is not None


def test_numbers_it_names_are_in_the_json(folder: Path) -> None:
    """Every key of the table of counts is one of the report."""
    arguments = "map layer.yaml -t arch.yaml --with constraints.yaml --evaluate map.yaml --json"
    result = tilewright(*arguments.split())
    table = PAGE.read_text().split("| `cases[0].levels` |")[1].split("\n\n")[0]
    keys = re.findall(r"`(\w+)`", table)
    assert len(keys) > 8
    assert [key for key in keys if f'"{key}"' not in result.out] == []
