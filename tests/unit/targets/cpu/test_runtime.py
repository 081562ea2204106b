"""The worker pool and the executor: no chunk lost or repeated, under any number of threads and callers."""

from __future__ import annotations

import ctypes
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from tilewright.errors import InternalError, UsageError
from tilewright.targets.cpu import pool, pool_ir, runtime
from tilewright.targets.cpu.codegen import compile_object
from tilewright.targets.cpu.isa import host_isa
from tilewright.targets.cpu.runtime import ArgRef, Executor, HostCall, Launch, Stage, build_main, link_main

# counts[chunk] += 1, atomically: a chunk that two threads run at the same instant still counts twice.
COUNT = """
define void @count(ptr %args, i64 %chunk, ptr %scratch) {
  %counts = load ptr, ptr %args
  %at = getelementptr i64, ptr %counts, i64 %chunk
  %old = atomicrmw add ptr %at, i64 1 monotonic
  ret void
}
"""

# out[chunk] = 2 * in[chunk] + 1
AFFINE = """
define void @affine(ptr %args, i64 %chunk, ptr %scratch) {
  %in = load ptr, ptr %args
  %second = getelementptr ptr, ptr %args, i64 1
  %out = load ptr, ptr %second
  %from = getelementptr i64, ptr %in, i64 %chunk
  %to = getelementptr i64, ptr %out, i64 %chunk
  %value = load i64, ptr %from
  %double = shl i64 %value, 1
  %result = add i64 %double, 1
  store i64 %result, ptr %to
  ret void
}
"""

# Writes the chunk's number all over its scratch, waits a little, and reports whether anybody interfered.
OWN_SCRATCH = """
define void @own_scratch(ptr %args, i64 %chunk, ptr %scratch) {
entry:
  %report = load ptr, ptr %args
  br label %fill
fill:
  %i = phi i64 [0, %entry], [%i1, %fill]
  %at = getelementptr i64, ptr %scratch, i64 %i
  store volatile i64 %chunk, ptr %at
  %i1 = add i64 %i, 1
  %more = icmp ult i64 %i1, 512
  br i1 %more, label %fill, label %look
look:
  %j = phi i64 [0, %fill], [%j1, %look]
  %same = phi i64 [1, %fill], [%same1, %look]
  %from = getelementptr i64, ptr %scratch, i64 %j
  %seen = load volatile i64, ptr %from
  %equal = icmp eq i64 %seen, %chunk
  %equal64 = zext i1 %equal to i64
  %same1 = and i64 %same, %equal64
  %j1 = add i64 %j, 1
  %more2 = icmp ult i64 %j1, 512
  br i1 %more2, label %look, label %done
done:
  %address = ptrtoint ptr %scratch to i64
  %low = and i64 %address, 63
  %aligned = icmp eq i64 %low, 0
  %aligned64 = zext i1 %aligned to i64
  %good = and i64 %aligned64, %same1
  %to = getelementptr i64, ptr %report, i64 %chunk
  store i64 %good, ptr %to
  ret void
}
"""

# Spins through `args[1]` (a pointer to the number) loop iterations.
BUSY = """
define void @busy(ptr %args, i64 %chunk, ptr %scratch) {
entry:
  %number_at = load ptr, ptr %args
  %number = load i64, ptr %number_at
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%i1, %loop]
  %i1 = add i64 %i, 1
  store volatile i64 %i1, ptr %scratch
  %more = icmp ult i64 %i1, %number
  br i1 %more, label %loop, label %exit
exit:
  ret void
}
"""

KERNELS = {"count": COUNT, "affine": AFFINE, "own_scratch": OWN_SCRATCH, "busy": BUSY}
SOURCE = Path(__file__).parents[4] / "src"


def executor(
    steps: Sequence[runtime.Step],
    num_threads: int,
    *,
    profile: bool = False,
    arena_bytes: int = 0,
    scratch_bytes: int = 0,
    callbacks: Sequence[runtime.HostCallback] = (),
    max_contexts: int | None = None,
) -> Executor:
    isa = host_isa()
    main = build_main(steps, isa, profile=profile)
    objects = [compile_object(KERNELS[symbol], isa) for symbol in main.kernel_symbols]
    return Executor(
        main,
        link_main(main, objects, isa),
        num_threads=num_threads,
        arena_bytes=arena_bytes,
        scratch_bytes=scratch_bytes,
        callbacks=callbacks,
        max_contexts=max_contexts,
    )


