"""The walk over tiles and steps, in machine code where it is long."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from tilewright.contest.walk import walk
from tilewright.machine_code import compiled as in_machine_code

MAX_INTERPRETED = 1 << 12
"""Tiles times steps up to which a walk is interpreted: nothing has to be compiled or loaded for it."""


def fast_walk(order: Any, num_columns: int, *rest: Any) -> tuple[float, int]:
    """What `walk` answers."""
    tile, shape, compute, loads, *sizes = rest
    if len(order) * len(compute) <= MAX_INTERPRETED:
        return walk(order, num_columns, tile, shape, compute, loads, *sizes)
    return compiled(order, num_columns, *rest)


def compiled(order: Any, num_columns: int, *rest: Any) -> tuple[float, int]:
    """What `walk` answers, in machine code."""
    tile, shape, compute, loads, *sizes = rest
    time, peak = _compiled_walk()(
        np.array(order, np.int64),
        num_columns,
        tile,
        shape,
        np.array(compute),
        np.array(loads, np.int64).reshape(len(loads), 6),
        *sizes,
    )
    return float(time), int(peak)


@functools.cache
def _compiled_walk() -> Any:
    """Compiled when the first long walk is asked for."""
    return in_machine_code(walk)
