"""What is run: networks of the zoo on described machines, partitioned by several planners, simulated."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilewright.cost.base import Objective
    from tilewright.partition.base import Partition
    from tilewright.schedule.base import PriceSchedule, ScheduleProblem

LIMIT = "5%"
STATIC, TIME, ENERGY, WITHIN = "static fusion", "PCGC for time", "PCGC for energy", f"PCGC within {LIMIT}"
OPERATORS, RELAY, GRAPHTURBO = "operator by operator", "Relay's rule", "GraphTurbo, whole"
SIDE_BY_SIDE = "PCGC for time, side by side"
_PLANNERS: Mapping[str, tuple[str, Objective]] = {
    OPERATORS: ("none", "latency"),
    RELAY: ("layerwise", "latency"),
    GRAPHTURBO: ("graphturbo", "latency"),
    STATIC: ("pcgc{recut=none}", "latency"),
    TIME: ("pcgc", "latency"),
    ENERGY: ("pcgc", "energy"),
    WITHIN: (f"pcgc{{limit={LIMIT}}}", "energy"),
}
DEFAULTS = (RELAY, GRAPHTURBO)


@dataclass(frozen=True, slots=True)
class Job:
    """A network of the zoo, of a size, on a machine."""

    name: str
    network: str
    machine: str
    size: Mapping[str, int] | None = None

    def __hash__(self) -> int:
        return hash((self.name, self.machine))


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
class Outcome:
    """Plans by planner, the frontier that the cost model sees (ms, mJ), and the time to decide."""

    plans: Mapping[str, Planned]
    frontier: tuple[tuple[float, float], ...] = ()
    decided_s: Mapping[str, float] = field(default_factory=dict)


def outcome(job: Job) -> Outcome:
    """Plan a network by every planner, under one cost model that is asked once for each subgraph."""
    from tilewright import zoo
    from tilewright.compiler import optimise
    from tilewright.errors import InternalError
    from tilewright.families import PARTITIONERS
    from tilewright.frontend.onnx import load_onnx
    from tilewright.options import Options
    from tilewright.partition import check_partition
    from tilewright.partition.base import Partition
    from tilewright.partition.pcgc import Pcgc
    from tilewright.targets import find_target

    options = Options(target=job.machine)
    graph, _ = optimise(load_onnx(zoo.build(job.network, **(job.size or {}))), options)
    backend = find_target(job.machine).backend(graph, options)
    price = backend.price(replace(backend.default_recipe, schedule="sequential"))
    assert price is not None
    plans: dict[str, Planned] = {}
    decided_s: dict[str, float] = {}
    for name, (member, objective) in _PLANNERS.items():
        planning = replace(backend.partition_problem, objective=objective)
        started_s = time.process_time()
        partition = PARTITIONERS.get(member).solve(planning, options.search_budget)
        decided_s[name] = time.process_time() - started_s
        if not isinstance(partition, Partition) or check_partition(planning, partition):
            raise InternalError(f"partitioner {member!r} gave no valid partition of {job.network}")
        plans[name] = _in_order(price, partition)
        if name == TIME:
            problem = _scheduling(partition, backend.costs, backend.limits, price)
            plans[SIDE_BY_SIDE] = _side_by_side(replace(problem, allows_lanes=backend.runs_lanes))
    corners = Pcgc().frontier(backend.partition_problem, options.search_budget)
    return Outcome(plans, tuple((c.target / 1e6, c.secondary / 1e9) for c in corners), decided_s)


def _in_order(price: PriceSchedule, partition: Partition) -> Planned:
    from tilewright.schedule.base import single, whole

    stages = [single(subgraph.id) for subgraph in partition.subgraphs]
    total = price(partition, stages, whole(partition))
    return Planned(len(stages), total.time_ns / 1e6, (total.energy_pj or 0.0) / 1e9)


def _scheduling(partition: Partition, costs: object, limits: object, price: PriceSchedule) -> ScheduleProblem:
    from tilewright.cost.base import CostModel
    from tilewright.planning import Limits
    from tilewright.schedule.base import ScheduleProblem

    assert isinstance(costs, CostModel)
    assert isinstance(limits, Limits)
    return ScheduleProblem(partition, cost=costs, limits=limits, price=price)


def _side_by_side(problem: ScheduleProblem) -> Planned:
    from tilewright.planning import Budget
    from tilewright.schedule.virtual_units import VirtualUnits

    schedule = VirtualUnits().solve(problem, Budget())
    total = problem.estimate(schedule.stages)
    return Planned(len(schedule.stages), total.time_ns / 1e6, (total.energy_pj or 0.0) / 1e9)