@pytest.mark.parametrize("num_threads", range(1, 9))
def test_every_chunk_of_every_region_runs_once(num_threads: int) -> None:
    rng = random.Random(num_threads)
    num_regions, widest = 2500, 40
    chunks = [rng.choice((1, 2, 3, rng.randint(1, widest))) for _ in range(num_regions)]
    steps = [Launch("count", n, (ArgRef(1, 8 * widest * i),)) for i, n in enumerate(chunks)]
    counts = np.zeros((num_regions, widest), np.int64)
    runs = 2
    run = executor(steps, num_threads)
    for _ in range(runs):
        run.run([counts.ctypes.data])
    expected = runs * (np.arange(widest) < np.array(chunks)[:, None])
    np.testing.assert_array_equal(counts, expected)


def test_the_largest_region_runs_every_chunk_once() -> None:
    counts = np.zeros(pool_ir.MAX_CHUNKS, np.int64)
    executor([Launch("count", pool_ir.MAX_CHUNKS, (ArgRef(1),))], 3).run([counts.ctypes.data])
    assert (counts == 1).all()


@pytest.mark.parametrize("num_chunks", [0, pool_ir.MAX_CHUNKS + 1])
def test_a_region_of_impossible_size_is_refused(num_chunks: int) -> None:
    with pytest.raises(InternalError, match=f"count: {num_chunks} chunks"):
        Launch("count", num_chunks, ())


@pytest.mark.parametrize("num_threads", [1, 2, 4])
def test_each_region_sees_what_the_region_before_wrote(num_threads: int) -> None:
    """x -> 2 x + 1, applied n times from 0, is 2^n - 1: one region that starts early breaks the chain."""
    num_regions, width = 60, 7
    steps = [
        Launch("affine", width, (ArgRef(0, 64 * (i % 2)), ArgRef(0, 64 * ((i + 1) % 2))))
        for i in range(num_regions)
    ]
    steps += [Launch("affine", width, (ArgRef(0, 64 * (num_regions % 2)), ArgRef(1)))]
    steps.insert(0, Launch("affine", width, (ArgRef(2), ArgRef(0))))
    run = executor(steps, num_threads, arena_bytes=128)
    start, out = np.zeros(width, np.int64), np.zeros(width, np.int64)
    for _ in range(50):
        out[:] = -1
        run.run([out.ctypes.data, start.ctypes.data])
        assert out.tolist() == [2 ** (num_regions + 2) - 1] * width


def test_a_stage_runs_the_chunks_of_all_its_launches() -> None:
    sizes = (3, 1, 5)
    counts = np.zeros((3, 8), np.int64)
    stage = Stage(tuple(Launch("count", n, (ArgRef(1, 64 * i),)) for i, n in enumerate(sizes)))
    run = executor([stage, stage], 3)
    run.run([counts.ctypes.data])
    np.testing.assert_array_equal(counts, 2 * (np.arange(8) < np.array(sizes)[:, None]))


def test_inline_launches_stay_on_the_calling_thread() -> None:
    """All chunks of an inline launch see one scratch; with two threads a shared region may see two."""
    report = np.zeros(64, np.int64)
    run = executor([Launch("own_scratch", 64, (ArgRef(1),), inline=True)], 2, scratch_bytes=4096)
    text = run.main.ir_text
    assert "ptr null, ptr @own_scratch" in text
    run.run([report.ctypes.data])
    assert report.all()


@pytest.mark.parametrize("num_threads", [2, 5])
def test_scratch_is_aligned_and_private_to_a_thread(num_threads: int) -> None:
    report = np.zeros(300, np.int64)
    run = executor([Launch("own_scratch", 300, (ArgRef(1),))], num_threads, scratch_bytes=4096)
    for _ in range(20):
        report[:] = 0
        run.run([report.ctypes.data])
        assert report.all()


def test_equal_argument_lists_share_a_block_and_new_bases_are_followed() -> None:
    main = build_main([Launch("affine", 4, (ArgRef(1), ArgRef(2, 8)))] * 3, host_isa())
    assert main.arg_table == (ArgRef(1), ArgRef(2, 8))
    run = executor([Launch("affine", 4, (ArgRef(1), ArgRef(2, 8)))], 2)
    for seed in range(3):
        x, y = np.arange(seed, seed + 4), np.zeros(5, np.int64)
        run.run([x.ctypes.data, y.ctypes.data])
        assert y.tolist() == [0, *(2 * x + 1)]


def test_too_few_bases_are_refused() -> None:
    run = executor([Launch("affine", 4, (ArgRef(1), ArgRef(2)))], 1)
    with pytest.raises(InternalError, match="needs 2 base addresses, 1 were given"):
        run.run([0])


