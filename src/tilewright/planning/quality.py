"""How good a planner's answer is: its cost beside lower bounds, each of a space of plans that it names."""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum

from tilewright.errors import InternalError
from tilewright.planning.checking import HOW_TO_REPORT
from tilewright.records import dataclass
from tilewright.results import about, in_json

_ROUNDING = 1e-9  # of costs that are sums of floats


class Status(StrEnum):
    """How a search ended."""

    OPTIMAL = "optimal"  # the cost equals a proven lower bound; of which space, the quality says
    FEASIBLE = "feasible"  # the planner finished its work; nothing is proven
    CUT_OFF = "cut off"  # the deadline stopped it: another run may give another answer


@dataclass(frozen=True, slots=True)
class Rule:
    """Restriction that every plan of a space keeps; with `most`, at most so many of what `text` names.

    >>> print(Rule("groups in a stage", 1), Rule("groups in a stage", 4), sep=", ")
    at most 1 group in a stage, at most 4 groups in a stage
    """

    text: str
    most: int | None = field(default=None, metadata=about("At most so many of what `text` names."))

    def implies(self, other: Rule) -> bool:
        """Whether plans that keep this rule keep the other, too."""
        if self.text != other.text or self.most is None or other.most is None:
            return self == other
        return self.most <= other.most

    def __str__(self) -> str:
        if self.most is None:
            return self.text
        noun, blank, rest = self.text.partition(" ")
        text = noun.removesuffix("s") + blank + rest if self.most == 1 else self.text
        return f"at most {self.most} {text}"


@dataclass(frozen=True, slots=True)
class Space:
    """Set of plans: all of a kind that keep some rules. More rules, fewer plans.

    >>> schedules, staged = Space("schedules"), Space("schedules", (Rule("groups in a stage", 8),))
    >>> narrow = Space("schedules", (Rule("without lanes"), Rule("groups in a stage", 4)))
    >>> schedules.includes(staged), staged.includes(narrow), narrow.includes(staged)
    (True, True, False)
    >>> print(schedules, narrow, sep="; ")
    all schedules; schedules without lanes, at most 4 groups in a stage
    """

    of: str = field(metadata=about("The kind of plan."))
    rules: tuple[Rule, ...] = field(default=(), metadata=about("What its plans keep; none: all plans."))

    def includes(self, other: Space) -> bool:
        """Whether every plan of another space is in this one: a bound of this one is one of the other."""
        return self.of == other.of and all(any(r.implies(rule) for r in other.rules) for rule in self.rules)

    def keeping(self, *rules: Rule) -> Space:
        """The part of it whose plans keep more rules."""
        return Space(self.of, (*self.rules, *(rule for rule in rules if rule not in self.rules)))

    @in_json
    def text(self) -> str:
        """The space in words."""
        return str(self)

    def __str__(self) -> str:
        return f"{self.of} {', '.join(map(str, self.rules))}" if self.rules else f"all {self.of}"


def beside(cost: float, bound: float, unit: str) -> str:
    """A cost beside a bound, as progress says it.

    >>> beside(1200.0, 1000.0, "ns"), beside(7.0, 0.0, "ns")
    ('1,200 ns, at least 1,000: 20.0 % above', '7 ns')
    """
    if bound <= 0:
        return f"{cost:,.0f} {unit}"
    return f"{cost:,.0f} {unit}, at least {bound:,.0f}: {100 * (cost / bound - 1):.1f} % above"


@dataclass(frozen=True, slots=True)
class Bound:
    """Lower bound on the cost of all plans of a space: proven, or an estimate that may turn out wrong."""

    value: float
    space: Space = field(metadata=about("The plans that it is a bound of."))
    source: str = field(metadata=about("What it follows from."))
    is_proven: bool = field(default=True, metadata=about("Whether it is proven under the cost model."))

    def is_reached(self, cost: float) -> bool:
        """Whether a cost is no more than this, sums of floats apart."""
        return cost <= self.value + _ROUNDING * abs(self.value)

    def is_violated(self, cost: float) -> bool:
        """Whether a cost is less than this, sums of floats apart."""
        return self.value > cost + _ROUNDING * abs(cost)


