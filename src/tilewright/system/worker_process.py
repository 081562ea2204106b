"""A process that answers one request at a time, which may crash or hang without harm to this one.

Request and answer are a number of texts, the length of each, and the texts: nothing is unpickled, and no more
than a limit is read. Whoever asks says how long the answer may take. A process that gives none in time, that
ends, or that says what is no answer, is not asked again. It may be any command whose standard streams are
such pipes: `ssh board tilewright worker`.

No process outlives this one. A child holds the read end of a pipe whose write end only this process has; the
kernel is asked to kill the child when that end is gone, also while a library in it holds the interpreter's
lock. PR_SET_PDEATHSIG would kill it at the end of the thread that started it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import IO, Any

from tilewright.errors import BudgetExceeded
from tilewright.text.printable import printable

try:
    import fcntl
    import resource
except ImportError:  # Windows
    fcntl = resource = None  # type: ignore[assignment]

READY = b"ready"
"""What a process says first, when it can be asked; texts that describe it may follow."""
MAX_TEXTS = 1 << 20
"""Of a request or an answer."""
MAX_BYTES = 8 << 30
"""Of a request or an answer, all texts together."""
_SHOWN_BYTES = 60
_MAX_ERROR_BYTES = 4096

_PIECE_BYTES = 1 << 20
_DEATH_S = 5.0
"""From the end of a process's pipes to its own, which the system may take a while for."""
_LINGER_S = 0.5
"""For the last line of a process's standard error, which another process may hold open."""


class WorkerDied(Exception):
    """The process ended before it answered; the message says how."""


class NoWorker(BudgetExceeded):
    """No process could be started here; the message says why."""


