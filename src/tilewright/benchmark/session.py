"""A comparison: contestants in processes of their own, measured in turns, with the machine's state.

Each round runs every contestant once for a short burst, in an order that rotates, so that slow phases of
the machine hit all alike. Before each burst there is a pause, in which the idle threads of the one before,
which may spin for a while waiting for work, go to sleep.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tilewright.accuracy import relative_error
from tilewright.arrays import Array
from tilewright.benchmark.machine_state import MachineState, Snapshot
from tilewright.benchmark.statistics import Ratio, Timing, Verdict, quantile
from tilewright.errors import UsageError
from tilewright.files import npz_bytes, read_npz
from tilewright.ir.dtype import DType
from tilewright.results import Result, about, in_json
from tilewright.system.worker_process import start_process

Progress = Callable[[str, int, int], None]

BURST_S = 0.1
STREAMS_BURST_S = 0.5
"""Of several streams, which take a while to begin and end together."""
MAX_STREAMS = 256
SETTLE_S = 0.03
MIN_ROUNDS = 8
PERCENTS = (50.0, 90.0, 99.0)
"""Percentiles of latency that are reported where no others are asked for."""


@dataclass(frozen=True, slots=True)
class Entrant:
    """Who takes part: a name for the table, the engine, and the file it loads.

    `prepared_s` is time already spent on the file, such as compiling it; it counts as loading. `accuracy` is
    what an artifact was compiled at, or the type in which a peer is told to compute. An error is measured
    of those whose outputs are like the first's.
    `environment` is added to that of its process, which lets another version of a package take part.
    `preload` is a module whose `prepare` is called there first, with the engine and a folder for its use.
    """

    label: str
    engine: str
    model: Path
    prepared_s: float = 0.0
    environment: Mapping[str, str] = field(default_factory=dict)
    preload: str = ""
    accuracy: str = "float32"
    is_other_model: bool = False
    has_like_outputs: bool = True


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """How long to measure: for `duration_s` in total, and until each has run `num_iterations` times.

    There are always at least eight rounds, because fewer give no interval. `num_streams` runs go on at a
    time, which share the threads.
    """

    num_threads: int
    duration_s: float = 10.0
    num_iterations: int = 1
    warmup_s: float = 0.3
    percents: tuple[float, ...] = PERCENTS
    num_streams: int = 1

    @property
    def threads_of_a_run(self) -> int:
        """Its share of the threads.

        >>> BenchPlan(8, num_streams=2).threads_of_a_run, BenchPlan(2, num_streams=4).threads_of_a_run
        (4, 1)
        """
        return max(1, self.num_threads // self.num_streams)

    def __post_init__(self) -> None:
        if not 0 < self.duration_s <= 86400:
            raise UsageError(f"duration {self.duration_s:g}: give seconds, more than 0 and at most a day.")
        if self.num_iterations < 1:
            raise UsageError(f"iters {self.num_iterations}: give a positive number.")
        if self.num_threads < 1:
            raise UsageError(f"threads {self.num_threads}: give a positive number.")
        if not 1 <= self.num_streams <= MAX_STREAMS:
            raise UsageError(f"streams {self.num_streams}: give a number from 1 to {MAX_STREAMS}.")
        if not 0 <= self.warmup_s <= 3600:
            raise UsageError(f"warmup {self.warmup_s:g}: give seconds, from 0 to 3600.")
        if not self.percents or not all(0 <= percent <= 100 for percent in self.percents):
            raise UsageError("percentiles: give numbers from 0 to 100, such as 50,90,99.")


@dataclass(frozen=True, slots=True)
class Contestant:
    """One engine's measurements; `timing` is None and `error` says why if it did not run."""

    label: str
    engine: str
    version: str = ""
    load_s: float = 0.0
    first_run_s: float = 0.0
    peak_bytes: int = 0
    timing: Timing | None = None
    max_error: float | None = field(
        default=None, metadata=about("Against float64, over the output's largest value.", nullable=True)
    )
    error: str | None = None
    accuracy: str = field(
        default="",
        metadata=about(
            "Of our code as `--accuracy` names it, of a peer the type that it was told to compute in."
        ),
    )
    ratio: Ratio | None = field(
        default=None,
        metadata=about("Its time over the first contestant's, round by round; null for the first."),
    )
    percents: tuple[float, ...] = field(default=PERCENTS, metadata=about(hidden=True))
    is_other_model: bool = field(
        default=False, metadata=about("Another model than the first: its times are of other work.")
    )

    queries_per_s: float | None = field(
        default=None, metadata=about("Runs that end in a second, of all streams: the median over rounds.")
    )

    @in_json
    def median_ms(self) -> float | None:
        """Latency: the median over all runs."""
        return None if self.timing is None else self.timing.median_ms

    @in_json
    def percentiles_ms(self) -> dict[str, float] | None:
        """Latency that so many percent of the runs do not exceed."""
        timing = self.timing
        return None if timing is None else {f"{p:g}": timing.percentile_ms(p) for p in self.percents}


