"""How good a planner's answer is: its cost beside a lower bound."""

from __future__ import annotations

from enum import StrEnum

from tilewright.errors import InternalError
from tilewright.records import dataclass

_ROUNDING = 1e-9  # of costs that are sums of floats


class Status(StrEnum):
    """How a search ended."""

    OPTIMAL = "optimal"  # the cost equals a proven lower bound
    FEASIBLE = "feasible"  # the planner finished its work; nothing is proven
    CUT_OFF = "cut off"  # the deadline stopped it: another run may give another answer


@dataclass(frozen=True, slots=True)
class Quality:
    """Cost of a solution beside a lower bound on any solution's cost, in the same unit.

    A bound is proven, or an estimate that a cost, such as a measured one, may turn out to lie below.

    >>> Quality.of(120.0, bound=100.0, unit="bytes").gap
    0.2
    >>> print(Quality.of(90.0, bound=100.0, unit="ns", is_proven=False))
    90 ns (feasible, below its estimated bound of 100)
    """

    cost: float
    bound: float
    unit: str
    status: Status
    is_proven: bool = True

    @classmethod
    def of(
        cls, cost: float, *, bound: float, unit: str, cut_off: bool = False, is_proven: bool = True
    ) -> Quality:
        """State a quality: optimal where a proven bound is reached, sums of floats apart.

        Raises:
            InternalError: a proven bound is above the cost, so one of both is wrong.
        """
        ended = Status.CUT_OFF if cut_off else Status.FEASIBLE
        if bound > cost + _ROUNDING * abs(cost):
            if is_proven:
                raise InternalError(f"a bound of {bound} {unit} is above a cost of {cost} {unit}.")
            return cls(cost, bound, unit, ended, is_proven)
        is_reached = cost <= bound + _ROUNDING * abs(bound)
        if is_reached:
            bound = cost
        return cls(cost, bound, unit, Status.OPTIMAL if is_reached and is_proven else ended, is_proven)

    @property
    def is_bound_violated(self) -> bool:
        """Whether the cost lies below a bound that is an estimate, which is therefore wrong here."""
        return self.bound > self.cost

    @property
    def gap(self) -> float:
        """How far above the bound the cost lies, relative to the bound; infinite for a bound of zero.

        Negative where the bound is violated.
        """
        if self.cost == self.bound:
            return 0.0
        return (self.cost - self.bound) / self.bound if self.bound > 0 else float("inf")

    def __str__(self) -> str:
        if self.is_bound_violated:
            note = f", below its estimated bound of {self.bound:g}"
        elif self.status is Status.OPTIMAL:
            note = ""
        else:
            note = f", {'' if self.is_proven else 'estimated '}at least {self.bound:g}"
        return f"{self.cost:g} {self.unit} ({self.status}{note})"