@dataclass(frozen=True, slots=True)
class Quality:
    """Cost of a solution beside lower bounds in the same unit, of spaces that hold it, the widest first.

    >>> space = Space("arenas")
    >>> Quality.of(120.0, Bound(100.0, space, "live bytes"), unit="bytes").gap
    0.2
    >>> print(Quality.of(100.0, Bound(100.0, space, "live bytes"), unit="bytes"))
    100 bytes (optimal among all arenas)
    >>> print(Quality.of(90.0, Bound(100.0, space, "by hand", is_proven=False), unit="ns"))
    90 ns (feasible; below 100, the estimated bound of all arenas)
    """

    cost: float
    unit: str
    status: Status
    bounds: tuple[Bound, ...]

    @classmethod
    def of(cls, cost: float, *bounds: Bound, unit: str, cut_off: bool = False) -> Quality:
        """State a quality: optimal where a proven bound is reached, sums of floats apart.

        Raises:
            InternalError: a proven bound is above the cost, so one of both is wrong.
        """
        for bound in bounds:
            if bound.is_proven and bound.is_violated(cost):
                raise InternalError(
                    f"a bound of {bound.value} {unit} of {bound.space} ({bound.source}) is above a cost of "
                    f"{cost} {unit}; {HOW_TO_REPORT}."
                )
        stated = tuple(
            Bound(cost, b.space, b.source, b.is_proven)
            if b.is_reached(cost) and not b.is_violated(cost)
            else b
            for b in bounds
        )
        quality = cls(cost, unit, Status.CUT_OFF if cut_off else Status.FEASIBLE, stated)
        return quality if quality.optimal_among is None else cls(cost, unit, Status.OPTIMAL, stated)

    @property
    def widest(self) -> Bound:
        """The bound of most plans: what answers of several planners are compared with."""
        return self.bounds[0]

    @property
    def bound(self) -> float:
        """The value of the widest bound."""
        return self.widest.value

    @property
    def highest(self) -> Bound:
        """The bound that is closest to the cost, of equals the widest."""
        return max(self.bounds, key=lambda bound: bound.value)

    @property
    def optimal_among(self) -> Space | None:
        """The widest space of which the cost is proven to be the least."""
        return next((b.space for b in self.bounds if b.is_proven and b.value == self.cost), None)

    @property
    def among(self) -> str | None:
        """That space in words."""
        return None if self.optimal_among is None else str(self.optimal_among)

    @property
    def gap(self) -> float:
        """How far above the widest bound the cost lies, relative to it."""
        return self.gap_to(self.widest)

    def gap_to(self, bound: Bound) -> float:
        """How far above a bound the cost lies, relative to the bound; infinite for a bound of zero.

        Negative where the bound is violated.
        """
        if self.cost == bound.value:
            return 0.0
        return (self.cost - bound.value) / bound.value if bound.value > 0 else float("inf")

    @property
    def brief(self) -> str:
        """The cost beside the highest bound."""
        return beside(self.cost, self.highest.value, self.unit) if self.bounds else f"{self.cost:,.0f}"

    def __str__(self) -> str:
        notes = []
        is_optimal, among = self.status is Status.OPTIMAL, self.optimal_among
        for bound in self.bounds:
            if is_optimal and bound.space == among:
                continue
            estimated = "" if bound.is_proven else "estimated "
            if bound.value > self.cost:
                notes.append(f"below {bound.value:g}, the {estimated}bound of {bound.space}")
            else:
                notes.append(f"{bound.space} {estimated}at least {bound.value:g}")
        status = f"optimal among {among}" if is_optimal else str(self.status)
        return f"{self.cost:g} {self.unit} ({'; '.join([status, *notes])})"
