"""What mapping operators onto a machine gives: layers with their loops and costs, totals.

All figures are estimates; counts are those of one instance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tilewright.cost.base import Objective
from tilewright.cost.count import Cost, LevelCount
from tilewright.cost.energy import UNAVAILABLE, source_of
from tilewright.cost.noc.result import NocResult
from tilewright.cost.options import TIMELOOP, CostOptions
from tilewright.cost.sparsity import bounds_with_zeros, with_zeros
from tilewright.hardware.machine import Machine
from tilewright.loops.mapping import LevelLoops
from tilewright.loops.problem import Problem
from tilewright.mapping.base import MAPPINGS, MappingSolution
from tilewright.mapping.cases import Case
from tilewright.mapping.comparison import MapComparison, compared
from tilewright.mapping.component_costs import ComponentCost, component_costs, component_table
from tilewright.mapping.drawing import DrawnMapping, drawn
from tilewright.mapping.launch import Launch
from tilewright.planning import Bound
from tilewright.results import Result, Table, about, in_json

_PORTS = ("into element", "north of", "east of", "south of", "west of")


class WithEnergies(Result):
    """A result whose energies come from the table of a machine, its `description`."""

    __slots__ = ()
    description: Machine

    @in_json
    def energy_source(self) -> str:
        """Where its energies come from: the machine's table, and where that has them from."""
        return source_of(self.description)


@dataclass(frozen=True, slots=True)
class WindowStride:
    """How far a convolution's window moves: W of P with R, H of Q with S."""

    W: int
    H: int


@dataclass(frozen=True, slots=True)
class MacCount:
    """What the compute units do: multiply-accumulates of the operator, cycles, energy of all units."""

    utilized_instances: int
    computes: int
    cycles: int
    energy_pj: float = field(metadata=about(key="energy_pJ_total"))


def counts_of(problem: Problem, cost: Cost) -> dict[str, MacCount | LevelCount]:
    """What is done where: the compute units, then the levels from the innermost to the outermost."""
    units = MacCount(cost.num_units_used, problem.num_macs, cost.compute_cycles, cost.mac_energy_pj)
    return {"MAC": units, **{level.level: level for level in reversed(cost.levels)}}


