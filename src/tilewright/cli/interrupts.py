"""Signals that end the command: nothing half written, no traceback, and the exit code that shells expect.

While modules load and while the interpreter ends there is nothing to tidy up, and a signal ends the process
at once. In between it unwinds as KeyboardInterrupt, which every `finally` sees; what does not unwind in time,
such as a long call of the compiler, is ended too. A search that has an answer is asked to end instead.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

from tilewright.progress import interrupt_search

EXIT_INTERRUPTED = 130
UNWIND_S = 30.0
"""How long a command may take to tidy up after a signal: a search still writes the best that it found."""

_SOON_S = 0.01
_NUMBERS = [number for name in ("SIGINT", "SIGTERM", "SIGHUP") if (number := getattr(signal, name, None))]
_MESSAGE = b"tilewright: interrupted; no half-written file was left behind.\n"
_MESSAGE_UNTIDY = b"tilewright: interrupted again or for too long; hidden files it wrote may be left.\n"


class _State:
    """Which signal came first."""

    received: int = signal.SIGINT
    is_told: bool = False


def exit_code() -> int:
    """What a shell reports of a process that the signal ended."""
    return 128 + _State.received


def is_told() -> bool:
    """Whether a verb has said what it kept."""
    return _State.is_told


def end_kept(what: str) -> NoReturn:
    """End a verb that was interrupted and has a result, with a line that says what that is.

    Raises:
        typer.Exit: always.
    """
    import typer

    from tilewright.cli.output import hint  # not while this one loads, which should be soon

    hint(f"tilewright: interrupted; {what}.")
    _State.is_told = True
    raise typer.Exit(EXIT_INTERRUPTED)


def end_at_once() -> None:
    """From now on a signal ends the process where it stands."""
    _handle(_end)


def unwind() -> None:
    """From now on the first signal is a KeyboardInterrupt; a second one ends the process at once."""
    _State.received, _State.is_told = signal.SIGINT, False
    _handle(_unwind)
    sys.unraisablehook = _interrupt_again
    _watch()


def _handle(handler: Callable[[int, FrameType | None], object]) -> None:
    if threading.current_thread() is not threading.main_thread():
        return
    for number in _NUMBERS:
        if signal.getsignal(number) not in (signal.SIG_IGN, None):  # as nohup and shells ask for
            signal.signal(number, handler)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    _leave(number, _MESSAGE)


def _end_untidy(number: int, frame: FrameType | None) -> NoReturn:
    _leave(number, _MESSAGE_UNTIDY)


def _leave(number: int, message: bytes) -> NoReturn:
    with contextlib.suppress(OSError, ValueError):
        if select.select([], [2], [], 0)[1]:  # a terminal that is stopped, or a full pipe, takes nothing
            os.write(2, message)
    os._exit(128 + number)


def _unwind(number: int, frame: FrameType | None) -> None:
    if interrupt_search():  # it ends where it looks next, with the best that it has
        _State.received = number
        _handle(_end_untidy)
        return
    if _imports(frame):  # an extension module that fails to load half way can take the process with it
        _leave(number, _MESSAGE)
    _State.received = number
    _handle(_end_untidy)
    raise KeyboardInterrupt


def _imports(frame: FrameType | None) -> bool:
    """Whether a module is being loaded."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _interrupt_again(unraisable: sys.UnraisableHookArgs) -> None:
    """An interrupt that came while an object was being destroyed would be lost: let it come once more."""
    if not issubclass(unraisable.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)
        return
    _handle(_unwind)
    # A real signal, which also wakes a sleeping call.
    timer = threading.Timer(_SOON_S, os.kill, (os.getpid(), _State.received))
    timer.daemon = True
    timer.start()


def _watch() -> None:
    """A thread that learns of signals at once, even while the main thread is in the middle of a long call."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(os, "register_at_fork"):
        return
    read_from, write_to = os.pipe()
    os.set_blocking(write_to, False)
    before = signal.set_wakeup_fd(write_to, warn_on_full_buffer=False)
    if before != -1:  # another program's, or ours from before
        signal.set_wakeup_fd(before)
        os.close(read_from)
        os.close(write_to)
        return
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))
    with contextlib.suppress(RuntimeError):  # no thread to be had: signals still unwind
        threading.Thread(
            target=_end_in_time, args=(read_from,), name="tilewright-signals", daemon=True
        ).start()


def _end_in_time(read_from: int) -> None:
    while number := os.read(read_from, 1):
        if number[0] in _NUMBERS and signal.getsignal(number[0]) in (_unwind, _end_untidy):
            threading.Event().wait(UNWIND_S)
            if signal.getsignal(number[0]) in (_unwind, _end_untidy):
                _leave(number[0], _MESSAGE_UNTIDY)
