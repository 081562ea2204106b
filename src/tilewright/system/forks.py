"""What a forked child may rely on: free locks, complete modules, and a compiler that is whole.

Only the thread that forks goes on in the child. What others held at that moment would stay held for ever,
and what they were changing would stay half changed. So a fork waits until no other thread is inside LLVM or
in the middle of importing this package, and the child gets new locks in place of those that others held.
"""

from __future__ import annotations

import _imp  # its lock is the one that CPython itself takes for a fork: no import begins meanwhile

# Both of these lock something before a fork. Handlers run latest first: as these are registered before ours,
# other threads can still take such a lock while a fork waits for them.
import concurrent.futures.thread  # noqa: F401
import logging  # noqa: F401
import os
import sys
import threading
import time
import weakref
from types import FrameType
from typing import Any

from tilewright.errors import UsageError

FORK_WAIT_S = 10.0
"""How long a fork waits for other threads. One call of the compiler takes milliseconds, seconds at most."""

_POLL_S = 0.001
_IMPORT_SYSTEM = "<frozen importlib._bootstrap>"
_PACKAGE = __name__.partition(".")[0]


class ForkSafeLock:
    """A reentrant lock that a forked child finds free if another thread of the parent held it."""

    __slots__ = ("__weakref__", "_lock")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _locks.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *exception: object) -> None:
        self._lock.release()

    def renew(self) -> None:
        """In a forked child: a new lock, unless this thread is the one that holds it."""
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            self._lock = threading.RLock()


_locks: weakref.WeakSet[ForkSafeLock] = weakref.WeakSet()


class _State:
    """Of this process: forks under way, and whether it came from one that could not wait any longer."""

    def __init__(self) -> None:
        self.waiting_threads: set[int] = set()
        self.is_torn = False


class _Held(threading.local):
    """What this thread locked for its fork, the compiler and imports; `missed` if not in time."""

    def __init__(self) -> None:
        self.locks: list[Any] = []
        self.imports = False
        self.missed = False


_state = _State()
_held = _Held()


def process_is_whole() -> bool:
    """Whether LLVM may be called, and modules imported, in this process."""
    return not _state.is_torn


def let_forks_pass() -> None:
    """Called before LLVM is: threads that wait to fork go first, for locks know no turns."""
    require_whole_process()
    while _state.waiting_threads:
        time.sleep(_POLL_S)


def require_whole_process() -> None:
    """Refuse where a call would wait for a thread that exists in the parent only.

    Raises:
        UsageError: this process is the child of a fork that came in the midst of another thread's work.
    """
    if _state.is_torn:
        raise UsageError(
            "this process was forked while another thread compiled for longer than the "
            f"{FORK_WAIT_S:.0f} s that a fork waits: it can neither compile nor load a model. Fork before "
            "compiling, or start processes with 'spawn'."
        )


def _before() -> None:
    """Wait, for a bounded time, until no other thread is in LLVM or imports this package."""
    if _state.is_torn:
        return
    deadline = time.monotonic() + FORK_WAIT_S
    this_thread = threading.get_ident()
    try:
        _state.waiting_threads.add(this_thread)
        _held.missed = not _reach_quiet(deadline)
    finally:
        _state.waiting_threads.discard(this_thread)


def _reach_quiet(deadline: float) -> bool:
    """Lock the compiler and imports at a moment when no other thread imports; False if none came."""
    imports_itself = _imports(sys._getframe(1))  # the others may wait for it
    while _take_locks(deadline):
        _imp.acquire_lock()
        _held.imports = True
        if imports_itself or not _others_import():
            return True
        _release_locks()  # imports may need them
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_S)
    return False


def _take_locks(deadline: float) -> bool:
    for lock in _compiler_locks():
        if not lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            _release_locks()
            return False
        _held.locks.append(lock)
    return True


def _release_locks() -> None:
    if _held.imports:
        _held.imports = False
        _imp.release_lock()
    while _held.locks:
        _held.locks.pop().release()


def _compiler_locks() -> list[Any]:
    """The locks of numba, LLVM and of validators that are made, in the order in which numba takes them."""
    numba = getattr(sys.modules.get("numba.core.compiler_lock"), "global_compiler_lock", None)
    library = getattr(sys.modules.get("llvmlite.binding.ffi"), "lib", None)
    wrappers = (numba, getattr(library, "_lock", None))
    validators = getattr(sys.modules.get("pydantic.main"), "_rebuild_lock", None)
    locks = (*(getattr(wrapper, "_lock", None) for wrapper in wrappers), validators)
    return [lock for lock in locks if lock is not None]


def _others_import() -> bool:
    this_thread = threading.get_ident()
    return any(_imports(frame) for thread, frame in sys._current_frames().items() if thread != this_thread)


def _imports(frame: FrameType | None) -> bool:
    """Whether a thread imports a module of this package, or one that this package asked for."""
    is_in_import = False
    while frame is not None:
        if frame.f_code.co_filename == _IMPORT_SYSTEM:
            is_in_import = True
        elif str(frame.f_globals.get("__name__")).partition(".")[0] == _PACKAGE and (
            is_in_import or frame.f_code.co_name == "<module>"
        ):
            return True
        frame = frame.f_back
    return False


def _after_in_parent() -> None:
    _release_locks()


def _after_in_child() -> None:
    missed, _held.missed = _held.missed, False
    _release_locks()
    _state.waiting_threads.clear()
    for lock in list(_locks):
        lock.renew()
    if missed:
        _state.is_torn = True
        # LLVM's objects cannot be disposed of either: collecting one would wait for ever.
        flag = getattr(sys.modules.get("llvmlite.binding.common"), "_shutting_down", None)
        if isinstance(flag, list):
            flag[:] = [True]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