@dataclass(frozen=True, slots=True, repr=False)
class MappedLayer(Result):
    """One operator on a described machine; all figures are estimates, counts are those of one instance."""

    problem: Problem = field(metadata=about(hidden=True))
    solution: MappingSolution = field(metadata=about(hidden=True))
    part: Machine = field(metadata=about(hidden=True))
    operator: str | None = field(default=None, metadata=about("ONNX operator, for a node of a model."))
    block: Launch | None = field(
        default=None, metadata=about("Its launch on a GPU; null on machines without threads.")
    )
    noc: NocResult | None = field(
        default=None, metadata=about("On the network on chip, where that was asked for.", optional=True)
    )

    @property
    def cost(self) -> Cost:
        """What the mapping costs, with the zeros that the machine is given."""
        return with_zeros(self.problem, self.part, self.solution.cost)

    @in_json
    def name(self) -> str:
        """The layer as it was written, or the node's name."""
        return self.problem.name

    @in_json
    def dims(self) -> dict[str, int]:
        """Extent of every loop of the operator."""
        return self.problem.extents

    @in_json
    def steps(self) -> dict[str, int]:
        """How far one iteration of a dim moves a sliding window."""
        return {
            dim: step
            for operand in self.problem.operands
            for axis in operand.axes
            if len(axis) > 1
            for dim, step in axis
        }

    @in_json
    def stride(self) -> WindowStride:
        """W of P with R, H of Q with S."""
        steps = self.steps
        return WindowStride(steps.get("P", 1), steps.get("Q", 1))

    @in_json
    def macs(self) -> int:
        """Multiply-accumulates of the operator itself, without padding."""
        return self.problem.num_macs

    @in_json
    def mapping(self) -> tuple[LevelLoops, ...]:
        """The loops of every level, from the outermost level to the innermost."""
        return self.solution.mapping.levels

    @in_json
    def cycles(self) -> int:
        """The largest of the levels' cycles and of `compute_cycles`."""
        return self.cost.cycles

    @in_json
    def compute_cycles(self) -> int:
        """Cycles in which the compute units work."""
        return self.cost.compute_cycles

    @in_json
    def energy_pj(self) -> float:
        """Energy of all accesses and operations."""
        return self.cost.energy_pj

    @in_json
    def edp_pj_cycles(self) -> float:
        """Energy times delay."""
        return self.cost.edp

    @in_json
    def utilization(self) -> float:
        """Share of the compute units that real, not padded, operations keep busy."""
        return self.cost.utilization

    @in_json
    def padding(self) -> float:
        """Iterations beyond the operator's own, as a share of those."""
        return self.solution.mapping.padding(self.problem)

    @in_json
    def bound_cycles(self) -> int:
        """Lower bound on the cycles of all mappings of the operator, padded ones too."""
        return self._bounds[0]

    @in_json
    def bound_energy_pj(self) -> float:
        """Lower bound on the energy of all mappings of the operator, padded ones too."""
        return self._bounds[1]

    @property
    def _bounds(self) -> tuple[int, float]:
        return bounds_with_zeros(self.part, self.solution.bound_cycles, self.solution.bound_energy_pj)

    @in_json
    def gap(self) -> float | None:
        """Of the objective: above the lower bound of all mappings, relative to it; null where that is 0."""
        return None if self.solution.quality.bound <= 0 else self.solution.quality.gap

    @in_json
    def bound_unpadded(self) -> float | None:
        """Of the objective: lower bound of mappings whose factors divide the extents; null where that was
        not searched."""
        return self.solution.details.get("bound_unpadded")

    @in_json
    def status(self) -> str:
        """How the search ended: optimal, feasible, cut off."""
        return str(self.solution.quality.status)

    @in_json
    def optimal_among(self) -> str | None:
        """The mappings of which it is proven to be the best, where it is optimal."""
        return self.solution.quality.among

    @in_json
    def bounds(self) -> tuple[Bound, ...]:
        """Lower bounds of the objective, each with its space, the widest first."""
        return self.solution.quality.bounds

    @in_json
    def seconds(self) -> float:
        """Time that the search took, in s."""
        return self.solution.seconds

    @in_json
    def planner(self) -> str:
        """The mapper."""
        return self.solution.provenance.planner

    @in_json
    def note(self) -> str:
        """What the mapper says of its search."""
        return self.solution.provenance.note

    @in_json
    def levels(self) -> dict[str, MacCount | LevelCount]:
        """What the compute units (MAC) and each level of memory do."""
        return counts_of(self.problem, self.cost)

    def __repr__(self) -> str:
        return f"MappedLayer({self.name!r}, {self.cycles:,} cycles)"


@dataclass(frozen=True, slots=True)
class StreamedNode:
    """An operator of a model that is no sum of products: what it costs at least, unfused."""

    name: str
    operator: str
    cycles: int
    energy_pj: float
    moved_words: int


@dataclass(frozen=True, slots=True)
class UnfusedTotal:
    """All operators one after another: each reads its operands from the outermost level, and writes there."""

    cycles: int
    energy_pj: float
    moved_words: int = field(metadata=about("Past the outermost level, in and out."))


