"""Measuring in another process: what crashes, hangs or is wrong is told, and nothing stays behind."""

# mypy: disable-error-code="func-returns-value"

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.support.children import lines_of
from tests.support.fake_contestants import MODULE, fake

from tilewright.system.worker_process import NoWorker
from tilewright.tuning.machine_lock import MachineLock
from tilewright.tuning.workers import Effort, Failed, LocalMeasuringPool, Measured, MeasureRequest, PackedCode

ROOT = str(Path(__file__).resolve().parents[3])
X = np.array([1.0, 2.0], np.float32)
EFFORT = Effort(min_rounds=3, max_rounds=3, seconds=10)


@pytest.fixture(autouse=True)
def tests_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([ROOT, os.environ.get("PYTHONPATH", "")]))


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalMeasuringPool]:
    with LocalMeasuringPool(MODULE, lock=MachineLock(tmp_path_factory.mktemp("lock"))) as opened:
        yield opened


def request(code: PackedCode, baseline: PackedCode | None = None, limit_s: float = 30.0) -> MeasureRequest:
    return MeasureRequest(code, {"x": X}, {"y": 2 * X}, 1e-6, baseline, EFFORT, limit_s)


def test_results_come_in_the_order_of_their_requests(pool: LocalMeasuringPool) -> None:
    quick, slow = pool.measure(
        [request(fake(run_ns=1000), fake(run_ns=4000)), request(fake(run_ns=2000), fake(run_ns=4000))]
    )
    assert isinstance(quick, Measured)
    assert isinstance(slow, Measured)
    assert quick.candidate.whole_ns == (1000.0,) * 3
    assert quick.candidate.steps_ns == ((250.0, 750.0),) * 3
    assert quick.baseline is not None
    assert quick.baseline.whole_ns == (4000.0,) * 3
    assert slow.candidate.whole_ns == (2000.0,) * 3


def test_a_crash_is_tried_once_more_and_then_told(pool: LocalMeasuringPool, tmp_path: Path) -> None:
    crashes = request(fake("crash", marker=tmp_path / "a"))
    once = request(fake("crash once", marker=tmp_path / "b"))
    assert list(pool.measure([crashes])) == [Failed("crashed", "SIGSEGV")]
    (result,) = pool.measure([once])
    assert isinstance(result, Measured)
    (after,) = pool.measure([request(fake())])
    assert isinstance(after, Measured)


def test_what_hangs_is_ended_and_the_next_is_measured(pool: LocalMeasuringPool, tmp_path: Path) -> None:
    marker = tmp_path / "pid"
    hangs, after = pool.measure([request(fake("hang", marker=marker), limit_s=0.5), request(fake())])
    assert hangs == Failed("hung", "it took longer than 0.5 s and was ended")
    assert isinstance(after, Measured)
    assert not Path(f"/proc/{marker.read_text()}").exists()


@pytest.mark.parametrize(
    ("does", "detail"),
    [
        ("triple", "output 'y' differs by 0.5 of its largest value, more than 1e-06"),
        ("not a number", "output 'y' differs by inf of its largest value, more than 1e-06"),
        ("change", "output 'y' differs by 0.25 of its largest value, more than 1e-06"),
        ("nothing", "output 'y' is missing"),
    ],
)
def test_wrong_values_are_told(does: str, detail: str, pool: LocalMeasuringPool, tmp_path: Path) -> None:
    (result,) = pool.measure([request(fake(does, marker=tmp_path / "marker"))])
    assert result == Failed("wrong-values", detail)


def test_what_cannot_be_loaded_is_declined(pool: LocalMeasuringPool) -> None:
    (result,) = pool.measure([request(fake("refuse"))])
    assert result == Failed("declined", "made for another machine")


def test_a_baseline_travels_once(pool: LocalMeasuringPool, monkeypatch: pytest.MonkeyPatch) -> None:
    baseline = fake(run_ns=5000)
    list(pool.measure([request(fake(run_ns=1), baseline)]))
    loaded: list[str] = []
    ask = pool._process.ask  # type: ignore[union-attr]
    monkeypatch.setattr(
        pool._process, "ask", lambda texts, s: (loaded.append(bytes(texts[0]).decode()), ask(texts, s))[1]
    )
    list(pool.measure([request(fake(run_ns=2), baseline), request(fake(run_ns=3), baseline)]))
    assert [baseline.digest in text for text in loaded if '"ask": "load"' in text] == [True, True]  # kept
    assert all(f'"digest": "{baseline.digest}"' not in text for text in loaded)


def test_equal_code_has_equal_digests() -> None:
    whole = PackedCode({"a": 1}, {"p": (b"1234",)})
    pieces = PackedCode({"a": 1}, {"p": (b"12", b"34")})
    assert whole.digest == pieces.digest
    assert whole.digest != PackedCode({"a": 1}, {"p": (b"123",), "q": (b"4",)}).digest


def test_a_module_that_measures_nothing_is_one_error() -> None:
    with LocalMeasuringPool("tests.support.no_such_module") as pool, pytest.raises(NoWorker, match="no_such"):
        list(pool.measure([request(fake())]))
    assert pool.pid is None


PARENT = """
import sys
from pathlib import Path
from tests.unit.tuning.test_workers import *
marker = Path(sys.argv[1])
pool = LocalMeasuringPool(MODULE, lock=MachineLock(None))
try:
    list(pool.measure([request(fake("hang", marker=marker), limit_s=60)]))
except KeyboardInterrupt:
    print("interrupted", pool.pid, flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_parent_that_ends_takes_the_process_with_it(number: signal.Signals, tmp_path: Path) -> None:
    marker = tmp_path / "pid"
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(marker)], stdout=subprocess.PIPE, start_new_session=True
    )
    while not (marker.exists() and marker.read_text()):
        assert parent.poll() is None
        time.sleep(0.01)
    child = Path(f"/proc/{marker.read_text()}")
    assert child.exists()
    if number == signal.SIGINT:
        os.killpg(parent.pid, number)  # as a terminal does
        assert list(lines_of(parent, 60)) == ["interrupted None"]
    else:
        parent.kill()
    parent.wait(60)
    assert parent.stdout is not None
    parent.stdout.close()
    deadline_s = time.monotonic() + 60
    while _is_running(child):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def _is_running(process: Path) -> bool:
    """A process that ended may wait for whoever adopted it."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_one_measures_at_a_time(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    waits: list[float] = []
    first, second = MachineLock(tmp_path), MachineLock(tmp_path, max_wait_s=0.05, sleep=waits.append)
    with first, second:
        assert len(waits) == 5  # and then it goes on, rather than never
    waits.clear()
    with second:
        assert not waits


def test_who_measures_without_a_pause_lets_others_in_between(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    order: list[str] = []

    def measure(name: str) -> None:
        lock = MachineLock(tmp_path)
        for _ in range(4):
            with lock:
                order.append(name)
                time.sleep(0.03)

    threads = [threading.Thread(target=measure, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(order) == [*"aaaabbbb"]
    assert "aaa" not in "".join(order[:-1])
    assert "bbb" not in "".join(order[:-1])
