"""Partition → schedule. `SCHEDULERS` names the members; each is one file here."""

from __future__ import annotations

from tilewright.registry import Registry
from tilewright.schedule.base import Group, Instance, Schedule, ScheduleProblem, Scheduler, Slice, Stage
from tilewright.schedule.check import check_schedule

__all__ = [
    "SCHEDULERS",
    "Group",
    "Instance",
    "Schedule",
    "ScheduleProblem",
    "Scheduler",
    "Slice",
    "Stage",
    "check_schedule",
]

SCHEDULERS: Registry[Scheduler] = Registry(
    "scheduler", entry_point_group="tilewright.schedule", protocol="tilewright.schedule.base:Scheduler"
)
SCHEDULERS.add_class("sequential", "tilewright.schedule.sequential:Sequential")
SCHEDULERS.add_class("greedy", "tilewright.schedule.greedy:Greedy")
SCHEDULERS.add_class("breadth-first", "tilewright.schedule.instance_orders:BreadthFirst")
SCHEDULERS.add_class("depth-first", "tilewright.schedule.instance_orders:DepthFirst")
SCHEDULERS.add_class("min-delta", "tilewright.schedule.instance_orders:MinDelta")
SCHEDULERS.add_class("exact-order", "tilewright.schedule.instance_orders:ExactOrder")
SCHEDULERS.add_class("random", "tilewright.schedule.random:RandomScheduler")
