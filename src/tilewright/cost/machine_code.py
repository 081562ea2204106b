"""Loops over arrays that count and simulate many times over, compiled to machine code."""

from __future__ import annotations

from typing import Any

import numba


def compiled(function: Any) -> Any:
    """Compiled once for each machine: kept beside the module, or in the user's cache.

    Divisions are numpy's: none of the loops divides by zero, so none checks for it.
    """
    found = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    # Numba compiles anew when the function's own file has changed, but its code holds that of the functions
    # it calls, which may lie in others: without their stamps an update would run old code.
    names = function.__code__.co_names
    called = [function.__globals__[n] for n in names if hasattr(function.__globals__.get(n), "py_func")]
    kept = _kept(found)
    kept._source_stamp = (kept._source_stamp, *(_kept(other)._source_stamp for other in called))
    return found


def _kept(function: Any) -> Any:
    """The index of a function's machine code on disk."""
    return function._cache._cache_file
