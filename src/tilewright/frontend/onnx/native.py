"""Calls of onnx's C++ on what a file holds, made in another process, so that a crash there is one line here.

onnx checks what an operator's attributes say less than it relies on it: some make its shape inference read
outside its arrays or loop for ever, and more will be found. So nothing of a file reaches that code here: a
worker process makes the calls, with limits on time and memory and no core dumps, and its answers are used.
That holds for every source, be it a file of the user's own (which is as often a download), bytes or a
`ModelProto`. What stays here is parsing, by upb, which checks each length that it reads.

Why so: a call costs 0.1 ms, and one for each kind of node is made, so that an import takes as long as
without (ResNet-50: 60 calls for 175 nodes). A worker starts in 40 ms while the file is read and parsed, and
is kept for the next import of this process. A child forked from here would inherit locks that other threads
hold, and costs 30 ms for each 100 MB of this process; one that imports this package costs 400 ms; a rehearsal
of the whole import in a child doubles its time.

Where no process can be started (no `sys.executable`, a sandbox, Windows), calls are made here.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path

from onnx import onnx_cpp2py_export

from tilewright.errors import ModelRejected
from tilewright.frontend.onnx import native_worker
from tilewright.frontend.onnx.limits import (
    IMPORT_S_PER_BYTE,
    IMPORT_S_PER_NODE,
    MAX_IMPORT_S,
    MAX_NATIVE_BYTES,
    MAX_NATIVE_CALL_S,
    NATIVE_BYTES_PER_BYTE,
)
from tilewright.system.worker_process import NoWorker, WorkerDied, WorkerProcess, can_start

logger = logging.getLogger(__name__)

# A worker that says nothing for so long does not work here.
_START_S = 20.0


# How messages call what `native_worker` does.
_WHAT = {
    "check_model": "onnx's checker",
    "inline_functions": "onnx's inliner",
    "convert_version": "onnx's version converter",
    "infer_outputs": "onnx's shape inference",
    "composed_body": "onnx's definition of the operator",
}
# Requests that are small and come again; the others hold a whole model.
_OF_ONE_NODE = frozenset({"infer_outputs", "composed_body"})


class NativeError(Exception):
    """onnx's C++ does not like what it was given; the message is its own."""


class Session:
    """The calls of one import, and the time that it has. Equal calls are made once."""

    def __init__(self, num_nodes: int, num_bytes: int) -> None:
        self._allowed_s = MAX_IMPORT_S + num_nodes * IMPORT_S_PER_NODE + num_bytes * IMPORT_S_PER_BYTE
        # Processor time, so that a busy machine does not refuse what an idle one takes.
        self._start_s = time.thread_time()
        self._asked_s = 0.0
        self._answers: dict[tuple[bytes, ...], tuple[bytes, ...]] = {}
        self._worker = _borrow()

    def check_time(self) -> None:
        """Refuse a model whose import takes too long.

        Raises:
            ModelRejected: it does.
        """
        if self._remaining_s() < 0:
            raise ModelRejected(
                f"reading the model takes longer than {self._allowed_s:.0f} s ({MAX_IMPORT_S:g} s and "
                f"{IMPORT_S_PER_NODE * 1000:g} ms a node); split it, or expand fewer functions and loops."
            )

    def call(self, function: str, *texts: bytes) -> tuple[bytes, ...]:
        """See `call`."""
        key = (function.encode(), *texts)
        answer = self._answers.get(key)
        if answer is None:
            self.check_time()
            answer = self._asked(key)
            if function in _OF_ONE_NODE:
                self._answers[key] = answer
        return answer

    def _remaining_s(self) -> float:
        return self._allowed_s - (time.thread_time() - self._start_s) - self._asked_s

    def end(self) -> None:
        """Give the worker back."""
        if self._worker is not None:
            _give_back(self._worker)
            self._worker = None

    def _asked(self, key: Sequence[bytes]) -> tuple[bytes, ...]:
        memory_bytes = MAX_NATIVE_BYTES + NATIVE_BYTES_PER_BYTE * sum(map(len, key))
        allowed_s = MAX_NATIVE_CALL_S + sum(map(len, key)) * IMPORT_S_PER_BYTE
        allowed_s = min(allowed_s, max(self._remaining_s(), 0.1))
        what = _WHAT[key[0].decode()]
        if self._worker is not None and not self._worker.is_ready():
            self._worker.end()
            self._worker = None
            logger.warning("no worker process could be started: models are checked in this process")
        if self._worker is None:
            kind, *answer = _call_here(key)
        else:
            limits = (b"%d" % memory_bytes, b"%d" % max(int(allowed_s) + 1, 1))
            try:
                kind, used_ns, *answer = self._worker.ask((key[0], *limits, *key[1:]), allowed_s)
                self._asked_s += int(used_ns) * 1e-9
            except TimeoutError:
                self._replace_worker()
                raise ModelRejected(
                    f"{what} takes longer than {allowed_s:.0f} s on it; check its attributes."
                ) from None
            except WorkerDied as death:
                self._replace_worker()
                raise ModelRejected(
                    f"{what} crashed on it ({death}); its attributes or operands are out of range."
                ) from None
        if kind == b"MemoryError":
            raise ModelRejected(
                f"{what} needs more than {memory_bytes / 2**30:.0f} GiB of memory; check its sizes."
            )
        if kind != b"ok":
            raise NativeError((answer or [b""])[0].decode("utf-8", "replace") or kind.decode())
        return tuple(answer)

    def _replace_worker(self) -> None:
        """Another worker for one that was ended by what it was asked: what comes next is not asked here."""
        assert self._worker is not None
        self._worker.end()
        self._worker = _start()


