"""The process of one contestant."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright.arrays import Array
from tilewright.benchmark.engines import Engine, Feed
from tilewright.benchmark.worker import burst
from tilewright.files import npz_bytes

WAIT_S = 60.0

CODE = "from tilewright.benchmark.worker import peak_bytes; print(peak_bytes())"


@pytest.mark.sampled(0)
def test_the_memory_of_a_contestant_is_its_own() -> None:
    """A child that was started by a large process does not count that process's memory."""
    ballast = np.ones(64 << 20, np.float64)  # 512 MiB, all touched
    child = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert 1 << 20 < int(child.stdout) < ballast.nbytes


def meeting(number: int) -> Engine:
    """An engine whose runs end only when all of its streams are in one."""
    barrier = threading.Barrier(number)

    def stream() -> Callable[[Feed], list[Array]]:
        times = 0

        def run(feed: Feed) -> list[Array]:
            nonlocal times
            times += 1
            if times <= 2:  # the one that wakes it, and the first that counts
                barrier.wait(WAIT_S)
            return []

        return run

    first, *others = (stream() for _ in range(number))
    return Engine("meeting", "1", first, tuple(others))


@pytest.mark.parametrize("number", [1, 3])
def test_streams_run_at_the_same_time(number: int) -> None:
    with ThreadPoolExecutor(number) as threads:
        streams = burst(meeting(number), {}, 0.001, threads)
    assert len(streams) == number
    for stream in streams:
        assert stream.samples_ns
        assert stream.queries_per_s > 0


def test_a_stream_that_fails_stops_the_others() -> None:
    def fail(feed: Feed) -> list[Array]:
        raise ValueError("no")

    engine = Engine("failing", "1", lambda feed: [], (fail,))
    with ThreadPoolExecutor(2) as threads, pytest.raises(ValueError, match="no"):
        burst(engine, {}, 0.001, threads)


FAILS_IN_A_BURST = """
from tilewright.benchmark import worker
from tilewright.benchmark.engines import Engine

runs = []

def run(feed):
    runs.append(feed)
    if len(runs) > 1:
        raise MemoryError("no room")
    return []

worker.make_engine = lambda *_: Engine("failing", "1", run)
worker.main()
"""


def test_a_failure_while_measuring_is_an_answer(tmp_path: Path) -> None:
    (tmp_path / "inputs.npz").write_bytes(npz_bytes({"x": np.zeros(1)}))
    request: dict[str, Any] = {
        **dict.fromkeys(("model", "threads", "accuracy", "streams", "preload")),
        "engine": "failing",
        "inputs": str(tmp_path / "inputs.npz"),
        "outputs": str(tmp_path / "outputs.npz"),
        "dtypes": {},
        "shapes": {},
    }
    asked = "".join(json.dumps(line) + "\n" for line in (request, {"seconds": 0.001}))
    child = subprocess.run(
        [sys.executable, "-c", FAILS_IN_A_BURST], input=asked, capture_output=True, text=True, check=True
    )
    loaded, measured = map(json.loads, child.stdout.splitlines())
    assert loaded["version"] == "1"
    assert measured == {"error": "failing: MemoryError: no room"}
