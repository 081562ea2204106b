"""The worker pool: sleep and wake, systems without futex or threads, fork, exit, interrupts."""

# mypy: disable-error-code="var-annotated"

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.support.pool_kernels import executor, in_threads

from tilewright.targets.cpu.isa import isa_by_name
from tilewright.targets.cpu.runtime import executor as runtime
from tilewright.targets.cpu.runtime import main_code, pool, pool_ir
from tilewright.targets.cpu.runtime.main_code import ArgRef, Launch
from tilewright.targets.llvm.codegen import emit_assembly

ROOT = Path(__file__).parents[4]


@pytest.fixture
def fresh_pools(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[pool.WorkerPool]]:
    """Pools made in a test, stopped at its end."""
    made: list[pool.WorkerPool] = []
    yield made
    for item in made:
        assert item.stop()


def test_a_pool_without_futex_blocks_in_python_and_still_runs_every_chunk(
    fresh_pools: list[pool.WorkerPool], monkeypatch: pytest.MonkeyPatch
) -> None:
    portable = pool.runtime_code(use_futex=False)
    workers = pool.WorkerPool(3, idle_spin_ns=20_000, runtime=portable)
    fresh_pools.append(workers)
    monkeypatch.setattr(runtime, "shared_pool", lambda num_threads, number=0: workers)
    # Callers run the same code as workers: one that sleeps in a futex is not woken by workers without.
    for module in (runtime, main_code):
        monkeypatch.setattr(module, "runtime_code", lambda cache=None, compiled=None: portable)
    counts = np.zeros((40, 16), np.int64)
    run = executor([Launch("count", 16, (ArgRef(1, 128 * i),)) for i in range(40)], 3)
    for round_number in range(30):
        run.run([counts.ctypes.data])
        if round_number % 3 == 0:
            deadline = time.monotonic() + 5
            while len(workers.asleep_in_python) < 2 and time.monotonic() < deadline:
                time.sleep(0.001)
            assert len(workers.asleep_in_python) == 2
    assert (counts == 30).all()


def test_workers_that_sleep_after_every_region_never_miss_one(fresh_pools: list[pool.WorkerPool]) -> None:
    """No spinning at all: each region races its workers' way into and out of the futex."""
    workers = pool.WorkerPool(3, idle_spin_ns=1)
    ctypes.c_int64.from_address(workers.address + pool_ir.WAIT_LIMIT).value = 0  # the caller sleeps at once
    fresh_pools.append(workers)
    counts = np.zeros(6, np.int64)
    run = executor([Launch("count", 6, (ArgRef(1),))] * 2000, 2)
    with run.context() as context, pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime, "shared_pool", lambda num_threads, number=0: workers)
        run._run_in(context, (counts.ctypes.data,))
    assert counts.tolist() == [2000] * 6


def test_a_sleeping_caller_is_woken_by_the_last_worker(fresh_pools: list[pool.WorkerPool]) -> None:
    """The caller runs dry at once and sleeps, while workers are inside chunks of 0.1 ms."""
    workers = pool.WorkerPool(3)
    ctypes.c_int64.from_address(workers.address + pool_ir.WAIT_LIMIT).value = 0
    counts, number = np.zeros(3, np.int64), np.array([200_000])
    run = executor([Launch("late", 3, (ArgRef(1), ArgRef(2)))] * 100, 2)

    def call(index: int) -> None:
        with run.context() as context:
            run._run_in(context, (counts.ctypes.data, number.ctypes.data))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime, "shared_pool", lambda num_threads, number=0: workers)
        in_threads(1, call, timeout_s=30)
    fresh_pools.append(workers)
    assert counts.tolist() == [100] * 3


@pytest.mark.parametrize("num_chunks", [16, 9])
def test_two_threads_go_through_their_halves_forwards(
    num_chunks: int, fresh_pools: list[pool.WorkerPool]
) -> None:
    """From where they began: one takes the lower half, one the upper, and then what the other has left."""
    workers = pool.WorkerPool(2)
    fresh_pools.append(workers)
    run = executor([Launch("order", num_chunks, (ArgRef(1), ArgRef(2), ArgRef(3)))], 2, scratch_bytes=4096)
    counter = np.zeros(1, np.int64)
    order, owner = np.zeros(num_chunks, np.int64), np.zeros(num_chunks, np.int64)
    lower = num_chunks - num_chunks // 2
    with run.context() as context, pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime, "shared_pool", lambda num_threads, number=0: workers)
        for _ in range(1000):
            run._run_in(context, (counter.ctypes.data, order.ctypes.data, owner.ctypes.data))
            by_thread = [
                [int(chunk) for chunk in np.argsort(order) if owner[chunk] == one] for one in np.unique(owner)
            ]
            for chunks in by_thread:
                below, above = ([c for c in chunks if (c < lower) is side] for side in (True, False))
                forwards = below if chunks[0] == 0 else above
                backwards = above if chunks[0] == 0 else below
                assert forwards == sorted(forwards)
                assert backwards == sorted(backwards, reverse=True)
            if len(by_thread) == 2 and min(map(len, by_thread)) > 2:
                return
    pytest.skip("no second thread came in time")


def test_idle_workers_use_no_processor_time(fresh_pools: list[pool.WorkerPool]) -> None:
    workers = pool.WorkerPool(4, idle_spin_ns=1_000_000)
    fresh_pools.append(workers)
    counts = np.zeros(8, np.int64)
    run = executor([Launch("count", 8, (ArgRef(1),))], 2)
    with run.context() as context, pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime, "shared_pool", lambda num_threads, number=0: workers)
        run._run_in(context, (counts.ctypes.data,))
    time.sleep(0.2)  # three spins of 1 ms, with room for a loaded machine
    threads = [f"/proc/self/task/{thread.native_id}/schedstat" for thread in workers._threads]
    before = [int(Path(path).read_text().split()[0]) for path in threads]
    time.sleep(0.2)
    after = [int(Path(path).read_text().split()[0]) for path in threads]
    assert after == before


