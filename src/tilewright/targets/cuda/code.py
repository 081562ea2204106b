"""A program and its kernels for a GPU, before they are loaded on one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from tilewright.private_files import default_cache_directory
from tilewright.program import Program
from tilewright.records import dataclass
from tilewright.steps import KERNEL_PREFIX, KernelInfo, MemoryInfo, StepInfo
from tilewright.targets import host_runner
from tilewright.targets.cuda.costs import GpuCosts
from tilewright.targets.cuda.device import Device
from tilewright.targets.cuda.devices import DeviceName, open_device
from tilewright.targets.cuda.executable import CudaExecutable
from tilewright.targets.cuda.graph import PlannedNode
from tilewright.targets.cuda.lower import HostOperator
from tilewright.targets.cuda.placed import PlacedModel


@dataclass(frozen=True, slots=True, eq=False)
class CudaCode:
    """See the module's text. `device`, of GPUs the one with the number `ordinal`, is that on which it will be
    loaded; `images` are what kernels were assembled to before, by their symbols (`KernelCode.images`)."""

    program: Program
    placed: PlacedModel
    costs: GpuCosts
    device: DeviceName
    ordinal: int = 0
    images: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict)

    @property
    def arena_bytes(self) -> int:
        """What a run needs beside inputs, outputs and constants."""
        return self.placed.arena_bytes

    @property
    def texts(self) -> dict[str, str]:
        """The module of each kernel, by its symbol, each once."""
        return {launch.kernel.symbol: launch.kernel.text for launch in self.placed.launches}

    @property
    def steps(self) -> tuple[StepInfo, ...]:
        """A step for each stage of the schedule, with its kernels."""
        by_stage: dict[int, list[KernelInfo]] = {}
        for number, node in enumerate(self.placed.planned.nodes):
            if node.work is not None:
                info = _described(number, node, self.costs)
                by_stage.setdefault(node.stage, []).append(info)
        return tuple(StepInfo(i, tuple(kernels)) for i, kernels in enumerate(by_stage.values()))

    @property
    def memory_info(self) -> MemoryInfo:
        """What memory it needs on the device."""
        constants = {v for v in self.program.graph.values() if v.is_constant}
        return MemoryInfo.of(
            self.placed.problem, self.placed.memory, constant_bytes=sum(v.size_bytes for v in constants)
        )

    def load(self, num_threads: int | None) -> CudaExecutable:
        """Make it run on its device.

        Raises:
            DeviceError: there is none, or it does not take the code; says what to do.
        """
        options = self.program.options
        kept_in = None if options.no_cache else str(options.cache_dir or default_cache_directory())
        return self.load_on(open_device(self.device, kept_in, self.ordinal))

    def load_on(self, device: Device) -> CudaExecutable:
        """The same on a device that is open."""
        nodes = self.placed.planned.nodes
        priorities = self.placed.priorities([self.costs.work_ns(node.work) for node in nodes])
        return CudaExecutable(self.placed, priorities, device, host_runner(), self.images)


def _described(number: int, node: PlannedNode, costs: GpuCosts) -> KernelInfo:
    name = f"{KERNEL_PREFIX}{number}"
    work = node.work
    if isinstance(work, HostOperator):
        return KernelInfo(name, "", "host", (work.node.name,), node.subgraph_id, notes=(work.reason,))
    assert work is not None
    kernel = work.kernel
    return KernelInfo(
        name,
        kernel.symbol,
        kernel.template,
        tuple(n.name for n in work.nodes),
        node.subgraph_id,
        kernel.num_blocks,
        kernel.macs,
        kernel.shared_bytes,
        kernel.notes,
        costs.work_ns(work),
    )
