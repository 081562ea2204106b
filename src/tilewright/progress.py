"""Progress, and when to stop: times of steps, timeouts, deadlines of searches, interrupts."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Protocol

from tilewright.errors import BudgetExceeded

NOTICE = 25
"""The level of log records on what takes long and happens once, which a terminal shows as notes."""

Progress = Callable[[str, int, int], None]
"""What is being done, how much of it is done, how much there is."""


_running: ContextVar[PhaseClock | None] = ContextVar("tilewright_phase_clock", default=None)


class SearchEnded(BaseException):
    """The end of a search that has an answer: its time is over, or the user interrupted it.

    As `KeyboardInterrupt` it is no error, so that nothing between takes it for one.
    """


class Search(Protocol):
    """A search that may end at any moment once it has an answer."""

    @property
    def ends_here(self) -> bool:
        """Whether it is over, and can do without what runs now."""
        ...

    def interrupt(self) -> bool:
        """From now on it is over; False if it has no answer to end with."""
        ...


_searching: ContextVar[Search | None] = ContextVar("tilewright_search", default=None)


@contextlib.contextmanager
def ending_with(search: Search) -> Iterator[None]:
    """Work for a search: `checkpoint` raises `SearchEnded` where the search ends, and signals that would end
    the program ask it to end instead."""
    token = _searching.set(search)
    try:
        yield
    finally:
        _searching.reset(token)


class _Ended:
    """A search that has ended: an interrupt is noted, and ends of what follows only what may be dropped."""

    def __init__(self, search: Search | None, behind: Search | None) -> None:
        self._search, self._behind = search, behind

    @property
    def ends_here(self) -> bool:
        return self._behind is not None and self._behind.ends_here

    def interrupt(self) -> bool:
        """Noted by both."""
        asked = [search.interrupt() for search in (self._search, self._behind) if search is not None]
        return any(asked)


@contextlib.contextmanager
def after_the_end(behind: Search | None = None) -> Iterator[None]:
    """Work that the answer of a search needs, which has ended; what may be dropped of it ends with the one
    `behind` it."""
    token = _searching.set(_Ended(_searching.get(), behind))
    try:
        yield
    finally:
        _searching.reset(token)


def interrupt_search() -> bool:
    """Ask the search around to end at its next checkpoint; False if there is none, or it has no answer yet.
    For handlers of signals."""
    search = _searching.get()
    return search is not None and search.interrupt()


def checkpoint() -> None:
    """Ends the compilation or the search around, if there is one and its time is over. Cheap: every long loop
    calls it.

    Raises:
        BudgetExceeded: the time of the compilation is over.
        SearchEnded: that of the search is, which has an answer.
    """
    clock = _running.get()
    if clock is not None:
        clock.check()
    search = _searching.get()
    if search is not None and search.ends_here:
        raise SearchEnded


_may_compile: ContextVar[bool] = ContextVar("tilewright_may_compile", default=True)


class WouldCompile(BaseException):
    """A loop has no machine code yet, and what asks for it does not wait for the compiler: no error."""


@contextlib.contextmanager
def without_compiling() -> Iterator[None]:
    """Meanwhile loops run that are compiled, or kept from an earlier run.

    Raises:
        WouldCompile: another one was called.
    """
    token = _may_compile.set(False)
    try:
        yield
    finally:
        _may_compile.reset(token)


def require_compiling() -> None:
    """Called before a loop is compiled.

    Raises:
        WouldCompile: what runs is `without_compiling`.
    """
    if not _may_compile.get():
        raise WouldCompile


class PhaseClock:
    """A clock of the steps, which reports them and ends a compilation that takes longer than it may."""

    def __init__(self, timeout_s: float | None, progress: Progress | None) -> None:
        self.phase_s: dict[str, float] = {}
        self._timeout_s = timeout_s
        self._progress = progress
        self._start_s = time.monotonic()
        self.running = "the start"  # the phase

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """One step of the flow."""
        self.report(name, 0, 1)
        start_s = time.monotonic()
        before = self.running
        self.running = name
        token = _running.set(self)
        try:
            yield
        finally:
            _running.reset(token)
            self.running = before
        # A step that is taken several times counts as often.
        self.phase_s[name] = self.phase_s.get(name, 0.0) + time.monotonic() - start_s

    def report(self, what: str, done: int, total: int) -> None:
        """Called between pieces of work, however small."""
        self._require_time(f"{what}, {done} of {total}")
        if self._progress is not None:
            self._progress(what, done, total)

    def check(self) -> None:
        """Called inside pieces of work that may be long."""
        self._require_time(self.running)

    def _require_time(self, place: str) -> None:
        passed_s = time.monotonic() - self._start_s
        if self._timeout_s is not None and passed_s > self._timeout_s:
            raise BudgetExceeded(
                f"compiling took longer than {self._timeout_s:g} s (stopped at {place}); "
                "give a longer --timeout."
            )
