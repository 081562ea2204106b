"""Generated mains and their executor: order, bases, contexts, host calls, profiles, many callers."""

# mypy: disable-error-code="name-defined"

from __future__ import annotations

import contextlib
import ctypes
import itertools
import random
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tests.support.pool_kernels import executor, in_threads

from tilewright.errors import InternalError, UsageError
from tilewright.targets.cpu.isa import host_isa
from tilewright.targets.cpu.runtime import executor as runtime
from tilewright.targets.cpu.runtime import pool_ir
from tilewright.targets.cpu.runtime.main_code import (
    ArgRef,
    HostCall,
    Launch,
    LaunchGroup,
    Stage,
    build_main,
)


@pytest.mark.sampled(1)
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


@pytest.mark.parametrize("num_threads", [2, 4])
def test_a_run_returns_only_after_the_slowest_chunk(num_threads: int) -> None:
    counts, number = np.zeros(num_threads, np.int64), np.array([60_000])
    run = executor([Launch("late", num_threads, (ArgRef(1), ArgRef(2)))], num_threads)
    for finished in range(1, 101):
        run.run([counts.ctypes.data, number.ctypes.data])
        assert counts.tolist() == [finished] * num_threads


def test_a_stage_runs_the_chunks_of_all_its_launches() -> None:
    sizes = (3, 1, 5)
    counts = np.zeros((3, 8), np.int64)
    stage = Stage(
        tuple(LaunchGroup((Launch("count", n, (ArgRef(1, 64 * i),)),)) for i, n in enumerate(sizes))
    )
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
    """Chunks longer than it takes to switch threads, so that every thread is interrupted inside one."""
    report = np.zeros(1500, np.int64)
    run = executor([Launch("own_scratch", 1500, (ArgRef(1),))], num_threads, scratch_bytes=4096)
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


@pytest.mark.sampled(1)
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


@pytest.mark.parametrize(
    ("num_threads", "numbers"), [(2, [0, 1, 0, 1]), (1, [0, 1, 2, 3]), (4, [0, 0, 0, 0])]
)
def test_runs_at_the_same_time_have_as_many_pools_as_there_are_cores_for(
    num_threads: int, numbers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "affinity_cores", lambda: 4)
    counts = np.zeros((4, 8), np.int64)
    run = executor([Launch("count", 8, (ArgRef(1),))], num_threads)
    with contextlib.ExitStack() as stack:
        contexts = [stack.enter_context(run.context()) for _ in range(run.max_contexts)]
        assert [context.pool_number for context in contexts] == numbers
    pools = [run._pool(context.pool_number) for context in contexts]
    assert len({id(pool) for pool in pools}) == (len(set(numbers)) if num_threads > 1 else 1)
    in_threads(4, lambda index: run.run([counts[index].ctypes.data]))
    assert (counts == 1).all()


def test_profiled_runs_time_every_step() -> None:
    short, long = np.array([100]), np.array([400_000])
    steps: list[runtime.Step] = [
        Launch("busy", 1, (ArgRef(1),)),
        HostCall(0),
        Launch("busy", 1, (ArgRef(2),)),
    ]
    run = executor(steps, 2, profile=True, callbacks=[lambda bases: time.sleep(0.002)])
    shortest, longest = [], []
    for _ in range(5):  # another program may take the core while one of them runs
        start = time.perf_counter_ns()
        times = run.run_profiled([short.ctypes.data, long.ctypes.data])
        elapsed_ns = time.perf_counter_ns() - start
        assert [step.step_index for step in times] == [0, 1, 2]
        assert times[0].start_ns == 0
        for step, following in itertools.pairwise(times):
            assert following.start_ns >= step.start_ns + step.duration_ns - 1e-3  # rounding
        assert times[1].duration_ns >= 2e6
        assert times[2].duration_ns < elapsed_ns
        shortest.append(times[0].duration_ns)
        longest.append(times[2].duration_ns)
    assert 0 < min(shortest) < min(longest)
    with pytest.raises(UsageError, match="profile=True"):
        executor([Launch("busy", 1, (ArgRef(1),))], 1).run_profiled([short.ctypes.data])
