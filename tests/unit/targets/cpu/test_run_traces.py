"""Traced runs: every chunk is noted once, with its thread and its time, and results stay what they are."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

import numpy as np
import pytest
from tests.support.models import host_net, small_net
from tests.support.pool_kernels import executor

import tilewright as tw
from tilewright import zoo
from tilewright.benchmark.limits import MachineLimits
from tilewright.benchmark.profile import profile_program
from tilewright.compiler import plan
from tilewright.errors import InternalError
from tilewright.frontend.onnx import load_onnx
from tilewright.options import Options
from tilewright.targets.cpu.isa import host_isa
from tilewright.targets.cpu.runtime.executor import ChunkTime, RunTrace
from tilewright.targets.cpu.runtime.main_code import (
    ArgRef,
    HostCall,
    Launch,
    LaunchGroup,
    MainStep,
    Stage,
    build_main,
)
from tilewright.targets.cpu.target import CpuTarget

LIMITS = MachineLimits(2, 100e9, None, 10e9, 100e9, 200e9, 32_000, 50e9)
SLACK_NS = 5_000
"""A counter may be read a little before what precedes it in the program has ended."""


def require_plausible(trace: RunTrace, num_threads: int) -> None:
    """Chunks lie in their steps, and a thread runs one at a time."""
    for chunk in trace.chunks:
        step = trace.steps[chunk.step_index]
        assert chunk.start_ns >= step.start_ns - SLACK_NS
        assert chunk.start_ns + chunk.duration_ns <= step.start_ns + step.duration_ns + SLACK_NS
        assert chunk.duration_ns > 0
        assert 0 <= chunk.thread < num_threads
    for thread in range(num_threads):
        mine = sorted((c for c in trace.chunks if c.thread == thread), key=lambda c: c.start_ns)
        for chunk, following in itertools.pairwise(mine):
            assert chunk.start_ns + chunk.duration_ns <= following.start_ns + 1e-3  # rounding


def places(chunks: Sequence[ChunkTime]) -> list[tuple[int, int, int]]:
    return [(c.step_index, c.launch_index, c.chunk) for c in chunks]


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_every_chunk_is_noted_once(num_threads: int) -> None:
    sizes = (1, 7, 1, 40)
    counts = np.zeros((4, 40), np.int64)
    steps: list[MainStep] = [Launch("count", n, (ArgRef(1, 320 * i),)) for i, n in enumerate(sizes)]
    steps.insert(2, HostCall(0))
    run = executor(steps, num_threads, trace=True, callbacks=[lambda bases: time.sleep(0.001)])
    for runs in (1, 2):
        trace = run.run_traced([counts.ctypes.data])
        launches = [(index, n) for index, n in zip((0, 1, 3, 4), sizes, strict=True)]
        assert places(trace.chunks) == [(index, 0, chunk) for index, n in launches for chunk in range(n)]
        assert [step.step_index for step in trace.steps] == [0, 1, 2, 3, 4]
        require_plausible(trace, num_threads)
        np.testing.assert_array_equal(counts, runs * (np.arange(40) < np.array(sizes)[:, None]))


def test_chunks_that_run_at_the_same_time_are_of_different_threads() -> None:
    """One that waits for another to have run, in a group of its own."""
    flag, report = np.zeros(1, np.int64), np.zeros(1, np.int64)
    stage = Stage(
        (
            LaunchGroup((Launch("await", 1, (ArgRef(1), ArgRef(2)), work=2.0),)),
            LaunchGroup((Launch("count", 1, (ArgRef(1),)),)),
        )
    )
    trace = executor([stage], 2, trace=True).run_traced([flag.ctypes.data, report.ctypes.data])
    assert report.tolist() == [1]
    waits, counts = trace.chunks
    assert places(trace.chunks) == [(0, 0, 0), (0, 1, 0)]
    assert {waits.thread, counts.thread} == {0, 1}
    assert waits.start_ns + waits.duration_ns >= counts.start_ns
    require_plausible(trace, 2)


def test_only_a_traced_main_notes_anything() -> None:
    steps = [Launch("count", 4, (ArgRef(1),))]
    plain = build_main(steps, host_isa(), profile=True)
    traced = build_main(steps, host_isa(), profile=True, trace=True)
    assert "noting" not in plain.ir_text
    assert (plain.num_slots, traced.num_slots) == (0, 4)
    assert plain.num_bases == traced.num_bases == 2
    assert traced.arg_table == (ArgRef(1), ArgRef(2))
    with pytest.raises(InternalError, match="profile=True"):
        build_main(steps, host_isa(), trace=True)
    counts = np.zeros(4, np.int64)
    assert executor(steps, 2, profile=True).run_traced([counts.ctypes.data]).chunks == ()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("options", [Options(), Options(schedule="greedy")])
def test_traced_results_are_those_of_an_ordinary_run(num_threads: int, options: Options) -> None:
    model = zoo.build("squeezenet1_1", image=64)
    program = plan(load_onnx(model), options).program
    feed = zoo.example_inputs(model, 0)
    code = CpuTarget().generate(program, profile=True, trace=True)
    traced, ordinary = code.load(num_threads), CpuTarget().generate(program).load(num_threads)
    try:
        expected = ordinary.run(feed)
        for _ in range(2):
            results, trace = traced.run_traced(feed)
            assert results.keys() == expected.keys()
            for name, array in expected.items():
                np.testing.assert_array_equal(results[name], array)
            require_plausible(trace, num_threads)
            assert len(trace.chunks) == sum(k.num_chunks for step in code.steps for k in step.kernels)
    finally:
        traced.close()
        ordinary.close()


@pytest.mark.parametrize("make", [small_net, host_net])
def test_a_profile_keeps_a_run_with_every_chunk_of_every_kernel(make) -> None:  # type: ignore[no-untyped-def]
    compiled = tw.compile(make(), threads=2)
    feed = {i.name: np.ones(i.shape, i.dtype.numpy) for i in compiled.program.graph.inputs}
    profile = profile_program(
        compiled.program, feed, num_threads=2, duration_s=0.01, limits=lambda constant_bytes: LIMITS
    )
    recorded = profile.recorded
    assert [k.id for step in compiled.steps for k in step.kernels[:1]] == [k.id for k in profile.kernels]
    assert len(recorded.steps) == len(compiled.steps)
    expected = [
        (k.id, step.index, chunk, k.num_chunks)
        for step in compiled.steps
        for k in step.kernels
        for chunk in range(k.num_chunks)
    ]
    assert sorted((c.kernel_id, c.step, c.chunk, c.num_chunks) for c in recorded.chunks) == sorted(expected)
