"""What of a budget is spent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tilewright.planning.budget import Budget


@dataclass(slots=True)
class Meter:
    """Counts evaluations against a budget.

    >>> meter = Budget(max_evaluations=2).start()
    >>> [meter.spend() for _ in range(3)]
    [True, True, False]
    """

    budget: Budget
    clock: Callable[[], float]
    num_evaluations: int = 0
    cut_off: bool = False
    _end_s: float | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if self.budget.deadline_s is not None:
            self._end_s = self.clock() + self.budget.deadline_s

    @property
    def left_s(self) -> float | None:
        """Time until the deadline, negative after it; None without one."""
        return None if self._end_s is None else self._end_s - self.clock()

    def spend(self) -> bool:
        """Ask for one more evaluation: False when the budget is used up or the deadline has passed."""
        if self.num_evaluations >= self.budget.max_evaluations:
            return False
        if self._end_s is not None and self.clock() >= self._end_s:
            self.cut_off = True
            return False
        self.num_evaluations += 1
        return True
