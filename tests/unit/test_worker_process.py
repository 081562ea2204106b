"""A process that is asked: answers, ends of any kind, and that no end of it is waited for without a limit."""

from __future__ import annotations

import sys

import pytest

from tilewright import worker_process
from tilewright.worker_process import WorkerDied, WorkerProcess

ANSWERS = """
import os, sys, time
from tilewright.worker_process import READY, read_texts, write_texts
write_texts(1, [READY])
texts = read_texts(0)
"""


def started(what_follows: str) -> WorkerProcess:
    process = WorkerProcess(
        ["-c", ANSWERS + what_follows], start_s=60.0, environment={"PYTHONPATH": ":".join(sys.path)}
    )
    assert process.is_ready()
    return process


def test_texts_come_back_as_they_are() -> None:
    process = started("write_texts(1, texts[::-1]); read_texts(0)")
    try:
        assert process.ask([b"", b"a" * (1 << 21)], 60.0) == [b"a" * (1 << 21), b""]
        assert process.is_usable()
    finally:
        process.end()


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("os._exit(3)", "it ended with status 3"),
        ("os.abort()", "SIGABRT"),
        ("os.close(1); time.sleep(600)", "it closed its pipes"),
    ],
)
def test_an_end_is_told_and_is_not_waited_for(end: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "_DEATH_S", 0.5 if "sleep" in end else 60.0)
    process = started(end)
    try:
        with pytest.raises(WorkerDied, match=said):
            process.ask([b"question"], 60.0)
        assert not process.is_usable()
    finally:
        process.end()


def test_an_answer_that_does_not_come_is_waited_for_so_long_and_no_longer() -> None:
    process = started("time.sleep(600)")
    try:
        with pytest.raises(TimeoutError):
            process.ask([b"question"], 0.2)
        assert not process.is_usable()
    finally:
        process.end()