@dataclass(frozen=True, slots=True)
class Comparison(Result):
    """Engines measured in turns: contestants in the order given; ratios are against the first."""

    model: str
    num_threads: int
    contestants: tuple[Contestant, ...]
    machine: MachineState
    num_rounds: int
    num_streams: int = field(
        metadata=about("Runs that go on at a time. With several, ratios are of the time per run.")
    )

    @property
    def median_ms(self) -> float | None:
        """Latency of the first contestant."""
        timing = self.contestants[0].timing
        return None if timing is None else timing.median_ms

    @property
    def verdict(self) -> Verdict | None:
        """What is said of the first contestant against the second."""
        ratio = self.ratio(self.contestants[1].label) if len(self.contestants) > 1 else None
        return None if ratio is None else ratio.verdict

    def ratio(self, label: str) -> Ratio | None:
        """How many times faster the first contestant is than the one of that name."""
        first = self.contestants[0].timing
        other = next((c.timing for c in self.contestants if c.label == label), None)
        return None if first is None or other is None else Ratio.of(first, other)


def compare_engines(
    entrants: Sequence[Entrant],
    feed: Mapping[str, Array],
    plan: BenchPlan,
    *,
    model: str = "",
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    expected: Sequence[Array] | None = None,
    progress: Progress = lambda what, done, total: None,
) -> Comparison:
    """Measure entrants side by side on the same inputs. `expected` are the outputs in float64.

    Raises:
        UsageError: no contestants, or two have one name.
    """
    labels = [e.label for e in entrants]
    if not labels or len(set(labels)) != len(labels):
        raise UsageError(f"engines {', '.join(labels) or '(none)'}: name at least one, and each once.")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tilewright-bench-")))
        (folder / "inputs.npz").write_bytes(npz_bytes(feed))
        dtypes = {n: DType.BFLOAT16.name for n, a in feed.items() if a.dtype == DType.BFLOAT16.numpy}
        workers: list[_Worker] = []
        for number, entrant in enumerate(entrants):
            progress(f"loading {entrant.label}", number, len(entrants))
            files = (folder / "inputs.npz", folder / f"outputs{number}.npz")
            workers.append(stack.enter_context(_worker(entrant, plan, shapes or {}, dtypes, files)))
        before = Snapshot.take()
        rounds = _measure(workers, plan, progress)
        after = Snapshot.take()
        contestants = tuple(
            _result(w, rounds.get(w.entrant.label, []), expected, plan.num_streams) for w in workers
        )
    count = max((len(r) for r in rounds.values()), default=0)
    state = MachineState.between(before, after)
    name = model or str(entrants[0].model)
    beside = (_beside(contestants[0], c, plan.percents) for c in contestants)
    return Comparison(name, plan.num_threads, tuple(beside), state, count, plan.num_streams)


def _beside(first: Contestant, other: Contestant, percents: tuple[float, ...]) -> Contestant:
    """A contestant with how it compares with the first."""
    ratio = None
    if other is not first and first.timing is not None and other.timing is not None:
        ratio = Ratio.of(first.timing, other.timing)
    return replace(other, ratio=ratio, percents=percents)


class _Worker:
    """A contestant's process."""

    def __init__(self, entrant: Entrant, process: subprocess.Popen[str], outputs: Path) -> None:
        self.entrant = entrant
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
            return {"error": f"{self.entrant.label}: its process ended with exit code {code}."}
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextlib.contextmanager
def _worker(
    entrant: Entrant,
    plan: BenchPlan,
    shapes: Mapping[str, tuple[int, ...]],
    dtypes: Mapping[str, str],
    files: tuple[Path, Path],
) -> Iterator[_Worker]:
    process = start_process(
        [sys.executable, "-m", "tilewright.benchmark.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": str(plan.threads_of_a_run), **entrant.environment},
    )
    worker = _Worker(entrant, process, files[1])
    try:
        request = {
            "engine": entrant.engine,
            "model": str(entrant.model),
            "threads": plan.threads_of_a_run,
            "streams": plan.num_streams,
            "accuracy": entrant.accuracy,
            "preload": entrant.preload,
            "shapes": {name: list(shape) for name, shape in shapes.items()},
            "dtypes": dict(dtypes),
            "inputs": str(files[0]),
            "outputs": str(files[1]),
        }
        worker.facts = worker.ask(request)
        worker.failure = worker.facts.get("error")
        yield worker
    finally:
        process.kill()
        process.communicate()


