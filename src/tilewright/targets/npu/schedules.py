"""Any schedule of any partition on a described accelerator, with any memory planner."""

from __future__ import annotations

from tilewright.errors import UsageError
from tilewright.hardware.machine import Machine
from tilewright.ir.graph import Graph
from tilewright.memory import MEMORY_PLANNERS
from tilewright.memory.scopes import DEFAULT_PLANNER
from tilewright.partition import PARTITIONERS, PartitionProblem
from tilewright.planning import Budget, Infeasible, Limits
from tilewright.schedule import SCHEDULERS, ScheduleProblem
from tilewright.schedule.base import Schedule
from tilewright.schedule.scheduled import instances_of
from tilewright.targets.npu.plan import Planned, Recipe, placed
from tilewright.targets.npu.simulate import GRAPHTURBO, Policy


def plan_schedule(
    schedule: Schedule, machine: Machine, *, memory: str = DEFAULT_PLANNER, policy: Policy = GRAPHTURBO
) -> Planned:
    """Bind, place and simulate a schedule on one cluster of a machine.

    The plan's recipe says how it was named, spilled and run; its partition is the schedule's.

    Raises:
        UsageError: the schedule is not legal, or there is no such memory planner.
        InfeasibleMapping: it fits nowhere; names level and bytes.
    """
    graph, order = instances_of(schedule, machine)
    names = (schedule.partition.provenance.planner, schedule.provenance.planner, memory)
    recipe = Recipe(", ".join(names), memory=MEMORY_PLANNERS.get(memory), policy=policy)
    return placed(machine, recipe, graph, order)


def plan_by_name(
    graph: Graph,
    machine: Machine,
    *,
    partition: str = "graphturbo",
    schedule: str = "depth-first",
    memory: str = DEFAULT_PLANNER,
) -> Planned:
    """Cut, order, place and simulate a graph with what the registries have under these names.

    Orders of instances run the slices of a partition that has them.

    Raises:
        UsageError: there is nothing of a name.
        InfeasibleMapping: it fits nowhere; names level and bytes.
    """
    cut = PARTITIONERS.get(partition).solve(PartitionProblem(graph, machine), Budget())
    if isinstance(cut, Infeasible):
        raise UsageError(f"partitioner {partition}: {cut}")
    scheduler = SCHEDULERS.get(schedule)
    found = scheduler.solve(
        ScheduleProblem(cut, limits=Limits(machine.num_cores_per_cluster), allows_slices=True), Budget()
    )
    if isinstance(found, Infeasible):
        raise UsageError(f"scheduler {schedule}: {found}")
    return plan_schedule(found, machine, memory=memory)
