"""Caches that others have changed: nothing of theirs runs, results are right, and the user is told."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.hostile import caches
from tests.hostile.caches import Filled, fill, try_seed

from tilewright import private_files
from tilewright.private_files import folder, opening, records

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    return fill(tmp_path_factory.mktemp("filled"))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("group", range(3))
def test_damaged_caches_harm_nobody(filled: Filled, tmp_path: Path, group: int) -> None:
    for seed in range(7 * group, 7 * group + 7):
        how, findings = try_seed(seed, filled, tmp_path)
        assert findings == [], how


def test_a_whole_cache_has_no_findings(
    filled: Filled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    untouched = caches.Damage("nothing", is_told=False, is_warned=False)
    monkeypatch.setattr(caches, "damage", lambda rng, box: untouched)
    original = caches._verify
    codes: list[int] = []

    def verify(box: caches.Sandbox) -> int:
        codes.append(original(box))
        return codes[-1]

    monkeypatch.setattr(caches, "_verify", verify)
    for seed in range(3):
        assert try_seed(seed, filled, tmp_path)[1] == []
    assert set(codes) == {0}


def _believed(raw: bytes, key: bytes, kind: str, name: str) -> bytes:
    return raw[private_files.HEADER_BYTES :]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("check", "instead", "seeds"),
    [
        ("opened_record", _believed, range(60)),
        ("check_file", lambda *_, **__: None, range(60)),
        ("check_folder", lambda *_: None, range(60)),
    ],
)
def test_the_harness_finds_a_check_that_is_missing(
    filled: Filled,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    check: str,
    instead: Callable[..., object],
    seeds: range,
) -> None:
    for module in (folder, opening, records):
        if hasattr(module, check):
            monkeypatch.setattr(module, check, instead)
    assert any(try_seed(seed, filled, tmp_path)[1] for seed in seeds)


@pytest.mark.slow
def test_500_damaged_caches() -> None:
    command = [sys.executable, "-m", "tests.hostile.caches", "500", "1000"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=3000, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
