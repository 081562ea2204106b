"""Independent check of a schedule. Shares no code with any scheduler."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.planning import Violation
from tilewright.schedule.base import Instance, Schedule, ScheduleProblem


def check_schedule(problem: ScheduleProblem, schedule: Schedule) -> tuple[Violation, ...]:
    """Everything wrong with a schedule: nothing, if it is valid.

    Checked: the slices of every subgraph cover its output exactly once; no instance starts before everything
    its subgraph reads is finished, where groups of one stage count as unordered; no empty stage or group, no
    more groups than the machine runs; the stated cost.
    """
    return (
        *_check_form(problem, schedule),
        *_check_cover(schedule),
        *_check_order(schedule),
        *_check_quality(problem, schedule),
    )


def _check_form(problem: ScheduleProblem, schedule: Schedule) -> Iterator[Violation]:
    if schedule.partition is not problem.partition:
        yield Violation("partition", "the schedule is of another partition")
    for number, stage in enumerate(schedule.stages):
        if not stage.groups or any(not group.instances for group in stage.groups):
            yield Violation("empty", f"stage {number} is empty or has an empty group")
        if len(stage.groups) > problem.max_groups:
            yield Violation(
                "groups", f"stage {number} has {len(stage.groups)} groups of {problem.max_groups}"
            )


def _check_cover(schedule: Schedule) -> Iterator[Violation]:
    subgraphs = schedule.partition.subgraphs
    by_subgraph: dict[int, list[Instance]] = {s.id: [] for s in subgraphs}
    for stage in schedule.stages:
        for group in stage.groups:
            for instance in group.instances:
                if instance.subgraph_id not in by_subgraph:
                    yield Violation("cover", f"instance {instance} is of no subgraph")
                    continue
                by_subgraph[instance.subgraph_id].append(instance)
    for subgraph_id, instances in by_subgraph.items():
        yield from _check_slices(schedule, subgraph_id, instances)


def _check_slices(schedule: Schedule, subgraph_id: int, instances: list[Instance]) -> Iterator[Violation]:
    if len(instances) == 1 and instances[0].slice is None:
        return
    slices = [i.slice for i in instances if i.slice is not None]
    if not instances or len(slices) != len(instances):
        yield Violation("cover", f"subgraph {subgraph_id} runs {len(instances)} times")
        return
    outputs = schedule.partition.subgraphs[subgraph_id].outputs
    axis = slices[0].axis
    extents = {v.shape[axis] if axis < len(v.shape) else -1 for v in outputs}
    end = 0
    for piece in sorted(slices, key=lambda s: s.start):
        if piece.axis != axis or piece.start != end or piece.end <= piece.start:
            yield Violation(
                "cover", f"subgraph {subgraph_id}: slice {piece} leaves a gap or an overlap at {end}"
            )
            return
        end = piece.end
    if extents != {end}:
        yield Violation("cover", f"subgraph {subgraph_id}: slices end at {end}, outputs at {sorted(extents)}")


def _check_order(schedule: Schedule) -> Iterator[Violation]:
    remaining: dict[int, int] = {}
    for instance in schedule.instances():
        remaining[instance.subgraph_id] = remaining.get(instance.subgraph_id, 0) + 1
    maker = {id(v): s.id for s in schedule.partition.subgraphs for v in s.outputs}
    for number, stage in enumerate(schedule.stages):
        finished_by_stage: list[int] = []
        for group in stage.groups:
            inside = dict(remaining)
            for instance in group.instances:
                subgraph = schedule.partition.subgraphs[instance.subgraph_id]
                for value in subgraph.inputs:
                    source = maker.get(id(value))
                    if source is not None and inside.get(source, 0) > 0:
                        yield Violation(
                            "order", f"stage {number}: {instance} runs before subgraph {source} is finished"
                        )
                inside[instance.subgraph_id] -= 1
                finished_by_stage.append(instance.subgraph_id)
        for subgraph_id in finished_by_stage:
            remaining[subgraph_id] -= 1


def _check_quality(problem: ScheduleProblem, schedule: Schedule) -> Iterator[Violation]:
    cost = sum(problem.cost_of(stage) for stage in schedule.stages)
    quality = schedule.quality
    if abs(cost - quality.cost) > 1e-9 * max(1.0, abs(cost)):
        yield Violation("cost", f"stated {quality.cost:g} {quality.unit}, recomputed {cost:g}")
    if quality.bound > cost * (1 + 1e-9):
        yield Violation("bound", f"bound {quality.bound:g} lies above the cost {cost:g}")
