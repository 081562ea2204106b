"""Any schedule of any partition on a described accelerator, under any spill policy."""

from __future__ import annotations

from tilewright.hardware.machine import Machine
from tilewright.memory.scoped import DEFAULT_POLICY
from tilewright.schedule.base import Schedule
from tilewright.schedule.scheduled import instances_of
from tilewright.targets.npu.plan import Planned, Recipe, placed
from tilewright.targets.npu.simulate import GRAPHTURBO, Policy


def plan_schedule(
    schedule: Schedule, machine: Machine, *, spill: str = DEFAULT_POLICY, policy: Policy = GRAPHTURBO
) -> Planned:
    """Bind, place and simulate a schedule on one cluster of a machine.

    The plan's recipe says how it was named, spilled and run; its partition is the schedule's.

    Raises:
        UsageError: the schedule is not legal, or there is no such spill policy.
        InfeasibleMapping: it fits nowhere; names level and bytes.
    """
    graph, order = instances_of(schedule, machine)
    names = (schedule.partition.provenance.planner, schedule.provenance.planner, spill)
    return placed(machine, Recipe(", ".join(names), spill=spill, policy=policy), graph, order)