def test_a_system_that_starts_no_more_threads_gives_a_smaller_pool(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fresh_pools: list[pool.WorkerPool]
) -> None:
    start, started = threading.Thread.start, []

    def limited(thread: threading.Thread) -> None:
        if len(started) == 1:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", limited)
        workers = pool.WorkerPool(5)
    fresh_pools.append(workers)
    assert [record.getMessage() for record in caplog.records] == [
        "running on 2 of 5 threads: can't start new thread"
    ]
    counts = np.zeros(8, np.int64)
    run = executor([Launch("count", 8, (ArgRef(1),))] * 5, 2)
    with run.context() as context:
        monkeypatch.setattr(runtime, "shared_pool", lambda num_threads, number=0: workers)
        run._run_in(context, (counts.ctypes.data,))
    assert counts.tolist() == [5] * 8


@pytest.mark.parametrize(
    ("triple", "use_futex"),
    [
        ("aarch64-unknown-linux-gnu", True),
        ("riscv64-unknown-linux-gnu", True),
        ("x86_64-unknown-linux-gnu", False),
        ("arm64-apple-macosx14.0.0", False),
        ("x86_64-pc-windows-msvc", False),
    ],
)
def test_the_pool_compiles_for_every_system(triple: str, use_futex: bool) -> None:
    isa = replace(isa_by_name("neon"), triple=triple, cpu="", features="")
    assert pool_ir.has_futex(triple) or not use_futex
    assembly = emit_assembly(pool_ir.pool_ir(triple, use_futex=use_futex), isa)
    assert all(f"{name}:" in assembly for name in pool_ir.EXPORTS)
    assert ("syscall" in assembly) == use_futex


def test_stopping_a_pool_ends_its_threads_and_leaves_runs_correct() -> None:
    workers = pool.WorkerPool(4)
    assert workers.stop()
    counts = np.zeros(8, np.int64)
    run = executor([Launch("count", 8, (ArgRef(1),))] * 5, 2)
    with run.context() as context, pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime, "shared_pool", lambda num_threads, number=0: workers)
        run._run_in(context, (counts.ctypes.data,))
    assert counts.tolist() == [5] * 8


def test_executors_of_equal_width_share_one_pool() -> None:
    assert pool.shared_pool(2) is pool.shared_pool(2)
    assert pool.shared_pool(1) is None


PRELUDE = """
import os, signal, sys, threading, time
import numpy as np
from tests.support.pool_kernels import executor
from tilewright.targets.cpu.runtime.main_code import ArgRef, Launch
counts = np.zeros(64, np.int64)
run = executor([Launch("count", 64, (ArgRef(1),))] * 20, 3, max_contexts=2)
run.run([counts.ctypes.data])
"""


def script(body: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PRELUDE + body],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}", "PATH": ""},
    )


def test_a_forked_child_makes_its_own_pool_even_while_other_threads_run() -> None:
    done = script("""
stop = False
def load():
    mine = np.zeros(64, np.int64)
    while not stop:
        run.run([mine.ctypes.data])
loaders = [threading.Thread(target=load) for _ in range(3)]
for t in loaders: t.start()
codes = []
for _ in range(10):
    pid = os.fork()
    if pid == 0:
        mine = np.zeros(64, np.int64)
        for _ in range(20): run.run([mine.ctypes.data])
        os._exit(0 if (mine == 400).all() else 7)
    codes.append(os.waitpid(pid, 0)[1])
stop = True
for t in loaders: t.join()
print(codes)
""")
    assert (done.stdout.strip(), done.returncode) == (str([0] * 10), 0), done.stderr


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="only Linux says what memory is")
@pytest.mark.parametrize("size_bytes", [100, 3 << 20])
def test_memory_is_the_process_own_and_large_buffers_may_have_huge_pages(size_bytes: int) -> None:
    """Shared anonymous memory is what forked children write too, and has no huge pages by default."""
    buffer = pool.AlignedBuffer(size_bytes)
    area, found = "", ""
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split()[0]
        if "-" in first and not first.endswith(":"):
            low, high = (int(end, 16) for end in first.split("-"))
            area = line if low <= buffer.address < high else ""
        elif area and first == "VmFlags:":
            found = f"{area} {line}"
    assert " rw-p " in found
    assert (" hg" in found) == (size_bytes > 2 << 20)


@pytest.mark.sampled(0)
def test_a_process_exits_cleanly_while_a_daemon_thread_is_inside_a_run() -> None:
    done = script("""
number = np.array([30_000_000_000])
long = executor([Launch("busy", 6, (ArgRef(1),))], 3)
threading.Thread(target=long.run, args=([number.ctypes.data],), daemon=True).start()
time.sleep(0.1)
print("leaving", flush=True)
""")
    assert (done.stdout.strip(), done.returncode, done.stderr) == ("leaving", 0, "")


def test_an_interrupt_takes_effect_after_the_run_and_loses_no_context() -> None:
    done = script("""
number = np.array([60_000_000])
long = executor([Launch("busy", 4, (ArgRef(1),))] * 3, 2, max_contexts=1)
threading.Timer(0.02, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    while True: long.run([number.ctypes.data])
except KeyboardInterrupt:
    print("interrupted")
number[0] = 1
for _ in range(3): long.run([number.ctypes.data])
print("usable")
""")
    assert (done.stdout.split(), done.returncode) == (["interrupted", "usable"], 0), done.stderr
