"""Candidates handed to several machines alike, in batches, of which lost ones are given to others.

Requests are cut into batches in their order, whoever measures them, and results are given out in their order.
Each batch is measured between two runs of the same code, its calibration: where these differ, the machine
was not the same before and after, and the batch is measured again. A machine that dies loses its batch and
nothing else: others measure its requests, one by one, so that a request that ends every machine is told from
its neighbours. How machines are reached is a `Fleet`'s matter.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field, replace
from typing import Protocol

from tilewright.records import dataclass
from tilewright.system.worker_process import NoWorker
from tilewright.text.formatting import counted
from tilewright.tuning.samples import typical
from tilewright.tuning.workers import Effort, Failed, Measured, MeasureRequest, MeasureResult, MeasuringPool

logger = logging.getLogger(__name__)

BATCH_REQUESTS = 2
MAX_DRIFT = 0.1
"""By so much of the lesser the two runs of a calibration may differ."""
_MAX_DRIFTED = 3
_MAX_DEATHS = 3
_CALIBRATION = Effort(min_rounds=3, max_rounds=12, seconds=0.2)


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What a machine says of a batch: results in order, and the lower quartiles of its calibration's runs.

    A calibration is None where the code that calibrates does not run.
    """

    results: tuple[MeasureResult, ...]
    before_ns: float | None
    after_ns: float | None

    @property
    def drift(self) -> float:
        """By how much of the lesser the calibration's runs differ; 0 where there is none."""
        if self.before_ns is None or self.after_ns is None:
            return 0.0
        least_ns, most_ns = sorted((self.before_ns, self.after_ns))
        return most_ns / least_ns - 1


@dataclass(frozen=True, slots=True)
class MachineDied:
    """A machine that is not there any more, and how that was told."""

    detail: str


class Fleet(Protocol):
    """Machines that measure batches, each one at a time. Who asks names them by numbers."""

    def machines(self) -> Sequence[int]:
        """Those that can be asked now. One that died may come back under another number."""
        ...

    def submit(self, machine: int, requests: Sequence[MeasureRequest]) -> None:
        """Let a machine begin with a batch."""
        ...

    def wait(self) -> Sequence[tuple[int, BatchResult | MachineDied]]:
        """What machines say that were given a batch, once there is one that says something."""
        ...

    def abandon(self) -> None:
        """Forget all batches that machines work on."""
        ...

    def close(self) -> None:
        """Let all machines go."""
        ...


@dataclass(slots=True)
class ClusterReport:
    """What happened to batches so far."""

    num_deaths: int = 0
    num_drifted: int = 0
    num_measured_again: int = field(default=0)
    """Requests, for either reason."""


@dataclass(frozen=True, slots=True)
class _Batch:
    """Requests with their numbers; how often it was measured on machines that drifted, or lost."""

    requests: tuple[tuple[int, MeasureRequest], ...]
    num_drifted: int = 0
    num_deaths: int = 0


class ClusterMeasuringPool:
    """A measuring pool of several machines; see above."""

    def __init__(self, fleet: Fleet, batch_requests: int = BATCH_REQUESTS) -> None:
        self._fleet = fleet
        self._batch_requests = batch_requests
        self.report = ClusterReport()

    @property
    def num_machines(self) -> int:
        """How many measure at the same time."""
        return len(self._fleet.machines())

    def measure(self, requests: Iterable[MeasureRequest]) -> Iterator[MeasureResult]:
        """The result of each request, in their order. Requests are taken when a machine is free for them.

        Raises:
            NoWorker: no machine is left.
        """
        waiting = _Waiting(enumerate(requests), self._batch_requests)
        running: dict[int, _Batch] = {}
        results: dict[int, MeasureResult] = {}
        next_number = 0
        try:
            while True:
                for machine in self._fleet.machines():
                    if machine not in running and (batch := waiting.take()) is not None:
                        running[machine] = batch
                        self._fleet.submit(machine, [request for _, request in batch.requests])
                while next_number in results:
                    yield results.pop(next_number)
                    next_number += 1
                if not running:
                    if waiting.is_empty():
                        return
                    raise NoWorker("no machine of the cluster is left that measures")
                for machine, said in self._fleet.wait():
                    self._take(running.pop(machine), said, waiting, results)
        finally:
            if running:
                self._fleet.abandon()

    def close(self) -> None:
        """Let all machines go."""
        self._fleet.close()

    def __enter__(self) -> ClusterMeasuringPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take(
        self,
        batch: _Batch,
        said: BatchResult | MachineDied,
        waiting: _Waiting,
        results: dict[int, MeasureResult],
    ) -> None:
        """Keep the results of a batch, or let it be measured again."""
        if isinstance(said, MachineDied):
            logger.info("a machine died with a batch of %d: %s", len(batch.requests), said.detail)
            self.report.num_deaths += 1
            num_deaths = batch.num_deaths + 1
            if num_deaths < _MAX_DEATHS:
                self.report.num_measured_again += len(batch.requests)
                waiting.put([_Batch((one,), batch.num_drifted, num_deaths) for one in batch.requests])
                return
            detail = f"{counted(num_deaths, 'machine')} ended with it, the last: {said.detail}"
            results.update((number, Failed("crashed", detail)) for number, _ in batch.requests)
            return
        drifted = said.drift > MAX_DRIFT
        self.report.num_drifted += drifted
        if drifted and batch.num_drifted + 1 < _MAX_DRIFTED:
            logger.info("a machine's calibration drifted by %.0f %%: measured again", 100 * said.drift)
            self.report.num_measured_again += len(batch.requests)
            waiting.put([replace(batch, num_drifted=batch.num_drifted + 1)])
            return
        for (number, _), result in zip(batch.requests, said.results, strict=True):
            if drifted and isinstance(result, Measured):
                results[number] = replace(result, is_disturbed=True)
            else:
                results[number] = result


@dataclass(slots=True)
class _Waiting:
    """Batches that no machine measures: those to be measured again, and the rest of the requests."""

    requests: Iterator[tuple[int, MeasureRequest]]
    batch_requests: int
    again: deque[_Batch] = field(default_factory=deque)
    is_exhausted: bool = False

    def take(self) -> _Batch | None:
        """The next batch, the earliest first."""
        if self.again:
            return self.again.popleft()
        batch = tuple(itertools.islice(self.requests, self.batch_requests))
        self.is_exhausted = len(batch) < self.batch_requests
        return _Batch(batch) if batch else None

    def put(self, batches: Sequence[_Batch]) -> None:
        """To be measured again, before what was not measured yet."""
        self.again = deque(sorted((*self.again, *batches), key=lambda batch: batch.requests[0][0]))

    def is_empty(self) -> bool:
        """Whether nothing is left; asks for the next batch."""
        batch = self.take()
        if batch is not None:
            self.again.appendleft(batch)
        return batch is None


def measured_batch(pool: MeasuringPool, requests: Sequence[MeasureRequest]) -> BatchResult:
    """On a machine: the results of a batch, between two runs of what its first request is compared with."""
    first = requests[0]
    calibration = replace(
        first, candidate=first.baseline or first.candidate, baseline=None, effort=_CALIBRATION
    )
    before, *results, after = pool.measure([calibration, *requests, calibration])
    return BatchResult(tuple(results), _time_ns(before), _time_ns(after))


def _time_ns(result: MeasureResult) -> float | None:
    return None if isinstance(result, Failed) else typical(result.candidate.whole_ns)
