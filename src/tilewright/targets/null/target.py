"""Checks a program and counts what it would do, without doing it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from tilewright.arguments import NOWHERE
from tilewright.arrays import Array
from tilewright.errors import UsageError
from tilewright.hardware.host import host_memory
from tilewright.hardware.machine import Machine
from tilewright.ir.derive import flops, macs
from tilewright.ir.graph import Graph, Node
from tilewright.options import Options
from tilewright.program import Program
from tilewright.progress import Progress
from tilewright.steps import StepInfo, planned_steps
from tilewright.targets.base import Backend, Support
from tilewright.targets.validate import require_valid_program


@dataclass(frozen=True, slots=True)
class Counts:
    """What a program amounts to. `external_bytes` is the traffic of its kernels if each value moves once."""

    num_nodes: int
    num_kernels: int
    num_stages: int
    num_instances: int
    macs: int
    flop: int
    external_bytes: int
    arena_bytes: int | None


@dataclass(frozen=True, slots=True)
class NullTarget:
    """Accepts everything and runs nothing: for tests and for comparing plans."""

    name: ClassVar[str] = "null"
    is_measurable: ClassVar[bool] = False
    runs_slices: ClassVar[bool] = False
    runs_steps: ClassVar[bool] = False
    code_store: ClassVar[None] = None

    @property
    def machine(self) -> Machine:
        """This host."""
        return host_memory()

    def supports(self, node: Node) -> Support:
        """Every node."""
        return Support.yes()

    def backend(self, graph: Graph, options: Options) -> NullBackend:
        """What plans a graph and counts what its programs do."""
        return NullBackend(self, graph, options)


class NullBackend(Backend):
    """Plans are made and checked, and that is all."""

    def generate(self, program: Program, *, progress: Progress | None = None) -> NullCode:
        """Check the program and count it."""
        require_valid_program(program)
        nodes = program.graph.nodes
        counts = Counts(
            num_nodes=len(nodes),
            num_kernels=len(program.partition.subgraphs),
            num_stages=len(program.schedule.stages),
            num_instances=sum(1 for _ in program.schedule.instances()),
            macs=sum(macs(n) for n in nodes),
            flop=sum(flops(n) for n in nodes),
            external_bytes=sum(s.external_bytes for s in program.partition.subgraphs),
            arena_bytes=None if program.memory is None else program.memory.peak_bytes,
        )
        return NullCode(program, counts)


@dataclass(frozen=True, slots=True)
class NullCode:
    """A checked program and its counts."""

    program: Program
    counts: Counts

    @property
    def steps(self) -> tuple[StepInfo, ...]:
        """One for each stage."""
        return planned_steps(self.program.schedule, NullTarget.name)

    @property
    def memory_info(self) -> None:
        """Nothing is allocated."""
        return None

    def load(self, num_threads: int | None) -> NullExecutable:
        """What refuses to run."""
        return NullExecutable(self.program, self.counts)


@dataclass(frozen=True, slots=True)
class NullExecutable:
    """A checked program and its counts."""

    program: Program
    counts: Counts

    def run(self, feed: Mapping[str, Array], into: Mapping[str, Array] = NOWHERE) -> dict[str, Array]:
        """Refuse: this target has no results to give.

        Raises:
            UsageError: always.
        """
        raise UsageError("The null target runs nothing; compile for cpu or interpreter to get results.")

    def close(self) -> None:
        """Nothing is held."""
