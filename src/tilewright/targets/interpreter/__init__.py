"""The reference target: runs the program's subgraphs in their order with numpy semantics."""

from __future__ import annotations

from tilewright.targets.interpreter.target import InterpreterTarget

__all__ = ["InterpreterTarget"]
