"""Stages of generated mains: groups progress independently, in order, on no more threads than they may."""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from tests.support.pool_kernels import executor, in_threads

from tilewright.errors import InternalError
from tilewright.targets.cpu.isa import host_isa
from tilewright.targets.cpu.runtime import executor as runtime
from tilewright.targets.cpu.runtime import main_code, pool, pool_ir
from tilewright.targets.cpu.runtime.main_code import (
    ARENA_BASE,
    ArgRef,
    Launch,
    LaunchGroup,
    Stage,
    build_main,
)

WIDTH = 24


@dataclass(frozen=True)
class Chains:
    """Groups of x -> 2 x + 1 on memory of their own: n launches from 0 give 2^n - 1, whatever runs beside."""

    stage: Stage
    num_launches: tuple[int, ...]

    def expected(self, num_stages: int) -> list[int]:
        return [2 ** (n * num_stages) - 1 for n in self.num_launches]

    @property
    def arena_bytes(self) -> int:
        return 8 * WIDTH * len(self.num_launches)


def chains(rng: random.Random, num_groups: int, longest: int) -> Chains:
    """The first element of a group passes through all of its launches, the others through some."""
    groups, lengths = [], []
    for number in range(num_groups):
        at = ArgRef(ARENA_BASE, 8 * WIDTH * number)
        length = rng.randint(1, longest)
        widths = [rng.choice((1, 1, 2, 3, WIDTH)) for _ in range(length)]
        launches = tuple(Launch("affine", width, (at, at)) for width in widths)
        groups.append(LaunchGroup(launches, rng.choice((None, None, 1, 2))))
        lengths.append(length)
    return Chains(Stage(tuple(groups)), tuple(lengths))


