"""Calls into C++ libraries that the end of the interpreter waits for.

Before Python 3.14 a daemon thread ends where it next asks for the interpreter's lock, once the interpreter
has ended. A library that asks for it in a C++ destructor, as pybind11 does behind a call that runs without
it, then aborts the whole process. So the interpreter waits for such calls, for a bounded time, and no other
daemon thread begins one.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from collections.abc import Iterator

EXIT_WAIT_S = 10.0
"""How long the end of the interpreter waits for calls that are under way."""
_POLL_S = 0.001
_NAP_S = 3600.0


class _State:
    """Of this process: threads in such calls, and whether the interpreter is about to end."""

    def __init__(self) -> None:
        self.threads_inside: set[int] = set()
        self.is_ending = False


_state = _State()


@contextlib.contextmanager
def finished_before_the_end() -> Iterator[None]:
    """A call of a library which the end of the interpreter must not cut short. Calls are not nested."""
    thread = threading.get_ident()
    # The end looks at the threads after it said that it has come, so one of the two sees the other.
    _state.threads_inside.add(thread)
    try:
        while _state.is_ending and threading.current_thread().daemon:
            _state.threads_inside.discard(thread)
            time.sleep(_NAP_S)  # the process ends meanwhile
        yield
    finally:
        _state.threads_inside.discard(thread)


def _wait_for_calls() -> None:
    """At exit: let calls end that are under way."""
    _state.is_ending = True
    deadline_s = time.monotonic() + EXIT_WAIT_S
    while _state.threads_inside - {threading.get_ident()} and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)


def _after_fork_in_child() -> None:
    _state.threads_inside &= {threading.get_ident()}


atexit.register(_wait_for_calls)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
