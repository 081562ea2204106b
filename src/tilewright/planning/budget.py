"""The effort that a planner may spend, and what of it is spent."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import field

from tilewright.errors import UsageError
from tilewright.progress import SearchEnded
from tilewright.records import dataclass

UNLIMITED = 2**63 - 1  # evaluations


@dataclass(frozen=True, slots=True)
class Budget:
    """Effort a planner may spend, counted in evaluations so that results repeat.

    The deadline is a safety net: a planner that meets it returns the best it has, marked as cut off.

    >>> Budget.parse("500trials").max_evaluations, Budget.parse("2m").deadline_s
    (500, 120.0)
    """

    max_evaluations: int = 1000
    deadline_s: float | None = None

    def __post_init__(self) -> None:
        if self.max_evaluations < 0:
            raise UsageError(
                f"budget of {self.max_evaluations} evaluations: give a number that is not negative."
            )
        if self.deadline_s is not None and not 0 < self.deadline_s < float("inf"):
            raise UsageError(f"budget of {self.deadline_s} s: give a positive time.")

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Read `60s`, `2m`, `1h` or `500trials`.

        A time leaves the number of evaluations open.

        Raises:
            UsageError: any other text.
        """
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|trials?)\s*", text)
        if match is None:
            raise UsageError(
                f"budget {text!r}: expected a time such as 60s or 2m, or a count such as 500trials."
            )
        number, unit = match.groups()
        if float(number) == 0:
            raise UsageError(f"budget {text!r}: nothing can be measured in it; give more, or leave it out.")
        if unit.startswith("trial"):
            if "." in number:
                raise UsageError(f"budget {text!r}: a number of trials has no fraction.")
            return cls(max_evaluations=int(number))
        seconds = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}[unit]
        return cls(max_evaluations=UNLIMITED, deadline_s=float(number) * seconds)

    def start(self, clock: Callable[[], float] = time.monotonic, *, is_interruptible: bool = False) -> Meter:
        """Begin to spend it."""
        return Meter(self, clock, is_interruptible=is_interruptible)


@dataclass(slots=True)
class Stopwatch:
    """A clock that stands still unless something runs by it: searches share it that have work between them.

    >>> times = iter([5.0, 7.0])
    >>> watch = Stopwatch(lambda: next(times))
    >>> with watch.running():
    ...     pass
    >>> watch()
    2.0
    """

    clock: Callable[[], float] = time.monotonic
    _passed_s: float = field(init=False, default=0.0)
    _started_s: float | None = field(init=False, default=None)

    def __call__(self) -> float:
        """Seconds for which it has run."""
        return self._passed_s + (0.0 if self._started_s is None else self.clock() - self._started_s)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Let it run; where it runs already, that is all."""
        if self._started_s is not None:
            yield
            return
        self._started_s = self.clock()
        try:
            yield
        finally:
            self._passed_s = self()
            self._started_s = None


@dataclass(slots=True)
class Meter:
    """Counts evaluations against a budget.

    `is_interruptible`: an interrupt ends what it measures, once there is an answer, and not the program.

    >>> meter = Budget(max_evaluations=2).start()
    >>> [meter.spend() for _ in range(3)]
    [True, True, False]
    """

    budget: Budget
    clock: Callable[[], float]
    num_evaluations: int = 0
    cut_off: bool = False
    is_interruptible: bool = False
    is_interrupted: bool = field(init=False, default=False)
    _has_answer: bool = field(init=False, default=False)
    _num_droppable: int = field(init=False, default=0)
    _end_s: float | None = field(init=False, default=None)
    _aside_s: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        if self.budget.deadline_s is not None:
            self._end_s = self.clock() + self.budget.deadline_s

    @property
    def left_s(self) -> float | None:
        """Time until the deadline, negative after it; None without one."""
        return None if self._end_s is None else self._end_s - self._now_s()

    @property
    def is_over(self) -> bool:
        """Whether the deadline has passed, or the user ended the search."""
        return self.is_interrupted or (self._end_s is not None and self._now_s() >= self._end_s)

    @property
    def ends_here(self) -> bool:
        """Whether it is over within work that may be dropped."""
        return self._num_droppable > 0 and self.is_over

    def interrupt(self) -> bool:
        """The user ends the search, where that is possible: nothing more is to be spent."""
        if not (self.is_interruptible and self._has_answer):
            return False
        self.cut_off = self.is_interrupted = True
        return True

    @contextlib.contextmanager
    def ending_early(self) -> Iterator[None]:
        """Work that may be dropped, as there is an answer without it: where it is `ending_with` this meter,
        it ends when the time is over, or the user interrupts.

        >>> times = iter([0.0, 1.0, 9.0])
        >>> meter = Budget(UNLIMITED, deadline_s=5.0).start(lambda: next(times))
        >>> from tilewright.progress import checkpoint, ending_with
        >>> with ending_with(meter), meter.ending_early():
        ...     checkpoint()
        ...     checkpoint()
        ...     print("not reached")
        >>> meter.cut_off
        True
        """
        self._has_answer = True
        self._num_droppable += 1
        try:
            yield
        except SearchEnded:
            self.cut_off = True
        except KeyboardInterrupt:
            if not self.interrupt():
                raise
        finally:
            self._num_droppable -= 1

    def set_aside(self, time_s: float) -> None:
        """Leave so much of the time for what comes after.

        >>> meter = Budget(UNLIMITED, deadline_s=8.0).start(lambda: 0.0)
        >>> meter.set_aside(3.0)
        >>> meter.left_s
        5.0
        """
        self._aside_s += time_s

    def _now_s(self) -> float:
        return self.clock() + self._aside_s

    @contextlib.contextmanager
    def share(self, share: float) -> Iterator[None]:
        """Meanwhile only this share of the time that is left may be spent; evaluations as before.

        >>> meter = Budget(UNLIMITED, deadline_s=8.0).start(lambda: 0.0)
        >>> with meter.share(0.25):
        ...     meter.left_s
        2.0
        >>> meter.left_s
        8.0
        """
        whole_s = self._end_s
        if whole_s is not None:
            self._end_s = whole_s - (1 - share) * (whole_s - self._now_s())
        try:
            yield
        finally:
            self._end_s = whole_s

    @property
    def progress(self) -> tuple[int, int]:
        """How much of the budget is used, and how much there is: of evaluations or of time, the larger share.

        >>> meter = Budget(max_evaluations=4).start()
        >>> _ = meter.spend()
        >>> meter.progress, Budget(UNLIMITED).start().progress
        ((250, 1000), (0, 0))
        """
        shares: list[float] = []
        if self.budget.max_evaluations != UNLIMITED:
            shares.append(self.num_evaluations / max(self.budget.max_evaluations, 1))
        left_s = self.left_s
        if left_s is not None and self.budget.deadline_s:
            shares.append(1 - max(left_s, 0.0) / self.budget.deadline_s)
        return (min(int(1000 * max(shares)), 1000), 1000) if shares else (0, 0)

    def spend(self) -> bool:
        """Ask for one more evaluation: False when the budget is used up or the deadline has passed."""
        if self.is_interrupted or self.num_evaluations >= self.budget.max_evaluations:
            return False
        if self._end_s is not None and self._now_s() >= self._end_s:
            self.cut_off = True
            return False
        self.num_evaluations += 1
        return True