def run_and_read(chain: Chains, num_stages: int, num_threads: int, num_runs: int = 1) -> list[int]:
    """The first element of each group after so many equal stages, from an arena of zeros."""
    run = executor([chain.stage] * num_stages, num_threads, arena_bytes=chain.arena_bytes)
    firsts: list[int] = []
    for _ in range(num_runs):
        with run.context() as context:
            ctypes.memset(context.arena.address, 0, chain.arena_bytes)
            run._run_in(context, ())
            arena = (ctypes.c_int64 * (chain.arena_bytes // 8)).from_address(context.arena.address)
            firsts = arena[::WIDTH]
        assert firsts == chain.expected(num_stages)
    return firsts


@pytest.mark.sampled(1)
@pytest.mark.parametrize("num_threads", range(1, 9))
def test_every_launch_of_a_group_begins_when_the_one_before_has_ended(num_threads: int) -> None:
    rng = random.Random(num_threads)
    for _ in range(6):
        run_and_read(chains(rng, rng.randint(1, 7), 9), 5, num_threads, num_runs=40)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("num_threads", range(1, 9))
def test_every_chunk_of_every_group_runs_once(num_threads: int) -> None:
    rng = random.Random(100 + num_threads)
    num_stages, widest = 400, 30
    stages: list[Stage] = []
    chunks: list[int] = []
    for _ in range(num_stages):
        groups: list[LaunchGroup] = []
        for _ in range(rng.randint(1, 5)):
            launches: list[Launch] = []
            for _ in range(rng.randint(1, 4)):
                launches.append(
                    Launch("count", rng.randint(1, widest), (ArgRef(1, 8 * widest * len(chunks)),))
                )
                chunks.append(launches[-1].num_chunks)
            groups.append(LaunchGroup(tuple(launches), rng.choice((None, 1, 3))))
        stages.append(Stage(tuple(groups)))
    counts = np.zeros((len(chunks), widest), np.int64)
    run = executor(stages, num_threads)
    for _ in range(3):
        run.run([counts.ctypes.data])
    np.testing.assert_array_equal(counts, 3 * (np.arange(widest) < np.array(chunks)[:, None]))


def test_a_group_does_not_wait_for_the_kernels_of_another() -> None:
    """The first group's only kernel ends when the second group's second kernel has run."""
    flags, reports = np.zeros(64, np.int64), np.zeros(1, np.int64)
    waits = LaunchGroup((Launch("await", 1, (ArgRef(1, 8), ArgRef(2))),))
    tells = LaunchGroup((Launch("count", 4, (ArgRef(1, 256),)), Launch("count", 1, (ArgRef(1, 8),))))
    executor([Stage((waits, tells))], 2).run([flags.ctypes.data, reports.ctypes.data])
    assert reports.tolist() == [1]


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_no_more_threads_work_on_a_group_than_it_may_have(limit: int) -> None:
    inside = np.zeros((3, 2), np.int64)
    groups = [
        LaunchGroup(tuple(Launch("inside", n, (ArgRef(1, 16 * i),)) for n in (16, 1, 9, 16)), limit)
        for i in range(3)
    ]
    run = executor([Stage(tuple(groups))] * 10, 6)
    for _ in range(10):
        run.run([inside.ctypes.data])
    assert (inside[:, 0] == 0).all()
    assert (inside[:, 1] <= limit).all()


def test_a_kernel_alone_may_have_a_limit_too() -> None:
    inside = np.zeros(2, np.int64)
    run = executor([Stage((LaunchGroup((Launch("inside", 64, (ArgRef(1),)),), 1),))] * 10, 4)
    run.run([inside.ctypes.data])
    assert inside.tolist() == [0, 1]


@pytest.fixture
def sleepy_pool() -> Iterator[pool.WorkerPool]:
    """Three threads that never spin: all waiting is a race for the way into and out of the futex."""
    workers = pool.WorkerPool(3, idle_spin_ns=1)
    ctypes.c_int64.from_address(workers.address + pool_ir.WAIT_LIMIT).value = 0
    ctypes.c_int64.from_address(workers.address + pool_ir.SPIN_LIMIT).value = 0
    yield workers
    assert workers.stop()


def test_threads_that_sleep_whenever_they_wait_miss_nothing(
    sleepy_pool: pool.WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "shared_pool", lambda num_threads, number=0: sleepy_pool)
    rng = random.Random(7)
    steps = [chains(rng, 4, 6) for _ in range(3)]
    in_threads(1, lambda _: [run_and_read(chain, 6, 2, num_runs=150) for chain in steps], timeout_s=60)


def test_without_futex_stages_run_too(monkeypatch: pytest.MonkeyPatch) -> None:
    portable = pool.runtime_code(use_futex=False)
    workers = pool.WorkerPool(3, idle_spin_ns=20_000, runtime=portable)
    monkeypatch.setattr(runtime, "shared_pool", lambda num_threads, number=0: workers)
    # Callers run the same code as workers: one that sleeps in a futex is not woken by workers without.
    for module in (runtime, main_code):
        monkeypatch.setattr(module, "runtime_code", lambda cache=None, compiled=None: portable)
    try:
        run_and_read(chains(random.Random(3), 5, 6), 6, 3, num_runs=50)
    finally:
        assert workers.stop()


def test_a_stopped_pool_leaves_all_of_a_stage_to_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = pool.WorkerPool(4)
    assert workers.stop()
    monkeypatch.setattr(runtime, "shared_pool", lambda num_threads, number=0: workers)
    run_and_read(chains(random.Random(5), 6, 6), 6, 2, num_runs=20)


def test_many_tiny_kernels_on_more_threads_than_cores_end() -> None:
    """Stages of kernels of one or two chunks: nearly all of the time is the protocol's."""
    rng = random.Random(11)
    tiny = [chains(rng, 3, 40) for _ in range(4)]
    in_threads(1, lambda _: [run_and_read(chain, 1, 8, num_runs=300) for chain in tiny], timeout_s=120)


def test_callers_of_one_executor_run_stages_at_a_time() -> None:
    chain = chains(random.Random(13), 4, 6)
    run = executor([chain.stage] * 3, 2, arena_bytes=chain.arena_bytes)

    def call(index: int) -> None:
        for _ in range(100):
            with run.context() as context:
                ctypes.memset(context.arena.address, 0, chain.arena_bytes)
                run._run_in(context, ())
                arena = (ctypes.c_int64 * (chain.arena_bytes // 8)).from_address(context.arena.address)
                assert arena[::WIDTH] == chain.expected(3)

    in_threads(8, call)


def test_stages_that_cannot_run_are_refused() -> None:
    launch = Launch("count", 1, (ArgRef(1),))
    with pytest.raises(InternalError, match="at least one group"):
        Stage(())
    with pytest.raises(InternalError, match="at least one launch"):
        LaunchGroup(())
    with pytest.raises(InternalError, match="on 0 threads"):
        LaunchGroup((launch,), 0)


def test_a_main_without_stages_knows_nothing_of_them() -> None:
    assert "tw_run_stage" not in build_main([Launch("count", 4, (ArgRef(1),))], host_isa()).ir_text
