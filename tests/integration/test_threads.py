"""One compiled model, many callers, many runs, forks; and nothing left behind."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.models import feed_for, host_net, small_net

import tilewright as tw

NUM_CALLERS = 32
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def resident_bytes() -> int:
    """What the process holds in memory, after a collection."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


needs_proc = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("make", [small_net, host_net])
def test_callers_of_one_model_all_get_their_own_answer(make: Any) -> None:
    compiled = tw.compile(make(), threads=2)
    feeds = [feed_for(make(), seed) for seed in range(4)]
    want = [compiled.run(None, feed) for feed in feeds]
    wrong: list[int] = []
    start = threading.Barrier(NUM_CALLERS)

    def call(number: int) -> None:
        start.wait()
        for turn in range(50):
            chosen = (number + turn) % len(feeds)
            got = compiled.run(None, feeds[chosen])
            if not all(np.array_equal(a, b) for a, b in zip(got, want[chosen], strict=True)):
                wrong.append(chosen)

    with ThreadPoolExecutor(NUM_CALLERS) as pool:
        for future in [pool.submit(call, number) for number in range(NUM_CALLERS)]:
            future.result()
    assert wrong == []


def test_first_runs_at_once_load_the_code_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = tw.compile(small_net())
    loads: list[int | None] = []
    load = compiled._body.load

    def counted(num_threads: int | None) -> Any:
        loads.append(num_threads)
        return load(num_threads)

    object.__setattr__(compiled._body, "load", counted)
    feed = feed_for(small_net())
    with ThreadPoolExecutor(8) as pool:
        results = [f.result() for f in [pool.submit(compiled.run, None, feed) for _ in range(8)]]
    assert len(loads) == 1
    assert all(np.array_equal(results[0][0], r[0]) for r in results)


def test_a_wrong_call_does_not_harm_the_next(tmp_path: Path) -> None:
    compiled = tw.compile(small_net())
    feed = feed_for(small_net())
    want = compiled.run(None, feed)
    for _ in range(20):
        with pytest.raises(tw.UsageError):
            compiled.run(None, {"image": np.zeros(3, np.float32)})
    assert np.array_equal(compiled.run(None, feed)[0], want[0])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_forked_after_loading_runs_too() -> None:
    compiled = tw.compile(small_net(), threads=2)
    feed = feed_for(small_net())
    want = compiled.run(None, feed)
    child = os.fork()
    if child == 0:
        try:
            ok = all(np.array_equal(compiled.run(None, feed)[0], want[0]) for _ in range(20))
        except BaseException:
            ok = False
        os._exit(0 if ok else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert np.array_equal(compiled.run(None, feed)[0], want[0])


def growth_over_runs(num_runs: int) -> int:
    """In a process of its own: in this one, other tests leave memory that comes and goes."""
    code = f"from {__name__} import grown_bytes; print(grown_bytes({num_runs}))"
    root = Path(__file__).parents[2]
    found = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    return int(found.stdout)


def grown_bytes(num_runs: int) -> int:
    compiled = tw.compile(small_net(channels=4, size=6), threads=2)
    feed = feed_for(small_net(channels=4, size=6))
    for _ in range(1000):
        compiled.run(None, feed)
    before = resident_bytes()
    for _ in range(num_runs):
        compiled.run(None, feed)
    return resident_bytes() - before


@pytest.mark.sampled(0)
@needs_proc
def test_runs_do_not_grow_the_process() -> None:
    assert growth_over_runs(20_000) <= 1 << 20


@needs_proc
@pytest.mark.slow
def test_a_hundred_thousand_runs_do_not_grow_the_process() -> None:
    assert growth_over_runs(100_000) <= 1 << 20


def growth_over_compilations(count: int) -> int:
    proto = small_net(channels=4, size=6)
    feed = feed_for(proto)
    for _ in range(10):
        tw.compile(proto, threads=1).run(None, feed)
    before = resident_bytes()
    for _ in range(count):
        tw.compile(proto, threads=1).run(None, feed)
    return resident_bytes() - before


@pytest.mark.sampled(0)
@needs_proc
def test_dropped_models_give_their_memory_back() -> None:
    assert growth_over_compilations(50) <= 4 << 20


@needs_proc
@pytest.mark.slow
def test_a_thousand_dropped_models_give_their_memory_back() -> None:
    assert growth_over_compilations(1000) <= 20 << 20


@needs_proc
def test_opened_and_dropped_artifacts_close_their_files(tmp_path: Path) -> None:
    path = tw.compile(small_net()).save(tmp_path / "m.tw")
    feed = feed_for(small_net())
    tw.open(path).run(None, feed)
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        tw.open(path).run(None, feed)
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before
