"""The process that measures: it loads candidates, checks what they compute, and runs them in turns.

It answers what `workers.LocalMeasuringPool` asks. A target's own module calls `serve` with what loads its
code.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, field
from typing import Any, Protocol

import numpy as np

from tilewright.accuracy import relative_error
from tilewright.arrays import Array
from tilewright.errors import TilewrightError, UsageError
from tilewright.ir.dtype import DType
from tilewright.records import dataclass
from tilewright.system.worker_process import serve_texts
from tilewright.tuning.workers import Effort, Samples

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]


# Runs of a contestant in a round. Nobody counts the first: the contestant before had the caches.
_BLOCK_RUNS = 4
# What rounds may take of the time after which a candidate counts as hanging.
_SHARE_OF_LIMIT = 0.5
# A round that takes so much longer than the middle one was disturbed, whatever the system says.
_OUTLIER_RATIO = 1.5


class Contestant(Protocol):
    """Loaded code that is run."""

    def run(self, feed: Mapping[str, Array]) -> Mapping[str, Array]:
        """Outputs by name."""
        ...

    def time(self, feed: Mapping[str, Array]) -> RunTime:
        """What one run takes."""
        ...

    def close(self) -> None:
        """Give back what it holds."""
        ...


@dataclass(frozen=True, slots=True)
class RunTime:
    """Time of a run, and of its steps where these have stamps."""

    whole_ns: float
    steps_ns: tuple[float, ...] = ()


Load = Callable[[Mapping[str, Any], Mapping[str, bytes]], Contestant]
"""Makes code run here: from its facts, and its parts by name."""


def num_interruptions() -> int:
    """How often another process took a core away from this one, so far."""
    return 0 if resource is None else resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


@dataclass(slots=True)
class Rounds:
    """Contestants that run in turns, and what their rounds took.

    The time of a round is that of the least of some runs, of those that nothing interrupted if there are any;
    that of each step its own least.
    After `most_s` no more begin, however few there were.
    """

    contestants: Sequence[Contestant]
    feed: Mapping[str, Array]
    effort: Effort
    most_s: float
    clock_s: Callable[[], float] = time.monotonic
    interruptions: Callable[[], int] = num_interruptions
    _times: list[tuple[RunTime, ...]] = field(init=False, default_factory=list)
    _is_disturbed: list[bool] = field(init=False, default_factory=list)

    def run(self) -> tuple[list[Samples], int, bool]:
        """Samples of each contestant, how many rounds were rejected, and whether disturbed ones count."""
        effort = self.effort
        for contestant in self.contestants:
            for _ in range(effort.num_warm_up):
                contestant.run(self.feed)
        started_s = self.clock_s()
        while len(self._times) < effort.max_rounds:
            passed_s = self.clock_s() - started_s
            enough = len(self._times) >= (effort.min_rounds if passed_s < self.most_s else 1)
            if enough and passed_s >= min(effort.seconds, self.most_s):
                break
            blocks = [self._block(contestant) for contestant in self.contestants]
            self._times.append(tuple(run_time for run_time, _ in blocks))
            self._is_disturbed.append(any(disturbed for _, disturbed in blocks))
        kept = self._kept()
        is_disturbed = len(kept) < effort.min_rounds
        if is_disturbed:
            kept = list(range(len(self._times)))
        samples = [
            Samples(
                tuple(self._times[i][place].whole_ns for i in kept),
                tuple(self._times[i][place].steps_ns for i in kept),
            )
            for place in range(len(self.contestants))
        ]
        return samples, len(self._times) - len(kept), is_disturbed

    def _block(self, contestant: Contestant) -> tuple[RunTime, bool]:
        contestant.run(self.feed)
        runs: list[tuple[bool, RunTime]] = []
        for _ in range(_BLOCK_RUNS - 1):
            before = self.interruptions()
            run_time = contestant.time(self.feed)
            runs.append((self.interruptions() > before, run_time))
        disturbed, best = min(runs, key=lambda run: (run[0], run[1].whole_ns))
        steps_ns = tuple(map(min, zip(*(run_time.steps_ns for _, run_time in runs), strict=True)))
        return RunTime(best.whole_ns, steps_ns), disturbed

    def _kept(self) -> list[int]:
        """Rounds in which nothing was interrupted and nothing took much longer than usual."""
        usual_ns = [
            statistics.median(times[place].whole_ns for times in self._times)
            for place in range(len(self.contestants))
        ]
        return [
            i
            for i, times in enumerate(self._times)
            if not self._is_disturbed[i]
            and all(t.whole_ns <= _OUTLIER_RATIO * usual for t, usual in zip(times, usual_ns, strict=True))
        ]


def wrong_values(outputs: Mapping[str, Array], expected: Mapping[str, Array], tolerance: float) -> str | None:
    """What is wrong with outputs, in words; None where they are as expected."""
    for name, wanted in expected.items():
        got = outputs.get(name)
        if got is None:
            return f"output {name!r} is missing"
        error = relative_error(got, wanted)
        if not error <= tolerance:
            return f"output {name!r} differs by {error:.3g} of its largest value, more than {tolerance:g}"
    return None


@dataclass(slots=True)
class _Server:
    """`held` are the pieces of the code that is loaded, by digest, for callers that send each once."""

    load: Load
    lock: contextlib.AbstractContextManager[object] = field(default_factory=contextlib.nullcontext)
    loaded: dict[str, Contestant] = field(default_factory=dict)
    pieces_of: dict[str, frozenset[str]] = field(default_factory=dict)
    held: dict[str, bytes] = field(default_factory=dict)

    def answer(self, texts: Sequence[bytes]) -> dict[str, Any]:
        """What a request gets."""
        question = json.loads(texts[0])
        if question["ask"] == "load":
            return self._load(question, texts[1:])
        with self.lock:
            return self._measure(question, texts[1:])

    def _load(self, question: Mapping[str, Any], pieces: Sequence[bytes]) -> dict[str, Any]:
        for digest in self.loaded.keys() - set(question["keep"]):
            self.loaded.pop(digest).close()
            self.pieces_of.pop(digest, None)
        here = {**self.held, **dict(zip(question["sent"], pieces, strict=True))}
        wanted, digests = frozenset(question["pieces"]), iter(question["pieces"])
        parts: dict[str, bytes] = {}
        for name, count in question["parts"]:
            part = [here[next(digests)] for _ in range(count)]
            parts[name] = part[0] if len(part) == 1 else b"".join(part)
        kept = wanted.union(*self.pieces_of.values()) if question["hold"] else frozenset[str]()
        self.held = {digest: piece for digest, piece in here.items() if digest in kept}
        try:
            self.loaded[question["digest"]] = self.load(question["facts"], parts)
        except (TilewrightError, ValueError, MemoryError) as error:
            return {"declined": _one_line(error)}
        self.pieces_of[question["digest"]] = wanted
        return {}

    def _measure(self, question: Mapping[str, Any], pieces: Sequence[bytes]) -> dict[str, Any]:
        num_fed = len(question["feed"])
        feed = _arrays(question["feed"], pieces[:num_fed])
        expected = _arrays(question["expected"], pieces[num_fed:])
        names = [name for name in (question["candidate"], question["baseline"]) if name is not None]
        contestants = [self.loaded[name] for name in names]
        candidate = contestants[0]
        effort, most_s = Effort(**question["effort"]), _SHARE_OF_LIMIT * question["limit_s"]
        try:
            problem = wrong_values(candidate.run(feed), expected, question["tolerance"])
            if problem is None:
                samples, num_rejected, is_disturbed = Rounds(contestants, feed, effort, most_s).run()
                # Again: threads that meet in another order may compute something else.
                problem = wrong_values(candidate.run(feed), expected, question["tolerance"])
        except (TilewrightError, MemoryError) as error:
            return {"reason": "declined", "detail": _one_line(error)}
        if problem is not None:
            return {"reason": "wrong-values", "detail": problem}
        return {
            "candidate": asdict(samples[0]),
            "baseline": asdict(samples[1]) if len(samples) > 1 else None,
            "num_rejected": num_rejected,
            "is_disturbed": is_disturbed,
        }


def _arrays(named: Sequence[tuple[str, str, Sequence[int]]], pieces: Sequence[bytes]) -> dict[str, Array]:
    return {
        name: np.frombuffer(piece, DType[dtype].numpy).reshape(shape)
        for (name, dtype, shape), piece in zip(named, pieces, strict=True)
    }


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def serve(
    load: Load,
    greeting: Callable[[], list[bytes]] = list,
    lock: contextlib.AbstractContextManager[object] | None = None,
) -> None:
    """Answer until the requests end. The standard streams are the pipes of the process that asks.

    `greeting` says what this process is; while it measures it holds `lock`.
    """

    def answering() -> Callable[[list[bytes]], list[bytes]]:
        server = _Server(load, lock or contextlib.nullcontext())

        def answer(texts: list[bytes]) -> list[bytes]:
            try:
                return [json.dumps(server.answer(texts)).encode()]
            except (AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError) as error:
                raise UsageError(
                    f"a request cannot be read ({type(error).__name__}: {_one_line(error)}): install one "
                    "version of tilewright on both machines."
                ) from error

        return answer

    serve_texts(answering, greeting)
