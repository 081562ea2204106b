"""Times of runs: what is typical of them, and which of two that ran in turns is faster."""

from __future__ import annotations

import math
from collections.abc import Sequence

# What wins must do so by this much in the middle, and in two standard deviations more rounds than a fair coin
# would give it.
_RACE_MARGIN = 0.01

Samples = Sequence[float]


def typical(samples: Samples) -> float:
    """The lower quartile: disturbances only ever add time, and the least of all is luck.

    >>> typical([5.0, 1.0, 2.0, 3.0, 9.0])
    2.0
    """
    ordered = sorted(samples)
    return ordered[(len(ordered) - 1) // 4]


def is_faster(candidate: Samples, incumbent: Samples) -> bool:
    """Whether the candidate wins a race clearly: by a margin in the middle, and in more rounds than by luck.

    >>> is_faster([9.0] * 9, [10.0] * 9), is_faster([9.0, 9.0, 9.0, 11.0, 11.0], [10.0] * 5)
    (True, False)
    """
    ratios = sorted(c / i for c, i in zip(candidate, incumbent, strict=True))
    wins = sum(ratio < 1 for ratio in ratios)
    middle = ratios[len(ratios) // 2]
    return middle < 1 - _RACE_MARGIN and wins >= len(ratios) / 2 + math.sqrt(len(ratios))
