"""What a sweep gives: what workloads cost on each machine, its area, and whether another one is better."""

from __future__ import annotations

from collections.abc import Mapping as MappingOf
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, log

from tilewright.cost.base import Objective
from tilewright.cost.energy import source_of
from tilewright.cost.options import TIMELOOP, CostOptions
from tilewright.hardware.machine import Machine
from tilewright.loops.mapping import LevelLoops, Mapping
from tilewright.loops.problem import Problem
from tilewright.mapping.drawing import DrawnMapping, drawn
from tilewright.mapping.results import MapTotal, energy_line, energy_text
from tilewright.results import Result, Table, about, in_json


@dataclass(frozen=True, slots=True)
class SweptLayer:
    """A layer on a variant; equal ones of all workloads once."""

    name: str
    num_times: int
    cycles: int
    energy_pj: float
    bound_cycles: int
    bound_energy_pj: float
    utilization: float
    status: str = field(metadata=about("How the search ended: optimal, feasible, cut off."))
    optimal_among: str | None = field(metadata=about("The mappings of which it is proven to be the best."))
    mapping: tuple[LevelLoops, ...] = field(
        metadata=about("The loops of every level, from the outermost level to the innermost.")
    )
    problem: Problem = field(metadata=about(hidden=True))

    def drawn(self, machine: Machine, cost_options: CostOptions) -> DrawnMapping:
        """The mapping as people look at it, counted anew on its machine."""
        from tilewright.cost.nest_analysis import evaluate
        from tilewright.cost.sparsity import with_zeros
        from tilewright.mapping.gpu import evaluate_blocks

        mapping = Mapping(self.mapping)
        if machine.threads is None:
            cost = with_zeros(self.problem, machine, evaluate(self.problem, machine, mapping, cost_options))
        else:
            cost, _ = evaluate_blocks(self.problem, machine, mapping, cost_options)
        bounds = self.bound_cycles, self.bound_energy_pj
        return drawn(self.name, self.problem, machine, mapping, cost, bounds, cost_options)


@dataclass(frozen=True, slots=True)
class WorkloadCost:
    """A model, or layers that were given one by one, on a variant: its layers in sequence."""

    name: str
    cycles: int
    energy_pj: float
    bound_cycles: int
    bound_energy_pj: float
    streamed_cycles: int = field(metadata=about("Of operators that are not mapped, at least."))
    streamed_energy_pj: float = field(metadata=about("Of operators that are not mapped, at least."))

    @property
    def all_cycles(self) -> int:
        """With operators that are not mapped."""
        return self.cycles + self.streamed_cycles

    @property
    def all_energy_pj(self) -> float:
        """With operators that are not mapped."""
        return self.energy_pj + self.streamed_energy_pj


@dataclass(frozen=True, slots=True)
class SweptComponent:
    """A level or the compute units of a variant, with all instances."""

    name: str
    num_instances: int
    area_mm2: float | None = field(
        metadata=about("Estimated, as `area_mm2` of a variant; null: off the chip.")
    )
    energy_pj: float = field(metadata=about("Of all layers of all workloads."))
    area_source: str


