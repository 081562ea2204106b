"""Loops over arrays that count and simulate many times over, compiled to machine code by numba."""

from __future__ import annotations

import functools
import sys
from typing import Any

from tilewright.errors import NoGeneratedCode
from tilewright.extras import MissingPackage, is_importable
from tilewright.hardware.probe import may_run_generated_code
from tilewright.system.memory_errors import require_memory

_NUMBA_BYTES = 300 << 20
"""Addresses that numba takes with the libraries behind it. scipy's OpenBLAS waits for ever for what it is not
given."""


def compiled(function: Any) -> Any:
    """Compiled once for each machine, and kept; without numba, a function that says what it needs.

    Raises:
        NoGeneratedCode: this process may not run what it generates.
        OutOfMemory: it may not take the memory that numba does.
    """
    return _made(function, is_part=False)


def part_of_loops(function: Any) -> Any:
    """As `compiled`, and copied into each loop that calls it: a call with arrays passes dozens of numbers."""
    return _made(function, is_part=True)


def _made(function: Any, *, is_part: bool) -> Any:
    if not may_run_generated_code():  # numba cannot even be imported
        raise NoGeneratedCode
    if not is_importable("numba"):
        return _refusing(function)
    if "numba" not in sys.modules:
        require_memory(_NUMBA_BYTES)
    from tilewright.numba_cache import kept

    return kept(function, is_part=is_part)


def _refusing(function: Any) -> Any:
    @functools.wraps(function)
    def refuse(*_: Any, **__: Any) -> Any:
        raise MissingPackage("numba", "loops that count and simulate")

    return refuse
