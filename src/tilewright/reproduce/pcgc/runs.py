"""What is run: networks of the zoo on described machines, partitioned by several planners, simulated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from tilewright.planning import Budget

if TYPE_CHECKING:
    from tilewright.cost.base import Objective
    from tilewright.ir.graph import Graph
    from tilewright.partition.base import Partition, PartitionProblem
    from tilewright.schedule.base import PriceSchedule
    from tilewright.targets.base import Backend

LIMIT = "5%"
RELAY, GRAPHTURBO, STATIC, PCGC = "Relay's rule", "GraphTurbo, whole", "static fusion", "PCGC"
BEST, BEST_TIME, WITHIN = "every start", "every start, for time", f"every start within {LIMIT}"
SIDE_BY_SIDE, RELAY_SIDE_BY_SIDE = "PCGC, side by side", "Relay's rule, side by side"
BEST_SIDE_BY_SIDE = "every start, for time, side by side"
_AS_PAPER = "pcgc{start=static-fusion,recut=greedy}"
_PLANNERS: Mapping[str, tuple[str, Objective]] = {
    RELAY: ("layerwise", "latency"),
    GRAPHTURBO: ("graphturbo", "latency"),
    STATIC: ("pcgc{recut=none}", "energy"),
    PCGC: (_AS_PAPER, "energy"),
    BEST: ("pcgc", "energy"),
    BEST_TIME: ("pcgc", "latency"),
    WITHIN: (f"pcgc{{limit={LIMIT}}}", "energy"),
}
_BUDGET = Budget(4000)
"""With less, large starting partitions are not cut to the end."""
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class PcgcJob:
    """A network of the zoo on a machine, for so many images of width x height; None: as the zoo has it."""

    name: str
    network: str
    machine: str
    image: tuple[int, int] | None = None
    batch: int = 1

    def __str__(self) -> str:
        size = "" if self.image is None else " of {}x{}".format(*self.image)
        return f"{self.batch} x {self.network}{size} on {self.machine}"


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan: its subgraphs, and the simulated time and energy of a run."""

    num_subgraphs: int
    time_ms: float
    energy_mj: float

    @property
    def power_w(self) -> float:
        """Mean power."""
        return self.energy_mj / self.time_ms


@dataclass(frozen=True, slots=True)
class Cut:
    """One starting partition as it is, cut again by Algorithm 2, and exactly where that can be."""

    whole: Planned
    greedy: Planned
    exact: Planned


@dataclass(frozen=True, slots=True)
class Checked:
    """Clusters of all starting partitions that may be cut: how many there are, how many of these have an
    exact answer, and for how many of those Algorithm 2 costs more."""

    num_clusters: int
    num_exact: int
    num_missed: int


@dataclass(frozen=True, slots=True)
class PcgcOutcome:
    """Plans by planner; by objective what re-cutting makes of each starting partition; the frontier that the
    cost model sees (ms, mJ); billions of operations of a run, and the ms that the busiest unit takes for
    these at the rate of the description."""

    plans: Mapping[str, Planned]
    cuts: Mapping[str, Mapping[str, Cut]]
    checked: Checked
    frontier: tuple[tuple[float, float], ...]
    num_gop: float
    least_ms: float


