"""Measurements of compiled code, made in a process that may crash or hang: requests and answers.

A *measuring pool* is given candidates in the form in which they travel, plain facts and bytes, and says of
each what it took beside its baseline, or why it has no time. `LocalMeasuringPool` asks a process on this
machine. Candidates are compiled before, several at a time; they are measured one at a time, and only while no
other process of this user measures.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, field
from types import TracebackType
from typing import Any, Literal, Protocol

import numpy as np

from tilewright.errors import UsageError
from tilewright.files import Bytes
from tilewright.ir.dtype import DType
from tilewright.records import dataclass
from tilewright.system.worker_process import NoWorker, WorkerDied, WorkerProcess, module_command
from tilewright.tuning.machine_lock import MachineLock

logger = logging.getLogger(__name__)

Array = np.ndarray[Any, Any]


# A process that says nothing for so long after its start does not work here.
_START_S = 60.0
_NUM_ATTEMPTS = 2

Reason = Literal["crashed", "hung", "wrong-values", "declined"]
"""Why a candidate has no time: its process died twice, or took longer than it may; it computed something
else; or it cannot be loaded here."""


@dataclass(frozen=True, slots=True, eq=False)
class PackedCode:
    """Code in the form in which it travels. `facts` are values of JSON; `parts` may come in pieces."""

    facts: Mapping[str, Any]
    parts: Mapping[str, tuple[Bytes, ...]]
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        digest = hashlib.sha256(_json(self.facts))
        for name, pieces in sorted(self.parts.items()):
            digest.update(f"\0{name}\0{sum(map(_size, pieces))}\0".encode())
            for piece in pieces:
                digest.update(piece)
        object.__setattr__(self, "digest", digest.hexdigest())


@dataclass(frozen=True, slots=True)
class Effort:
    """How many rounds are measured; no more begin after `seconds`, once there are as many as there must be,
    or once half of the request's limit is over.

    Before them each contestant runs `num_warm_up` times.
    """

    min_rounds: int = 5
    max_rounds: int = 40
    seconds: float = 1.0
    num_warm_up: int = 2

    def __post_init__(self) -> None:
        if not 1 <= self.min_rounds <= self.max_rounds:
            raise UsageError(
                f"{self.min_rounds} to {self.max_rounds} rounds: expected at least 1, ascending."
            )


@dataclass(frozen=True, slots=True, eq=False)
class MeasureRequest:
    """A candidate, what it is run on, and the results that it must have.

    `tolerance` is the largest difference over the largest magnitude expected of an output. The `baseline`
    runs beside it, in turns. `limit_s` is what all of it may take; a candidate that takes longer hangs.
    """

    candidate: PackedCode
    feed: Mapping[str, Array]
    expected: Mapping[str, Array]
    tolerance: float
    baseline: PackedCode | None = None
    effort: Effort = field(default_factory=Effort)
    limit_s: float = 20.0


@dataclass(frozen=True, slots=True)
class Samples:
    """Times in ns of runs, one for each round that counts: of whole runs, and of their steps in order where
    the code stamps them."""

    whole_ns: tuple[float, ...]
    steps_ns: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Measured:
    """What a candidate took, and its baseline in the same rounds.

    `num_rejected` rounds were disturbed and do not count. Where too few were not, `is_disturbed`: they count.
    """

    candidate: Samples
    baseline: Samples | None = None
    num_rejected: int = 0
    is_disturbed: bool = False


@dataclass(frozen=True, slots=True)
class Failed:
    """Why a candidate has no time. It must not be chosen."""

    reason: Reason
    detail: str


MeasureResult = Measured | Failed


class MeasuringPool(Protocol):
    """Whoever measures, here or on other machines."""

    @property
    def num_machines(self) -> int:
        """How many candidates are measured at the same time."""
        ...

    def measure(self, requests: Iterable[MeasureRequest]) -> Iterator[MeasureResult]:
        """The result of each request, in their order. A request is taken when its turn comes.

        Raises:
            NoWorker: nothing can be measured here.
        """
        ...

    def close(self) -> None:
        """End all processes. What is measured is lost, what was measured was given out."""
        ...


class LocalMeasuringPool:
    """One process on this machine that measures one candidate at a time; another follows one that dies.

    `module` is what it runs: it calls `measuring.serve` with what loads the code of a target.
    """

    def __init__(self, module: str, *, lock: MachineLock | None = None, start_s: float = _START_S) -> None:
        self._module = module
        self._lock = lock if lock is not None else MachineLock.of_user()
        self._start_s = start_s
        self._process: WorkerProcess | None = None
        self._loaded: set[str] = set()

    def __enter__(self) -> LocalMeasuringPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def num_machines(self) -> int:
        """This one."""
        return 1

    @property
    def pid(self) -> int | None:
        """The number of the process that measures; None where there is none."""
        return None if self._process is None else self._process.pid

    def measure(self, requests: Iterable[MeasureRequest]) -> Iterator[MeasureResult]:
        """The result of each request, in their order. A request is taken when its turn comes.

        A process that dies is tried once more: something else may have ended it. One that hangs is not.

        Raises:
            NoWorker: no process could be started that measures.
        """
        for request in requests:
            yield self._measured(request)

    def start(self) -> None:
        """Start the process, if there is none, so that it comes up while others work."""
        if self._process is None:
            arguments, environment = module_command(self._module)
            self._process = WorkerProcess(arguments, start_s=self._start_s, environment=environment)

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.end()
            self._process = None
            self._loaded.clear()

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):
            self.close()

    def _measured(self, request: MeasureRequest) -> MeasureResult:
        death = ""
        for _ in range(_NUM_ATTEMPTS):
            process = self._started()
            try:
                with self._lock:
                    return self._asked(process, request)
            except TimeoutError:
                self.close()
                return Failed("hung", f"it took longer than {request.limit_s:g} s and was ended")
            except WorkerDied as error:
                self.close()
                death = str(error)
                logger.info("a measurement ended with its process (%s)", death)
            except BaseException:  # Ctrl-C: half of an answer may be under way
                self.close()
                raise
        return Failed("crashed", death)

    def _asked(self, process: WorkerProcess, request: MeasureRequest) -> MeasureResult:
        contestants = [c for c in (request.candidate, request.baseline) if c is not None]
        for code in contestants:
            refusal = self._load(process, code, contestants, request.limit_s)
            if refusal:
                return Failed("declined", refusal)
        expected = [_named(array) for array in request.expected.values()]
        question = {
            "ask": "measure",
            "candidate": request.candidate.digest,
            "baseline": None if request.baseline is None else request.baseline.digest,
            "feed": [[name, *_type(array)] for name, array in request.feed.items()],
            "expected": [[name, *_type(array)] for name, array in request.expected.items()],
            "tolerance": request.tolerance,
            "effort": asdict(request.effort),
            "limit_s": request.limit_s,
        }
        arrays = [*map(_named, request.feed.values()), *expected]
        (answer,) = process.ask([_json(question), *arrays], request.limit_s)
        return _result(json.loads(answer))

    def _load(
        self, process: WorkerProcess, code: PackedCode, kept: Sequence[PackedCode], limit_s: float
    ) -> str:
        """Why code cannot be loaded; nothing where it is."""
        if code.digest in self._loaded:
            return ""
        self._loaded &= {other.digest for other in kept}
        sizes = [(name, len(pieces)) for name, pieces in code.parts.items()]
        question = {
            "ask": "load",
            "digest": code.digest,
            "keep": sorted(self._loaded),
            "facts": code.facts,
            "parts": sizes,
        }
        pieces = [memoryview(piece) for pieces in code.parts.values() for piece in pieces]
        (answer,) = process.ask([_json(question), *pieces], limit_s)
        refusal = str(json.loads(answer).get("declined", ""))
        if not refusal:
            self._loaded.add(code.digest)
        return refusal

    def _started(self) -> WorkerProcess:
        """The process, started if there is none that can be asked.

        Raises:
            NoWorker: it does not come up.
        """
        if self._process is not None and not self._process.is_usable():
            self.close()
        self.start()
        assert self._process is not None
        try:
            is_ready = self._process.is_ready()
        except BaseException:
            self.close()
            raise
        if not is_ready:
            self.close()
            raise NoWorker(f"a process that runs {self._module} did not come up")
        return self._process


def _result(answer: Mapping[str, Any]) -> MeasureResult:
    if "reason" in answer:
        return Failed(answer["reason"], str(answer["detail"]))
    baseline = answer["baseline"]
    return Measured(
        _samples(answer["candidate"]),
        None if baseline is None else _samples(baseline),
        answer["num_rejected"],
        answer["is_disturbed"],
    )


def _samples(document: Mapping[str, Any]) -> Samples:
    return Samples(tuple(document["whole_ns"]), tuple(map(tuple, document["steps_ns"])))


def _json(document: object) -> bytes:
    return json.dumps(document, sort_keys=True, allow_nan=False).encode()


def _size(piece: Bytes) -> int:
    return memoryview(piece).nbytes


def _type(array: Array) -> tuple[str, list[int]]:
    return DType.from_numpy(array.dtype).name, list(array.shape)


def _named(array: Array) -> memoryview:
    """The elements of an array, row by row."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
