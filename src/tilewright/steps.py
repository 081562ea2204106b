"""What a compiled model does, step by step, and the memory it needs: facts that an artifact keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilewright.schedule.base import Schedule

KERNEL_PREFIX = "k"


@dataclass(frozen=True, slots=True)
class KernelInfo:
    """One launch of generated code, or one operator that runs on the host (`template` is then `host`).

    `nodes` are the names of the operators it serves, none for a copy between two layouts. `notes` are the
    generator's remarks; `macs` multiply-accumulates.
    """

    id: str
    symbol: str
    template: str
    nodes: tuple[str, ...]
    subgraph_id: int | None
    num_chunks: int = 1
    macs: int = 0
    scratch_bytes: int = 0
    notes: tuple[str, ...] = ()

    @property
    def is_host(self) -> bool:
        """Whether it runs in Python through the reference implementation."""
        return self.template == "host"


@dataclass(frozen=True, slots=True)
class StepInfo:
    """Kernels that run side by side, after the step before and before the one behind."""

    index: int
    kernels: tuple[KernelInfo, ...]


@dataclass(frozen=True, slots=True)
class BufferInfo:
    """One buffer of the arena: where it lies, and the steps during which it is needed."""

    name: str
    offset_bytes: int
    size_bytes: int
    first_step: int
    last_step: int


@dataclass(frozen=True, slots=True)
class MemoryInfo:
    """Memory of a compiled model. The arena exists once for each run at a time, constants once."""

    peak_bytes: int
    lower_bound_bytes: int
    constant_bytes: int
    scratch_bytes: int
    buffers: tuple[BufferInfo, ...] = ()

    @property
    def peak(self) -> int:
        """Bytes of the arena: planned and used."""
        return self.peak_bytes


def planned_steps(schedule: Schedule, template: str) -> tuple[StepInfo, ...]:
    """One step per stage and one kernel per instance: for targets that generate no code."""
    steps: list[StepInfo] = []
    count = 0
    for index, stage in enumerate(schedule.stages):
        kernels: list[KernelInfo] = []
        for instance in stage.instances():
            subgraph = schedule.partition.subgraphs[instance.subgraph_id]
            nodes = tuple(node.name for node in subgraph.nodes)
            kernels.append(
                KernelInfo(f"{KERNEL_PREFIX}{count}", f"subgraph_{instance}", template, nodes, subgraph.id)
            )
            count += 1
        steps.append(StepInfo(index, tuple(kernels)))
    return tuple(steps)
