"""The kernels of a lowered partition in the order of a schedule: steps that run one after another.

A step runs one kernel, the kernels of a stage's groups side by side, or a host operator.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.schedule.base import Schedule
from tilewright.targets.cpu.lowered import (
    HostOperator,
    KernelLaunch,
    LoweredModel,
    LoweredPartition,
    LoweredStep,
)


def arrange(lowered: LoweredPartition, schedule: Schedule) -> LoweredModel:
    """The steps of a schedule. Any number of schedules of the partition share one lowering.

    Raises:
        ValueError: the schedule is of another partition.
    """
    nodes = [s.nodes for s in lowered.partition.subgraphs]
    if [s.nodes for s in schedule.partition.subgraphs] != nodes:
        raise ValueError("the schedule is of another partition than the one that was lowered")
    steps: list[LoweredStep] = [(launch,) for launch in lowered.before]
    for stage in schedule.stages:
        groups = [[x for i in group.instances for x in lowered.work[i.subgraph_id]] for group in stage.groups]
        steps.extend(_interleave(groups))
    steps.extend((launch,) for launch in lowered.after)
    return LoweredModel(
        lowered.alias, lowered.offsets, lowered.layouts, lowered.locals, lowered.products, tuple(steps)
    )


def _interleave(groups: Sequence[Sequence[KernelLaunch | HostOperator]]) -> list[LoweredStep]:
    """Steps of groups that run side by side: the first of each together, then the second of each, ..."""
    steps: list[LoweredStep] = []
    for position in range(max(map(len, groups), default=0)):
        together: list[KernelLaunch] = []
        for group in groups:
            if position < len(group):
                work = group[position]
                if isinstance(work, HostOperator):
                    steps.append(work)
                else:
                    together.append(work)
        if together:
            steps.append(tuple(together))
    return steps
