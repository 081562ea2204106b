"""A simulated plan as what a compilation ends in: it reports, and computes values buffer by buffer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.ir.region import full_region
from tilewright.program import Program
from tilewright.steps import MemoryInfo, StepInfo, planned_steps
from tilewright.targets.base import Array
from tilewright.targets.npu.execute import execute
from tilewright.targets.npu.plan import SimulatedPlan
from tilewright.targets.npu.simulate import Simulation


@dataclass(frozen=True, slots=True, eq=False)
class NpuCode:
    """A program with its simulated plan."""

    program: Program
    planned: SimulatedPlan

    @property
    def steps(self) -> tuple[StepInfo, ...]:
        """One for each stage of the schedule."""
        return planned_steps(self.program.schedule, "npu")

    @property
    def memory_info(self) -> MemoryInfo:
        """What lies in the cores' buffers, the shared one and main memory of a cluster."""
        scopes, partition = self.planned.scopes, self.program.partition
        constants = dict.fromkeys(v for n in partition.graph.nodes for v in n.operands() if v.is_constant)
        constant_bytes = sum(partition.bytes_of(v, full_region(v.shape)) for v in constants)
        return MemoryInfo.of(scopes.timeline.problem, scopes.memory, constant_bytes=constant_bytes)

    @property
    def simulation(self) -> Simulation:
        """Time, bytes and energy."""
        return self.planned.simulation

    def load(self, num_threads: int | None) -> NpuExecutable:
        """What computes the plan's values."""
        return NpuExecutable(self.planned)


@dataclass(frozen=True, slots=True, eq=False)
class NpuExecutable:
    """A plan whose values can be computed. It takes the interpreter's time, not the machine's."""

    planned: SimulatedPlan

    def run(self, feed: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs by name: every step computes its buffers from nothing but the buffers that it reads.

        Raises:
            UsageError: the feed does not fit the program's inputs.
        """
        return execute(self.planned.scopes, feed)

    def close(self) -> None:
        """Nothing is held."""
