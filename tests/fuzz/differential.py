"""Runs one graph on the CPU under a random configuration and compares it with the reference.

Besides the ordinary run there is a hostile one: every buffer lies between pages that cannot be touched,
the arena starts as garbage, and after each step whatever is dead by the memory plan becomes garbage again.
"""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from tests.support.loopnest_harness import Guarded

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph
from tilewright.ir.interpret import run_graph
from tilewright.memory import check_memory
from tilewright.options import Options
from tilewright.partition import PartitionProblem, check_partition
from tilewright.partition.layerwise import Layerwise
from tilewright.partition.random import RandomPartitioner
from tilewright.passes import run_passes
from tilewright.planning import Budget, Limits
from tilewright.program import Program
from tilewright.schedule import SCHEDULERS, ScheduleProblem, check_schedule
from tilewright.targets.cpu.image.code import CpuCode, main_steps
from tilewright.targets.cpu.isa import isa_by_name
from tilewright.targets.cpu.kernel import REPORT_BYTES
from tilewright.targets.cpu.lower.arrange import Barriers, numbered
from tilewright.targets.cpu.lower.storage import (
    Placement,
    Weights,
    caller_homes,
    memory_problem,
    place_reports,
)
from tilewright.targets.cpu.runtime.control_flow_step import host_callback
from tilewright.targets.cpu.runtime.executable import bytes_at
from tilewright.targets.cpu.runtime.executor import Executor
from tilewright.targets.cpu.runtime.main_code import (
    FIRST_CALLER_BASE,
    HostCall,
    Launch,
    Stage,
    build_main,
    link_main,
)
from tilewright.targets.cpu.runtime.pool import AlignedBuffer
from tilewright.targets.cpu.target import CpuTarget
from tilewright.targets.llvm.codegen import JitLibrary

Array = np.ndarray[Any, Any]
_GARBAGE = 0xFF  # as floats NaN, as integers -1 or the largest


@dataclass(frozen=True)
class Setting:
    """How a graph is compiled and run."""

    partition: str = "layerwise"
    schedule: str = "sequential"
    memory: str = "arena"
    isa: str | None = None
    threads: int = 2
    passes: bool = True
    seed: int = 0
    barriers: Barriers = "stages"


def random_setting(seed: int) -> Setting:
    """A setting that this processor can run."""
    rng = random.Random(seed)
    return Setting(
        partition=rng.choice(("layerwise", "layerwise", "random", "random", "random-large")),
        schedule=rng.choice(("sequential", "sequential", "greedy", "random")),
        memory=rng.choice(("arena", "arena", "greedy-by-size", "random")),
        isa=rng.choice(runnable_isas()),
        threads=rng.choice((1, 2)),
        passes=rng.random() < 0.7,
        seed=seed,
        barriers=rng.choice(("stages", "stages", "strict")),
    )


@cache
def runnable_isas() -> tuple[str | None, ...]:
    """Instruction sets of this processor; None is its own."""
    return (None, *(name for name in ("avx512", "avx2") if isa_by_name(name).runs_on_host))


def generate(graph: Graph, setting: Setting, cache_dir: Path | None) -> CpuCode:
    """Compile a copy of the graph; every plan passes its check."""
    graph = graph.clone()
    if setting.passes:
        run_passes(graph)
    budget = Budget(1000)
    problem = PartitionProblem(graph)
    merge = 0.9 if setting.partition == "random-large" else 0.5
    partitioner = Layerwise() if setting.partition == "layerwise" else RandomPartitioner(setting.seed, merge)
    partition = partitioner.solve(problem, budget)
    assert not check_partition(problem, partition)
    schedule_problem = ScheduleProblem(partition, limits=Limits(3))
    schedule = SCHEDULERS.get(setting.schedule).solve(schedule_problem, budget)
    assert not check_schedule(schedule_problem, schedule)
    options = Options(
        isa=setting.isa, memory=setting.memory, cache_dir=cache_dir, no_cache=cache_dir is None, threads=1
    )
    return CpuTarget(setting.barriers).generate(Program(graph, partition, schedule, options))


def run_ordinary(code: CpuCode, feed: Mapping[str, Array], threads: int) -> dict[str, Array]:
    executable = code.load(threads)
    try:
        return executable.run(feed)
    finally:
        executable.close()


