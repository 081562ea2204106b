"""Runs a program with reference semantics; every other target is compared with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from tilewright.ir.graph import Node
from tilewright.ir.interpret import run_graph
from tilewright.ir.ops import find_operator
from tilewright.program import Program
from tilewright.targets.base import Array, Support
from tilewright.targets.validate import require_valid_program


@dataclass(frozen=True, slots=True)
class InterpreterTarget:
    """Any valid program, node after node in numpy. Results do not depend on partition and schedule."""

    name: ClassVar[str] = "interpreter"

    def supports(self, node: Node) -> Support:
        """Everything that has a reference; the rest runs through onnx.reference, if that knows it."""
        found = find_operator(node)
        if found is not None and found.reference is not None:
            return Support.yes()
        return Support.yes("runs through the ONNX reference implementation")

    def compile(self, program: Program) -> InterpreterExecutable:
        """Check the program; there is nothing to generate."""
        require_valid_program(program)
        return InterpreterExecutable(program)


@dataclass(frozen=True, slots=True)
class InterpreterExecutable:
    """A program ready to be interpreted."""

    program: Program

    def run(self, feed: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs by name, computed by `run_graph`."""
        return run_graph(self.program.graph, feed)
