"""Loops over arrays that count and simulate many times over, compiled to machine code by numba."""

from __future__ import annotations

import functools
from typing import Any

from tilewright.errors import NoGeneratedCode
from tilewright.extras import MissingPackage, is_importable
from tilewright.hardware.probe import may_run_generated_code


def compiled(function: Any) -> Any:
    """Compiled once for each machine, and kept; without numba, a function that says what it needs.

    Raises:
        NoGeneratedCode: this process may not run what it generates.
    """
    if not may_run_generated_code():  # numba cannot even be imported
        raise NoGeneratedCode
    if not is_importable("numba"):
        return _refusing(function)
    from tilewright.kept_loops import kept

    return kept(function)


def _refusing(function: Any) -> Any:
    @functools.wraps(function)
    def refuse(*_: Any, **__: Any) -> Any:
        raise MissingPackage("numba", "loops that count and simulate")

    return refuse
