"""Mappings of earlier runs: the same answers, and none for another question or out of a damaged record."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.loops.mapping import LevelLoops, Loop, Mapping
from tilewright.private_files import MAPPINGS
from tilewright.targets.npu.kept_mappings import kept_mapping

MAPPING = Mapping(
    (LevelLoops("Memory", (Loop("K", 4), Loop("C", 2))), LevelLoops("Buffer", (), (Loop("P", 7),)))
)


def never() -> Mapping | None:
    raise AssertionError("a mapping is known")


@pytest.mark.parametrize("answer", [MAPPING, None])
def test_an_answer_is_found_again_for_its_question_alone(
    answer: Mapping | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    assert kept_mapping("layer", lambda: answer) == answer
    assert kept_mapping("layer", never) == answer
    assert kept_mapping("another", lambda: None) is None
    for record in (tmp_path / "cache" / MAPPINGS).iterdir():
        record.write_bytes(record.read_bytes()[:-1] + b"?")
    assert kept_mapping("layer", lambda: MAPPING) == MAPPING


def test_without_a_cache_each_run_searches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TILEWRIGHT_NO_CACHE", "1")
    assert kept_mapping("layer", lambda: MAPPING) == MAPPING
    assert kept_mapping("layer", lambda: None) is None
    assert not (tmp_path / "cache").exists()
