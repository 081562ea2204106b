"""How good predictions are: mean relative errors, orders that agree, decisions that come out right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


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


def right_decisions(
    predicted: Array, true: Array, choices: Sequence[tuple[int, Sequence[int]]], least: float = 0.05
) -> tuple[int, int]:
    """Of the choices between a whole and its parts that differ by more than `least`: (right, all).

    >>> right_decisions(np.array([1.0, 2.0, 2.0]), np.array([5.0, 2.0, 2.0]), [(0, (1, 2))])
    (0, 1)
    """
    right = count = 0
    for whole, parts in choices:
        together, apart = true[whole], true[list(parts)].sum()
        if abs(together - apart) > least * max(together, apart):
            count += 1
            right += bool((predicted[whole] < predicted[list(parts)].sum()) == (together < apart))
    return right, count
