"""The threshold H: the most that a plan may take of whichever of time and energy is not minimised."""

from __future__ import annotations

import re
from math import ceil, floor, log10

from tilewright.cost.base import Objective
from tilewright.errors import UsageError

_SCALES = {
    "ns": {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9},
    "pJ": {"pJ": 1.0, "nJ": 1e3, "uJ": 1e6, "mJ": 1e9, "J": 1e12},
}
_NUMBER = re.compile(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)\s*([A-Za-z]+|%)")
_SHOWN_DIGITS = 4
_OTHER: dict[Objective, tuple[str, str]] = {"latency": ("energy", "pJ"), "energy": ("time", "ns")}


def secondary_of(objective: Objective) -> tuple[str, str]:
    """What is bounded while an objective is minimised, and its unit.

    Raises:
        UsageError: the objective has no other.
    """
    if objective not in _OTHER:
        raise UsageError(
            f"pcgc: a limit bounds what is not minimised, but {objective} is of both; leave it out."
        )
    return _OTHER[objective]


def shown_limit(amount: float, objective: Objective) -> str:
    """The amount in the largest unit of which it has one, rounded up, as `parse_limit` reads it.

    >>> shown_limit(54908.82, "energy"), shown_limit(3.31e8, "latency")
    ('54.91us', '331uJ')
    """
    _, unit = secondary_of(objective)
    suffix, scale = max(
        ((name, scale) for name, scale in _SCALES[unit].items() if scale <= amount),
        key=lambda pair: pair[1],
        default=(unit, 1.0),
    )
    value = amount / scale
    num_decimals = max(0, _SHOWN_DIGITS - 1 - max(0, floor(log10(value)))) if value > 0 else 0
    shown = f"{ceil(value * 10**num_decimals) / 10**num_decimals:.{num_decimals}f}"
    return (shown.rstrip("0").rstrip(".") if num_decimals else shown) + suffix


def parse_limit(text: str, objective: Objective, least: float) -> float:
    """The bound that a text means, in the unit of what is bounded; per cents are above the `least` known.

    Raises:
        UsageError: the text is no amount, or its unit is of something else.

    >>> parse_limit("1.5ms", "energy", 0.0), parse_limit("10%", "energy", 200.0)
    (1500000.0, 220.00000000000003)
    """
    what, unit = secondary_of(objective)
    match = _NUMBER.fullmatch(text.strip())
    known = ", ".join(_SCALES[unit])
    if match is None:
        raise UsageError(
            f"pcgc: limit={text[:40]}: expected an amount of {what} ({known}) or per cents such as 5%."
        )
    number, suffix = float(match[1]), match[2]
    if suffix == "%":
        return least * (1 + number / 100)
    if suffix not in _SCALES[unit]:
        raise UsageError(f"pcgc: limit={text[:40]}: --hint {objective} bounds {what}; give {known}, or %.")
    return number * _SCALES[unit][suffix]