@dataclass(frozen=True, slots=True)
class MapTotal:
    """Sums over all layers in sequence; each distinct layer was solved once."""

    macs: int
    cycles: int
    energy_pj: float
    bound_cycles: int
    bound_energy_pj: float
    num_distinct: int
    seconds: float
    streamed_cycles: int
    streamed_energy_pj: float

    @classmethod
    def of(cls, layers: Sequence[MappedLayer], streamed: Sequence[StreamedNode]) -> MapTotal:
        """The sums."""
        distinct = {id(layer.solution): layer for layer in layers}
        return cls(
            macs=sum(layer.macs for layer in layers),
            cycles=sum(layer.cycles for layer in layers),
            energy_pj=sum(layer.energy_pj for layer in layers),
            bound_cycles=sum(layer.bound_cycles for layer in layers),
            bound_energy_pj=sum(layer.bound_energy_pj for layer in layers),
            num_distinct=len(distinct),
            seconds=sum(layer.seconds for layer in distinct.values()),
            streamed_cycles=sum(node.cycles for node in streamed),
            streamed_energy_pj=sum(node.energy_pj for node in streamed),
        )


@dataclass(frozen=True, slots=True, repr=False)
class MapResult(WithEnergies):
    """Operators mapped onto a machine."""

    machine: str
    mapped_onto: str = field(metadata=about("The part of the machine that one operator uses; empty for all."))
    mapper: str
    objective: Objective
    layers: tuple[MappedLayer, ...]
    streamed: tuple[StreamedNode, ...]
    total: MapTotal
    description: Machine = field(metadata=about(hidden=True))
    cost_options: CostOptions = field(default=TIMELOOP, metadata=about(hidden=True))

    @in_json
    def unfused(self) -> UnfusedTotal:
        """All operators, mapped or streamed: what passes between them passes the outermost level."""
        total = self.total
        moved = [layer.cost.moved_words for layer in self.layers]
        return UnfusedTotal(
            total.cycles + total.streamed_cycles,
            total.energy_pj + total.streamed_energy_pj,
            sum(moved) + sum(node.moved_words for node in self.streamed),
        )

    @in_json
    def components(self) -> tuple[ComponentCost, ...]:
        """Energy and area of units and levels, energy of other operators and of static power."""
        if self.energy_source.startswith(UNAVAILABLE):
            return ()
        mapped = ((layer.part, layer.cost) for layer in self.layers)
        streamed_pj = self.total.streamed_energy_pj
        return component_costs(self.description, mapped, streamed_pj, self.unfused.cycles)

    def tables(self) -> Sequence[Table]:
        """Layers with their costs and bounds, equal ones once; on the network, where that was simulated."""
        rows: dict[int, tuple[str, ...]] = {}
        counts = Counter(id(layer.solution) for layer in self.layers)
        for layer in self.layers:
            rows.setdefault(
                id(layer.solution),
                (
                    layer.name,
                    f"{counts[id(layer.solution)]}",
                    f"{layer.cycles:,}",
                    f"{layer.bound_cycles:,}",
                    energy_text(layer.energy_pj, self.energy_source),
                    energy_text(layer.bound_energy_pj, self.energy_source),
                    f"{100 * layer.solution.quality.gap:.1f} %",
                    f"{100 * layer.utilization:.0f} %",
                    f"{100 * layer.padding:.0f} %",
                    f"{layer.seconds:.2f} s",
                ),
            )
        heads = (
            "layer",
            "times",
            "cycles",
            "at least",
            "energy",
            "at least",
            "gap",
            "used",
            "padding",
            "time",
        )
        title = f"{self.machine}, by {self.layers[0].planner}"
        # Time to map, what is padded, how many are equal, the bound of the energy, the share of units.
        table = Table(heads, tuple(rows.values()), title, tuple(range(1, 10)), (9, 8, 1, 5, 7))
        on_network = [(layer.name, layer.noc) for layer in self.layers if layer.noc is not None]
        tables = [table]
        if len(self.layers) == 1:
            tables += [drawing.table() for drawing in self.drawn()]
        if components := self.components:
            tables.append(component_table(components, self.description))
        return (*tables, network_table(on_network, self.description)) if on_network else tables

    def drawn(self) -> tuple[DrawnMapping, ...]:
        """Each layer's mapping as people look at it, equal ones once."""
        distinct: dict[int, MappedLayer] = {}
        for layer in self.layers:
            distinct.setdefault(id(layer.solution), layer)
        return tuple(
            drawn(
                layer.name,
                layer.problem,
                layer.part,
                layer.solution.mapping,
                layer.cost,
                (layer.bound_cycles, layer.bound_energy_pj),
                self.cost_options,
            )
            for layer in distinct.values()
        )

    def compare(self, *others: MapResult) -> MapComparison:
        """Layers of several results side by side, each beside this one."""
        results = (self, *others)
        return compared(
            [f"{result.mapper} on {result.machine}" for result in results],
            [{x.name: (x.cycles, x.energy_pj) for x in result.layers} for result in results],
            [(result.total.cycles, result.total.energy_pj) for result in results],
        )

    def lines(self) -> Sequence[str]:
        """The loops of a single layer and its launch, or the sums over several; where energies come from."""
        lines: list[str] = []
        total = self.total
        if len(self.layers) == 1:
            lines += self.drawn()[0].lines()
            lines += self._proven()
            if self.layers[0].block is not None:
                lines += self.layers[0].block.lines()
        else:
            lines.append(
                f"all {len(self.layers)}: {total.cycles:,} cycles, at least {total.bound_cycles:,}; "
                f"{energy_text(total.energy_pj, self.energy_source)}, "
                f"at least {energy_text(total.bound_energy_pj, self.energy_source)}"
            )
            lines.append(self._num_optimal())
        if self.streamed and len(self.layers) > 1:
            lines.append(
                f"{len(self.streamed)} other operators, unfused and streamed once: at least "
                f"{total.streamed_cycles:,} cycles, "
                f"{energy_text(total.streamed_energy_pj, self.energy_source)} more"
            )
            unfused = self.unfused
            lines.append(
                f"together, unfused: {unfused.cycles:,} cycles, "
                f"{energy_text(unfused.energy_pj, self.energy_source)}, "
                f"{unfused.moved_words:,} words past {self.description.outermost.name}"
            )
        if self.mapped_onto:
            lines.append(f"mapped onto {self.mapped_onto}")
        if self.description.densities:
            shares = ", ".join(f"{share:g} of {kind}s" for kind, share in self.description.densities.items())
            lines.append(f"counted with {shares} not zero, on average; searched, and its gap, with all words")
        return [*lines, energy_line(self.energy_source)]

    def _proven(self) -> list[str]:
        """Of which mappings a single layer's is the best, or how far above their bound it is."""
        quality = self.layers[0].solution.quality
        if quality.optimal_among is not None:
            return [f"optimal among {quality.optimal_among}"]
        return [
            f"at most {100 * quality.gap_to(bound):.1f} % above the least of {bound.space}"
            for bound in quality.bounds
            if bound.value > 0
        ]

    def _num_optimal(self) -> str:
        """How many layers have the best of all mappings."""
        spaces = [layer.solution.quality.optimal_among for layer in self.layers]
        return f"optimal among {MAPPINGS}: {spaces.count(MAPPINGS)} of {len(spaces)}"

    def __repr__(self) -> str:
        total = self.total
        return (
            f"MapResult({self.machine!r}, {len(self.layers)} layers, {total.cycles:,} cycles, "
            f"at least {total.bound_cycles:,})"
        )


