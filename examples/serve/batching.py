"""Requests of a server put together: each run of a model takes all that wait and have one shape.

None waits for others to come: while runs are going on, requests gather; the next run takes the oldest, and
those behind it that fit. So a server with little to do answers at once, and one with much to do in batches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

MAX_ROWS = 8
"""Rows of a run, for which the artifact should be prepared."""
MAX_WAITING = 256
"""Requests that may wait: a client that is refused at once can ask another server."""

Arrays: TypeAlias = dict[str, np.ndarray[Any, Any]]


class TooManyWaiting(Exception):
    """A request more than may wait."""


class Model(Protocol):
    """A compiled model, or another engine's session with onnxruntime's functions."""

    def get_inputs(self) -> Sequence[Any]:
        """Name, shape and type of each input."""

    def get_outputs(self) -> Sequence[Any]:
        """Name, shape and type of each output."""

    def run(self, output_names: Any, feed: Any, /) -> Sequence[Any]:
        """The outputs of a run."""


@dataclass(eq=False)
class Waiting:
    """A request that no run has taken yet."""

    feed: Arrays
    rows: int
    answer: asyncio.Future[list[np.ndarray[Any, Any]]]

    @property
    def kind(self) -> tuple[Any, ...]:
        """What requests of one run have in common."""
        return tuple((name, array.dtype, array.shape[1:]) for name, array in sorted(self.feed.items()))


class Batches:
    """Runs of a model, each of all requests of one shape that wait when it begins."""

    def __init__(self, model: Model, num_runs: int) -> None:
        self.model, self.num_runs = model, num_runs
        edges = [*model.get_inputs(), *model.get_outputs()]
        is_open = all(edge.shape and not isinstance(edge.shape[0], int) for edge in edges)
        self.max_rows = MAX_ROWS if is_open else 1
        self._waiting: list[Waiting] = []
        self._running: set[asyncio.Task[None]] = set()

    async def answer(self, feed: Arrays) -> list[np.ndarray[Any, Any]]:
        """The outputs for one request; leaving it takes it out of the queue."""
        if len(self._waiting) >= MAX_WAITING:
            raise TooManyWaiting(f"{MAX_WAITING} requests wait already")
        rows = {array.shape[0] for array in feed.values() if array.ndim}
        # What has no rows to be counted by is a run of its own.
        number = (
            rows.pop() if len(rows) == 1 and all(array.ndim for array in feed.values()) else self.max_rows
        )
        request = Waiting(feed, number, asyncio.get_running_loop().create_future())
        self._waiting.append(request)
        if len(self._running) < self.num_runs:
            task = asyncio.create_task(self._work())
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        return await request.answer

    async def _work(self) -> None:
        while taken := self._take():
            try:
                found = await asyncio.to_thread(self._run, taken)
            except Exception as error:
                found = [error] * len(taken)
            for request, outputs in zip(taken, found, strict=True):
                if request.answer.done():
                    continue
                if isinstance(outputs, Exception):
                    request.answer.set_exception(outputs)
                else:
                    request.answer.set_result(outputs)

    def _take(self) -> list[Waiting]:
        """The oldest request, and those behind it that fit into its run."""
        self._waiting = [request for request in self._waiting if not request.answer.cancelled()]
        taken: list[Waiting] = []
        for request in self._waiting:
            rows = sum(other.rows for other in taken) + request.rows
            if not taken or (request.kind == taken[0].kind and rows <= self.max_rows):
                taken.append(request)
        self._waiting = [request for request in self._waiting if request not in taken]
        return taken

    def _run(self, requests: list[Waiting]) -> list[Any]:
        """The outputs of each request, or its error."""
        if len(requests) == 1:
            return [list(self.model.run(None, requests[0].feed))]
        feeds = [request.feed for request in requests]
        feed = {name: np.concatenate([other[name] for other in feeds]) for name in feeds[0]}
        try:
            outputs = self.model.run(None, feed)
        except Exception:
            # Each alone, so that what is wrong with one request costs no other one.
            return [self._alone(request) for request in requests]
        ends = np.cumsum([request.rows for request in requests])[:-1]
        return [list(parts) for parts in zip(*(np.split(output, ends) for output in outputs), strict=True)]

    def _alone(self, request: Waiting) -> Any:
        try:
            return list(self.model.run(None, request.feed))
        except Exception as error:
            return error
