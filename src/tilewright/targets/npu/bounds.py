"""Seconds that a plan takes at least, before it is simulated; those of any plan are in `lower_bound.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.hardware.machine import Machine
from tilewright.memory.instances import bytes_made
from tilewright.memory.scopes import ScopePlan
from tilewright.schedule.binding import Scope
from tilewright.targets.npu.ports import CORE_DMA, DMA, ports_of
from tilewright.targets.npu.simulated_step import SimulatedStep


def values_passing_s(scopes: ScopePlan, machine: Machine) -> float:
    """Seconds that the port of main memory takes at least for values alone: each buffer that lives there is
    written once, and read by each step that reads it; and so are the network's inputs."""
    graph, size_bytes = scopes.graph, 0
    for buffer in scopes.buffers:
        if buffer.scope is Scope.MAIN:
            size_bytes += buffer.size_bytes
    for step in scopes.steps:
        for read in step.reads:
            if read.buffer is None:
                size_bytes += graph.main_bytes_of(read.value, read.region)
            elif (buffer := scopes.buffers[read.buffer]).scope is Scope.MAIN:
                node = graph.nodes[buffer.node]
                size_bytes += bytes_made(graph, node, read.value, read.region)
    return size_bytes / ports_of(machine).main_bytes_per_s


def steps_s(steps: Sequence[SimulatedStep], residents: Mapping[str, Scope], machine: Machine) -> float:
    """Seconds that the busiest unit takes at least for these steps: all their work, all that passes the port
    of main memory, of weights each part once; in one program what passes the port of the cores, too."""
    ports = ports_of(machine)
    outer_bytes = inner_bytes = 0
    fetched: dict[str, int] = {}
    seconds: dict[str, float] = {}
    for step in steps:
        tiling = step.tiling
        for weight, passage in zip(step.weights, tiling.weights, strict=True):
            inner_bytes += passage.moved_bytes
            if weight.key is None:
                outer_bytes += weight.size_bytes
            elif weight.key not in residents and passage.moved_bytes:
                fetched[weight.key] = weight.size_bytes
        for passage in (*tiling.loads, *tiling.stores):
            inner_bytes += passage.moved_bytes
            outer_bytes += passage.outer_bytes
        # Kernels that hold other cores run at the same time.
        for work in step.works if step.kernel is None else ():
            share = 1.0 if step.group is None else step.group.share  # others do as much meanwhile
            seconds[work.unit] = seconds.get(work.unit, 0.0) + work.seconds * share
    outer_bytes += sum(fetched.values())
    seconds[DMA] = outer_bytes / ports.main_bytes_per_s
    if ports.shared is not None and not any(step.kernel for step in steps):
        seconds[CORE_DMA] = inner_bytes / ports.local_bytes_per_s
    return max(seconds.values())
