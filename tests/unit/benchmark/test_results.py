"""Lines that a benchmark appends: one that was cut off neither counts nor spoils the next."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import pytest
from benchmarks.__main__ import main as run
from benchmarks.__main__ import names
from benchmarks.results import append_row, rows_of
from tests.support.models import small_net

from tilewright import zoo

pytestmark = pytest.mark.sampled(4)

ROOT = Path(__file__).parents[3]


def test_a_run_goes_on_behind_the_last_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "made" / "rows.jsonl"
    assert rows_of(path) == []
    append_row(path, {"network": "a"})
    with path.open("a") as file:
        file.write('{"network": "b", "ms"')
    assert [row["network"] for row in rows_of(path)] == ["a"]
    append_row(path, {"network": "b"})
    append_row(path, {"network": "c"})
    assert [row["network"] for row in rows_of(path)] == ["a", "b", "c"]
    assert all(set(row["measured"]) == {"commit", "machine", "load_average"} for row in rows_of(path))


def test_programs_for_other_threads_are_not_raced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import pcgc

    monkeypatch.setattr(zoo, "build", lambda _: small_net())
    pcgc.prepare("small", tmp_path, 1)
    asked = Namespace(folder=tmp_path, threads=2, clock="cpu", seconds=0.0)
    with pytest.raises(SystemExit, match="is for 1 thread: give another FOLDER"):
        pcgc.raced("small", asked)
    assert pcgc.raced("small", Namespace(**{**vars(asked), "threads": 1}))["threads"] == 1


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("command", "facts"),
    [
        (["versions", str(ROOT), str(ROOT)], {"versions": [["elsewhere", ""], ["elsewhere", ""]]}),
        (["zoo", "--accuracy", "fast"], {"accuracy": "default", "isa": "avx2"}),
    ],
)
def test_rows_of_another_comparison_are_not_taken_for_this_one(
    command: list[str], facts: dict[str, object], tmp_path: Path
) -> None:
    (tmp_path / "rows.json").write_text(json.dumps([{"model": "resnet18", "num_threads": 2, **facts}]))
    with pytest.raises(SystemExit, match="give another --output"):
        run([*command, "--networks", "resnet18", "--output", str(tmp_path / "rows")])


def test_every_benchmark_is_listed_and_says_what_can_be_asked(capsys: pytest.CaptureFixture[str]) -> None:
    run([])
    listed = capsys.readouterr().out
    for name in names():
        assert f"\n{name} " in listed
    # Others need packages that are not always there.
    for name in ("mapping", "partitioning", "noc", "pcgc"):
        with pytest.raises(SystemExit):
            run([name, "--help"])
        assert f"usage: python -m benchmarks {name}" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="no benchmark 'none': there are amx"):
        run(["none"])


@pytest.mark.parametrize(
    ("only", "page", "message"),
    [
        ("64,56", None, r"no shape has '64,56' in its text, such as \(64, 64, 56"),
        ("(64, ", "p.md", "take all"),
    ],
)
def test_counts_of_no_shape_or_of_some_on_a_page_are_refused(
    tmp_path: Path, only: str, page: str | None, message: str
) -> None:
    from benchmarks import cuda_static

    with pytest.raises(SystemExit, match=message):
        cuda_static.main(Namespace(output=tmp_path / "rows.jsonl", only=only, page=page))


def test_servers_that_cannot_be_imported_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import serve

    monkeypatch.setattr(serve, "find_spec", lambda name: None if name == "uvicorn" else name)
    with pytest.raises(SystemExit, match="uvicorn cannot be imported: pip install uvicorn"):
        serve.main(Namespace(server=None))
