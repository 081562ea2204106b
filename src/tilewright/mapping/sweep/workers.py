"""Who answers tasks: this process, processes beside it, or those of a cluster.

Tasks and answers are texts. Each worker has a thread here, which sends it a task at a time. A worker that
dies loses its task only, which is sent to another one, up to three times.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tilewright.errors import InternalError
from tilewright.progress import checkpoint
from tilewright.system.worker_process import NoWorker, WorkerDied, WorkerProcess, module_command

logger = logging.getLogger(__name__)

MAX_DEATHS = 3
"""So many workers may end with a task, before it counts as what ends them."""
_START_S = 300.0
_POLL_S = 0.2
LAYERS = "tilewright.mapping.sweep.worker"
"""The module of processes that map layers: run as a program it serves tasks, its `answer` answers one."""


class Worker(Protocol):
    """Answers one task at a time."""

    def ask(self, task: str) -> str:
        """Its answer.

        Raises:
            WorkerDied: it ended instead, or gave none in time.
        """
        ...

    def end(self) -> None:
        """Let it go."""
        ...

    def interrupt(self) -> None:
        """End a task under way, from another thread: `ask` raises `WorkerDied` there."""
        ...


class Crew(Protocol):
    """Workers that can be had."""

    @property
    def num_workers(self) -> int:
        """How many work at the same time."""
        ...

    def start(self) -> Worker:
        """Another worker, in the first place or in place of one that died.

        Raises:
            NoWorker: none can be had.
        """
        ...

    def close(self) -> None:
        """Let the connection go, if there is one; workers have ended."""
        ...


class ProcessWorker:
    """A process on this machine."""

    def __init__(self, limit_s: float, module: str = LAYERS) -> None:
        arguments, environment = module_command(module)
        self._limit_s = limit_s
        self._process = WorkerProcess(arguments, start_s=_START_S, environment=environment)

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    def ask(self, task: str) -> str:
        """See `Worker`."""
        if not self._process.is_ready():
            raise WorkerDied("it did not come up")
        try:
            (answer,) = self._process.ask([task.encode()], self._limit_s)
        except TimeoutError:
            raise WorkerDied(f"it gave no answer in {self._limit_s:.0f} s") from None
        return answer.decode()

    def end(self) -> None:
        """See `Worker`."""
        self._process.end()

    def interrupt(self) -> None:
        """See `Worker`."""
        self._process.kill()


class Processes:
    """So many processes on this machine, of a module as `LAYERS` is one."""

    def __init__(self, num_workers: int, limit_s: float, module: str = LAYERS) -> None:
        self._num_workers, self._limit_s, self._module = num_workers, limit_s, module
        self.started: list[ProcessWorker] = []

    @property
    def num_workers(self) -> int:
        """See `Crew`."""
        return self._num_workers

    def start(self) -> ProcessWorker:
        """See `Crew`."""
        worker = ProcessWorker(self._limit_s, self._module)
        self.started.append(worker)
        return worker

    def close(self) -> None:
        """See `Crew`: there is no connection."""


@dataclass(slots=True)
class _Task:
    key: str
    text: str
    num_deaths: int = 0


@dataclass(slots=True)
class _Queue:
    """Tasks that no worker has, and what became of the others, under one lock."""

    waiting: deque[_Task]
    num_open: int
    num_serving: int
    answers: deque[tuple[str, str]] = field(default_factory=deque)
    failure: BaseException | None = None
    is_over: bool = False
    changed: threading.Condition = field(default_factory=threading.Condition)

    def take(self) -> _Task | None:
        """The next task; None when there will be none."""
        with self.changed:
            while not self.is_over and not self.waiting and self.num_open:
                self.changed.wait(_POLL_S)
            return None if self.is_over or not self.num_open else self.waiting.popleft()

    def put_back(self, task: _Task) -> None:
        """For another worker, before what was not begun."""
        with self.changed:
            self.waiting.appendleft(task)
            self.changed.notify_all()

    def answered(self, task: _Task, answer: str) -> None:
        """A task is done."""
        with self.changed:
            self.answers.append((task.key, answer))
            self.num_open -= 1
            self.changed.notify_all()

    def failed(self, error: BaseException) -> None:
        """Nothing more can be done."""
        with self.changed:
            self.failure = self.failure or error
            self.is_over = True
            self.changed.notify_all()

    def left(self, why: NoWorker | None) -> None:
        """A thread serves no more; the last one that leaves early ends everything."""
        with self.changed:
            self.num_serving -= 1
            if why is not None and not self.num_serving and self.num_open:
                self.failure = self.failure or why
                self.is_over = True
            self.changed.notify_all()


def answers(tasks: Mapping[str, str], crew: Crew) -> Generator[tuple[str, str], None, None]:
    """Keys of tasks with their answers, in whatever order these come.

    Raises:
        NoWorker: no worker is left.
        InternalError: three workers in a row ended with the same task.
    """
    queue = _Queue(
        deque(_Task(key, text) for key, text in tasks.items()), len(tasks), min(crew.num_workers, len(tasks))
    )
    serving = [_Serving(queue, crew) for _ in range(queue.num_serving)]
    try:
        for each in serving:
            each.thread.start()
        while True:
            with queue.changed:
                while not queue.answers and queue.num_open and not queue.is_over:
                    queue.changed.wait(_POLL_S)
                    checkpoint()
                come = list(queue.answers)
                queue.answers.clear()
                is_over = not queue.num_open or queue.is_over
            yield from come
            if is_over:
                break
        if queue.failure is not None:
            raise queue.failure
    finally:
        with queue.changed:
            queue.is_over = True
            queue.changed.notify_all()
        for each in serving:
            each.end()


class _Serving:
    """A thread and its worker."""

    def __init__(self, queue: _Queue, crew: Crew) -> None:
        self._queue, self._crew = queue, crew
        self._worker: Worker | None = None
        self.thread = threading.Thread(target=self._serve, daemon=True)

    def end(self) -> None:
        """End the worker, whatever it does, and the thread."""
        worker = self._worker
        if worker is not None:
            worker.interrupt()
        if self.thread.ident is not None:
            self.thread.join()

    def _serve(self) -> None:
        why: NoWorker | None = None
        try:
            while why is None and (task := self._queue.take()) is not None:
                why = self._work_on(task)
        except BaseException as error:
            self._queue.failed(error)
        finally:
            if self._worker is not None:
                self._worker.end()
            self._queue.left(why)

    def _work_on(self, task: _Task) -> NoWorker | None:
        """Answer a task, or give it back; why no worker can be had, if none can."""
        try:
            worker = self._worker or self._crew.start()
        except NoWorker as error:
            self._queue.put_back(task)
            return error
        self._worker = worker
        if self._queue.is_over:
            return None
        try:
            answer = worker.ask(task.text)
        except WorkerDied as error:
            self._worker = None
            worker.end()
            if self._queue.is_over:
                return None
            task.num_deaths += 1
            logger.info("a worker died with a task, the %d. time: %s", task.num_deaths, error)
            if task.num_deaths == MAX_DEATHS:
                raise InternalError(
                    f"{MAX_DEATHS} workers ended with the same task, the last: {error}."
                ) from None
            self._queue.put_back(task)
            return None
        self._queue.answered(task, answer)
        return None


def answers_here(tasks: Mapping[str, str], solve: Callable[[str], str]) -> Iterable[tuple[str, str]]:
    """The same by this process, one after the other."""
    return ((key, solve(text)) for key, text in tasks.items())
