"""The hostile corpus: every file is refused, in one line, quickly, reading nothing it should not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.hostile.generate import HostileFile, write_corpus

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="links, FIFOs and inotify of Linux")

MAX_SECONDS = 5.0
MAX_PEAK_BYTES = 512 * 2**20
REFUSE = Path(__file__).parents[1] / "hostile" / "refuse.py"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> tuple[HostileFile, ...]:
    return write_corpus(tmp_path_factory.mktemp("hostile") / "corpus")


@pytest.fixture(scope="module")
def report(corpus: tuple[HostileFile, ...]) -> Mapping[str, Any]:
    outside = corpus[0].path.parents[1] / "outside"
    command = [sys.executable, str(REFUSE), str(outside), *(str(file.path) for file in corpus)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found: Mapping[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def results(report: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    return {result["path"]: result for result in report["results"]}


def test_the_corpus_is_large_and_its_names_are_unique(corpus: tuple[HostileFile, ...]) -> None:
    assert len({file.name for file in corpus}) == len(corpus) >= 60


def test_every_file_meets_the_error_it_should(
    corpus: tuple[HostileFile, ...], results: Mapping[str, Mapping[str, Any]]
) -> None:
    problems = []
    for file in corpus:
        result = results[str(file.path)]
        if result["error"] != file.error or file.mentions not in result["message"]:
            problems.append(f"{file.name}: {result['error'] or 'accepted'}: {result['message'][:200]}")
    assert not problems, "\n".join(problems)


def test_every_message_is_one_line_that_names_the_file(
    corpus: tuple[HostileFile, ...], results: Mapping[str, Mapping[str, Any]]
) -> None:
    for file in corpus:
        message = results[str(file.path)]["message"]
        assert message.isprintable()
        assert str(file.path) in message
        assert len(message) < 1000


def test_every_file_is_refused_in_time(results: Mapping[str, Mapping[str, Any]]) -> None:
    slow = {path: result["seconds"] for path, result in results.items() if result["seconds"] > MAX_SECONDS}
    assert not slow


def test_the_whole_corpus_stays_in_memory_limits(report: Mapping[str, Any]) -> None:
    assert report["peak_bytes"] <= MAX_PEAK_BYTES


def test_nothing_outside_the_model_folder_is_touched(
    report: Mapping[str, Any], results: Mapping[str, Mapping[str, Any]]
) -> None:
    assert report["watcher_works"]
    assert [path for path, result in results.items() if result["outside_touched"]] == []


def test_only_the_model_its_folder_and_python_modules_are_opened(
    results: Mapping[str, Mapping[str, Any]],
) -> None:
    modules = (sys.prefix, sys.base_prefix, sysconfig.get_path("stdlib"), str(REFUSE.parents[2] / "src"))
    for path, result in results.items():
        folder = str(Path(path).parent)
        for opened in result["opened"]:
            if opened in (path, folder, os.devnull) or opened.startswith(modules):
                continue
            # Opened relative to a folder that was itself opened without following links: one name, no way up.
            assert not opened.startswith("/"), f"{path} opened {opened}"
            assert "/" not in opened, f"{path} opened {opened}"
            assert opened not in ("..", "."), f"{path} opened {opened}"


def assert_mutations_are_typed(seed: int, count: int) -> None:
    script = Path(__file__).parents[1] / "hostile" / "mutate.py"
    command = [sys.executable, "-W", "ignore", str(script), str(seed), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600, check=False)
    lines = done.stdout.splitlines() or [""]
    assert done.returncode == 0, f"died with {done.returncode} at {lines[-1][:2000]} {done.stderr[-500:]}"
    summary = json.loads(lines[-1])
    assert summary["findings"] == []
    assert summary["slowest_s"] <= MAX_SECONDS
    # Mutations that never get past the first check, or never do harm, would find nothing.
    assert min(summary["counts"]["accepted"], summary["counts"]["ModelRejected"]) >= count // 10


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(3, 7))
def test_mutated_models_are_loaded_or_refused_by_a_typed_error(seed: int) -> None:
    assert_mutations_are_typed(seed, count=400)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 14))
def test_many_mutated_models_are_loaded_or_refused_by_a_typed_error(seed: int) -> None:
    assert_mutations_are_typed(seed, count=50_000)
