"""Partition → schedule. `SCHEDULERS` names the members; each is one file here."""

from __future__ import annotations

from tilewright import families
from tilewright.registry import Registry
from tilewright.schedule.base import Group, Instance, Schedule, ScheduleProblem, Scheduler, Stage
from tilewright.schedule.check import check_schedule

__all__ = [
    "SCHEDULERS",
    "Group",
    "Instance",
    "Schedule",
    "ScheduleProblem",
    "Scheduler",
    "Stage",
    "check_schedule",
]

SCHEDULERS: Registry[Scheduler] = families.SCHEDULERS
