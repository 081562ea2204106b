"""The target without execution: checks a program and counts what it would do."""

from __future__ import annotations

from tilewright.targets.null.target import NullExecutable, NullTarget

__all__ = ["NullExecutable", "NullTarget"]