class WorkerProcess:
    """See above. A process that says nothing for `start_s` after it was started does not work.

    `greeting` are the texts that it said of itself; `complaint` says why it did not come up.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        start_s: float,
        environment: Mapping[str, str] | None = None,
        is_python: bool = True,
        max_answer_bytes: int = MAX_BYTES,
    ) -> None:
        """Start it, which takes it some time: see `is_ready`.

        `command` are the arguments of this interpreter, or with `is_python` false a whole command, which runs
        here as the user would start it, but for the terminal: Ctrl-C does not reach it.

        Raises:
            NoWorker: the system starts none.
        """
        if is_python and not can_start():
            raise NoWorker("this is no Python interpreter that can be started again")
        self._process = start_process(
            [sys.executable, *command] if is_python else list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if is_python else subprocess.PIPE,
            cwd=os.path.sep if is_python else None,
            env=None if environment is None else dict(environment),
            bufsize=0,
            start_new_session=not is_python,
        )
        self.greeting: tuple[bytes, ...] = ()
        self.complaint = ""
        self._max_answer_bytes = max_answer_bytes
        self._errors: deque[bytes] = deque(maxlen=1)
        if self._process.stderr is not None:
            arguments = self._process.stderr, self._errors
            self._reader = threading.Thread(target=_keep_last_line, args=arguments, daemon=True)
            self._reader.start()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._write_to, self._read_from = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._write_to, False)
        os.set_blocking(self._read_from, False)
        self._state = "starting"
        self._started_s, self._start_s = time.monotonic(), start_s
        _running.add(self)

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    def is_ready(self) -> bool:
        """Whether it came up, which this waits for."""
        if self._state == "starting":
            self._state = "broken"
            try:
                ready, *greeting = self._read_texts(self._started_s + self._start_s) or [b""]
                if ready == READY:
                    self.greeting, self._state = tuple(greeting), "idle"
                else:
                    self.complaint = f"it said {_shown(ready)}"
            except TimeoutError:
                self.complaint = f"it said nothing within {self._start_s:g} s"
            except WorkerDied as error:
                self.complaint = str(error) or self._cause_of_death()
            except OSError as error:
                self.complaint = str(error)
        return self._state == "idle"

    def is_usable(self) -> bool:
        """Whether another request may be sent, now or when it is up."""
        return self._state != "broken" and self._process.poll() is None

    def ask(self, texts: Sequence[bytes | memoryview], timeout_s: float) -> list[bytes]:
        """Its answer; a process that gives none is not asked again.

        Raises:
            WorkerDied: it ended instead.
            TimeoutError: there is no answer after so many seconds.
        """
        # Until the answer is read whole: an exception on the way, Ctrl-C too, leaves half of it in the pipe.
        self._state = "broken"
        deadline_s = time.monotonic() + timeout_s
        try:
            for piece in (_head(texts), *texts):
                self._write(piece, deadline_s)
            answer = self._read_texts(deadline_s)
        except (BrokenPipeError, WorkerDied) as error:
            is_told = isinstance(error, WorkerDied) and str(error)
            raise WorkerDied(str(error) if is_told else self._cause_of_death()) from None
        self._state = "idle"
        return answer

    def kill(self) -> None:
        """Kill it while another thread asks it, which hears of its death and ends it."""
        self._state = "broken"
        self._process.kill()

    def end(self) -> None:
        """Kill it, which it is fit for: it holds nothing. Leaves neither zombie nor open files."""
        self._state = "broken"
        self._process.kill()
        self._process.wait()
        self._close()

    def forget(self) -> None:
        """In a forked child: the process is the parent's."""
        self._state = "broken"
        self._process.returncode = 0
        self._close()

    def _close(self) -> None:
        _running.discard(self)
        if self._process.stderr is not None:
            self._reader.join(_LINGER_S)
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()

    def _cause_of_death(self) -> str:
        """How it ended, with the last line that it wrote to its standard error, if that is read."""
        try:
            status = self._process.wait(_DEATH_S)
        except subprocess.TimeoutExpired:  # it lives on with its pipes closed
            self._process.kill()
            self._process.wait()
            return "it closed its pipes"
        if status >= 0:
            if self._process.stderr is not None:
                self._reader.join(_LINGER_S)
            said = "".join(f": {_shown(line)}" for line in self._errors)
            return f"it ended with status {status}{said}"
        with contextlib.suppress(ValueError):
            return signal.Signals(-status).name
        return f"signal {-status}"

    def _write(self, data: bytes | memoryview, deadline_s: float) -> None:
        rest = memoryview(data).cast("B")
        while rest:
            self._wait(self._write_to, select.POLLOUT, deadline_s)
            with contextlib.suppress(BlockingIOError):
                rest = rest[os.write(self._write_to, rest[:_PIECE_BYTES]) :]

    def _read_texts(self, deadline_s: float) -> list[bytes]:
        head = self._read(4, deadline_s)
        (count,) = struct.unpack("<I", head)
        if count > MAX_TEXTS:
            rest = os.read(self._read_from, _SHOWN_BYTES) if self._has_more() else b""
            raise WorkerDied(f"it said {_shown(head + rest)}, which is no answer")
        sizes = struct.unpack(f"<{count}Q", self._read(8 * count, deadline_s))
        if sum(sizes) > self._max_answer_bytes:
            raise WorkerDied(
                f"it announced an answer of {sum(sizes)} bytes, more than {self._max_answer_bytes}"
            )
        whole = self._read(sum(sizes), deadline_s)
        ends = accumulate(sizes)
        return [whole[end - size : end] for end, size in zip(ends, sizes, strict=True)]

    def _read(self, count: int, deadline_s: float) -> bytes:
        parts: list[bytes] = []
        while count:
            self._wait(self._read_from, select.POLLIN, deadline_s)
            with contextlib.suppress(BlockingIOError):
                part = os.read(self._read_from, min(count, _PIECE_BYTES))
                if not part:
                    raise WorkerDied
                parts.append(part)
                count -= len(part)
        return b"".join(parts)

    def _has_more(self) -> bool:
        poll = select.poll()
        poll.register(self._read_from, select.POLLIN)
        return bool(poll.poll(0))

    @staticmethod
    def _wait(descriptor: int, event: int, deadline_s: float) -> None:
        poll = select.poll()
        poll.register(descriptor, event)
        if not poll.poll(max(deadline_s - time.monotonic(), 0.0) * 1000):
            raise TimeoutError


def _keep_last_line(pipe: IO[bytes], kept: deque[bytes]) -> None:
    """Read all that a process writes to its standard error, and keep the end of its last line.

    The pipe is closed here alone: another process may have its other end for longer, as a connection that
    `ssh` keeps for later, and a number that was free would then be read as that of another file.
    """
    last = b""
    with contextlib.suppress(OSError), pipe:
        while part := os.read(pipe.fileno(), _PIECE_BYTES):
            last = (last + part)[-_MAX_ERROR_BYTES:]
            if lines := last.strip().splitlines():
                kept.append(lines[-1].strip())


def _shown(text: bytes) -> str:
    """The beginning of what a process said, in one line."""
    return printable(" ".join(text[: 4 * _SHOWN_BYTES].decode(errors="replace").split()))


