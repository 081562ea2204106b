"""What work costs: estimates and measurements, which never mix, and the protocol of models that price it.

A cost model computes; a measurement was observed. Planners minimise an objective over estimates, in
nanoseconds, picojoules or their product, and say so in the unit of their answer.
"""

from __future__ import annotations

import statistics
from collections.abc import Hashable, Mapping, Sequence
from typing import Literal, Protocol, runtime_checkable

from tilewright.errors import UsageError
from tilewright.ir.graph import Node, Value
from tilewright.records import dataclass

Objective = Literal["latency", "energy", "edp"]

UNITS: Mapping[Objective, str] = {"latency": "ns", "energy": "pJ", "edp": "pJ ns"}
"""The unit of a cost under each objective."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A computed cost. `source` names the model.

    `bound_ns` and `bound_pj` are what any way to do the same work takes at least, by the same model.
    `energy_pj` is None where the model knows no energies.
    """

    time_ns: float
    bound_ns: float
    source: str
    energy_pj: float | None = None
    bound_pj: float = 0.0

    def cost(self, objective: Objective) -> float:
        """The value that a planner minimises.

        Raises:
            UsageError: the objective needs energies, which the model does not know.

        >>> Estimate(2.0, 1.0, "by hand", energy_pj=5.0).cost("edp")
        10.0
        """
        return self._value(objective, self.time_ns, self.energy_pj)

    def bound(self, objective: Objective) -> float:
        """What that value is at least.

        Raises:
            UsageError: the objective needs energies, which the model does not know.
        """
        return self._value(objective, self.bound_ns, None if self.energy_pj is None else self.bound_pj)

    def _value(self, objective: Objective, time_ns: float, energy_pj: float | None) -> float:
        if objective == "latency":
            return time_ns
        if energy_pj is None:
            raise UsageError(
                f"objective {objective}: the cost model ({self.source}) knows no energies; minimise latency."
            )
        return energy_pj if objective == "energy" else energy_pj * time_ns

    def then(self, other: Estimate) -> Estimate:
        """Of both in sequence.

        >>> Estimate(2.0, 1.0, "by hand").then(Estimate(3.0, 3.0, "by hand")).time_ns
        5.0
        """
        known = self.energy_pj is not None and other.energy_pj is not None
        return Estimate(
            self.time_ns + other.time_ns,
            self.bound_ns + other.bound_ns,
            self.source,
            (self.energy_pj or 0.0) + (other.energy_pj or 0.0) if known else None,
            self.bound_pj + other.bound_pj,
        )

    def scaled(self, share: float) -> Estimate:
        """Of a share of the work."""
        energy_pj = None if self.energy_pj is None else self.energy_pj * share
        return Estimate(
            self.time_ns * share, self.bound_ns * share, self.source, energy_pj, self.bound_pj * share
        )


@dataclass(frozen=True, slots=True)
class Measurement:
    """Observed times of the same work. `context` says of what and under which conditions.

    `low_ns` and `high_ns` are the quartiles; `count` how many samples there are.
    """

    median_ns: float
    low_ns: float
    high_ns: float
    count: int
    context: str

    @classmethod
    def of(cls, samples_ns: Sequence[float], context: str) -> Measurement:
        """Summarise samples.

        Raises:
            UsageError: there are none.

        >>> Measurement.of([3.0, 1.0, 2.0], "by hand").median_ns
        2.0
        """
        if not samples_ns:
            raise UsageError(f"nothing was measured: {context}.")
        ordered = sorted(samples_ns)
        last = len(ordered) - 1
        return cls(
            statistics.median(ordered), ordered[last // 4], ordered[-(last // 4) - 1], len(ordered), context
        )


class KernelWork(Protocol):
    """Nodes in topological order that are compiled together, and the values wanted of them."""

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes."""
        ...

    @property
    def outputs(self) -> tuple[Value, ...]:
        """Their results that are wanted."""
        ...


@runtime_checkable
class CostModel(Protocol):
    """Prices work on one machine. Equal questions get equal answers; nothing is measured while asking."""

    @property
    def source(self) -> str:
        """Where its numbers come from, as every estimate says."""
        ...

    @property
    def proves_bounds(self) -> bool:
        """Whether no plan can cost less than a bound under this model; else bounds are estimates too."""
        ...

    def kernel(self, work: KernelWork, num_cores: int | None = None) -> Estimate:
        """A kernel alone, on so many cores; None: on all that the machine gives one run."""
        ...

    def fused(self, work: KernelWork) -> Estimate:
        """A kernel alone that may be computed block by block, where the target can and gains by it."""
        ...

    def stage(self, groups: Sequence[Sequence[KernelWork]], num_cores: Sequence[int | None] = ()) -> Estimate:
        """Groups that run at the same time, each of them kernel after kernel.

        Each on so many cores at most; None, or without any given: as many as the target gives it.
        """
        ...

    def transfer(self, size_bytes: int, source_level: str, target_level: str) -> Estimate:
        """A copy from one level of memory to another.

        Raises:
            MachineError: there is no such level, or nothing between the two.
        """
        ...

    def least(self, kernels: Sequence[KernelWork], num_groups: int = 1) -> Estimate:
        """What any schedule of these kernels takes at least that runs so many groups at a time.

        One kernel of all of a graph's nodes bounds every partition of the graph.
        """
        ...


@runtime_checkable
class DistinguishesStages(Protocol):
    """A cost model for which the structure of its kernels does not say all of a stage."""

    def stage_facts(self, groups: Sequence[Sequence[KernelWork]]) -> Hashable:
        """What else the cost of a stage depends on: kernels of equal structure in equal groups cost the same
        where this is equal, too.
        """
        ...


@runtime_checkable
class SharesMachine(Protocol):
    """A cost model of a machine on which a kernel may keep some cores from others as long as it runs."""

    def occupied_ns(self, work: KernelWork) -> tuple[float, ...] | None:
        """How long a kernel keeps the machine from others: of each resource its time, times the share of it.

        No stage takes less than its kernels occupy together of any resource. None if they keep nothing.
        """
        ...
