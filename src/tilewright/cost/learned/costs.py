"""The cost model that planners ask: a target's own estimates, corrected by what was learned."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tilewright.arrays import Array
from tilewright.cost.base import CostModel, DistinguishesStages, Estimate, KernelWork
from tilewright.cost.features import (
    MachineFacts,
    PlanFacts,
    TellsPlans,
    WorkFacts,
    features_of,
    identity_of,
    work_structure,
)
from tilewright.cost.learned.model import Learned, LearnedModel
from tilewright.errors import UsageError
from tilewright.hardware.element_types import ElementTypes
from tilewright.hardware.machine import Machine


@dataclass(frozen=True, slots=True)
class LearnedCosts:
    """Kernels at learned times and energies; what was not learned of is scaled as they are. See `CostModel`.

    A stage of several groups, whose kernels were never measured together, takes as much more or less than the
    target estimates as its kernels do one after the other. Transfers and bounds are the target's.
    """

    model: LearnedModel
    base: CostModel
    machine: MachineFacts
    num_threads: int
    proves_bounds: bool = False
    _known: dict[Hashable, Estimate] = field(init=False, repr=False, default_factory=dict)

    @classmethod
    def of(
        cls,
        model: LearnedModel,
        base: CostModel,
        machine: Machine,
        types: ElementTypes | None = None,
        num_threads: int | None = None,
    ) -> LearnedCosts:
        """A model for a machine, whose target estimates as `base` does.

        Raises:
            UsageError: the model is of another machine or number of threads, or knows no time.
        """
        name = identity_of(machine)
        if model.machine != name:
            raise UsageError(
                f"learned model: is of machine {model.machine!r}, not of {name!r}; adapt it to that: "
                "tilewright learn --start."
            )
        if "time" not in model.quantities:
            raise UsageError(f"learned model of {model.machine!r}: knows no time; train it on times, too.")
        if num_threads is None:
            known = base.num_threads if isinstance(base, TellsPlans) else None
            num_threads = known or machine.num_cores_per_cluster
        if model.threads and num_threads not in model.threads:
            trained = " or ".join(map(str, model.threads))
            raise UsageError(
                f"learned model of {model.machine!r}: knows kernels on {trained} threads, not on "
                f"{num_threads}; give --threads {model.threads[0]}, or train it on {num_threads}."
            )
        return cls(model, base, MachineFacts.of(machine, types), num_threads)

    @classmethod
    def open(
        cls, path: str, base: CostModel, machine: Machine | None, types: ElementTypes | None = None
    ) -> LearnedCosts:
        """The model of a file, for a machine.

        Raises:
            UsageError: there is no machine, or the file or what it holds does not fit.
        """
        if machine is None:
            raise UsageError(f"learned model {path}: this target describes no machine; leave the model out.")
        return cls.of(LearnedModel.read(Path(path)), base, machine, types)

    @property
    def source(self) -> str:
        """The method, and the share of operators that it was learned from."""
        time = self.model.quantities["time"]
        return f"learned ({time.method}, {time.num_measured} of {time.num_operators} operators measured)"

    def kernel(self, work: KernelWork, num_cores: int | None = None) -> Estimate:
        """A kernel alone.

        Raises:
            UsageError: an operator without loop nests, of which nothing can be predicted.
        """
        threads = num_cores or self.num_threads
        return self._learned(work, None if self._by_roofline else self.base.kernel(work, num_cores), threads)

    def fused(self, work: KernelWork) -> Estimate:
        """A kernel alone that may be computed block by block, as the target estimates that.

        Raises:
            UsageError: an operator without loop nests, of which nothing can be predicted.
        """
        return self._learned(work, None if self._by_roofline else self.base.fused(work), self.num_threads)

    def stage(self, groups: Sequence[Sequence[KernelWork]], num_cores: Sequence[int | None] = ()) -> Estimate:
        """Groups that run at the same time.

        Raises:
            UsageError: an operator without loop nests, of which nothing can be predicted.
        """
        kernels = [work for group in groups for work in group]
        learned = [self.kernel(work) for work in kernels]
        known = [kernel.energy_pj for kernel in learned if kernel.energy_pj is not None]
        energy_pj = sum(known) if len(known) == len(learned) else None
        if self._by_roofline:
            time_ns = max((sum(self.kernel(work).time_ns for work in group) for group in groups), default=0.0)
        else:
            alone_ns = sum(self.base.kernel(work).time_ns for work in kernels)
            together_ns = self.base.stage(groups, num_cores).time_ns
            learned_ns = sum(kernel.time_ns for kernel in learned)
            time_ns = together_ns * (learned_ns / alone_ns if alone_ns else 1.0)
        return Estimate(time_ns, 0.0, self.source, energy_pj)

    def stage_facts(self, groups: Sequence[Sequence[KernelWork]]) -> Hashable:
        """What the target's estimates depend on."""
        return self.base.stage_facts(groups) if isinstance(self.base, DistinguishesStages) else ()

    @property
    def _by_roofline(self) -> bool:
        return self.model.estimates == "roofline"

    def transfer(self, size_bytes: int, source_level: str, target_level: str) -> Estimate:
        """A copy between levels, as the target estimates it.

        Raises:
            MachineError: there is no such level, or nothing between the two.
        """
        return self.base.transfer(size_bytes, source_level, target_level)

    def least(self, kernels: Sequence[KernelWork], num_groups: int = 1) -> Estimate:
        """What the target says: nothing was learned of bounds."""
        return self.base.least(kernels, num_groups)

    def _learned(self, work: KernelWork, estimate: Estimate | None, num_threads: int) -> Estimate:
        if estimate is not None and estimate.time_ns == 0:  # a view, which is no kernel
            return estimate
        key = (work_structure(work), num_threads, None if estimate is None else estimate.time_ns)
        if key not in self._known:
            facts, plan = WorkFacts.of(work), PlanFacts()
            if estimate is None:
                estimate = self.machine.roofline(facts)
            elif isinstance(self.base, TellsPlans):
                plan = self.base.plan_facts(work)
            features = features_of(facts, self.machine, num_threads, estimate.time_ns, plan)
            self._known[key] = self._predicted(features[None, :], estimate)
        return self._known[key]

    def _predicted(self, features: Array, estimate: Estimate) -> Estimate:

        def corrected(learned: Learned, value: float) -> float:
            return value * float(np.exp2(learned.log_ratio(features)[0]))

        time_ns = corrected(self.model.quantities["time"], estimate.time_ns)
        energy, energy_pj = self.model.quantities.get("energy"), estimate.energy_pj
        if energy is not None and energy_pj is not None:
            energy_pj = corrected(energy, energy_pj)
        return Estimate(time_ns, min(estimate.bound_ns, time_ns), self.source, energy_pj, 0.0)
