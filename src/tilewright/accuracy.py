"""How far computed values are from expected ones."""

from __future__ import annotations

import numpy as np

from tilewright.arrays import Array


def relative_error(got: Array, expected: Array) -> float:
    """Largest absolute difference over the largest magnitude expected.

    Infinite where shapes differ, or where one is not a number and the other is; equal infinities agree.

    >>> relative_error(np.array([1.0, 2.0]), np.array([1.0, 2.5]))
    0.2
    """
    if got.shape != expected.shape:
        return float("inf")
    wide_got, wide = got.astype(np.float64), expected.astype(np.float64)
    differs = ~((wide_got == wide) | (np.isnan(wide_got) & np.isnan(wide)))
    if not differs.any():
        return 0.0
    worst = float(np.abs(wide_got[differs] - wide[differs]).max())
    if not np.isfinite(worst):
        return float("inf")
    finite = np.abs(wide[np.isfinite(wide)])
    scale = float(finite.max()) if finite.size else 0.0
    return worst / scale if scale > 0 else worst
