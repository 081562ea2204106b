"""A simulated plan as what a compilation ends in: it reports, and computes values buffer by buffer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from tilewright.arguments import NOWHERE
from tilewright.arrays import Array
from tilewright.cost.energy import EnergyTable, source_of
from tilewright.hardware.machine import Machine
from tilewright.ir.region import full_region
from tilewright.program import Program
from tilewright.records import dataclass
from tilewright.steps import MemoryInfo, SimulatedCost, StepInfo, planned_steps
from tilewright.targets.npu.describe import plan_of, subgraphs_of
from tilewright.targets.npu.execute import execute
from tilewright.targets.npu.mapped_costs import mapped_costs
from tilewright.targets.npu.names import Names
from tilewright.targets.npu.occupancy import levels_over_time
from tilewright.targets.npu.plan import SimulatedPlan
from tilewright.targets.npu.simulate import Simulation, energy_by_layer_pj
from tilewright.targets.runs import written_into
from tilewright.targets.simulated import (
    LoweredType,
    MappedCosts,
    NetworkPlan,
    SimulatedNetwork,
    Timeline,
)


@dataclass(frozen=True, slots=True, eq=False)
class NpuCode:
    """A program with its simulated plan."""

    program: Program
    planned: SimulatedPlan
    machine: Machine

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
        memory = MemoryInfo.of(scopes.timeline.problem, scopes.memory, constant_bytes=constant_bytes)
        return self._names.memory(memory)

    @property
    def _names(self) -> Names:
        return Names.of(self.machine)

    @property
    def simulation(self) -> Simulation:
        """Time, bytes and energy."""
        return self.planned.simulation

    @property
    def cost(self) -> SimulatedCost:
        """Time and bytes of one cluster, energy of all of them."""
        return SimulatedCost(**self._figures())

    def network(self) -> SimulatedNetwork:
        """Subgraphs with their slices, the order of these, and what lies where."""
        planned = self.planned
        return SimulatedNetwork(
            **self._figures(),
            element_types=self._element_types(),
            computed_in=self._computed_in(),
            energy_by_layer_j=self._energy_by_layer_j(),
            subgraphs=subgraphs_of(planned),
            order=tuple(str(planned.instances.nodes[place]) for place in planned.order),
            buffers=self._names.by_level(
                {str(scope): count for scope, count in planned.scopes.num_buffers.items()}
            ),
            spilled_bytes=planned.scopes.spilled_bytes,
            resident_bytes=self.simulation.residents.size_bytes,
        )

    def plan(self) -> NetworkPlan:
        """All that one cluster does for a batch."""
        return self._names.plan(plan_of(self.planned, self.machine))

    def mapped_costs(self) -> MappedCosts:
        """Sums of products beside their mappings."""
        return mapped_costs(self.planned, self.machine)

    def timeline(self) -> Timeline:
        """One batch on one cluster."""
        simulated, names = self.simulation, self._names
        plan = plan_of(self.planned, self.machine)
        return Timeline(
            machine=self.machine.name,
            network=self.planned.partition.graph.name,
            subgraphs=subgraphs_of(self.planned),
            plan=names.plan(plan),
            units=tuple(sorted(names.by_unit(simulated.busy_s))),
            runs=tuple(replace(run, unit=names.units.get(run.unit, run.unit)) for run in simulated.runs),
            levels=tuple(
                replace(held, level=replace(held.level, name=names.levels[held.level.name]))
                for held in levels_over_time(plan, simulated)
            ),
        )

    def _element_types(self) -> tuple[LoweredType, ...]:
        types = self.planned.types
        found = dict.fromkeys(v.dtype for v in self.program.graph.values())
        return tuple(
            LoweredType(str(d), str(types.stored(d)), str(d if types.keeps_border else types.stored(d)))
            for d in found
        )

    def _computed_in(self) -> dict[str, tuple[str, ...]]:
        found: dict[str, dict[str, None]] = {}
        for step in self.simulation.steps:
            for work in step.works:
                if work.macs or work.ops:
                    found.setdefault(work.unit, {})[work.dtype] = None
        return {unit: tuple(dtypes) for unit, dtypes in sorted(self._names.by_unit(found).items())}

    def _energy_by_layer_j(self) -> dict[str, float]:
        if EnergyTable.of(self.machine).missing is not None:
            return {}
        by_layer = energy_by_layer_pj(self.simulation, self.machine)
        return {name: pj * 1e-12 * self.machine.num_clusters for name, pj in by_layer.items()}

    def _figures(self) -> dict[str, Any]:
        found, num_clusters = self.simulation, self.machine.num_clusters
        missing = EnergyTable.of(self.machine).missing
        names = self._names
        by_pj = names.by_unit(found.energy_pj if missing is None else {})
        return {
            "time_s": found.time_s,
            "energy_j": found.energy_j * num_clusters if missing is None else None,
            "energy_by_j": {part: pj * 1e-12 * num_clusters for part, pj in by_pj.items()},
            "energy_source": source_of(self.machine),
            "max_power_w": self.machine.max_power_w,
            "bytes": asdict(found.traffic),
            "utilization": names.by_unit(found.utilization),
            "lower_bound_s": found.lower_bound_s,
            "bound_by": names.units.get(found.bound_by, found.bound_by),
        }

    def load(self, num_threads: int | None) -> NpuExecutable:
        """What computes the plan's values."""
        return NpuExecutable(self.planned)


@dataclass(frozen=True, slots=True, eq=False)
class NpuExecutable:
    """A plan whose values can be computed. It takes the interpreter's time, not the machine's."""

    planned: SimulatedPlan

    def run(self, feed: Mapping[str, Array], into: Mapping[str, Array] = NOWHERE) -> dict[str, Array]:
        """Outputs by name: every step computes its buffers from nothing but the buffers that it reads.

        Raises:
            UsageError: the feed does not fit the program's inputs.
        """
        return written_into(execute(self.planned.scopes, feed), into)

    def close(self) -> None:
        """Nothing is held."""
