"""The kernels of a lowered partition in the order of a schedule: steps that run one after another.

A step runs groups of kernels beside each other, or a host operator. What one thread may run in order, group
by group, the positions of a model number; two of them are ordered unless they lie in different groups of one
step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import Literal

from tilewright.records import dataclass
from tilewright.schedule.base import Schedule, Stage
from tilewright.targets.cpu.lower.lowered import (
    HostOperator,
    KernelLaunch,
    LoweredGroup,
    LoweredModel,
    LoweredPartition,
    LoweredStage,
    LoweredStep,
)

Barriers = Literal["stages", "strict"]
"""Where groups of a stage wait for each other: behind the stage alone, or behind each of their kernels."""


def arrange(lowered: LoweredPartition, schedule: Schedule, barriers: Barriers = "stages") -> LoweredModel:
    """The steps of a schedule. Any number of schedules of the partition share one lowering.

    Raises:
        ValueError: the schedule is of another partition.
    """
    nodes = [s.nodes for s in lowered.partition.subgraphs]
    if [s.nodes for s in schedule.partition.subgraphs] != nodes:
        raise ValueError("the schedule is of another partition than the one that was lowered")
    steps = tuple(step for _, step in staged_steps(lowered, schedule, barriers))
    return LoweredModel(
        lowered.alias, lowered.offsets, lowered.layouts, lowered.locals, lowered.products, steps
    )


def staged_steps(
    lowered: LoweredPartition, schedule: Schedule, barriers: Barriers
) -> Iterator[tuple[int | None, LoweredStep]]:
    """The steps in order, each with the number of its stage; relayout copies have none."""
    yield from ((None, LoweredStage.single(launch)) for launch in lowered.before)
    arranged = _in_lockstep if barriers == "strict" else _independently
    for number, stage in enumerate(schedule.stages):
        yield from ((number, step) for step in _steps_of(stage, lowered, arranged))
    yield from ((None, LoweredStage.single(launch)) for launch in lowered.after)


@dataclass(frozen=True, slots=True)
class _Track:
    """What a group of a schedule runs, in order."""

    work: tuple[KernelLaunch | HostOperator, ...]
    num_cores: int | None


def _steps_of(
    stage: Stage, lowered: LoweredPartition, arranged: Callable[[Sequence[_Track]], Iterator[LoweredStep]]
) -> Iterator[LoweredStep]:
    tracks = [
        _Track(tuple(x for i in group.instances for x in lowered.work[i.subgraph_id]), group.num_cores)
        for group in stage.groups
    ]
    return arranged([track for track in tracks if track.work])


def _independently(tracks: Sequence[_Track]) -> Iterator[LoweredStep]:
    """One step of all kernels before the first host operator of each group, then those operators, and again:
    Python runs on the calling thread, between two pieces of generated code."""
    rest = [(list(track.work), track.num_cores) for track in tracks]
    while any(work for work, _ in rest):
        groups: list[LoweredGroup] = []
        for work, num_cores in rest:
            launches: list[KernelLaunch] = []
            while work and isinstance(work[0], KernelLaunch):
                launches.append(work[0])
                del work[0]
            if launches:
                groups.append(LoweredGroup(tuple(launches), num_cores))
        yield from _steps_of_groups(groups)
        for work, _ in rest:
            if work:
                operator = work.pop(0)
                assert isinstance(operator, HostOperator)
                yield operator


def _in_lockstep(tracks: Sequence[_Track]) -> Iterator[LoweredStep]:
    """The first of each group together, then the second of each, and so on."""
    for together in zip_longest(*(track.work for track in tracks)):
        yield from (x for x in together if isinstance(x, HostOperator))
        groups = [
            LoweredGroup((x,), track.num_cores)
            for x, track in zip(together, tracks, strict=True)
            if isinstance(x, KernelLaunch)
        ]
        yield from _steps_of_groups(groups)


def _steps_of_groups(groups: Sequence[LoweredGroup]) -> Iterator[LoweredStep]:
    """One step, or where there is nothing beside them, a step for each kernel."""
    if len(groups) == 1:
        (group,) = groups
        yield from (LoweredStage((LoweredGroup((x,), group.num_cores),)) for x in group.launches)
    elif groups:
        yield LoweredStage(tuple(groups))


def numbered(lowered: LoweredModel) -> Iterator[tuple[int, int, KernelLaunch | HostOperator]]:
    """All that runs in the order of its positions, each with the numbers of its step and its group."""
    for number, step in enumerate(lowered.steps):
        if isinstance(step, HostOperator):
            yield number, 0, step
        else:
            for group_number, group in enumerate(step.groups):
                yield from ((number, group_number, launch) for launch in group.launches)
