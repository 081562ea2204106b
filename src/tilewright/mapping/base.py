"""What every mapper is asked, what it answers, and what a mapper is."""

from __future__ import annotations

from collections.abc import Mapping as MappingOf
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from tilewright.cost.base import Objective
from tilewright.cost.bound import energy_bound_pj, latency_bound_cycles, objective_bound
from tilewright.cost.nest_analysis import evaluate
from tilewright.cost.objective import UNITS, measure
from tilewright.cost.options import TIMELOOP, CostOptions
from tilewright.loops.mapping import Mapping
from tilewright.loops.problem import Problem
from tilewright.mapping.constraints import UNCONSTRAINED, Constraints, dataflow
from tilewright.planning import Bound, Budget, Infeasible, Provenance, Quality, Rule, Space

if TYPE_CHECKING:
    from tilewright.cost.count import Cost
    from tilewright.hardware.machine import Machine, Threads


MAPPINGS = Space("mappings")
"""All mappings of an operator onto a machine, padded ones too."""
UNPADDED = Rule("whose factors divide the extents")
CONSTRAINED = Rule("that keep the constraints")


@dataclass(frozen=True, slots=True)
class MappingProblem:
    """An operator, a machine, what to minimise and how to count.

    Every mapping keeps the constraints, of which the dataflow that the machine states is one. Where the
    machine is a view of a GPU, `block` limits the threads: the
    spatial loops of its shared memory. Threads and blocks do not share sums there.
    """

    problem: Problem
    machine: Machine
    objective: Objective = "latency"
    cost_options: CostOptions = TIMELOOP
    block: Threads | None = None
    constraints: Constraints = UNCONSTRAINED

    def __post_init__(self) -> None:
        axes = dataflow(self.machine)
        if axes and self.constraints.axes != axes:
            kept = Constraints.of((*self.constraints.listed(), *axes))
            object.__setattr__(self, "constraints", kept)

    def may_spread(self, dim: str, level: int) -> bool:
        """Whether loops of a dim may be spatial below a level, counted from the innermost 0.

        Elsewhere partial sums of neighbouring instances are added on their way; on a GPU only multipliers of
        one thread have adders between them.
        """
        if self.most_spread(dim, level) == 1:
            return False
        return self.block is None or level == 0 or dim in self.problem.output.dims()

    def most_spread(self, dim: str, level: int) -> int:
        """The most iterations of a dim that the array below a level takes at a time."""
        axes = self.constraints.axes_at(self.machine.levels[level].name) if self.constraints.axes else None
        fan_out = self.machine.fan_out(level)
        return fan_out if axes is None else min(fan_out, axes.most(dim, self.problem))

    @property
    def space(self) -> Space:
        """All mappings that answer it."""
        return MAPPINGS.keeping(CONSTRAINED) if self.constraints else MAPPINGS

    def roofline(self) -> Bound:
        """The cost that the operator's work and traffic alone have at least."""
        value = objective_bound(self.problem, self.machine, self.objective, self.cost_options)
        return Bound(value, MAPPINGS, "roofline")


@dataclass(frozen=True, slots=True)
class MappingSolution:
    """A mapping with its cost. `quality` is in the objective's unit: cycles, pJ, or pJ * cycles.

    `bound_cycles` and `bound_energy_pj` are of all mappings of the problem onto the machine, each for itself.
    """

    mapping: Mapping
    cost: Cost
    quality: Quality
    provenance: Provenance
    seconds: float = field(compare=False, default=0.0)
    details: MappingOf[str, float] = field(default_factory=dict)
    bound_cycles: int = 0
    bound_energy_pj: float = 0.0


def build_solution(
    problem: MappingProblem,
    mapping: Mapping,
    provenance: Provenance,
    *,
    seconds: float = 0.0,
    cost: Cost | None = None,
    bounds: Sequence[Bound] = (),
    cut_off: bool = False,
    details: MappingOf[str, float] | None = None,
) -> MappingSolution:
    """A mapping with its cost and how good it is: what every mapper answers with.

    `seconds` is what it took; `cost` what the cost model counts for it, where that is known; `bounds` what is
    known besides, of the objective in its unit, in place of the roofline.

    Raises:
        InfeasibleMapping: the mapping does not fit.
    """
    operator, machine, options = problem.problem, problem.machine, problem.cost_options
    if cost is None:
        cost = evaluate(operator, machine, mapping, options)
    value = measure(problem.objective, cost.cycles, cost.energy_pj)
    known = bounds or (problem.roofline(),)
    return MappingSolution(
        mapping,
        cost,
        Quality.of(value, *known, unit=UNITS[problem.objective], cut_off=cut_off),
        provenance,
        seconds=seconds,
        details=details or {},
        bound_cycles=latency_bound_cycles(operator, machine),
        bound_energy_pj=energy_bound_pj(operator, machine, options),
    )


@runtime_checkable
class Mapper(Protocol):
    """One way to map. Implementations are frozen dataclasses; their fields are their options."""

    @property
    def name(self) -> str:
        """The name in the registry."""
        ...

    def solve(self, problem: MappingProblem, budget: Budget) -> MappingSolution | Infeasible:
        """Map the operator, or say which level, tensor and capacity forbid it."""
        ...


@runtime_checkable
class Sampler(Mapper, Protocol):
    """A mapper that looks at one mapping after another, so that a budget can count them."""

    def limited(self, num_mappings: int) -> Mapper:
        """The same mapper that looks at so many legal mappings, at most."""
        ...
