"""Finished parts of a reproduction: kept at once, known to the next run, refused if something else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.cli import tilewright

from tilewright.errors import UsageError
from tilewright.reproduce.base import Basis, Exhibit, Figure
from tilewright.reproduce.kept import Kept
from tilewright.reproduce.pcgc.runs import Checked, Cut, PcgcOutcome, Planned

PLANNED = Planned(3, 1.5, 0.25)
OUTCOME = PcgcOutcome(
    {"layerwise": PLANNED},
    {"energy": {"rules-alone": Cut(PLANNED, PLANNED, PLANNED)}},
    Checked(3, 2, 0),
    ((1.5, 0.25), (2.0, 0.125)),
    0.5,
    1.25,
)


def test_what_was_kept_is_known_again(tmp_path: Path) -> None:
    path = tmp_path / "parts.jsonl"
    exhibits = (
        Exhibit(
            "Table 1", "t", "said", (Figure("mean", 0.5, None),), rows=(("a", "b"),), basis=Basis.COUNTED
        ),
    )
    kept = Kept(path)
    kept.keep("network", OUTCOME)
    kept.keep("exhibits", exhibits)
    again = Kept(path)
    assert again.value("network", PcgcOutcome) == OUTCOME
    assert again.made("exhibits", tuple[Exhibit, ...], tuple) == exhibits
    assert again.value("another", PcgcOutcome) is None


def test_a_line_that_was_cut_off_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "parts.jsonl"
    Kept(path).keep("first", OUTCOME)
    with path.open("a") as file:
        file.write('{"version": "0.1')
    kept = Kept(path)
    assert kept.value("first", PcgcOutcome) == OUTCOME
    kept.keep("second", OUTCOME)
    assert [json.loads(line)["key"] for line in path.read_text().splitlines()] == ["first", "second"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nonsense\n", "line 1: no finished part"),
        ("notes of somebody, no end of line", "line 1: no finished part"),
        pytest.param("[" * 100_000 + "\n", "line 1: no finished part", id="deep"),
        ('{"version": "0.0.1", "key": "a", "value": 1}\n', "line 1: made by version 0.0.1"),
    ],
)
def test_another_file_is_refused_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "parts.jsonl"
    path.write_text(text)
    with pytest.raises(UsageError, match=said) as caught:
        Kept(path)
    assert "\n" not in str(caught.value)
    assert path.read_text() == text


def test_a_part_of_another_kind_is_refused(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "parts.jsonl")
    kept.keep("network", (1, 2))
    with pytest.raises(UsageError, match="'network' is not what this program keeps"):
        Kept(kept.path).value("network", PcgcOutcome)


def test_papers_that_keep_nothing_say_so(tmp_path: Path) -> None:
    result = tilewright("reproduce", "cosa", "--resume", str(tmp_path / "parts.jsonl"))
    assert result.code == 2
    assert "cosa keeps no finished parts" in result.err