def run_hostile(code: CpuCode, feed: Mapping[str, Array], *, at_end: bool = True) -> dict[str, Array]:
    """One run between guard pages, in which dead memory is garbage.

    Buffers end where the page behind begins, or else begin where the page before ends.
    """
    graph, plan, problem = code.program.graph, code.memory, code.memory_problem
    assert not check_memory(problem, plan)
    steps, host_steps, weights = _placed_steps(code)
    callbacks: list[Callable[[Sequence[int]], None]] = [
        host_callback(step, code.program.options) for step in host_steps
    ]
    plain: list[Launch | Stage | HostCall] = []
    step_of = [number for number, _, _ in numbered(code.lowered)]
    for number, step in enumerate(steps):
        plain += [step, HostCall(len(callbacks))]
        dead = [b for b in problem.buffers if step_of[b.last_step] == number]
        alive = [b for b in problem.buffers if step_of[b.first_step] <= number < step_of[b.last_step]]
        callbacks.append(_poison(plan.offsets, dead, alive))
    main = build_main(plain, code.isa)
    library: JitLibrary = link_main(main, code.kernel_objects, code.isa)
    buffers: list[Guarded] = []

    def guarded(size_bytes: int) -> Guarded:
        buffers.append(Guarded(size_bytes, at_end=at_end))
        return buffers[-1]

    executor = Executor(
        main,
        library,
        num_threads=2,
        arena_bytes=64,
        scratch_bytes=code.image.scratch_bytes,
        callbacks=callbacks,
        index_checks=code.image.index_checks,
    )
    try:
        constants = guarded(max(1, weights.size_bytes))
        scratch = AlignedBuffer(max(1, weights.size_bytes))
        weights.fill(bytes_at(scratch.address, scratch.size_bytes))
        bytes_at(constants.address, weights.size_bytes)[...] = bytes_at(scratch.address, weights.size_bytes)
        addresses, results = [constants.address], {}
        for value in graph.inputs:
            array = guarded(value.size_bytes).array(value.dtype.numpy, value.shape)
            array[...] = feed[value.name]
            addresses.append(array.ctypes.data)
        for value in graph.outputs:
            if value.name not in results:
                results[value.name] = guarded(value.size_bytes).array(value.dtype.numpy, value.shape)
            addresses.append(results[value.name].ctypes.data)
        reports_bytes = REPORT_BYTES * len(code.image.index_checks)
        arena = guarded(code.image.arena_bytes + reports_bytes)
        bytes_at(arena.address, plan.peak_bytes)[...] = _GARBAGE
        context = executor._take()
        context.bases[0] = arena.address
        context.arena.address = arena.address
        context.reports_address = arena.address + code.image.arena_bytes
        executor._give(context)
        if main.segments:
            executor.run(addresses)
        assert all(buffer.slack_is_untouched() for buffer in buffers)
        found = {name: array.copy() for name, array in results.items()}
        for value, address in zip(graph.inputs, addresses[1:], strict=False):
            kept = bytes_at(address, value.size_bytes).view(value.dtype.numpy).reshape(value.shape)
            assert kept.tobytes() == np.ascontiguousarray(feed[value.name]).tobytes(), f"{value} was written"
        passed = {
            v.name: v.data if v.data is not None else feed[v.name] for v in graph.outputs if _passes(v, graph)
        }
        return {**found, **passed}
    finally:
        executor.close()
        for buffer in buffers:
            buffer.close()


def _passes(value: Any, graph: Graph) -> bool:
    return value.data is not None or value in graph.inputs


def _placed_steps(code: CpuCode) -> tuple[list[Any], list[Any], Weights]:
    """The steps of the model with addresses of the plan, as the target made them."""
    graph, weights = code.program.graph, Weights()
    bases = {v: FIRST_CALLER_BASE + i for i, v in enumerate(graph.inputs)}
    for position, value in enumerate(graph.outputs):
        bases.setdefault(value, FIRST_CALLER_BASE + len(graph.inputs) + position)
    _, names = memory_problem(code.lowered, graph)
    homes = caller_homes(code.lowered, graph)
    reports = place_reports(code.lowered, code.image.arena_bytes)
    rows_base = FIRST_CALLER_BASE + len(graph.inputs) + len(graph.outputs)
    placement = Placement(code.lowered, bases, code.memory.offsets, names, homes, weights, reports, rows_base)
    steps, host_steps = main_steps(code.lowered, placement)
    return steps, host_steps, weights


def _poison(
    offsets: Mapping[str, int], dead: Sequence[Any], alive: Sequence[Any]
) -> Callable[[Sequence[int]], None]:
    ranges = [(offsets[b.name], offsets[b.name] + b.size_bytes) for b in dead]
    # What a result was written over dies with the result.
    kept = [(offsets[b.name], offsets[b.name] + b.size_bytes) for b in alive]

    def run(bases: Sequence[int]) -> None:
        for low, high in ranges:
            for start, stop in kept:
                if start <= low and high <= stop:
                    low = high
                elif start <= low < stop:
                    low = stop
                elif low < start < high:
                    high = start  # a part stays: enough for the purpose
            if low < high:
                bytes_at(bases[0] + low, high - low)[...] = _GARBAGE

    return run