@dataclass(frozen=True, slots=True)
class CostSummary:
    """The cost of a mapping in four figures."""

    cycles: int
    energy_pj: float
    utilization: float

    @in_json
    def energy_uj(self) -> float:
        """The energy in the unit of Timeloop's reports."""
        return self.energy_pj / 1e6


@dataclass(frozen=True, slots=True, repr=False)
class EvaluatedMapping(Result):
    """What a given mapping costs, or why it is impossible."""

    case: Case = field(metadata=about(hidden=True))
    error: str | None
    cost: Cost | None = field(metadata=about(hidden=True))
    noc: NocResult | None = field(
        default=None, metadata=about("On the network on chip, where that was asked for.", optional=True)
    )

    @in_json
    def id(self) -> str:
        """The name of the case."""
        return self.case.id

    @in_json
    def summary(self) -> CostSummary | None:
        """Cycles, energy, utilization; null where there is an error."""
        cost = self.cost
        return None if cost is None else CostSummary(cost.cycles, cost.energy_pj, cost.utilization)

    @in_json
    def levels(self) -> dict[str, MacCount | LevelCount]:
        """What the compute units (MAC) and each level of memory do; empty where there is an error."""
        return {} if self.cost is None else counts_of(self.case.problem, self.cost)

    def __repr__(self) -> str:
        said = self.error if self.cost is None else f"{self.cost.cycles:,} cycles"
        return f"EvaluatedMapping({self.id!r}, {said})"


