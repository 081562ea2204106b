"""Loops over arrays that count and simulate many times over, compiled to machine code."""

from __future__ import annotations

from typing import Any

import numba


def compiled(function: Any) -> Any:
    """Compiled once for each machine: kept beside the module, or in the user's cache.

    Divisions are numpy's: none of the loops divides by zero, so none checks for it.
    """
    return numba.njit(cache=True, nogil=True, error_model="numpy")(function)