# Comparison.


def check(
    graph: Graph, feed: Mapping[str, Array], *, exact: bool, setting: Setting, cache_dir: Path | None = None
) -> None:
    """Raise AssertionError where the CPU's results are not the reference's."""
    code = generate(graph, setting, cache_dir)
    # Transforms of Winograd divide by numbers that are not powers of two.
    exact &= not any(kernel.template.startswith("winograd") for step in code.steps for kernel in step.kernels)
    with np.errstate(all="ignore"):
        want = run_graph(graph, feed)
        allowed = allowed_errors(graph, feed, want, exact=exact)
    got = run_ordinary(code, feed, setting.threads)
    assert list(got) == list(dict.fromkeys(v.name for v in graph.outputs))
    hostile = run_hostile(code, feed, at_end=setting.seed % 3 > 0)
    for name, array in got.items():
        assert array.tobytes() == hostile[name].tobytes(), (
            f"{name}: differs between guard pages with dead memory poisoned: {_worst(array, hostile[name])}"
        )
        assert array.dtype == want[name].dtype, f"{name}: {array.dtype} instead of {want[name].dtype}"
        assert array.shape == want[name].shape, f"{name}: {array.shape} instead of {want[name].shape}"
        error = error_of(array, want[name] if exact else allowed[name][0])
        assert error <= allowed[name][1], f"{name}: off by {error}, {allowed[name][1]} allowed"


def _worst(a: Array, b: Array) -> str:
    with np.errstate(all="ignore"):
        return f"{int((a != b).sum())} of {a.size} elements"


def error_of(a: Array, b: Array) -> float:
    if not a.size:
        return 0.0
    with np.errstate(all="ignore"):
        difference = np.abs(a.astype(np.float64) - b.astype(np.float64))
    return float("inf") if np.isnan(difference).any() else float(difference.max())


def allowed_errors(
    graph: Graph, feed: Mapping[str, Array], want: Mapping[str, Array], *, exact: bool
) -> dict[str, tuple[Array, float]]:
    """For each output the value in float64 and how far off a correct implementation may be.

    Measured, not guessed: how far the reference itself is off in the types of the graph, and how far the
    result moves if inputs and constants move by a rounding error of the graph's coarsest type.
    """
    if exact:
        return {name: (array, 0.0) for name, array in want.items()}
    results = [v.name for node in graph.nodes for v in node.results()]
    everything = run_graph(graph, feed, dtype=DType.FLOAT64, taps=results)
    precise = {v.name: everything[v.name] for v in graph.outputs}
    # Where large numbers cancel, a product that is not rounded before it is added leaves this much.
    largest = max((_largest(a) for a in everything.values() if a.dtype.kind == "f"), default=0.0)
    coarsest = max((_epsilon(v.dtype) for v in graph.values() if v.dtype.is_float), default=0.0)
    moved = [
        run_graph(_moved(graph, seed, coarsest), _shifted(feed, seed, coarsest), dtype=DType.FLOAT64)
        for seed in (1, 2)
    ]
    allowed = {}
    for name, array in precise.items():
        spread = max(error_of(m[name], array) for m in (*moved, want))
        allowed[name] = (array, 24 * spread + coarsest * (16 * _largest(array) + 2 * largest))
    return allowed


def _largest(array: Array) -> float:
    return float(np.abs(array.astype(np.float64)).max(initial=0.0))


def _epsilon(dtype: DType) -> float:
    return {DType.FLOAT16: 2.0**-11, DType.BFLOAT16: 2.0**-8, DType.FLOAT64: 2.0**-53}.get(dtype, 2.0**-24)


def _shifted(feed: Mapping[str, Array], seed: int, epsilon: float) -> dict[str, Array]:
    return {name: _shift(array, seed + i, epsilon) for i, (name, array) in enumerate(feed.items())}


def _shift(array: Array, seed: int, epsilon: float) -> Array:
    if array.dtype.kind in "iub":
        return array
    signs = np.random.default_rng(seed).choice((-1.0, 1.0), array.shape)
    return np.asarray(array.astype(np.float64) * (1 + signs * epsilon))


def _moved(graph: Graph, seed: int, epsilon: float) -> Graph:
    copy = graph.clone()
    for number, value in enumerate(copy.values()):
        resizes = any(user.op_type == "Resize" for user in value.users)
        if value.data is not None and value.data.dtype.kind == "f" and value.data.ndim and not resizes:
            value.data = _shift(value.data, seed + 100 * number, epsilon)
    return copy
