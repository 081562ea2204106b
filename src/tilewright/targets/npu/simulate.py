"""The simulator: the steps of one cluster on its units, in time, bytes and energy. All figures are estimates.

A step's work is cut into tiles, which are loaded, computed and stored. With overlap loading and weights run
ahead of computing as far as buffers allow, and a tile waits for what it needs alone; without, everything
follows in sequence, with a barrier of all cores after each step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from tilewright.hardware.machine import Machine
from tilewright.progress import checkpoint
from tilewright.targets.npu.lower_bound import lower_bound
from tilewright.targets.npu.policy import Overlap, Policy
from tilewright.targets.npu.pools import PoolSizes
from tilewright.targets.npu.ports import ports_of
from tilewright.targets.npu.residents import Residents
from tilewright.targets.npu.simulated_step import SimulatedStep
from tilewright.targets.npu.stage_times import KernelTasks, kernel_seconds, tasks_of_kernel
from tilewright.targets.npu.tasks import StepTasks
from tilewright.targets.npu.traffic import Account, Traffic
from tilewright.targets.simulated import UnitRun

__all__ = ["GRAPHTURBO", "Overlap", "Policy", "Simulation", "Traffic", "simulate", "static_power_w"]

GRAPHTURBO = Policy()
"""What the paper's system does."""

Keeps = Literal["runs", "tasks"]
"""What a simulation is asked for: what units did when, or what they have to do and how long that takes."""


@dataclass(frozen=True, slots=True, eq=False)
class Simulation:
    """What one cluster does with one batch. Energy is by level, unit, and `static`.

    Of a kernel whose `tasks` are asked for, to be timed beside others, `runs` and `busy_s` are left out.
    """

    time_s: float
    busy_s: Mapping[str, float]
    traffic: Traffic
    energy_pj: Mapping[str, float]
    macs: float
    runs: Sequence[UnitRun]
    steps: tuple[SimulatedStep, ...]
    residents: Residents
    lower_bound_s: float
    bound_by: str
    tasks: KernelTasks | None = field(default=None, repr=False)
    charged: tuple[tuple[int, ...], ...] = field(default=(), repr=False)  # after each step, by `Account`

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
    keeps: Keeps = "runs",
) -> Simulation:
    """Run the steps of one cluster, in the kernels that they say, or else as one program.

    `pools` is what placed buffers leave free, or what weights that stay on the chip leave of it.
    `least_seconds` is what each unit takes at least, however the network is cut, for the bound; None: what
    these steps take. Tasks are kept of a single kernel.

    Raises:
        MachineError: the machine has no buffers of cores, or no rate for what it has to move.
    """
    steps, ports = tuple(steps), ports_of(machine)
    account = Account(machine)
    residents = pools if isinstance(pools, Residents) else Residents(pools)
    last_steps = {
        w.key: step.number
        for step in steps
        for w, passage in zip(step.weights, step.tiling.weights, strict=True)
        if w.key is not None and passage.moved_bytes  # else it is where it is needed
    }
    tasks = StepTasks(machine, policy, residents, account, last_steps)
    charged = []
    for step in steps:
        checkpoint()
        tasks.add(step)
        charged.append(account.charged())
    graph = tasks.finished()
    kernel = tasks_of_kernel(graph) if keeps == "tasks" else None
    runs = None if kernel is not None else graph.run()
    time_s = graph.end_s if kernel is None else kernel_seconds(kernel, graph, machine)
    if not any(step.kernel for step in steps):
        num_launches = len(steps) if policy.launches == "each step" else 1
        time_s += num_launches * machine.overheads.kernel_launch_ns * 1e-9
    busy = {} if runs is None else runs.busy_s(machine.num_cores_per_cluster)
    energy_pj = account.energy_pj()
    for work in (work for step in steps for work in step.works if work.energy_pj):
        energy_pj[work.unit] = energy_pj.get(work.unit, 0.0) + work.energy_pj
    for products in (work.products for step in steps for work in step.works if work.products is not None):
        for level, inner_pj in products.inner_energy_pj().items():
            energy_pj[level] = energy_pj.get(level, 0.0) + inner_pj
    for level, passing_pj in (pair for step in steps for pair in step.tiling.energy_pj):
        energy_pj[level] = energy_pj.get(level, 0.0) + passing_pj
    for unit, pj_per_byte in ports.pj_per_byte.items():
        moved_pj = pj_per_byte * graph.moved_bytes(unit)
        if moved_pj:
            energy_pj[unit] = energy_pj.get(unit, 0.0) + moved_pj
    energy_pj["static"] = static_power_w(machine) * time_s * 1e12
    if residents.scopes or residents.stay:
        policy = replace(policy, resident_weights=True)
    bound_s, bound_by = lower_bound(steps, machine, policy, least_seconds or {})
    macs = sum(work.macs for step in steps for work in step.works)
    return Simulation(
        time_s,
        busy,
        account.traffic,
        energy_pj,
        macs,
        () if runs is None else runs,
        steps,
        residents,
        bound_s,
        bound_by,
        kernel,
        tuple(charged),
    )


def energy_by_layer_pj(simulation: Simulation, machine: Machine) -> dict[str, float]:
    """Energy of one cluster by the name of a step, slices together, without static power.

    What is fetched ahead for a later step counts where it is asked for.
    """
    account, per_byte = Account(machine), ports_of(machine).pj_per_byte
    found: dict[str, float] = {}
    before = (0,) * len(account.charged())
    for step, after in zip(simulation.steps, simulation.charged, strict=True):
        own_pj = sum(account.energy_of([b - a for a, b in zip(before, after, strict=True)]).values())
        own_pj += sum(work.energy_pj for work in step.works)
        own_pj += sum(
            pj
            for work in step.works
            if work.products is not None
            for pj in work.products.inner_energy_pj().values()
        )
        own_pj += sum(pj for _, pj in step.tiling.energy_pj)
        found[step.name] = found.get(step.name, 0.0) + own_pj
        before = after
    for run in simulation.runs:
        name = simulation.steps[run.step].name
        found[name] += run.size_bytes * per_byte.get(run.unit, 0.0)
    return found
