"""The simulator: the steps of one cluster on its units, in time, bytes and energy. All figures are estimates.

A step's work is cut into tiles, which are loaded, computed and stored. With overlap loading and weights run
ahead of computing as far as buffers allow, and a tile waits for what it needs alone; without, everything
follows in sequence, with a barrier of all cores after each step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from tilewright.hardware.machine import Machine
from tilewright.ir.region import Region, union_volume, volume
from tilewright.targets.npu.events import Run
from tilewright.targets.npu.pools import PoolSizes
from tilewright.targets.npu.ports import DMA, ports_of
from tilewright.targets.npu.residents import Residents
from tilewright.targets.npu.steps import SimulatedStep
from tilewright.targets.npu.tasks import Overlap, Policy, StepTasks
from tilewright.targets.npu.traffic import Account, Traffic

__all__ = ["GRAPHTURBO", "Overlap", "Policy", "Simulation", "Traffic", "simulate", "static_power_w"]

GRAPHTURBO = Policy()
"""What the paper's system does."""


@dataclass(frozen=True, slots=True, eq=False)
class Simulation:
    """What one cluster does with one batch. Energy is by level, unit, and `static`."""

    time_s: float
    busy_s: Mapping[str, float]
    traffic: Traffic
    energy_pj: Mapping[str, float]
    macs: float
    runs: tuple[Run, ...]
    steps: tuple[SimulatedStep, ...]
    residents: Residents
    lower_bound_s: float
    bound_by: str

    @property
    def pools(self) -> PoolSizes:
        """What of each level passing weights and tiles may take."""
        return self.residents.pools

    @property
    def utilization(self) -> dict[str, float]:
        """Share of the time that each unit runs."""
        return {unit: busy / self.time_s for unit, busy in self.busy_s.items() if self.time_s}

    @property
    def energy_j(self) -> float:
        """All energy of one cluster, its share of the static power included."""
        return sum(self.energy_pj.values()) * 1e-12

    @property
    def gap(self) -> float:
        """How far the time is above its lower bound, relative to the bound."""
        return self.time_s / self.lower_bound_s - 1 if self.lower_bound_s else 0.0


def static_power_w(machine: Machine) -> float:
    """One cluster's share of what the machine takes while idle."""
    return (machine.static_power_w or 0.0) / machine.num_clusters


def simulate(
    steps: Sequence[SimulatedStep],
    machine: Machine,
    pools: PoolSizes | Residents,
    policy: Policy = GRAPHTURBO,
    *,
    least_seconds: Mapping[str, float] | None = None,
) -> Simulation:
    """Run the steps of one cluster, in the kernels that they say, or else as one program.

    `pools` is what placed buffers leave free, or what weights that stay on the chip leave of it.
    `least_seconds` is what each unit takes at least, however the network is cut, for the bound; None: what
    these steps take.

    Raises:
        MachineError: the machine has no buffers of cores, or no rate for what it has to move.
    """
    steps, ports = tuple(steps), ports_of(machine)
    account = Account(machine)
    residents = pools if isinstance(pools, Residents) else Residents(pools)
    last_steps = {w.key: step.number for step in steps for w in step.weights if w.key is not None}
    tasks = StepTasks(machine, policy, residents, account, last_steps)
    for step in steps:
        tasks.add(step)
    runs = tuple(tasks.run())
    time_s = tasks.tasks.end_s
    if not any(step.kernel for step in steps):
        num_launches = len(steps) if policy.launches == "each step" else 1
        time_s += num_launches * machine.overheads.kernel_launch_ns * 1e-9
    busy: dict[str, float] = {}
    for run in runs:
        share = run.num_cores / machine.num_cores_per_cluster if run.num_cores else 1.0
        busy[run.unit] = busy.get(run.unit, 0.0) + (run.end_s - run.start_s) * share
    energy_pj = account.energy_pj()
    for work in (work for step in steps for work in step.works if work.energy_pj):
        energy_pj[work.unit] = energy_pj.get(work.unit, 0.0) + work.energy_pj
    for unit, pj_per_byte in ports.pj_per_byte.items():
        moved_pj = pj_per_byte * sum(run.size_bytes for run in runs if run.unit == unit)
        if moved_pj:
            energy_pj[unit] = energy_pj.get(unit, 0.0) + moved_pj
    energy_pj["static"] = static_power_w(machine) * time_s * 1e12
    on_chip_bytes = _on_chip_bytes(machine) if policy.resident_weights else 0
    bound_s, bound_by = _lower_bound(steps, ports.main_bytes_per_s, least_seconds or {}, on_chip_bytes)
    macs = sum(work.macs for step in steps for work in step.works)
    return Simulation(
        time_s, busy, account.traffic, energy_pj, macs, runs, steps, residents, bound_s, bound_by
    )


def _on_chip_bytes(machine: Machine) -> float:
    """What all buffers of a cluster hold together."""
    ports = ports_of(machine)
    local = ports.local.capacity_bytes
    shared = 0 if ports.shared is None else ports.shared.capacity_bytes
    if local is None or shared is None:
        return inf
    clusters = 0 if ports.shared is None else machine.num_instances_per_cluster(ports.shared)
    return local * machine.num_cores_per_cluster + float(shared * clusters)


def _lower_bound(
    steps: Sequence[SimulatedStep],
    main_bytes_per_s: float,
    least_seconds: Mapping[str, float],
    on_chip_bytes: float,
) -> tuple[float, str]:
    """What no way to cut, order and place the network goes below: each unit's work on all cores with full
    tiles; each input, result and weight once over DDR's port, but for weights that may stay on the chip."""
    seconds: dict[str, float] = {}
    for step in steps:
        for work in step.works:
            seconds[work.unit] = seconds.get(work.unit, 0.0) + work.seconds
    for unit, own_s in seconds.items():
        # Slices may leave out rows between those that they read.
        seconds[unit] = min(own_s, least_seconds.get(unit, own_s))
    weights = _bytes_once(
        (w.name, w.region, w.size_bytes) for s in steps for w in s.weights if w.name is not None
    )
    rows = sum(w.size_bytes for s in steps for w in s.weights if w.name is None)
    inputs = _bytes_once(
        (x.value, x.region, x.size_bytes) for s in steps for x in s.loads if x.producer is None
    )
    results = sum(x.size_bytes for s in steps for x in s.stores if x.is_result)
    seconds[DMA] = (max(0.0, weights - on_chip_bytes) + rows + inputs + results) / main_bytes_per_s
    unit = max(seconds, key=lambda name: seconds[name])
    return seconds[unit], unit


def _bytes_once(parts: Iterable[tuple[str, Region, int]]) -> float:
    """Bytes of all parts of values, by name, region and size, that are read, however often."""
    regions: dict[str, set[Region]] = {}
    element_bytes: dict[str, float] = {}
    for name, region, size in parts:
        if size:
            regions.setdefault(name, set()).add(region)
            element_bytes[name] = size / volume(region)
    return sum(union_volume(found) * element_bytes[value] for value, found in regions.items())
