"""The same schedules on this processor, measured: whole models in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilewright.options import Options
    from tilewright.targets.base import Executable

_SECONDS = 10.0
_LEAST_ROUNDS, _RUNS = 9, 3
_SCHEDULES: Mapping[str, str] = {
    "Sequential": "sequential",
    "Greedy": "greedy",
    "IOS-Merge": "ios{strategy=merge}",
    "IOS-Parallel": "ios{strategy=parallel}",
    "IOS-Both": "ios",
    "IOS-M": "ios{moldable=true}",
}


@dataclass(frozen=True, slots=True)
class Measured:
    """The median of a model's runs, with their quartiles, in ns."""

    median_ns: float
    low_ns: float
    high_ns: float


def measured(
    network: str, num_threads: int, plans: Mapping[str, Options] | None = None
) -> dict[str, Measured]:
    """A network of the zoo by each schedule, or each of these plans, on so many threads of this processor."""
    import contextlib

    import numpy as np

    from tilewright import zoo
    from tilewright.compiler import compile_graph
    from tilewright.frontend.onnx import load_onnx
    from tilewright.options import Options

    schedules = {name: Options(schedule=text) for name, text in _SCHEDULES.items()}
    asked = schedules if plans is None else plans
    graph = load_onnx(zoo.build(network))
    rng = np.random.default_rng(0)
    feed = {v.name: rng.standard_normal(v.shape).astype(np.float32) for v in graph.inputs}
    with contextlib.ExitStack() as stack:
        executables: list[Executable] = []
        for options in asked.values():
            options = replace(options, threads=num_threads)
            executable = compile_graph(graph, options).code.load(num_threads)
            stack.callback(executable.close)
            executables.append(executable)
        samples = _in_turns(executables, feed)
    return {name: _of(times) for name, times in zip(asked, samples, strict=True)}


def _in_turns(executables: Sequence[Executable], feed: Mapping[str, Any]) -> list[list[float]]:
    """The time of a run of each in ns, one for each round: the least of a few."""
    samples: list[list[float]] = [[] for _ in executables]
    started = time.perf_counter()
    while len(samples[0]) < _LEAST_ROUNDS or time.perf_counter() - started < _SECONDS:
        for executable, times in zip(executables, samples, strict=True):
            executable.run(feed)
            times.append(min(_time_ns(executable, feed) for _ in range(_RUNS)))
    return samples


def _time_ns(executable: Executable, feed: Mapping[str, Any]) -> float:
    start_ns = time.perf_counter_ns()
    executable.run(feed)
    return float(time.perf_counter_ns() - start_ns)


def _of(times_ns: list[float]) -> Measured:
    ordered = sorted(times_ns)
    last = len(ordered) - 1
    return Measured(statistics.median(ordered), ordered[last // 4], ordered[-(last // 4) - 1])