def start_process(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """A process that is killed when this one ends in whatever way, where the system is Linux.

    So is one without references. `options` are those of `subprocess.Popen`.

    Raises:
        NoWorker: the system starts none.
    """
    try:
        return _started(command, options)
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        said = getattr(error, "strerror", None) or error
        raise NoWorker(
            f"no process could be started ({said}): check the limits on processes and memory (ulimit -u, -v)."
        ) from error


def _started(command: Sequence[str], options: Mapping[str, Any]) -> subprocess.Popen[Any]:
    if not hasattr(fcntl, "F_SETSIG"):
        return subprocess.Popen(command, **options)
    held_by_child, held_here = os.pipe()
    try:
        process = subprocess.Popen(command, pass_fds=(held_by_child,), **options)
        # Settings of the pipe's end, which parent and child share.
        kill_at_hang_up(held_by_child, process.pid)
    except BaseException:
        os.close(held_here)
        raise
    finally:
        os.close(held_by_child)
    let_go = _lifelines[process] = weakref.finalize(process, os.close, held_here)
    let_go.atexit = False  # what runs at the end may still ask it
    return process


def kill_at_hang_up(pipe: int, pid: int) -> None:
    """Have a process killed when the last write end of a pipe is closed, where the system is Linux.

    The process holds the read end, and nothing is written.
    """
    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(pipe, fcntl.F_SETOWN, pid)
        fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)


def end_with_parent() -> None:
    """In a process of `multiprocessing`: end when the process that started it does."""
    from multiprocessing import parent_process  # only such a process needs it, and has it

    parent = parent_process()
    if parent is not None:
        kill_at_hang_up(parent.sentinel, os.getpid())
        if not parent.is_alive():
            os._exit(1)


def can_start() -> bool:
    """Whether this is an interpreter that can be started again: no other program that embeds Python."""
    is_python = Path(sys.executable or "").name.lower().startswith(("python", "pypy"))
    return is_python and hasattr(select, "poll")


def module_command(module: str) -> tuple[list[str], dict[str, str]]:
    """Arguments and environment of a process that runs a module of this package.

    The working directory must not decide which modules it imports.
    """
    holds_package = str(Path(__file__).resolve().parents[2])
    search_path = os.pathsep.join(filter(None, (holds_package, os.environ.get("PYTHONPATH", ""))))
    return ["-m", module], {**os.environ, "PYTHONPATH": search_path, "PYTHONSAFEPATH": "1"}


def serve_texts(
    start: Callable[[], Callable[[list[bytes]], list[bytes]]], greeting: Callable[[], list[bytes]] = list
) -> None:
    """In the process: answer until the caller closes its end, by what `start` makes with streams set aside.

    `greeting` are texts that say what the process is.

    The standard streams are the pipes of the caller; what the process prints goes nowhere.
    """
    requests, replies = os.dup(0), os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(nowhere, descriptor)
    # Ctrl-C goes to the whole group of processes: the one that asks decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if resource is not None:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    threading.Thread(target=_end_with_parent, args=(requests,), daemon=True).start()
    answer = start()
    write_texts(replies, [READY, *greeting()])
    while (texts := read_texts(requests)) is not None:
        write_texts(replies, answer(texts))


def _end_with_parent(requests: int) -> None:
    """Wait until the other end is closed, and end the process in the midst of whatever it does."""
    poll = select.poll()
    poll.register(requests, 0)  # a hang-up is told without being asked for
    poll.poll()
    os._exit(0)


def read_texts(descriptor: int) -> list[bytes] | None:
    """In the process: the next request; None when the caller has closed its end."""
    head = _read_all(descriptor, 4)
    if head is None:
        return None
    (count,) = struct.unpack("<I", head)
    lengths = _read_all(descriptor, 8 * count) if count <= MAX_TEXTS else None
    if lengths is None:
        return None
    texts: list[bytes] = []
    sizes = struct.unpack(f"<{count}Q", lengths)
    if sum(sizes) > MAX_BYTES:
        return None
    for size in sizes:
        text = _read_all(descriptor, size)
        if text is None:
            return None
        texts.append(text)
    return texts


def write_texts(descriptor: int, texts: Sequence[bytes]) -> None:
    """In the process: an answer."""
    for piece in (_head(texts), *texts):
        rest = memoryview(piece)
        while rest:
            rest = rest[os.write(descriptor, rest) :]


def _head(texts: Sequence[bytes | memoryview]) -> bytes:
    sizes = (text.nbytes if isinstance(text, memoryview) else len(text) for text in texts)
    return struct.pack(f"<I{len(texts)}Q", len(texts), *sizes)


def _read_all(descriptor: int, count: int) -> bytes | None:
    parts: list[bytes] = []
    while count:
        part = os.read(descriptor, min(count, _PIECE_BYTES))
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


_running: weakref.WeakSet[WorkerProcess] = weakref.WeakSet()
_lifelines: weakref.WeakKeyDictionary[subprocess.Popen[Any], Callable[[], object]] = (
    weakref.WeakKeyDictionary()
)
"""What closes the write end of the pipe of each process that was started here."""


def _forget_all() -> None:
    """The parent's processes stay the parent's: two callers of one would get each other's answers."""
    for let_go in list(_lifelines.values()):
        let_go()
    for process in list(_running):
        process.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