@dataclass(frozen=True, slots=True, repr=False)
class MapEvaluation(WithEnergies):
    """Given mappings, evaluated."""

    machine: str
    link_transfers: bool
    cases: tuple[EvaluatedMapping, ...]
    description: Machine = field(metadata=about(hidden=True))

    def tables(self) -> Sequence[Table]:
        """A row for each mapping; on the network, where that was simulated."""
        rows = tuple(
            (case.id, "-", "-", "-", case.error or "")
            if case.cost is None
            else (
                case.id,
                f"{case.cost.cycles:,}",
                energy_text(case.cost.energy_pj, self.energy_source),
                f"{100 * case.cost.utilization:.1f} %",
                "",
            )
            for case in self.cases
        )
        table = Table(("case", "cycles", "energy", "utilisation", ""), rows, right=(1, 2, 3))
        on_network = [(case.id, case.noc) for case in self.cases if case.noc is not None]
        return (table, network_table(on_network, self.description)) if on_network else (table,)

    def lines(self) -> Sequence[str]:
        """Where energies come from."""
        return (energy_line(self.energy_source),)

    def __repr__(self) -> str:
        return f"MapEvaluation({self.machine!r}, {len(self.cases)} mappings)"


def energy_text(energy_pj: float, source: str) -> str:
    """An energy for people; a dash where the machine gives none."""
    return "-" if source.startswith(UNAVAILABLE) else f"{energy_pj / 1e6:,.2f} µJ"


def energy_line(source: str) -> str:
    """Where energies come from, for people."""
    return f"energies, estimated: {source}"


def network_table(results: Sequence[tuple[str, NocResult]], machine: Machine) -> Table:
    """What the network does to each mapping; equal rows once."""
    from tilewright.cost.noc.traffic import network_of

    rows = {}
    for name, result in results:
        router, port, share = result.busiest_link
        cause, waited = max(result.wait_cycles.items(), key=lambda item: item[1])
        rows[name, id(result)] = (
            name,
            f"{result.cycles:,}",
            f"{result.compute_cycles:,}",
            f"{100 * (result.cycles - result.compute_cycles) / result.cycles:.0f} %",
            f"{cause}, {waited:,}",
            f"{100 * result.memory_utilization:.0f} %",
            f"{_PORTS[port]} {router}, {100 * share:.0f} %",
            f"{result.hop_energy_pj / 1e6:,.2f} µJ",
        )
    heads = ("mapping", "cycles", "computing", "waiting", "most for", "memory's port", "busiest link", "hops")
    # Where the machine gives hops no energy their column would say nothing.
    count = len(heads) if any(result.hop_energy_pj for _, result in results) else len(heads) - 1
    network = network_of(machine)
    name = "a mesh as in CoSA's paper, as the machine describes none" if network is None else network.name
    return Table(
        heads[:count],
        tuple(row[:count] for row in rows.values()),
        f"on the network, cycle by cycle: {name}",
        tuple(column for column in (1, 2, 3, 5, 7) if column < count),
        tuple(column for column in (7, 6, 5, 2, 4) if column < count),
    )