@dataclass(frozen=True, slots=True)
class SweptMachine:
    """A variant of a machine: its values in the order of the axes, and what everything costs on it."""

    values: tuple[str, ...]
    total: MapTotal | None
    error: str | None
    workloads: tuple[WorkloadCost, ...] = ()
    components: tuple[SweptComponent, ...] = ()
    layers: tuple[SweptLayer, ...] = ()
    clock_hz: float | None = None
    machine: Machine | None = field(default=None, metadata=about(hidden=True))
    is_best: bool = field(
        default=False,
        metadata=about("No other variant is as good in latency, energy and area, and better in one."),
    )

    @in_json
    def area_mm2(self) -> float:
        """Of buffers and multipliers, by tables, at 45 nm without technology_nm; 0: nothing is mapped."""
        return sum(component.area_mm2 or 0.0 for component in self.components)

    @in_json
    def mean_cycles(self) -> float | None:
        """Of workloads with their streamed operators: the geometric mean; of a single one its cycles."""
        return _geometric_mean([float(w.all_cycles) for w in self.workloads])

    @in_json
    def mean_energy_pj(self) -> float | None:
        """Of workloads with their streamed operators: the geometric mean; of a single one its energy."""
        return _geometric_mean([w.all_energy_pj for w in self.workloads])

    @in_json
    def mean_latency_ms(self) -> float | None:
        """The mean cycles as a time; null where the machine has no clock."""
        cycles = self.mean_cycles
        return None if cycles is None or self.clock_hz is None else cycles / self.clock_hz * 1e3

    @property
    def figures(self) -> tuple[float, float, float] | None:
        """Latency, energy and area, by which variants are compared; None without mappings."""
        cycles, energy_pj = self.mean_cycles, self.mean_energy_pj
        if cycles is None or energy_pj is None:
            return None
        return (cycles if self.clock_hz is None else cycles / self.clock_hz), energy_pj, self.area_mm2


def _geometric_mean(values: Sequence[float]) -> float | None:
    if len(values) < 2:
        return values[0] if values else None
    return exp(sum(map(log, values)) / len(values))


@dataclass(frozen=True, slots=True, repr=False)
class MapSweep(Result):
    """Operators mapped onto variants of a machine."""

    machine: str
    mapper: str
    objective: Objective
    axes: tuple[str, ...]
    variants: tuple[SweptMachine, ...]
    work: tuple[str, ...] = field(metadata=about(hidden=True))
    description: Machine = field(metadata=about(hidden=True))
    cost_options: CostOptions = field(default=TIMELOOP, metadata=about(hidden=True))

    @in_json
    def energy_source(self) -> str:
        """Where its energies come from: the table of the machine, but for what is swept."""
        return source_of(self.description)

    @property
    def front(self) -> tuple[SweptMachine, ...]:
        """The variants that no other one beats, the fastest first."""
        best = [variant for variant in self.variants if variant.is_best]
        return tuple(sorted(best, key=lambda variant: variant.figures or ()))

    def tables(self) -> Sequence[Table]:
        """A row for each variant."""
        rows = []
        for variant in self.variants:
            total = variant.total
            figures: tuple[str, ...] = ("-", "-", "-", "-", "-", variant.error or "")
            if total is not None:
                figures = (
                    f"{total.cycles:,}",
                    f"{total.bound_cycles:,}",
                    energy_text(total.energy_pj, self.energy_source),
                    energy_text(total.bound_energy_pj, self.energy_source),
                    f"{variant.area_mm2:,.3g} mm²",
                    "yes" if variant.is_best else "",
                )
            rows.append((*variant.values, *figures))
        axes = tuple(axis.split(".", 1)[-1] for axis in self.axes)
        heads = (*axes, "cycles", "at least", "energy", "at least", "area")
        title = f"variants of {self.machine}, by {self.mapper}"
        bounds = (len(heads) - 2, len(heads) - 4)
        return (Table((*heads, "unbeaten"), tuple(rows), title, tuple(range(len(heads))), bounds),)

    def lines(self) -> Sequence[str]:
        """Where energies come from, and what the area is of."""
        area = "area: buffers and multipliers, at 45 nm without technology_nm; no wires, no control"
        return energy_line(self.energy_source), area

    def __repr__(self) -> str:
        return f"MapSweep({self.machine!r}, {', '.join(self.axes)}: {len(self.variants)} variants)"


def unbeaten(figures: MappingOf[int, tuple[float, ...]]) -> set[int]:
    """Keys of those that no other is as good as in all figures and better than in one (the Pareto front)."""
    return {
        key
        for key, mine in figures.items()
        if not any(
            other != mine and all(a <= b for a, b in zip(other, mine, strict=True))
            for other in figures.values()
        )
    }