@dataclass(frozen=True, slots=True)
class _Burst:
    """What one contestant did in one round: times of its runs, and how many ended in a second."""

    runs_ms: list[float]
    queries_per_s: float


def _measure(workers: Sequence[_Worker], plan: BenchPlan, progress: Progress) -> dict[str, list[_Burst]]:
    """Rounds of bursts of each contestant; one that fails takes no further part."""
    rounds: dict[str, list[_Burst]] = {w.entrant.label: [] for w in workers}
    running = [worker for worker in workers if worker.failure is None]
    for worker in running:
        _burst(worker, plan.warmup_s)
    started = time.perf_counter()
    number = 0
    while running := [worker for worker in running if worker.failure is None]:
        fewest_runs = min(sum(len(b.runs_ms) for b in rounds[w.entrant.label]) for w in running)
        elapsed = time.perf_counter() - started
        if number >= MIN_ROUNDS and elapsed >= plan.duration_s and fewest_runs >= plan.num_iterations:
            break
        turn = number % len(running)
        for worker in (*running[turn:], *running[:turn]):
            seconds = BURST_S if plan.num_streams == 1 else STREAMS_BURST_S
            burst = _burst(worker, seconds)
            if burst is not None:
                rounds[worker.entrant.label].append(burst)
        number += 1
        elapsed = time.perf_counter() - started
        progress("measuring in turns", min(int(100 * elapsed / plan.duration_s), 100), 100)
    return rounds


def _burst(worker: _Worker, seconds: float) -> _Burst | None:
    """One burst of a contestant; none where it fails, which it is then marked with."""
    time.sleep(SETTLE_S)
    answer = worker.ask({"seconds": seconds})
    if "error" in answer:
        worker.failure = answer["error"]
        return None
    worker.peak_bytes = answer["peak_bytes"]
    samples_ns = answer["samples_ns"]
    # The worker of another version of the package may say times alone.
    queries_per_s = answer.get("queries_per_s", 1e9 * len(samples_ns) / sum(samples_ns))
    return _Burst([ns / 1e6 for ns in samples_ns], queries_per_s)


def _timing(bursts: Sequence[_Burst], num_streams: int) -> Timing:
    """What rounds are compared by: the median of a round's times, or of several streams the time per run."""
    rounds_ms = (
        quantile(burst.runs_ms, 0.5) if num_streams == 1 else 1e3 / burst.queries_per_s for burst in bursts
    )
    return Timing(tuple(rounds_ms), tuple(ms for burst in bursts for ms in burst.runs_ms))


def _result(
    worker: _Worker, bursts: Sequence[_Burst], expected: Sequence[Array] | None, num_streams: int
) -> Contestant:
    entrant = worker.entrant
    if worker.failure is not None:
        return Contestant(
            entrant.label,
            entrant.engine,
            error=worker.failure,
            accuracy=entrant.accuracy,
            is_other_model=entrant.is_other_model,
        )
    return Contestant(
        label=entrant.label,
        engine=entrant.engine,
        version=worker.facts["version"],
        load_s=entrant.prepared_s + worker.facts["load_s"],
        first_run_s=worker.facts["first_s"],
        peak_bytes=worker.peak_bytes,
        timing=_timing(bursts, num_streams),
        queries_per_s=quantile([burst.queries_per_s for burst in bursts], 0.5),
        max_error=None
        if expected is None or not entrant.has_like_outputs
        else _error(worker.outputs, expected),
        accuracy=entrant.accuracy,
        is_other_model=entrant.is_other_model,
    )


def _error(path: Path, expected: Sequence[Array]) -> float:
    """Largest difference from the expected outputs, relative to each output's largest value."""
    outputs = list(read_npz(path).values())
    return max((relative_error(got, want) for got, want in zip(outputs, expected, strict=True)), default=0.0)
