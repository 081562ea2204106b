"""A described accelerator as a target: networks are planned for its buffers, and simulated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from tilewright.hardware.machine import Machine
from tilewright.ir.graph import Graph, Node
from tilewright.options import Options
from tilewright.planning import option
from tilewright.targets.base import Support
from tilewright.targets.npu.backend import NpuBackend
from tilewright.targets.npu.simulate import Overlap, Policy


@dataclass(frozen=True, slots=True)
class NpuTarget:
    """One cluster of a machine whose buffers the schedule fills."""

    machine: Machine
    overlap: Overlap = option("layers", "What of loading, computing and storing overlaps.")
    keeps_weights: bool = option(True, "The shared buffer keeps weights from step to step.")
    launches: Literal["once", "each step"] = option("once", "One kernel, or one for each step.")
    family: ClassVar[str] = "npu"
    is_measurable: ClassVar[bool] = False
    runs_slices: ClassVar[bool] = True
    code_store: ClassVar[None] = None

    @property
    def name(self) -> str:
        """The machine's."""
        return self.machine.name

    def supports(self, node: Node) -> Support:
        """Whatever the interpreter computes."""
        return Support.yes()

    def backend(self, graph: Graph, options: Options) -> NpuBackend:
        """What plans and simulates a graph.

        Raises:
            MachineError: the machine has no buffers of cores, or no rate for what it has to do.
        """
        policy = Policy(self.overlap, self.keeps_weights, self.launches)
        return NpuBackend(self, self.machine, policy, graph, options)
