"""The partitioner: rules, static fusion, re-cutting, and what it says of every edge."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, floor, inf, log10
from typing import ClassVar

from tilewright.cost.base import UNITS, Objective
from tilewright.cost.learned.costs import LearnedCosts
from tilewright.errors import UsageError
from tilewright.families import PARTITIONERS
from tilewright.hardware.capacity import local_capacity_bytes
from tilewright.ir.graph import Node, Value
from tilewright.ir.nest import Opaque
from tilewright.ir.ops import describe
from tilewright.partition.base import Partition, PartitionProblem, Reason, build_partition
from tilewright.partition.fusion_records import FusionRecord, Verdict
from tilewright.partition.pcgc.fuse import NO_LIMIT, Edge, Fused, OnChip, StaticFusion
from tilewright.partition.pcgc.pieces import Cost, Pricer
from tilewright.partition.pcgc.recut import cheapest_within, frontier, greedy
from tilewright.partition.pcgc.rules import RuleTable
from tilewright.partition.pcgc.start import Plan, Recut, Start, StartName, pieces_of
from tilewright.planning import Budget, Infeasible, Meter, Provenance, option

_ROUNDING = 1e-9
_FUSED_ON = "-fused-on"
_DEFAULTS = ("layerwise", "graphturbo")
"""Starting partitions that are default ones as they are."""
_LEAST_GAIN = 0.01
"""Share within which costs count as equal where the cost model does not run what it prices: it may be off by
more."""


@dataclass(frozen=True, slots=True)
class Pcgc:
    """Operators fused by rules, and cut again where the cost model says that it saves time or energy."""

    recut: Recut = option(
        "exact",
        "How fused operators are cut again: as Algorithm 2 (greedy), exactly where that can be, or not.",
    )
    limit: str | None = option(
        None, "Most time (--hint energy) or energy (latency) of a plan: 5ms, 20mJ, or 5% above the least."
    )
    rules: str | None = option(None, "A YAML file of rules that differ from the package's.")
    cost: str | None = option(None, "The file of a learned cost model, by which parts are priced.")
    capacity_bytes: int | None = option(None, "What stays on the chip at most, in place of the machine's.")
    start: StartName | None = option(
        None, "The one starting partition that is cut again; else all are, and the cheapest plan is taken."
    )
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
            least = min(*(plan.cost.secondary for plan in plans), work.at(inf).cost.secondary)
            most = parse_limit(self.limit, problem.objective, least)
            if least > most * (1 + _ROUNDING):
                what, unit = secondary_of(problem.objective)
                levers = (f"pcgc{{limit={shown_limit(least, problem.objective)}}}", "pcgc without a limit")
                return Infeasible(f"pcgc: {what}", least, most, levers=levers, unit=unit)
            plans += work.plans_within(most)
        kept = [plan for plan in plans if plan.cost.secondary <= most * (1 + _ROUNDING)]
        return work.partition(work.best(kept))

    def frontier(self, problem: PartitionProblem, budget: Budget) -> tuple[Cost, ...]:
        """Time (ns) against energy (pJ): plans than which none is better in both, the fastest first.

        Those at corners of the convex hull, of plans by this member's options, whatever the objective.

        Raises:
            UsageError: the cost model knows no energies.
        """
        work = PcgcWork.of(replace(problem, objective="edp"), self, budget.start())
        return tuple(plan.cost for plan in frontier(work.at))


@dataclass(eq=False)
class PcgcWork:
    """One graph on its way through the partitioner: what was fused, what parts cost.

    `starts` are the starting partitions; the cheapest is cut again first.
    """

    problem: PartitionProblem
    options: Pcgc
    meter: Meter
    fusion: StaticFusion
    fused: Fused
    pricer: Pricer
    starts: Sequence[Start] = ()
    _homes: dict[str, Mapping[int, int] | None] = field(init=False, repr=False, default_factory=dict)

    @classmethod
    def of(cls, problem: PartitionProblem, options: Pcgc, meter: Meter) -> PcgcWork:
        """Fuse statically."""
        capacity = options.capacity_bytes
        on_chip = OnChip.of(problem.machine) if capacity is None else OnChip(capacity, capacity)
        fusion = StaticFusion(problem, RuleTable.read(options.rules), on_chip)
        fused = fusion.run()
        priced = problem
        if options.cost is not None:
            learned = LearnedCosts.open(options.cost, problem.cost, problem.machine, problem.types)
            priced = replace(problem, cost=learned)
        pricer = Pricer(priced, meter, needs_energy=options.limit is not None)
        work = cls(problem, options, meter, fusion, fused, pricer)
        starts = work._starts() if options.start is None else [work._start(options.start)]
        work.starts = sorted(starts, key=lambda start: work.value(start.whole.cost))
        return work

    def value(self, cost: Cost) -> float:
        """What is minimised."""
        return cost.target * cost.secondary if self.problem.objective == "edp" else cost.target

    def best(self, plans: Sequence[Plan]) -> Plan:
        """The plan that costs least; where costs are estimates, which tell no plans apart that differ by less
        than they err, the one of these with the fewest subgraphs: each more is a launch, and bytes that pass.
        """
        best = min(plans, key=lambda plan: self.value(plan.cost))
        if self.problem.cost.proves_bounds:
            return best
        most = self.value(best.cost) / (1 - _LEAST_GAIN)
        near = [plan for plan in plans if self.value(plan.cost) <= most]
        return min(
            near, key=lambda plan: (len(plan.clusters), not plan.start.is_default, self.value(plan.cost))
        )

    def plans(self) -> list[Plan]:
        """The plan that was asked for, static fusion and the default partitions."""
        starts = [start.whole for start in self.starts]
        if self.options.recut == "none":
            return starts
        # Time and energy are sums, so their least product is at a corner of their frontier. What is best in
        # the other of the two is often good in both, and a search that was cut short may have missed it.
        cut = (self.at(0.0), self.at(inf)) if self.problem.objective != "edp" else frontier(self.at)
        return [*cut, *starts]

    def plans_within(self, most: float) -> list[Plan]:
        """Plans that keep to a bound on the secondary cost."""
        cheapest = cheapest_within(self.at, most)
        plans = [] if cheapest is None else [cheapest]
        if self.options.recut == "greedy":
            plans += [start.plan(greedy(start.pieces, most)) for start in self.starts]
        return plans

    def at(self, price: float) -> Plan:
        """The best plan at a price of the secondary cost, by the search that was asked for."""
        return min((start.at(price) for start in self.starts), key=lambda plan: plan.cost.rank(price))

    def _starts(self) -> Iterator[Start]:
        """Starting partitions that differ from each other; static fusion alone if nothing is cut."""
        yield self._of("static-fusion", self.fused)
        if self.options.recut == "none":
            return
        known = {self.fused.clusters}
        names: tuple[StartName, ...] = ("layerwise", "layerwise-fused-on")
        if self._fills_buffers:
            names = (*names, "graphturbo", "graphturbo-fused-on")
            if self.options.capacity_bytes is None:
                names = ("rules-alone", *names)
        for name in names:
            fused = self._fused(name)
            if fused is not None and (name in _DEFAULTS or fused.clusters not in known):
                known.add(fused.clusters)
                yield self._of(name, fused)

    def _start(self, name: StartName) -> Start:
        """The starting partition that was asked for.

        Raises:
            UsageError: the machine or the rules do not allow it.
        """
        if name.startswith("graphturbo") and not self._fills_buffers:
            raise UsageError(
                f"pcgc: start={name}: the machine has no local buffers that software fills; name another."
            )
        fused = self._fused(name)
        if fused is None:
            raise UsageError(f"pcgc: start={name}: it fuses what the rules forbid; name another.")
        return self._of(name, fused)

    def _of(self, name: StartName, fused: Fused) -> Start:
        pieces = tuple(pieces_of(self.fusion, fused, self.pricer))
        return Start(name, pieces, self.options.recut, is_default=name in _DEFAULTS)

    def _fused(self, name: StartName) -> Fused | None:
        """The clusters of a starting partition; None of a default one that breaks rules that a user gave."""
        if name == "static-fusion":
            return self.fused
        if name == "rules-alone":
            return self.fusion.with_known((), NO_LIMIT)
        home = self._home_by(name.removesuffix(_FUSED_ON))
        if home is None:
            return None
        if name in _DEFAULTS:
            return self.fused.regrouped(home, self.fusion.edges)
        clusters: dict[int, list[int]] = {}
        for node in sorted(home):
            clusters.setdefault(home[node], []).append(node)
        return self.fusion.with_known(clusters.values())

    def _home_by(self, default: str) -> Mapping[int, int] | None:
        """The cluster of each node by a default partition, where that keeps to rules that a user gave."""
        if default not in self._homes:
            answer = PARTITIONERS.get(default).solve(self.problem, Budget(0))
            position = {node: i for i, node in enumerate(self.problem.graph.nodes)}
            self._homes[default] = (
                None
                if isinstance(answer, Infeasible)
                else {position[n]: s.id for s in answer.subgraphs for n in s.nodes}
            )
        home = self._homes[default]
        if home is None or self.options.rules is None:
            return home
        inside = [edge for edge in self.fusion.edges if home[edge[0]] == home[edge[1]]]
        return home if all(self.fusion.verdict(edge) is not Verdict.PROHIBITED for edge in inside) else None

    @property
    def _fills_buffers(self) -> bool:
        """Whether the machine has local buffers that software fills."""
        machine = self.problem.machine
        return machine is not None and local_capacity_bytes(machine) > 0

    def partition(self, plan: Plan) -> Partition:
        """A plan with reasons and records."""
        nodes = self.problem.graph.nodes
        position = {node: i for i, node in enumerate(nodes)}
        home = {n: number for number, cluster in enumerate(plan.clusters) for n in cluster}
        records = dict(self._records(plan.start, home))
        reasons = _Reasons(self.fusion, plan.start, position, records)
        num_points = sum(len(pieces.edges) for pieces in plan.start.pieces)
        note = (
            f"{plan.start.name}, {len(plan.start.pieces)} subgraphs with {num_points} fusions to evaluate, "
            f"{len(plan.clusters)} when cut again; {self.pricer.num_priced} parts priced"
        )
        provenance = Provenance(Pcgc.name, num_evaluations=self.meter.num_evaluations, note=note)
        clusters = [[nodes[n] for n in cluster] for cluster in plan.clusters]
        partition = build_partition(self.problem, clusters, reasons, provenance, cut_off=self.meter.cut_off)
        return replace(partition, fusions=tuple(records.values()))

    def _records(self, start: Start, home: Mapping[int, int]) -> Iterator[tuple[Edge, FusionRecord]]:
        """Every edge inside of what was cut again that rules allow, and what the cost model said of it."""
        nodes = self.problem.graph.nodes
        unit = UNITS["latency" if self.problem.objective == "edp" else self.problem.objective]
        for edge in self.fusion.edges:
            producer, consumer, value = edge
            if start.home[producer] != start.home[consumer]:
                continue
            verdict = self.fusion.verdict(edge)
            if verdict is Verdict.PROHIBITED:
                continue
            ends = nodes[producer], nodes[consumer], value
            if start.atom[producer] == start.atom[consumer]:
                yield edge, FusionRecord(*ends, Verdict.STABLE)
                continue
            costs = start.costs(producer, consumer, home)
            known = () if costs is None else (*costs, unit)
            yield edge, FusionRecord(*ends, Verdict.EVALUATE, *known)


@dataclass(frozen=True, slots=True)
class _Reasons:
    """Why an edge lies inside a subgraph or between two."""

    fusion: StaticFusion
    start: Start
    position: Mapping[Node, int]
    records: Mapping[Edge, FusionRecord]

    def __call__(self, producer: Node, consumer: Node, value: Value, fused: bool) -> Reason:
        """The reason of one edge."""
        u, v = self.position[producer], self.position[consumer]
        record = self.records.get((u, v, value))
        if fused:
            if record is None:
                return Reason.CLUSTER  # of a default partition, which goes by no rules
            return Reason.STABLE if record.verdict is Verdict.STABLE else Reason.EVALUATED
        if self.start.home[u] == self.start.home[v]:
            return Reason.COST
        if any(isinstance(describe(node), Opaque) for node in (producer, consumer)):
            return Reason.OPAQUE
        if self.fusion.verdict((u, v, value)) is Verdict.PROHIBITED:
            return Reason.PROHIBITED
        quotient = self.fusion.quotient
        u, v = quotient.cluster_of(u), quotient.cluster_of(v)
        if u == v:
            return Reason.COST  # fused statically, and a default partition that cuts it costs less
        return Reason.CAPACITY if quotient.can_contract(u, v) else Reason.CYCLE


_SCALES = {
    "ns": {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9},
    "pJ": {"pJ": 1.0, "nJ": 1e3, "uJ": 1e6, "mJ": 1e9, "J": 1e12},
}
_NUMBER = re.compile(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)\s*([A-Za-z]+|%)")
_SHOWN_DIGITS = 4
_OTHER: dict[Objective, tuple[str, str]] = {"latency": ("energy", "pJ"), "energy": ("time", "ns")}


def secondary_of(objective: Objective) -> tuple[str, str]:
    """What is bounded while an objective is minimised, and its unit.

    Raises:
        UsageError: the objective has no other.
    """
    if objective not in _OTHER:
        raise UsageError(
            f"pcgc: a limit bounds what is not minimised, but {objective} is of both; leave it out."
        )
    return _OTHER[objective]


def shown_limit(amount: float, objective: Objective) -> str:
    """The amount in the largest unit of which it has one, rounded up, as `parse_limit` reads it.

    >>> shown_limit(54908.82, "energy"), shown_limit(3.31e8, "latency")
    ('54.91us', '331uJ')
    """
    _, unit = secondary_of(objective)
    suffix, scale = max(
        ((name, scale) for name, scale in _SCALES[unit].items() if scale <= amount),
        key=lambda pair: pair[1],
        default=(unit, 1.0),
    )
    value = amount / scale
    num_decimals = max(0, _SHOWN_DIGITS - 1 - max(0, floor(log10(value)))) if value > 0 else 0
    shown = f"{ceil(value * 10**num_decimals) / 10**num_decimals:.{num_decimals}f}"
    return (shown.rstrip("0").rstrip(".") if num_decimals else shown) + suffix


def parse_limit(text: str, objective: Objective, least: float) -> float:
    """The bound that a text means, in the unit of what is bounded; per cents are above the `least` known.

    Raises:
        UsageError: the text is no amount, or its unit is of something else.

    >>> parse_limit("1.5ms", "energy", 0.0), parse_limit("10%", "energy", 200.0)
    (1500000.0, 220.00000000000003)
    """
    what, unit = secondary_of(objective)
    match = _NUMBER.fullmatch(text.strip())
    known = ", ".join(_SCALES[unit])
    if match is None:
        raise UsageError(
            f"pcgc: limit={text[:40]}: expected an amount of {what} ({known}) or per cents such as 5%."
        )
    number, suffix = float(match[1]), match[2]
    if suffix == "%":
        return least * (1 + number / 100)
    if suffix not in _SCALES[unit]:
        raise UsageError(f"pcgc: limit={text[:40]}: --hint {objective} bounds {what}; give {known}, or %.")
    return number * _SCALES[unit][suffix]
