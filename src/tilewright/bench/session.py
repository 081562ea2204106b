"""A comparison: contestants in processes of their own, measured in turns, with the machine's state.

Each round runs every contestant once for a short burst, in an order that rotates, so that slow phases of
the machine hit all alike.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.bench.statistics import Ratio, Timing
from tilewright.errors import UsageError
from tilewright.hardware.probe import load_average_1min, probe_host
from tilewright.targets.cpu.topology import probe_latency

Array = np.ndarray[Any, Any]
Progress = Callable[[str, int, int], None]

WARMUP_S = 0.3
BURST_S = 0.1
MIN_ROUNDS = 8
DEFAULT_DURATION_S = 10.0


@dataclass(frozen=True, slots=True)
class MachineState:
    """What else went on: load and how far apart the cores are, before and after."""

    cpu_name: str
    num_cores: int
    load_before: float | None
    load_after: float | None
    core_latency_before_ns: float | None
    core_latency_after_ns: float | None


@dataclass(frozen=True, slots=True)
class Contestant:
    """One engine's measurements, or what prevented them; `max_error` is relative to the output."""

    engine: str
    version: str = ""
    load_s: float = 0.0
    first_run_s: float = 0.0
    peak_bytes: int = 0
    timing: Timing | None = None
    max_error: float | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result: contestants in the order given; ratios are against the first."""

    model: str
    num_threads: int
    contestants: tuple[Contestant, ...]
    machine: MachineState
    num_rounds: int

    def ratio(self, engine: str) -> Ratio | None:
        """How many times faster the first contestant is than `engine`."""
        first = self.contestants[0].timing
        other = next((c.timing for c in self.contestants if c.engine == engine), None)
        return None if first is None or other is None else Ratio.of(first, other)

    def to_json(self) -> dict[str, Any]:
        """Everything, all samples included, as plain values."""
        document = asdict(self)
        for contestant, entry in zip(self.contestants, document["contestants"], strict=True):
            if contestant.timing is not None:
                entry["median_ms"] = contestant.timing.median_ms
                entry["p90_ms"] = contestant.timing.percentile_ms(90)
                entry["p99_ms"] = contestant.timing.percentile_ms(99)
            ratio = self.ratio(contestant.engine)
            if ratio is not None and contestant is not self.contestants[0]:
                entry["ratio"] = {**asdict(ratio), "verdict": str(ratio.verdict)}
        return document


def compare_engines(
    model: str | Path,
    engines: Sequence[str],
    feed: Mapping[str, Array],
    *,
    num_threads: int,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    duration_s: float = DEFAULT_DURATION_S,
    expected: Sequence[Array] | None = None,
    models: Mapping[str, str | Path] | None = None,
    progress: Progress = lambda what, done, total: None,
) -> Comparison:
    """Measure `engines` on one model side by side for about `duration_s` in total.

    `expected` are the outputs in float64, for the accuracy column; `models` names another file for an engine
    (an artifact for tilewright).

    Raises:
        UsageError: the same engine twice.
    """
    if len(set(engines)) != len(engines):
        raise UsageError(f"engines {', '.join(engines)}: name each once.")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tilewright-bench-")))
        with zipfile.ZipFile(folder / "inputs.npz", "w") as archive:  # np.savez reserves the name "file"
            for name, array in feed.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)
        workers: list[_Worker] = []
        for number, engine in enumerate(engines):
            progress(f"loading {engine}", number, len(engines))
            path = str((models or {}).get(engine, model))
            workers.append(stack.enter_context(_worker(engine, path, num_threads, shapes or {}, folder)))
        before = (load_average_1min(), _core_latency_ns())
        rounds = _measure([w for w in workers if w.failure is None], duration_s, progress)
        after = (load_average_1min(), _core_latency_ns())
        contestants = tuple(_result(w, rounds, expected) for w in workers)
    facts = probe_host()
    state = MachineState(facts.cpu_name, facts.num_affinity_cores, before[0], after[0], before[1], after[1])
    count = max((len(r) for r in rounds.values()), default=0)
    return Comparison(str(model), num_threads, contestants, state, count)


def _core_latency_ns() -> float | None:
    probe = probe_latency()
    return None if probe is None else probe.median_ns


class _Worker:
    """A contestant's process."""

    def __init__(self, engine: str, process: subprocess.Popen[str], outputs: Path) -> None:
        self.engine = engine
        self.outputs = outputs
        self.facts: dict[str, Any] = {}
        self.failure: str | None = None
        self.peak_bytes = 0
        self._process = process

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Send one request and wait for its answer; a process that died answers with an error."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            code = self._process.wait()
            return {"error": f"{self.engine}: its process ended with exit code {code}"}
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextlib.contextmanager
def _worker(
    engine: str, model: str, num_threads: int, shapes: Mapping[str, tuple[int, ...]], folder: Path
) -> Iterator[_Worker]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tilewright.bench.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": str(num_threads)},
    )
    worker = _Worker(engine, process, folder / f"{engine}.npz")
    try:
        request = {
            "engine": engine,
            "model": model,
            "threads": num_threads,
            "shapes": {name: list(shape) for name, shape in shapes.items()},
            "inputs": str(folder / "inputs.npz"),
            "outputs": str(worker.outputs),
        }
        worker.facts = worker.ask(request)
        worker.failure = worker.facts.get("error")
        yield worker
    finally:
        process.kill()
        process.communicate()


