"""The same schedules on this processor, or another device, measured: whole models in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilewright.options import Options
    from tilewright.target_ref import TargetRef

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

Run = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Measured:
    """The median of a model's runs, with their quartiles, in ns."""

    median_ns: float
    low_ns: float
    high_ns: float


def measured(
    network: str, num_threads: int, plans: Mapping[str, Options] | None = None, peers: Sequence[str] = ()
) -> dict[str, Measured]:
    """A network of the zoo by each schedule, or each of these plans, on so many threads of this processor.

    Of `peers` those that are installed run in the same rounds.
    """
    import contextlib
    import tempfile
    from functools import partial
    from pathlib import Path

    import numpy as np

    from tilewright import zoo
    from tilewright.benchmark.engines import is_installed, make_engine
    from tilewright.compiler import compile_graph
    from tilewright.frontend.onnx import load_onnx
    from tilewright.options import Options

    asked = _plans(Options()) if plans is None else plans
    model = zoo.build(network)
    graph = load_onnx(model)
    rng = np.random.default_rng(0)
    feed = {v.name: rng.standard_normal(v.shape).astype(np.float32) for v in graph.inputs}
    with contextlib.ExitStack() as stack:
        runs: dict[str, Run] = {}
        for name, options in asked.items():
            options = replace(options, threads=num_threads)
            executable = compile_graph(graph, options).code.load(num_threads)
            stack.callback(executable.close)
            runs[name] = partial(executable.run, feed)
        path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tilewright-ios-"))) / "model.onnx"
        for peer in filter(is_installed, peers):
            path.write_bytes(model.SerializeToString())
            runs[peer] = partial(make_engine(peer, str(path), num_threads, {}).run, feed)
        samples = _in_turns(list(runs.values()))
    return {name: _of(times) for name, times in zip(runs, samples, strict=True)}


def measured_on(network: str, device: TargetRef) -> dict[str, Measured]:
    """A network of the zoo by each schedule on a device, from inputs on the host to outputs there.

    Raises:
        DeviceError: there is none; says what to do.
    """
    from tilewright.options import Options

    return measured(network, 1, _plans(Options(target=device)))


def _plans(options: Options) -> dict[str, Options]:
    return {name: replace(options, schedule=text) for name, text in _SCHEDULES.items()}


def _in_turns(runs: Sequence[Run]) -> list[list[float]]:
    """The time of a run of each in ns, one for each round: the least of a few."""
    samples: list[list[float]] = [[] for _ in runs]
    started = time.perf_counter()
    while len(samples[0]) < _LEAST_ROUNDS or time.perf_counter() - started < _SECONDS:
        for run, times in zip(runs, samples, strict=True):
            run()
            times.append(min(_time_ns(run) for _ in range(_RUNS)))
    return samples


def _time_ns(run: Run) -> float:
    start_ns = time.perf_counter_ns()
    run()
    return float(time.perf_counter_ns() - start_ns)


def _of(times_ns: list[float]) -> Measured:
    ordered = sorted(times_ns)
    last = len(ordered) - 1
    return Measured(statistics.median(ordered), ordered[last // 4], ordered[-(last // 4) - 1])