class _Network:
    """A network on a machine, under one cost model that is asked once for each subgraph."""

    def __init__(self, job: PcgcJob) -> None:
        from tilewright import zoo
        from tilewright.compiler import optimise
        from tilewright.frontend.onnx import load_onnx
        from tilewright.options import Options
        from tilewright.target_ref import TargetRef
        from tilewright.targets import find_target

        self.job = job
        options = Options(target=TargetRef.parse(job.machine))
        model = zoo.build(job.network, batch=job.batch, image=job.image)
        self.graph: Graph = optimise(load_onnx(model), options)[0]
        self.backend: Backend = find_target(options.target).backend(self.graph, options)

    def problem(self, objective: Objective) -> PartitionProblem:
        """What partitioners are asked."""
        return replace(self.backend.partition_problem, objective=objective)

    def partition(self, member: str, objective: Objective) -> Partition:
        """What a partitioner answers."""
        from tilewright.errors import InternalError
        from tilewright.families import PARTITIONERS
        from tilewright.partition import check_partition
        from tilewright.partition.base import Partition

        problem = self.problem(objective)
        partition = PARTITIONERS.get(member).solve(problem, _BUDGET)
        if not isinstance(partition, Partition) or check_partition(problem, partition):
            raise InternalError(f"partitioner {member!r} gave no valid partition of {self.job.network}")
        return partition

    @cached_property
    def price(self) -> PriceSchedule:
        """What whole schedules cost."""
        price = self.backend.price(replace(self.backend.default_recipe, schedule="sequential"))
        assert price is not None
        return price

    def in_order(self, partition: Partition) -> Planned:
        """The plan that runs one subgraph after another."""
        from tilewright.schedule.base import single, whole

        stages = [single(subgraph.id) for subgraph in partition.subgraphs]
        total = self.price(partition, stages, whole(partition))
        return Planned(len(stages), total.time_ns / 1e6, (total.energy_pj or 0.0) / 1e9)

    def side_by_side(self, partition: Partition) -> Planned:
        """The plan of virtual units."""
        from tilewright.schedule.base import ScheduleProblem
        from tilewright.schedule.virtual_units import VirtualUnits

        problem = ScheduleProblem(
            partition,
            cost=self.backend.costs,
            limits=self.backend.limits,
            price=self.price,
            allows_lanes=self.backend.runs_lanes,
        )
        schedule = VirtualUnits().solve(problem, _BUDGET)
        total = problem.estimate(schedule.stages)
        return Planned(len(schedule.stages), total.time_ns / 1e6, (total.energy_pj or 0.0) / 1e9)

    def cut(self, start: str, objective: Objective) -> Cut:
        """What re-cutting makes of one starting partition."""
        plans = (
            self.in_order(self.partition(f"pcgc{{start={start},recut={recut}}}", objective))
            for recut in ("none", "greedy", "exact")
        )
        return Cut(*plans)

    def checked(self, objective: Objective) -> Checked:
        """Algorithm 2 beside what is exact, cluster by cluster."""
        from tilewright.partition.pcgc import Pcgc
        from tilewright.partition.pcgc.planner import PcgcWork
        from tilewright.partition.pcgc.recut import Exact, Program, greedy

        num_clusters = num_exact = num_missed = 0
        for start in PcgcWork.of(self.problem(objective), Pcgc(), _BUDGET.start()).starts:
            for pieces in start.pieces:
                if not pieces.edges:
                    continue
                num_clusters += 1
                if Program(pieces).is_exact and (exact := Exact([pieces])).is_exact:
                    num_exact += 1
                    least = exact.at(0.0).cost.target
                    num_missed += greedy([pieces]).cost.target > least * (1 + _ROUNDING)
        return Checked(num_clusters, num_exact, num_missed)


def outcome(job: PcgcJob) -> PcgcOutcome:
    """Plan a network by every planner, from every start."""
    from typing import get_args

    from tilewright.ir.derive import macs
    from tilewright.partition.base import make_subgraph
    from tilewright.partition.pcgc import Pcgc
    from tilewright.partition.pcgc.start import StartName

    network = _Network(job)
    plans: dict[str, Planned] = {}
    for name, (member, objective) in _PLANNERS.items():
        partition = network.partition(member, objective)
        plans[name] = network.in_order(partition)
        if name == BEST_TIME:
            plans[BEST_SIDE_BY_SIDE] = network.side_by_side(partition)
    objectives: tuple[Objective, ...] = ("energy", "latency")
    cuts: dict[str, Mapping[str, Cut]] = {
        objective: {start: network.cut(start, objective) for start in get_args(StartName)}
        for objective in objectives
    }
    corners = Pcgc().frontier(network.problem("edp"), _BUDGET)
    nodes = network.graph.nodes
    return PcgcOutcome(
        plans,
        cuts,
        network.checked("energy"),
        tuple((c.target / 1e6, c.secondary / 1e9) for c in corners),
        2e-9 * sum(macs(node) for node in nodes),
        network.backend.costs.least([make_subgraph(0, nodes, network.graph)]).time_ns / 1e6,
    )


def speeds(job: PcgcJob) -> dict[str, Planned]:
    """Plans for time by Relay's rule, by PCGC as in the paper and from every start, also side by side."""
    network = _Network(job)
    relay, pcgc, best = (network.partition(member, "latency") for member in ("layerwise", _AS_PAPER, "pcgc"))
    return {
        RELAY: network.in_order(relay),
        RELAY_SIDE_BY_SIDE: network.side_by_side(relay),
        PCGC: network.in_order(pcgc),
        SIDE_BY_SIDE: network.side_by_side(pcgc),
        BEST_TIME: network.in_order(best),
        BEST_SIDE_BY_SIDE: network.side_by_side(best),
    }