def _measure(
    workers: Sequence[_Worker], duration_s: float, progress: Progress
) -> dict[str, list[list[float]]]:
    """Rounds of bursts: for each engine a list of rounds of run times in milliseconds."""
    rounds: dict[str, list[list[float]]] = {w.engine: [] for w in workers}
    if not workers:
        return rounds
    for worker in workers:
        _burst(worker, WARMUP_S)
    started = time.perf_counter()
    number = 0
    while number < MIN_ROUNDS or time.perf_counter() - started < duration_s:
        turn = number % len(workers)
        for worker in (*workers[turn:], *workers[:turn]):
            rounds[worker.engine].append(_burst(worker, BURST_S))
        number += 1
        elapsed = time.perf_counter() - started
        progress("measuring in turns", min(int(100 * elapsed / duration_s), 100), 100)
    return rounds


def _burst(worker: _Worker, seconds: float) -> list[float]:
    answer = worker.ask({"seconds": seconds, "at_least": 1})
    if "error" in answer:
        raise UsageError(answer["error"])
    worker.peak_bytes = answer["peak_bytes"]
    return [ns / 1e6 for ns in answer["samples_ns"]]


def _result(
    worker: _Worker, rounds: Mapping[str, list[list[float]]], expected: Sequence[Array] | None
) -> Contestant:
    if worker.failure is not None:
        return Contestant(worker.engine, error=worker.failure)
    bursts = rounds[worker.engine]
    medians = tuple(sorted(burst)[len(burst) // 2] for burst in bursts)
    return Contestant(
        engine=worker.engine,
        version=worker.facts["version"],
        load_s=worker.facts["load_s"],
        first_run_s=worker.facts["first_s"],
        peak_bytes=worker.peak_bytes,
        timing=Timing(medians, tuple(ms for burst in bursts for ms in burst)),
        max_error=None if expected is None else _error(worker.outputs, expected),
    )


def _error(path: Path, expected: Sequence[Array]) -> float:
    """Largest difference from the expected outputs, relative to each output's largest value."""
    with np.load(path, allow_pickle=False) as archive:
        outputs = [archive[f"arr_{i}"] for i in range(len(expected))]
    return max((relative_error(got, want) for got, want in zip(outputs, expected, strict=True)), default=0.0)


def relative_error(got: Array, expected: Array) -> float:
    """Largest absolute difference over the largest magnitude expected; infinite where shapes differ.

    >>> relative_error(np.array([1.0, 2.0]), np.array([1.0, 2.5]))
    0.2
    """
    if got.shape != expected.shape:
        return float("inf")
    if expected.size == 0:
        return 0.0
    wide = expected.astype(np.float64)
    difference = np.abs(got.astype(np.float64) - wide)
    scale = float(np.abs(wide).max())
    worst = float(difference.max())
    return worst / scale if scale > 0 else worst
