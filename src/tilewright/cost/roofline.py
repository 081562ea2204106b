"""The roofline: a kernel takes as long as its arithmetic or its traffic, and a launch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tilewright.cost.base import Estimate, KernelWork
from tilewright.ir.derive import flops, input_bytes, nests_of
from tilewright.ir.graph import Node, Value
from tilewright.ir.nest import Indirect
from tilewright.records import dataclass


@dataclass(frozen=True, slots=True)
class Roofline:
    """Rates of a machine whose groups of a stage each have a processor of their own.

    A kernel reads each operand from outside once and writes each wanted result once. Williams et al. 2009.
    """

    ops_per_ns: float
    bytes_per_ns: float
    launch_ns: float
    source: str
    proves_bounds: bool = True

    def kernel(self, work: KernelWork, num_cores: int | None = None) -> Estimate:
        """Arithmetic or traffic, and one launch. The number of cores is not asked."""
        time_ns = max(self._arithmetic_ns(work.nodes), external_bytes(work) / self.bytes_per_ns)
        return Estimate(time_ns + self.launch_ns, time_ns + self.launch_ns, self.source)

    def fused(self, work: KernelWork) -> Estimate:
        """As any kernel: what lies inside moves nothing."""
        return self.kernel(work)

    def stage(self, groups: Sequence[Sequence[KernelWork]], num_cores: Sequence[int | None] = ()) -> Estimate:
        """As long as the longest group."""
        times = [sum(self.kernel(work).time_ns for work in group) for group in groups]
        return Estimate(max(times, default=0.0), max(times, default=0.0), self.source)

    def transfer(self, size_bytes: int, source_level: str, target_level: str) -> Estimate:
        """There is one level; a copy within it reads and writes."""
        time_ns = 2 * size_bytes / self.bytes_per_ns
        return Estimate(time_ns, time_ns, self.source)

    def least(self, kernels: Sequence[KernelWork], num_groups: int = 1) -> Estimate:
        """All the kernels in equal shares."""
        time_ns = sum(self.kernel(work).time_ns for work in kernels) / num_groups
        return Estimate(time_ns, time_ns, self.source)

    def _arithmetic_ns(self, nodes: Iterable[Node]) -> float:
        return sum(flops(node) for node in nodes) / self.ops_per_ns


NOMINAL = Roofline(1.0, 1.0, 1.0, "nominal rates: an operation and a byte per ns, 1 ns for a launch")
"""The costs of planners where none are given: no machine's rates, but units that hold."""


def external_bytes(work: KernelWork) -> int:
    """Bytes that a kernel reads of operands from outside, of each once, and those of its wanted results."""
    inside = set(work.nodes)
    read: dict[Value, int] = {}
    for node in work.nodes:
        sizes = input_bytes(node) if _looks_up(node) else {}
        for position, value in enumerate(node.inputs):
            if value is not None and value.producer not in inside:
                read[value] = max(read.get(value, 0), sizes.get(position, value.size_bytes))
        for value in node.captures:
            read[value] = value.size_bytes
    return sum(read.values()) + sum(value.size_bytes for value in work.outputs)


def _looks_up(node: Node) -> bool:
    """Whether data decide what is read of an operand, as in an embedding: perhaps a small part of it."""
    accesses = (access for nest in nests_of(node) for access in nest.reads)
    return any(isinstance(index, Indirect) for access in accesses for index in access.index)