def test_equal_mains_have_equal_texts_and_different_ones_different_names() -> None:
    isa = host_isa()
    one = build_main([Launch("count", 4, (ArgRef(1),))], isa)
    same = build_main([Launch("count", 4, (ArgRef(1),))], isa)
    other = build_main([Launch("count", 5, (ArgRef(1),))], isa)
    assert one == same
    assert one.symbols != other.symbols


def test_host_calls_run_between_segments_in_order() -> None:
    seen: list[int] = []
    x, y = np.arange(4), np.zeros(4, np.int64)

    def add_hundred(bases: Sequence[int]) -> None:
        values = np.ctypeslib.as_array((ctypes.c_int64 * 4).from_address(bases[0]))
        seen.append(int(values[3]))
        values += 100

    steps: list[runtime.Step] = [
        Launch("affine", 4, (ArgRef(1), ArgRef(0))),
        HostCall(0),
        Launch("affine", 4, (ArgRef(0), ArgRef(2))),
    ]
    run = executor(steps, 2, arena_bytes=64, callbacks=[add_hundred])
    run.run([x.ctypes.data, y.ctypes.data])
    assert seen == [2 * 3 + 1]
    assert y.tolist() == [2 * (2 * value + 1 + 100) + 1 for value in range(4)]


def test_an_exception_of_a_host_call_reaches_the_caller_and_leaves_the_executor_usable() -> None:
    fail = True

    def maybe(bases: Sequence[int]) -> None:
        if fail:
            raise ValueError("from the callback")

    counts = np.zeros(4, np.int64)
    run = executor([Launch("count", 4, (ArgRef(1),)), HostCall(0)], 2, callbacks=[maybe], max_contexts=1)
    for _ in range(3):
        with pytest.raises(ValueError, match="from the callback"):
            run.run([counts.ctypes.data])
    fail = False
    run.run([counts.ctypes.data])
    assert counts.tolist() == [4] * 4


def test_missing_callbacks_are_refused() -> None:
    with pytest.raises(InternalError, match="calls 1 host functions, 0 were given"):
        executor([HostCall(0)], 1)


def test_a_host_call_may_run_another_executor_of_the_same_pool() -> None:
    counts = np.zeros((2, 8), np.int64)
    inner = executor([Launch("count", 8, (ArgRef(1),))], 2)

    def nested(bases: Sequence[int]) -> None:
        inner.run([counts[1].ctypes.data])

    steps: list[runtime.Step] = [HostCall(0), Launch("count", 8, (ArgRef(1),))]
    executor(steps, 2, callbacks=[nested]).run([counts.ctypes.data])
    assert (counts == 1).all()


def in_threads(number: int, action: Callable[[int], None], timeout_s: float = 60) -> None:
    failures: list[BaseException] = []

    def guarded(index: int) -> None:
        try:
            action(index)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(index,)) for index in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout_s)
    assert not any(thread.is_alive() for thread in threads)
    assert not failures


@pytest.mark.parametrize("num_threads", [1, 2, 4])
def test_thirty_two_callers_of_one_executor_each_get_their_own_result(num_threads: int) -> None:
    width = 16
    steps = [
        Launch("affine", width, (ArgRef(1), ArgRef(0))),
        Launch("affine", width, (ArgRef(0), ArgRef(0, 8 * width))),
        Launch("affine", width, (ArgRef(0, 8 * width), ArgRef(2))),
    ]
    run = executor(steps, num_threads, arena_bytes=16 * width, scratch_bytes=256)

    def caller(index: int) -> None:
        x, y = np.arange(width) + 1000 * index, np.zeros(width, np.int64)
        for _ in range(200):
            y[:] = 0
            run.run([x.ctypes.data, y.ctypes.data])
            np.testing.assert_array_equal(y, 8 * x + 7)

    in_threads(32, caller)


@pytest.mark.slow
def test_thirty_two_callers_run_ten_thousand_times_each() -> None:
    width = 64
    steps = [
        Launch("affine", width, (ArgRef(1), ArgRef(0))),
        Launch("affine", width, (ArgRef(0), ArgRef(2))),
    ]
    run = executor(steps, 2, arena_bytes=8 * width)

    def caller(index: int) -> None:
        x, y = np.arange(width) + 1000 * index, np.zeros(width, np.int64)
        expected = 4 * x + 3
        for _ in range(10_000):
            y[:] = 0
            run.run([x.ctypes.data, y.ctypes.data])
            assert (y == expected).all()

    in_threads(32, caller, timeout_s=600)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads Linux's memory counters")
