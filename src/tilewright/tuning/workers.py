"""Measurements of compiled code, made in a process that may crash or hang: requests and answers.

A *measuring pool* is given candidates in the form in which they travel, plain facts and bytes, and says of
each what it took beside its baseline, or why it has no time. `ProcessMeasuringPool` asks a process, which a
command may have started on another machine; `LocalMeasuringPool` one of this interpreter. Candidates are
compiled before, several at a time; they are measured one at a time, and only while no other process of this
user measures there.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, field
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypeVar

import numpy as np

from tilewright.arrays import Array
from tilewright.errors import UsageError
from tilewright.files import Bytes
from tilewright.ir.dtype import DType
from tilewright.records import dataclass
from tilewright.system.worker_process import NoWorker, WorkerDied, WorkerProcess, module_command
from tilewright.text.printable import bounded
from tilewright.tuning.machine_lock import MachineLock

logger = logging.getLogger(__name__)


# A process that says nothing for so long after its start does not work here.
_START_S = 60.0
_NUM_ATTEMPTS = 2
# What a connection to a process that is far carries at least, and what it may take beside that.
_LEAST_BYTES_PER_S = 128 << 10
_ROUND_TRIP_S = 10.0

T = TypeVar("T")

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
    detail: str = ""


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


class ProcessMeasuringPool:
    """One process that measures one candidate at a time; another follows one that dies.

    `start` makes it; it calls `measuring.serve` with what loads the code of a target. While it measures,
    `lock` is held. A process that is `far` has what it was sent kept, so that of the next candidate only what
    is new travels, and time for that. `accept` is told what a new process says of itself.
    """

    def __init__(
        self,
        start: Callable[[], WorkerProcess],
        name: str,
        *,
        lock: contextlib.AbstractContextManager[object] | None = None,
        is_far: bool = False,
        accept: Callable[[Sequence[bytes]], None] = lambda _: None,
    ) -> None:
        self._start, self._name, self._accept = start, name, accept
        self._lock = contextlib.nullcontext() if lock is None else lock
        self._is_far = is_far
        self._process: WorkerProcess | None = None
        self._loaded: dict[str, tuple[str, ...]] = {}

    def __enter__(self) -> Self:
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
            self._process = self._start()

    def wait_until_ready(self) -> None:
        """Return once the process is up.

        Raises:
            NoWorker: it does not come up.
        """
        self._started()

    def kill(self) -> None:
        """Kill the process while another thread asks it."""
        if (process := self._process) is not None:
            process.kill()

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
        return self._answer(process, question, arrays, request.limit_s, functools.partial(_result, request))

    def _load(
        self, process: WorkerProcess, code: PackedCode, kept: Sequence[PackedCode], limit_s: float
    ) -> str:
        """Why code cannot be loaded; nothing where it is."""
        if code.digest in self._loaded:
            return ""
        names = {other.digest for other in kept}
        held = {piece for pieces in self._loaded.values() for piece in pieces}
        self._loaded = {digest: pieces for digest, pieces in self._loaded.items() if digest in names}
        pieces = [memoryview(piece) for pieces in code.parts.values() for piece in pieces]
        wanted = tuple(map(_digest, pieces)) if self._is_far else tuple(map(str, range(len(pieces))))
        sent = {name: piece for name, piece in zip(wanted, pieces, strict=True) if name not in held}
        question = {
            "ask": "load",
            "digest": code.digest,
            "keep": sorted(self._loaded),
            "facts": code.facts,
            "parts": [(name, len(pieces)) for name, pieces in code.parts.items()],
            "pieces": wanted,
            "sent": list(sent),
            "hold": self._is_far,
        }
        refusal = self._answer(process, question, list(sent.values()), limit_s, _refusal)
        if not refusal:
            self._loaded[code.digest] = wanted if self._is_far else ()
        return refusal

    def _answer(
        self,
        process: WorkerProcess,
        question: Mapping[str, Any],
        pieces: Sequence[memoryview],
        limit_s: float,
        read: Callable[[Mapping[str, Any]], T],
    ) -> T:
        """What the process answers, as far as it can be read.

        Raises:
            WorkerDied: it ended, or says what is no answer.
            TimeoutError: it gives none in time.
        """
        if self._is_far:
            limit_s += sum(piece.nbytes for piece in pieces) / _LEAST_BYTES_PER_S + _ROUND_TRIP_S
        texts = process.ask([_json(question), *pieces], limit_s)
        try:
            (answer,) = texts
            return read(json.loads(answer))
        except (ArithmeticError, AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
            raise WorkerDied("it gave an answer that cannot be read") from error

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
            if is_ready:
                self._accept(self._process.greeting)
        except BaseException:
            self.close()
            raise
        if not is_ready:
            complaint = self._process.complaint
            self.close()
            raise NoWorker(f"{self._name} did not come up ({complaint})")
        return self._process


class LocalMeasuringPool(ProcessMeasuringPool):
    """One process of this interpreter that runs `module`."""

    def __init__(self, module: str, *, lock: MachineLock | None = None, start_s: float = _START_S) -> None:
        def started() -> WorkerProcess:
            arguments, environment = module_command(module)
            return WorkerProcess(arguments, start_s=start_s, environment=environment)

        lock = lock if lock is not None else MachineLock.of_user()
        super().__init__(started, f"a process that runs {module}", lock=lock)


def _refusal(answer: Mapping[str, Any]) -> str:
    return bounded(str(answer.get("declined", "")))


def _result(request: MeasureRequest, answer: Mapping[str, Any]) -> MeasureResult:
    """What an answer says of a request.

    Raises:
        ArithmeticError, KeyError, TypeError, ValueError: it says nothing that can be read, or that a run of
            the request cannot give.
    """
    if "reason" in answer:
        reason: Reason = "declined" if answer["reason"] == "declined" else "wrong-values"
        return Failed(reason, bounded(str(answer["detail"])))
    candidate, *others = (
        _samples(answer[name], request)
        for name, code in (("candidate", request.candidate), ("baseline", request.baseline))
        if code is not None
    )
    if any(len(other.whole_ns) != len(candidate.whole_ns) for other in others):
        raise ValueError("samples of other rounds")
    return Measured(
        candidate, next(iter(others), None), int(answer["num_rejected"]), bool(answer["is_disturbed"])
    )


def _samples(document: Mapping[str, Any], request: MeasureRequest) -> Samples:
    whole_ns = tuple(map(_time_ns, document["whole_ns"]))
    steps_ns = tuple(tuple(map(_time_ns, steps)) for steps in document["steps_ns"])
    if not whole_ns or len(steps_ns) not in (0, len(whole_ns)) or len(set(map(len, steps_ns))) > 1:
        raise ValueError("samples that do not fit each other")
    most_ns = 1e9 * request.limit_s
    if len(whole_ns) > request.effort.max_rounds or min(whole_ns) <= 0 or max(whole_ns) > most_ns:
        raise ValueError("samples that no run gives")
    return Samples(whole_ns, steps_ns)


def _time_ns(number: Any) -> float:
    time_ns = float(number)
    if not 0 <= time_ns < math.inf:
        raise ValueError(f"{number} is no time")
    return time_ns


def _digest(piece: Bytes) -> str:
    return hashlib.sha256(piece).hexdigest()


def _size(piece: Bytes) -> int:
    return memoryview(piece).nbytes


def _json(document: object) -> bytes:
    return json.dumps(document, sort_keys=True, allow_nan=False).encode()


def _type(array: Array) -> tuple[str, list[int]]:
    return DType.from_numpy(array.dtype).name, list(array.shape)


def _named(array: Array) -> memoryview:
    """The elements of an array, row by row."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
