"""What is run: schedules of networks of the zoo on described machines, in several processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import ModelProto

    from tilewright.ir.graph import Graph, Node
    from tilewright.partition.base import Partition
    from tilewright.schedule.base import ScheduleProblem, Stage
    from tilewright.schedule.ios.block import Strategies

SEQUENTIAL, GREEDY = "Sequential", "Greedy"
MERGE, PARALLEL, BOTH, MOLDABLE = "IOS-Merge", "IOS-Parallel", "IOS-Both", "IOS-M"
SCHEDULES = (SEQUENTIAL, GREEDY, MERGE, PARALLEL, BOTH, MOLDABLE)
_STRATEGIES: Mapping[str, Strategies] = {
    MERGE: "merge", PARALLEL: "parallel", BOTH: "both", MOLDABLE: "both",
}  # fmt: skip
_BEAM_WIDTH = 4


@dataclass(frozen=True, slots=True)
class IosJob:
    """Schedules of a network on a machine; `pruning` is the paper's r and s."""

    network: str
    machine: str
    batch: int
    schedules: tuple[str, ...] = SCHEDULES
    pruning: tuple[int, int] = (3, 8)


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """Groups of operators by number, at the same time or, if it `merges`, as one kernel."""

    groups: tuple[tuple[int, ...], ...]
    merges: bool
    time_ns: float
    num_cores: tuple[int | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Planned:
    """A schedule: its stages, its time, what any of its search space takes at least, and how it was found."""

    stages: tuple[PlannedStage, ...]
    time_ns: float
    bound_ns: float
    is_proven: bool
    num_asked: int
    cpu_s: float


@dataclass(frozen=True, slots=True)
class IosOutcome:
    """Schedules of one network by name. `operators` are names of its units, in order."""

    operators: tuple[str, ...]
    schedules: Mapping[str, Planned] = field(default_factory=dict)

    def gain(self, name: str = BOTH) -> float:
        """How much faster a schedule is than the sequential one."""
        return self.schedules[SEQUENTIAL].time_ns / self.schedules[name].time_ns


def outcome(job: IosJob) -> IosOutcome:
    """Build a network and schedule it."""
    problem = problem_of(job.network, job.machine, job.batch)
    return outcome_of(problem, job.schedules, job.pruning)


def outcome_of(
    problem: ScheduleProblem, schedules: Sequence[str], pruning: tuple[int, int] = (3, 8)
) -> IosOutcome:
    """Schedules of any problem whose subgraphs are units."""
    names = tuple(unit_of(subgraph.nodes[0].name) for subgraph in problem.partition.subgraphs)
    return IosOutcome(names, {name: _planned(problem, name, pruning) for name in schedules})


@dataclass(frozen=True, slots=True)
class Transfer:
    """Schedules that are to be priced on another machine or batch."""

    network: str
    machine: str
    batch: int
    schedules: Mapping[str, Planned]


def transferred(transfer: Transfer) -> dict[str, tuple[float, ...]]:
    """The times of the stages of schedules that were made for something else."""
    problem = problem_of(transfer.network, transfer.machine, transfer.batch)
    return {
        name: tuple(problem.stage(_stage(stage)).time_ns for stage in planned.stages)
        for name, planned in transfer.schedules.items()
    }


def problem_of(network: str, machine: str, batch: int) -> ScheduleProblem:
    """The schedules of a network's units on a machine, each unit a kernel."""
    from tilewright import zoo

    return problem_of_model(zoo.build(network, batch=batch), machine)


def problem_of_model(
    model: ModelProto, machine: str, part_of: Callable[[str], str] | None = None
) -> ScheduleProblem:
    """The same of any model; kernels are the nodes of a part, by default of a unit, by their names."""
    from tilewright.frontend.onnx import load_onnx
    from tilewright.options import Options
    from tilewright.passes import run_passes
    from tilewright.schedule.base import ScheduleProblem
    from tilewright.target_ref import TargetRef
    from tilewright.targets import find_target

    graph = load_onnx(model)
    run_passes(graph)
    options = Options(target=TargetRef.parse(machine))
    target = find_target(options.target)
    backend = target.backend(graph, options)
    return ScheduleProblem(
        units_of(backend.partition_problem.graph, part_of),
        machine=target.machine,
        cost=backend.costs,
        limits=backend.limits,
        maps=backend.partition_problem.analysis.maps,
    )


def units_of(graph: Graph, part_of: Callable[[str], str] | None = None) -> Partition:
    """A subgraph for each of the paper's schedule units, whose nodes share the start of their names."""
    from tilewright.partition.base import PartitionProblem, Reason, build_partition
    from tilewright.planning import Provenance

    units: dict[str, list[Node]] = {}
    for node in graph.nodes:
        units.setdefault((part_of or unit_of)(node.name), []).append(node)
    return build_partition(
        PartitionProblem(graph),
        list(units.values()),
        lambda producer, consumer, value, fused: Reason.CLUSTER if fused else Reason.NO_FUSION,
        Provenance("units"),
    )


def unit_of(name: str) -> str:
    """Block and unit of a node of the zoo's networks."""
    return ".".join(name.split(".")[:2])


def _planned(problem: ScheduleProblem, name: str, pruning: tuple[int, int]) -> Planned:
    from tilewright.planning import Budget, Infeasible
    from tilewright.schedule import SCHEDULERS

    started = time.process_time()
    if name in (SEQUENTIAL, GREEDY):
        schedule = SCHEDULERS.get(name.lower()).solve(problem, Budget(1))
        assert not isinstance(schedule, Infeasible)
        found: tuple[Sequence[Stage], float, bool, int] = schedule.stages, schedule.quality.bound, False, 0
    else:
        found = _searched(problem, name, pruning)
    stages, bound_ns, is_proven, num_asked = found
    planned = tuple(_priced(problem, stage) for stage in stages)
    total_ns = sum(stage.time_ns for stage in planned)
    return Planned(planned, total_ns, bound_ns, is_proven, num_asked, time.process_time() - started)


def _searched(
    problem: ScheduleProblem, name: str, at_most: tuple[int, int]
) -> tuple[Sequence[Stage], float, bool, int]:
    from tilewright.partition.merge_siblings import merge_sets
    from tilewright.planning import Budget
    from tilewright.schedule.base import single
    from tilewright.schedule.ios.block import Rules, Stop
    from tilewright.schedule.ios.blocks import MOST_IN_BLOCK
    from tilewright.schedule.ios.costs import AskedCosts, ModelCosts, stage_of
    from tilewright.schedule.ios.endings import Pruning
    from tilewright.schedule.ios.graph import StageGraph
    from tilewright.schedule.ios.network import BlockNetwork

    graph = StageGraph.of_partition(problem.partition)
    costs = AskedCosts(ModelCosts(problem, graph, is_moldable=name == MOLDABLE), graph)
    strategy = _STRATEGIES[name]
    size, most_groups = at_most
    pruning = Pruning(size, min(most_groups, problem.limits.num_groups))
    sets = [] if strategy == "parallel" else merge_sets(problem.partition)
    merges = [sum(1 << i for i in members) for members in sets]
    rules = Rules(strategy, "component", pruning, name == MOLDABLE)
    network = BlockNetwork(graph, costs, rules, MOST_IN_BLOCK, merges)
    stop = Stop.of(Budget(_EVALUATIONS), costs)
    answer = network.solve("lazy", _BEAM_WIDTH, stop)
    stages = [stage_of(choice) for choice in answer.stages]
    one_by_one = [single(subgraph.id) for subgraph in problem.partition.subgraphs]
    if sum(problem.stage(stage).time_ns for stage in one_by_one) < answer.cost_ns:
        stages = one_by_one  # which a search that did not close may have missed
    return stages, answer.bound_ns, answer.is_closed and answer.holds, costs.num_asked


_EVALUATIONS = 1000
"""Of a search: each pays for some stage costs, so that results repeat."""


def _priced(problem: ScheduleProblem, stage: Stage) -> PlannedStage:
    groups = tuple(tuple(instance.subgraph_id for instance in group.instances) for group in stage.groups)
    num_cores = tuple(group.num_cores for group in stage.groups)
    return PlannedStage(groups, stage.strategy == "merge", problem.stage(stage).time_ns, num_cores)


def _stage(planned: PlannedStage) -> Stage:
    from tilewright.schedule.base import Group, Instance, Stage

    cores = planned.num_cores or (None,) * len(planned.groups)
    groups = tuple(
        Group(tuple(map(Instance, group)), count) for group, count in zip(planned.groups, cores, strict=True)
    )
    return Stage(groups, "merge" if planned.merges else "parallel")