def test_runs_leave_no_memory_behind() -> None:
    counts = np.zeros(16, np.int64)
    run = executor([Launch("count", 16, (ArgRef(1),))] * 3, 2, arena_bytes=4096, scratch_bytes=4096)
    bases = [counts.ctypes.data]

    def resident_bytes(number: int) -> int:
        for _ in range(number):
            run.run(bases)
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    before = resident_bytes(1000)
    assert resident_bytes(20_000) - before < 1 << 19


def test_contexts_are_bounded_and_reused_last_first() -> None:
    number = np.array([200_000])
    run = executor([Launch("busy", 2, (ArgRef(1),))], 1, max_contexts=3)
    alive: list[int] = []

    def caller(index: int) -> None:
        run.run([number.ctypes.data])
        alive.append(len(run._contexts))

    in_threads(12, caller)
    assert max(alive) <= 3
    with run.context() as first:
        pass
    with run.context() as second:
        assert second is first


def test_profiled_runs_time_every_generated_step() -> None:
    short, long = np.array([100]), np.array([400_000])
    steps: list[runtime.Step] = [
        Launch("busy", 1, (ArgRef(1),)),
        HostCall(0),
        Launch("busy", 1, (ArgRef(2),)),
    ]
    run = executor(steps, 2, profile=True, callbacks=[lambda bases: None])
    start = time.perf_counter_ns()
    times = run.run_profiled([short.ctypes.data, long.ctypes.data])
    elapsed_ns = time.perf_counter_ns() - start
    assert [step.step_index for step in times] == [0, 2]
    assert 0 < times[0].duration_ns < times[1].duration_ns
    assert times[1].duration_ns < elapsed_ns
    with pytest.raises(UsageError, match="profile=True"):
        executor([Launch("busy", 1, (ArgRef(1),))], 1).run_profiled([short.ctypes.data])


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
    monkeypatch.setattr(runtime, "shared_pool", lambda num_threads: workers)
    monkeypatch.setattr(runtime, "runtime_code", lambda cache=None: portable)
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
        patch.setattr(runtime, "shared_pool", lambda num_threads: workers)
        run._run_in(context, (counts.ctypes.data,))
    assert counts.tolist() == [2000] * 6


def test_idle_workers_use_no_processor_time(fresh_pools: list[pool.WorkerPool]) -> None:
    workers = pool.WorkerPool(4, idle_spin_ns=1_000_000)
    fresh_pools.append(workers)
    counts = np.zeros(8, np.int64)
    run = executor([Launch("count", 8, (ArgRef(1),))], 2)
    with run.context() as context, pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime, "shared_pool", lambda num_threads: workers)
        run._run_in(context, (counts.ctypes.data,))
    time.sleep(0.2)  # three spins of 1 ms, with room for a loaded machine
    threads = [f"/proc/self/task/{thread.native_id}/schedstat" for thread in workers._threads]
    before = [int(Path(path).read_text().split()[0]) for path in threads]
    time.sleep(0.2)
    after = [int(Path(path).read_text().split()[0]) for path in threads]
    assert after == before


def test_stopping_a_pool_ends_its_threads_and_leaves_runs_correct() -> None:
    workers = pool.WorkerPool(4)
    assert workers.stop()
    counts = np.zeros(8, np.int64)
    run = executor([Launch("count", 8, (ArgRef(1),))] * 5, 2)
    with run.context() as context, pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime, "shared_pool", lambda num_threads: workers)
        run._run_in(context, (counts.ctypes.data,))
    assert counts.tolist() == [5] * 8


@pytest.mark.parametrize("number", [0, -1, pool.MAX_THREADS + 1])
def test_impossible_thread_counts_are_refused(number: int) -> None:
    with pytest.raises(UsageError, match="give a number from 1"):
        pool.resolve_threads(number)


def test_executors_of_equal_width_share_one_pool() -> None:
    assert pool.shared_pool(2) is pool.shared_pool(2)
    assert pool.shared_pool(1) is None


PRELUDE = """
import os, signal, sys, threading, time
sys.path.insert(0, {tests!r})
import numpy as np
from test_runtime import ArgRef, HostCall, Launch, executor
counts = np.zeros(64, np.int64)
run = executor([Launch("count", 64, (ArgRef(1),))] * 20, 3, max_contexts=2)
run.run([counts.ctypes.data])
"""


def script(body: str) -> subprocess.CompletedProcess[str]:
    text = PRELUDE.format(tests=str(Path(__file__).parent)) + body
    return subprocess.run(
        [sys.executable, "-c", text],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PYTHONPATH": str(SOURCE), "PATH": ""},
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
