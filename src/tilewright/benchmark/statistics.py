"""What can be said of samples taken in turns: medians, ratios with their uncertainty, a verdict.

The machine's speed drifts while it is measured, for all engines at once; so only ratios of samples taken in
the same round mean anything, and the median over rounds is what they agree on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from tilewright.results import in_json

# Differences smaller than this are taken for noise of the machine, however sure the statistics are.
TIE_RATIO = 1.05


class Verdict(StrEnum):
    """What a comparison says, at 95 % confidence."""

    FASTER = "faster"
    SLOWER = "slower"
    TIE = "tie"
    INCONCLUSIVE = "inconclusive"


def quantile(values: Sequence[float], share: float) -> float:
    """Value below which `share` of the sorted samples lie, interpolated.

    >>> quantile([3.0, 1.0, 2.0], 0.5)
    2.0
    """
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """A 95 % interval for the median from order statistics; no assumption on the distribution.

    With fewer than six values no such interval exists: then the whole range is given.

    >>> median_interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    (1.0, 6.0)
    """
    ordered = sorted(values)
    n = len(ordered)
    below = 0.0
    rank = 0
    while rank < n // 2:
        below += math.comb(n, rank) / 2**n
        if below > 0.025:
            break
        rank += 1
    position = max(0, rank - 1)
    return ordered[position], ordered[n - 1 - position]


@dataclass(frozen=True, slots=True)
class Timing:
    """One contestant's latencies in milliseconds: `samples_ms[round]` is the median of that round's runs."""

    samples_ms: tuple[float, ...]
    runs_ms: tuple[float, ...]

    @property
    def median_ms(self) -> float:
        """Median over all runs."""
        return quantile(self.runs_ms, 0.5)

    def percentile_ms(self, percent: float) -> float:
        """Latency that `percent` of the runs do not exceed."""
        return quantile(self.runs_ms, percent / 100)


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times faster the first contestant is: above 1 is faster. `low` and `high` bound the median."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, ours: Timing, theirs: Timing) -> Ratio:
        """Their time over ours, round by round."""
        ratios = [b / a for a, b in zip(ours.samples_ms, theirs.samples_ms, strict=True)]
        low, high = median_interval(ratios)
        return cls(quantile(ratios, 0.5), low, high)

    @in_json
    def verdict(self) -> Verdict:
        """Faster or slower only beyond the tie margin and with the whole interval on that side."""
        if self.low > 1.0 and self.median >= TIE_RATIO:
            return Verdict.FASTER
        if self.high < 1.0 and self.median <= 1 / TIE_RATIO:
            return Verdict.SLOWER
        if self.low > 1 / TIE_RATIO and self.high < TIE_RATIO:
            return Verdict.TIE
        return Verdict.INCONCLUSIVE
