"""How good predictions are: mean relative errors, orders that agree, decisions that come out right."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.arrays import Array


def mape(predicted: Array, true: Array) -> float:
    """The mean of relative errors, relative to what is true.

    >>> mape(np.array([1.1, 1.8]), np.array([1.0, 2.0]))
    0.1
    """
    return round(float(np.mean(np.abs(predicted / true - 1))), 12)


def kendall_tau(predicted: Array, true: Array) -> float:
    """Kendall's tau-b: of all pairs that differ, those in the same order less those in the other. O(n^2).

    >>> kendall_tau(np.array([1.0, 2.0, 3.0]), np.array([1.0, 3.0, 2.0]))
    0.333333333333
    """
    first = np.sign(predicted[:, None] - predicted[None, :])
    second = np.sign(true[:, None] - true[None, :])
    pairs = np.sqrt(np.count_nonzero(first) * np.count_nonzero(second))
    return round(float((first * second).sum() / pairs), 12) if pairs else 0.0


def fuses(low: float, high: float, least: float = 0.05) -> bool | None:
    """Whether a whole is faster than its parts, by quartiles of the ratio of their times.

    None where they differ by `least` or less, or where the quartiles do not agree on which is faster.

    >>> fuses(0.8, 0.9), fuses(1.1, 1.2), fuses(0.8, 1.1), fuses(0.96, 0.98)
    (True, False, None, None)
    """
    middle = (low * high) ** 0.5
    if high < 1 and middle < 1 - least:
        return True
    return False if low > 1 and 1 / middle < 1 - least else None


def num_right(predicted: Array, choices: Sequence[tuple[int, Sequence[int], bool]]) -> int:
    """Of choices between a whole and its parts, which say whether the whole is faster, those predicted so.

    >>> num_right(np.array([1.0, 2.0, 2.0]), [(0, (1, 2), True), (0, (1, 2), False)])
    1
    """
    return sum(
        bool(predicted[whole] < predicted[list(parts)].sum()) == is_faster
        for whole, parts, is_faster in choices
    )
