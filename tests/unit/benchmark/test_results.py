"""Lines that a benchmark appends: one that was cut off neither counts nor spoils the next."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")  # as it is where a script of that folder runs


def test_a_run_goes_on_behind_the_last_whole_line(tmp_path: Path) -> None:
    from results import append_row, rows_of

    path = tmp_path / "made" / "rows.jsonl"
    assert rows_of(path) == []
    append_row(path, {"network": "a"})
    with path.open("a") as file:
        file.write('{"network": "b", "ms"')
    assert rows_of(path) == [{"network": "a"}]
    append_row(path, {"network": "b"})
    append_row(path, {"network": "c"})
    assert [row["network"] for row in rows_of(path)] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("command", "facts"),
    [
        (["versions", str(ROOT), str(ROOT)], {"versions": [["elsewhere", ""], ["elsewhere", ""]]}),
        (["zoo", "--accuracy", "fast"], {"accuracy": "default", "isa": "avx2"}),
    ],
)
def test_rows_of_another_comparison_are_not_taken_for_this_one(
    command: list[str],
    facts: dict[str, object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "rows.json").write_text(json.dumps([{"model": "resnet18", "num_threads": 2, **facts}]))
    asked = [*command, "--networks", "resnet18", "--output", str(tmp_path / "rows")]
    monkeypatch.setattr(sys, "argv", asked)
    with pytest.raises(SystemExit):
        import_module(command[0]).main()
    assert "give another --output" in capsys.readouterr().err
