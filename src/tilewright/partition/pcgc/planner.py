"""The partitioner: rules, static fusion, re-cutting, and what it says of every edge."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import inf
from typing import ClassVar, Literal

from tilewright.cost.base import UNITS
from tilewright.errors import UsageError
from tilewright.families import PARTITIONERS
from tilewright.ir.graph import Node, Value
from tilewright.ir.nest import Opaque
from tilewright.ir.ops import describe
from tilewright.partition.base import Partition, PartitionProblem, Reason, build_partition
from tilewright.partition.fusion_records import FusionRecord, Verdict
from tilewright.partition.pcgc.fuse import Edge, Fused, StaticFusion, on_chip_bytes
from tilewright.partition.pcgc.limit import parse_limit, secondary_of
from tilewright.partition.pcgc.pieces import FREE, Cost, Pieces, Pricer
from tilewright.partition.pcgc.recut import Cutting, Exact, cheapest_within, frontier, greedy, whole
from tilewright.partition.pcgc.rules import RuleTable
from tilewright.planning import Budget, Infeasible, Meter, Provenance, option

Recut = Literal["exact", "greedy", "none"]
_DEFAULTS = ("layerwise", "graphturbo")
"""Partitions that targets begin with: what costs no more than these is never worse than the default."""


@dataclass(frozen=True, slots=True)
class Pcgc:
    """Operators fused by rules, and cut again where the cost model says that it saves time or energy."""

    recut: Recut = option(
        "exact",
        "How fused operators are cut again: as Algorithm 2 (greedy), exactly where that can be, or not.",
    )
    limit: str | None = option(
        None,
        "Most time (--hint energy) or energy (latency) of a plan: 5ms, 20mJ, or 5% above the least.",
    )
    rules: str | None = option(None, "A YAML file of rules that differ from the package's.")
    capacity_bytes: int | None = option(None, "What stays on the chip at most, in place of the machine's.")
    defaults: bool = option(True, "Whether a default partition that costs less is taken instead.")
    name: ClassVar[str] = "pcgc"

    def __post_init__(self) -> None:
        if self.capacity_bytes is not None and self.capacity_bytes < 0:
            raise UsageError(f"pcgc: a capacity of {self.capacity_bytes} bytes is negative.")

    def solve(self, problem: PartitionProblem, budget: Budget) -> Partition | Infeasible:
        """Fuse, and cut again; the budget counts subgraphs that the cost model prices."""
        work = PcgcWork.of(problem, self, budget.start())
        plans = work.plans()
        most = inf
        if self.limit is not None:
            least = work.least_secondary(plans)
            most = parse_limit(self.limit, problem.objective, least)
            if least > most * (1 + 1e-9):
                what, unit = secondary_of(problem.objective)
                levers = (f"pcgc{{limit={least:.6g}{unit}}}", "pcgc without a limit")
                return Infeasible(f"pcgc: {what}", least, most, levers=levers, unit=unit)
            plans = [*plans, *work.plans_within(most)]
        kept = [plan for plan in plans if plan.cost.secondary <= most * (1 + 1e-9)]
        return work.partition(min(kept, key=lambda plan: work.value(plan.cost)))


@dataclass(frozen=True, slots=True)
class Plan:
    """Clusters of nodes by their positions, and what they cost; `name` says what made them."""

    name: str
    clusters: tuple[tuple[int, ...], ...]
    cost: Cost


@dataclass(eq=False)
class PcgcWork:
    """One graph on its way through the partitioner: what was fused, what parts cost."""

    problem: PartitionProblem
    options: Pcgc
    meter: Meter
    fusion: StaticFusion
    fused: Fused
    pricer: Pricer
    pieces: tuple[Pieces, ...]

    @classmethod
    def of(cls, problem: PartitionProblem, options: Pcgc, meter: Meter) -> PcgcWork:
        """Fuse statically."""
        capacity = options.capacity_bytes
        if capacity is None:
            capacity = on_chip_bytes(problem.machine)
        fusion = StaticFusion(problem, RuleTable.read(options.rules), capacity)
        fused = fusion.run()
        pricer = Pricer(problem, meter, needs_energy=options.limit is not None)
        pieces = tuple(_pieces(fusion, fused, pricer))
        return cls(problem, options, meter, fusion, fused, pricer, pieces)

    def value(self, cost: Cost) -> float:
        """What is minimised."""
        return cost.target * cost.secondary if self.problem.objective == "edp" else cost.target

    def plans(self) -> list[Plan]:
        """The plan that was asked for, static fusion and the default partitions."""
        static = self._plan("static fusion", whole(self.pieces))
        if self.options.recut == "none":
            return [static]
        if self.problem.objective == "edp":
            # Both are sums, so the least product is at a corner of their frontier.
            recut = min(
                (self._plan("re-cut", c) for c in frontier(self.at)), key=lambda plan: self.value(plan.cost)
            )
        else:
            recut = self._plan("re-cut", self.at(0.0))
        return [recut, static, *(self._defaults() if self.options.defaults else ())]

    def plans_within(self, most: float) -> Iterator[Plan]:
        """Plans that keep to a bound on the secondary cost."""
        cutting = cheapest_within(self.at, most)
        if cutting is not None:
            yield self._plan("re-cut within the limit", cutting)
        if self.options.recut == "greedy":
            yield self._plan("re-cut within the limit", greedy(self.pieces, most))

    def least_secondary(self, plans: Sequence[Plan]) -> float:
        """The least known of what is not minimised."""
        if self.options.recut == "none":
            return min(plan.cost.secondary for plan in plans)
        return min(*(plan.cost.secondary for plan in plans), self.at(inf).cost.secondary)

    @property
    def at(self) -> Callable[[float], Cutting]:
        """The plan at a price of the secondary cost, by the search that was asked for."""
        if self.options.recut == "greedy":
            return lambda price: greedy(self.pieces, price=price)
        if not hasattr(self, "_exact"):
            self._exact = Exact(self.pieces)
        return self._exact.at

    def _plan(self, name: str, cutting: Cutting) -> Plan:
        clusters = [
            pieces.nodes_of(part)
            for pieces, parts in zip(self.pieces, cutting.parts, strict=True)
            for part in parts
        ]
        return Plan(name, tuple(clusters), cutting.cost)

    def _defaults(self) -> Iterator[Plan]:
        position = {node: i for i, node in enumerate(self.problem.graph.nodes)}
        for name in _DEFAULTS:
            if name == "graphturbo" and self.problem.machine is None:
                continue
            answer = PARTITIONERS.get(name).solve(self.problem, Budget(0))
            if isinstance(answer, Infeasible):
                continue
            clusters = tuple(tuple(sorted(position[n] for n in s.nodes)) for s in answer.subgraphs)
            costs = [self.pricer.of(cluster, is_needed=True) for cluster in clusters]
            if None not in costs:
                yield Plan(name, clusters, reduce(Cost.__add__, (c for c in costs if c is not None), FREE))

    def partition(self, plan: Plan) -> Partition:
        """A plan with reasons and records."""
        problem = self.problem
        home = {node: number for number, cluster in enumerate(plan.clusters) for node in cluster}
        position = {node: i for i, node in enumerate(problem.graph.nodes)}
        reasons = _Reasons(self.fusion, self.fused, position, home)
        provenance = Provenance(
            Pcgc.name, num_evaluations=self.meter.num_evaluations, note=f"{plan.name}: {self._note(plan)}"
        )
        nodes = problem.graph.nodes
        partition = build_partition(
            problem,
            [[nodes[n] for n in cluster] for cluster in plan.clusters],
            reasons,
            provenance,
            cut_off=self.meter.cut_off,
        )
        return replace(partition, fusions=tuple(self._records(home)))

    def _note(self, plan: Plan) -> str:
        num_points = sum(len(pieces.edges) for pieces in self.pieces)
        return (
            f"{len(self.fused.atoms)} stable clusters, {len(self.pieces)} after fusion, {num_points} fusions "
            f"to evaluate; {self.pricer.num_priced} parts priced"
        )

    def _records(self, home: Mapping[int, int]) -> Iterator[FusionRecord]:
        """Every edge that static fusion took in, and what the cost model said of it."""
        nodes, fused = self.problem.graph.nodes, self.fused
        unit = UNITS["latency" if self.problem.objective == "edp" else self.problem.objective]
        for producer, consumer, value in self.fusion.edges:
            if not fused.are_together(producer, consumer):
                continue
            if fused.atom_of[producer] == fused.atom_of[consumer]:
                yield FusionRecord(nodes[producer], nodes[consumer], value, Verdict.STABLE)
                continue
            together, apart = self._costs(producer, consumer, home)
            yield FusionRecord(
                nodes[producer],
                nodes[consumer],
                value,
                Verdict.EVALUATE,
                together,
                apart,
                unit if together is not None and apart is not None else "",
            )

    def _costs(
        self, producer: int, consumer: int, home: Mapping[int, int]
    ) -> tuple[float | None, float | None]:
        """Of the fusion of an edge as far as it was priced: both parts as one, and apart."""
        number = self.fused.cluster_of[self.fused.atom_of[producer]]
        pieces = self.pieces[number]
        places = {n: i for i, atom in enumerate(pieces.atoms) for n in atom}
        ends = [
            sum(1 << i for i, atom in enumerate(pieces.atoms) if home[atom[0]] == home[end])
            for end in (producer, consumer)
        ]
        if ends[0] == ends[1]:
            side = pieces.behind(places[consumer], ends[0])
            ends = [ends[0] & ~side, side]
        masks = (ends[0] | ends[1], *ends)
        whole_cost, *parts = (self.pricer.known(pieces.nodes_of(m)) for m in masks)
        together = None if whole_cost is None else whole_cost.target
        known = [part.target for part in parts if part is not None]
        return together, sum(known) if len(known) == 2 else None


def _pieces(fusion: StaticFusion, fused: Fused, pricer: Pricer) -> Iterator[Pieces]:
    pairs: list[dict[tuple[int, int], list[Edge]]] = [{} for _ in fused.clusters]
    places = {atom: i for cluster in fused.clusters for i, atom in enumerate(cluster)}
    for edge in fusion.edges:
        u, v = fused.atom_of[edge[0]], fused.atom_of[edge[1]]
        if u != v and fused.cluster_of[u] == fused.cluster_of[v]:
            pairs[fused.cluster_of[u]].setdefault((places[u], places[v]), []).append(edge)
    for cluster, edges in zip(fused.clusters, pairs, strict=True):
        passing = [edge for pair in sorted(edges) for edge in edges[pair]]
        yield Pieces([fused.atoms[a] for a in cluster], sorted(edges), pricer, passing)


@dataclass(frozen=True, slots=True)
class _Reasons:
    """Why an edge lies inside a subgraph or between two."""

    fusion: StaticFusion
    fused: Fused
    position: Mapping[Node, int]
    home: Mapping[int, int]

    def __call__(self, producer: Node, consumer: Node, value: Value, fused: bool) -> Reason:
        """The reason of one edge."""
        u, v = self.position[producer], self.position[consumer]
        edge: Edge = (u, v, value)
        if fused:
            if self.fused.atom_of[u] == self.fused.atom_of[v]:
                return Reason.STABLE
            return Reason.EVALUATED if self.fused.are_together(u, v) else Reason.CLUSTER
        if self.fused.are_together(u, v):
            return Reason.COST
        if any(isinstance(describe(node), Opaque) for node in (producer, consumer)):
            return Reason.OPAQUE
        if self.fusion.verdict(edge) is Verdict.PROHIBITED:
            return Reason.PROHIBITED
        quotient = self.fusion.quotient
        u, v = quotient.cluster_of(u), quotient.cluster_of(v)
        return Reason.CAPACITY if quotient.can_contract(u, v) else Reason.CYCLE
