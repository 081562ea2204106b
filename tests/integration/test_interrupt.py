"""A compilation that is interrupted or killed at any moment leaves the old artifact, or none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.support.models import feed_for, small_net

import tilewright as tw
from tilewright.artifact.container import Archive

# Compiles and saves over and over, and says when it begins, so that signals meet every phase.
WORK = """
import sys, tilewright as tw
from pathlib import Path
model, target, cache = map(Path, sys.argv[1:])
print("ready", flush=True)
while True:
    tw.compile(model, no_cache=True, cache_dir=None).save(target)
    print("saved", flush=True)
"""

DELAYS_S = (0.0, 0.03, 0.07, 0.11, 0.16, 0.23)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))


def interrupted(tmp_path: Path, number: int, delay_s: float) -> tuple[int, Path, float]:
    """Exit code, folder of the results, and how long the process took to end."""
    model = tmp_path / "net.onnx"
    model.write_bytes(small_net(channels=32, size=16).SerializeToString())
    folder = tmp_path / f"out{delay_s}{number}"
    folder.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", WORK, str(model), str(folder / "m.tw"), str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    if delay_s:
        assert process.stdout.readline() == "saved\n"
    time.sleep(delay_s)
    sent = time.monotonic()
    process.send_signal(number)
    process.stdout.close()
    code = process.wait(20)
    return code, folder, time.monotonic() - sent


def check_whole(folder: Path) -> None:
    if (folder / "m.tw").exists():
        Archive(folder / "m.tw").verify()
        assert tw.open(folder / "m.tw").run(None, feed_for(small_net(channels=32, size=16)))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("delay_s", DELAYS_S)
def test_an_interrupt_leaves_nothing_half_written(tmp_path: Path, delay_s: float) -> None:
    code, folder, took_s = interrupted(tmp_path, signal.SIGINT, delay_s)
    assert code != 0
    assert took_s < 2.0
    assert set(os.listdir(folder)) <= {"m.tw"}
    check_whole(folder)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("delay_s", DELAYS_S)
def test_a_killed_process_leaves_a_whole_artifact_or_none(tmp_path: Path, delay_s: float) -> None:
    code, folder, _ = interrupted(tmp_path, signal.SIGKILL, delay_s)
    assert code == -signal.SIGKILL
    assert {Path(name).suffix for name in os.listdir(folder)} <= {".tw", ".part"}
    check_whole(folder)
    # A temporary file that was left behind is in nobody's way.
    path = tw.compile(small_net(channels=32, size=16)).save(folder / "m.tw")
    Archive(path).verify()


def test_an_interrupted_save_removes_its_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = tw.compile(small_net())
    path = compiled.save(tmp_path / "m.tw")
    before = path.read_bytes()
    for name in ("fsync", "replace"):

        def interrupt(*arguments: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(os, name, interrupt)
            with pytest.raises(KeyboardInterrupt):
                compiled.save(path)
        assert path.read_bytes() == before
        assert [n for n in os.listdir(tmp_path) if n != "cache"] == ["m.tw"]


# The command, from its first instruction to its last. Who prints `ready` before that could be met by the
# signal with Python's own handlers in place.

COMMAND = """
from tilewright.cli import interrupts, start
interrupts.end_at_once()
print("ready", flush=True)
start.main()
"""
START_DELAYS_S = (0.0, 0.03, 0.15, 0.4)
VERBS = {
    "compile": ("compile", "MODEL", "-o", "m.tw", "--no-cache"),
    "bench": ("bench", "MODEL"),
    "simulate": ("simulate", "MODEL"),
    "tune": ("tune", "MODEL", "-o", "m.tw", "--budget", "1h"),
    "run": ("run", "MODEL", "--random"),
}


def signalled(
    folder: Path, arguments: tuple[str, ...], number: int, delay_s: float
) -> tuple[int, str, float]:
    """Exit code, what was said, and how long it took to end, of a command that got a signal after a while."""
    model = folder / "net.onnx"
    model.write_bytes(small_net(channels=48, size=24).SerializeToString())
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *(str(model) if a == "MODEL" else a for a in arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(delay_s)
    sent = time.monotonic()
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    took_s = time.monotonic() - sent
    deadline_s = time.monotonic() + 10
    while _has_members(process.pid):  # nobody of its session is left
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    return process.returncode, err, took_s


def _has_members(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def check_ended(code: int, err: str, number: int, took_s: float) -> None:
    assert code in (0, 128 + number), err
    assert "Traceback" not in err
    assert "Exception ignored" not in err
    assert took_s < 20
    if code:
        assert "tilewright: " in err


@pytest.mark.sampled(2)
@pytest.mark.parametrize("delay_s", START_DELAYS_S)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda n: n.name)
def test_a_signal_at_any_moment_of_a_command_ends_it_in_silence(
    tmp_path: Path, number: signal.Signals, delay_s: float
) -> None:
    code, err, took_s = signalled(tmp_path, VERBS["compile"], number, delay_s)
    check_ended(code, err, number, took_s)
    assert code == 128 + number or delay_s >= 0.3
    assert set(os.listdir(tmp_path)) <= {"net.onnx", "cache", "m.tw"}


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda n: n.name)
@pytest.mark.parametrize("verb", VERBS)
def test_a_signal_at_any_moment_of_any_verb(tmp_path: Path, verb: str, number: signal.Signals) -> None:
    for step in range(40):
        code, err, took_s = signalled(tmp_path, VERBS[verb], number, 0.05 * step)
        check_ended(code, err, number, took_s)
        assert {Path(n).suffix for n in os.listdir(tmp_path)} <= {".onnx", ".tw", ""}
