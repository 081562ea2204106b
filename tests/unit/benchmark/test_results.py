"""Lines that a benchmark appends: one that was cut off neither counts nor spoils the next."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from importlib import import_module
from pathlib import Path

import pytest
from tests.support.models import small_net

from tilewright import zoo

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


def test_programs_for_other_threads_are_not_raced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pcgc

    monkeypatch.setattr(zoo, "build", lambda _: small_net())
    pcgc.prepare("small", tmp_path, 1)
    asked = Namespace(folder=tmp_path, threads=2, clock="cpu", seconds=0.0)
    with pytest.raises(SystemExit, match="is for 1 threads: give another FOLDER"):
        pcgc.raced("small", asked)
    assert pcgc.raced("small", Namespace(**{**vars(asked), "threads": 1}))["threads"] == 1


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
