"""Verdicts on samples taken in turns."""

from __future__ import annotations

import random

import pytest

from tilewright.benchmark.statistics import Ratio, Timing, Verdict, median_interval, quantile


def timing(samples: list[float]) -> Timing:
    return Timing(tuple(samples), tuple(samples))


def test_a_clear_difference_is_called() -> None:
    ours, theirs = timing([1.0, 1.1, 0.9, 1.0, 1.05, 0.95, 1.0]), timing([2.0] * 7)
    assert Ratio.of(ours, theirs).verdict is Verdict.FASTER
    assert Ratio.of(theirs, ours).verdict is Verdict.SLOWER


def test_a_difference_below_the_margin_is_a_tie() -> None:
    ratio = Ratio.of(timing([1.0] * 20), timing([1.02] * 20))
    assert ratio.verdict is Verdict.TIE


def test_scattered_samples_decide_nothing() -> None:
    ratio = Ratio.of(timing([1.0] * 8), timing([0.6, 1.9, 0.7, 1.6, 0.8, 1.4, 1.2, 0.5]))
    assert ratio.verdict is Verdict.INCONCLUSIVE


def test_a_drift_common_to_both_cancels() -> None:
    drift = [1.0, 1.5, 2.0, 2.5, 3.0, 1.0, 2.0, 1.2]
    ratio = Ratio.of(timing(drift), timing([1.3 * d for d in drift]))
    assert ratio.median == pytest.approx(1.3)
    assert ratio.verdict is Verdict.FASTER


def test_equal_contestants_are_rarely_called_different() -> None:
    rng = random.Random(0)
    different = 0
    for _ in range(200):
        a = timing([rng.lognormvariate(0, 0.1) for _ in range(20)])
        b = timing([rng.lognormvariate(0, 0.1) for _ in range(20)])
        different += Ratio.of(a, b).verdict in (Verdict.FASTER, Verdict.SLOWER)
    assert different <= 10, "at most 5 % of A/A comparisons may claim a difference"


def test_the_interval_covers_the_true_median() -> None:
    rng = random.Random(1)
    misses = 0
    for _ in range(1000):
        low, high = median_interval([rng.gauss(0, 1) for _ in range(15)])
        misses += not low <= 0 <= high
    assert misses <= 50


def test_quantiles_interpolate_between_order_statistics() -> None:
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.5
    assert quantile([5.0], 0.9) == 5.0
