"""Estimates of work on a GPU: arithmetic or traffic, in waves of blocks, and a node of the graph for each."""

from __future__ import annotations

from math import ceil

from tilewright.cost.roofline import Roofline
from tilewright.hardware.machine import Machine
from tilewright.records import dataclass
from tilewright.targets.cuda.lower import KernelLaunch, Work

_BLOCKS_PER_MULTIPROCESSOR = 2
"""Blocks that hide each other's waiting: a multiprocessor with one runs at half its rate."""


@dataclass(frozen=True, slots=True)
class GpuCosts(Roofline):
    """Costs of subgraphs as a roofline has them, and of kernels, whose blocks are known."""

    num_multiprocessors: int = 1

    def work_ns(self, work: Work | None) -> float:
        """A kernel with its launch; what the host does, and a join, count as a launch."""
        if not isinstance(work, KernelLaunch):
            return self.launch_ns
        kernel = work.kernel
        arithmetic_ns = 2 * kernel.macs / self.ops_per_ns / self._busy(kernel.num_blocks)
        return self.launch_ns + max(arithmetic_ns, kernel.argument_bytes / self.bytes_per_ns)

    def _busy(self, num_blocks: int) -> float:
        """Share of the machine's rate that so many blocks reach: the last wave may leave much of it idle."""
        at_once = self.num_multiprocessors * _BLOCKS_PER_MULTIPROCESSOR
        return num_blocks / (ceil(num_blocks / at_once) * at_once)


def gpu_costs(machine: Machine) -> GpuCosts:
    """Rates of a described GPU, all of whose multiprocessors work on a kernel."""
    clock_hz = machine.clock_hz or 1e9
    num = machine.num_cores_per_cluster
    rates = [
        u.macs_per_cycle.get("float32", 0.0) * u.num_per_instance for u in machine.units if u.kind == "vector"
    ]
    bytes_per_s = machine.levels[-1].read_bytes_per_s or clock_hz
    return GpuCosts(
        ops_per_ns=max(1.0, 2 * sum(rates) * num * clock_hz / 1e9),
        bytes_per_ns=bytes_per_s / 1e9,
        launch_ns=machine.overheads.kernel_launch_ns or 0.0,
        source=f"peak rates of {machine.name} in float32, and the launch of a kernel",
        proves_bounds=False,
        num_multiprocessors=num,
    )