_CURRENT: ContextVar[Session | None] = ContextVar("session", default=None)


@contextlib.contextmanager
def session(num_nodes: int, num_bytes: int) -> Iterator[Session]:
    """An import: `num_nodes` and `num_bytes` of its file say how long it may take.

    A session inside another one is the same session.
    """
    current = _CURRENT.get()
    if current is not None:
        yield current
        return
    opened = Session(num_nodes, num_bytes)
    token = _CURRENT.set(opened)
    try:
        yield opened
    finally:
        _CURRENT.reset(token)
        opened.end()


def call(function: str, *texts: bytes) -> tuple[bytes, ...]:
    """What a function of `native_worker.FUNCTIONS` answers.

    Raises:
        NativeError: it raised an error of its own.
        ModelRejected: it crashed, or took too long or too much memory.
    """
    with session(0, 0) as current:
        return current.call(function, *texts)


def check_time() -> None:
    """Refuse a model whose import takes too long, if one goes on.

    Raises:
        ModelRejected: it does.
    """
    current = _CURRENT.get()
    if current is not None:
        current.check_time()


def warm_up() -> None:
    """Start a worker if none is idle, so that it is there when it is needed. Returns at once."""
    worker = _borrow()
    if worker is not None:
        _give_back(worker)


class _Idle:
    """Workers between imports: one is kept, for as long as this process lives."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.workers: list[WorkerProcess] = []
        self.num_kept = 1
        self.is_warned = False


_IDLE = _Idle()


def _borrow() -> WorkerProcess | None:
    """An idle worker or a new one, None where none can be started."""
    with _IDLE.lock:
        worker = _IDLE.workers.pop() if _IDLE.workers else None
    if worker is not None:
        if worker.is_usable():
            return worker
        worker.end()
    return _start()


def _give_back(worker: WorkerProcess) -> None:
    if worker.is_usable():
        with _IDLE.lock:
            if len(_IDLE.workers) < _IDLE.num_kept:
                _IDLE.workers.append(worker)
                return
    worker.end()


def _start() -> WorkerProcess | None:
    extension, script = onnx_cpp2py_export.__file__, native_worker.__file__
    if not can_start() or not Path(script).is_file():
        return None
    try:
        return WorkerProcess(["-I", "-S", script, extension], start_s=_START_S)
    except NoWorker as error:
        if not _IDLE.is_warned:
            _IDLE.is_warned = True
            logger.warning("models are checked in this process: %s", error)
        return None


def _call_here(key: Sequence[bytes]) -> list[bytes]:
    native_worker.onnx = onnx_cpp2py_export
    return native_worker.answer(list(key))


def _end_idle() -> None:
    _IDLE.num_kept = 0
    while _IDLE.workers:
        _IDLE.workers.pop().end()


def _after_fork_in_child() -> None:
    """The parent's workers stay the parent's: a child forgets them."""
    _IDLE.__init__()  # type: ignore[misc]  # another thread may hold the lock, and is not here
    _CURRENT.set(None)


atexit.register(_end_idle)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
