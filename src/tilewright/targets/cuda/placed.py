"""A program lowered for the GPU: its kernels, its graph, and where tensors lie in the arena."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.ir.graph import Graph
from tilewright.memory.base import Buffer, MemoryPlan, MemoryProblem
from tilewright.records import dataclass
from tilewright.targets.cuda.arena import GraphBuffer
from tilewright.targets.cuda.graph import PlannedGraph
from tilewright.targets.cuda.lower import Counters, HostOperator, KernelLaunch, Lowered, Reports, Tensor


@dataclass(frozen=True, slots=True, eq=False)
class PlacedModel:
    """See the module's text."""

    graph: Graph
    lowered: Lowered
    planned: PlannedGraph
    memory: MemoryPlan
    buffers: Sequence[GraphBuffer]
    offsets: Mapping[Tensor, int]

    @property
    def arena_bytes(self) -> int:
        """Size of the arena."""
        return self.memory.peak_bytes

    @property
    def problem(self) -> MemoryProblem:
        """What lies in the arena, by the first and the last node that uses it."""
        level = self.memory.uses[-1].level
        buffers = (Buffer(b.name, b.size_bytes, b.uses[0], b.uses[-1]) for b in self.buffers)
        return MemoryProblem(tuple(buffers), (level,))

    def priorities(self, durations_ns: Sequence[float]) -> list[int]:
        """Of each node: the longest way to the end starts first."""
        tails = list(durations_ns)
        for number in reversed(range(len(tails))):
            for before in self.planned.nodes[number].after:
                tails[before] = max(tails[before], durations_ns[before] + tails[number])
        order = {tail: place for place, tail in enumerate(sorted(set(tails)))}
        return [order[tail] for tail in tails]

    @property
    def launches(self) -> list[KernelLaunch]:
        """All kernels, in order."""
        return [n.work for n in self.planned.nodes if isinstance(n.work, KernelLaunch)]

    @property
    def host_operators(self) -> list[HostOperator]:
        """Operators that run in Python, in order."""
        return [n.work for n in self.planned.nodes if isinstance(n.work, HostOperator)]

    @property
    def reports(self) -> list[Reports]:
        """Of all launches, in order."""
        return [arg for launch in self.launches for arg in launch.args if isinstance(arg, Reports)]

    @property
    def counters(self) -> list[Counters]:
        """Of all launches, in order."""
        return [arg for launch in self.launches for arg in launch.args if isinstance(arg, Counters)]
