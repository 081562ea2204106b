"""Runs a program with reference semantics; every other target is compared with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from tilewright.arguments import NOWHERE
from tilewright.arrays import Array
from tilewright.hardware.host import host_memory
from tilewright.hardware.machine import Machine
from tilewright.ir.graph import Graph, Node
from tilewright.ir.interpret import run_graph
from tilewright.ir.ops import find_operator
from tilewright.options import Options
from tilewright.program import Program
from tilewright.progress import Progress
from tilewright.records import dataclass
from tilewright.steps import StepInfo, planned_steps
from tilewright.targets.base import Backend, Support
from tilewright.targets.runs import written_into
from tilewright.targets.validate import require_valid_program


@dataclass(frozen=True, slots=True)
class InterpreterTarget:
    """Any valid program, node after node in numpy. Results do not depend on partition and schedule."""

    name: ClassVar[str] = "interpreter"
    is_measurable: ClassVar[bool] = False
    runs_slices: ClassVar[bool] = False
    runs_steps: ClassVar[bool] = False
    code_store: ClassVar[None] = None

    @property
    def machine(self) -> Machine:
        """This host."""
        return host_memory()

    def supports(self, node: Node) -> Support:
        """Everything that has a reference; the rest runs through onnx.reference, if that knows it."""
        operator = find_operator(node)
        if operator is not None and operator.reference is not None:
            return Support.yes()
        return Support.yes("runs through the ONNX reference implementation")

    def backend(self, graph: Graph, options: Options) -> InterpreterBackend:
        """What plans a graph and checks its programs."""
        return InterpreterBackend(self, graph, options)


class InterpreterBackend(Backend):
    """Plans are made and checked, and change nothing but the order of work."""

    def generate(self, program: Program, *, progress: Progress | None = None) -> InterpreterCode:
        """Check the program; there is nothing to generate."""
        require_valid_program(program)
        return InterpreterCode(program)


@dataclass(frozen=True, slots=True)
class InterpreterCode:
    """A checked program."""

    program: Program

    @property
    def steps(self) -> tuple[StepInfo, ...]:
        """One for each stage."""
        return planned_steps(self.program.schedule, InterpreterTarget.name)

    @property
    def memory_info(self) -> None:
        """Arrays are numpy's."""
        return None

    def load(self, num_threads: int | None) -> InterpreterExecutable:
        """Make it run."""
        return InterpreterExecutable(self.program)


@dataclass(frozen=True, slots=True)
class InterpreterExecutable:
    """A program ready to be interpreted."""

    program: Program

    def run(self, feed: Mapping[str, Array], into: Mapping[str, Array] = NOWHERE) -> dict[str, Array]:
        """Outputs by name, computed by `run_graph`."""
        self.program.graph.require_unchanged()
        return written_into(run_graph(self.program.graph, feed), into)

    def close(self) -> None:
        """Nothing is held."""
