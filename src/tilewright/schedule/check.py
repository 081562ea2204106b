"""Independent check of a schedule. Shares no code with any scheduler."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.ir.region import Region, hull, input_regions
from tilewright.partition.base import Subgraph
from tilewright.planning import Violation
from tilewright.schedule.base import Instance, Schedule, ScheduleProblem, Slice


def check_schedule(problem: ScheduleProblem, schedule: Schedule) -> tuple[Violation, ...]:
    """Everything wrong with a schedule: nothing, if it is valid.

    Checked: the slices of every subgraph cover its output exactly once; no instance starts before everything
    that it reads is finished, where groups of one stage count as unordered; no empty stage or group, no
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
    pending: dict[int, set[Instance]] = {}
    for instance in schedule.instances():
        pending.setdefault(instance.subgraph_id, set()).add(instance)
    maker = {id(v): s.id for s in schedule.partition.subgraphs for v in s.outputs}
    for number, stage in enumerate(schedule.stages):
        for group in stage.groups:
            done: set[Instance] = set()
            for instance in group.instances:
                subgraph = schedule.partition.subgraphs[instance.subgraph_id]
                regions: dict[int, Region] | None = None
                for value in subgraph.inputs:
                    late = pending.get(maker.get(id(value), -1), set()) - done
                    if late and (instance.slice is not None or any(i.slice is not None for i in late)):
                        regions = _touched(subgraph, instance.slice) if regions is None else regions
                        late = {i for i in late if _meets(i.slice, regions.get(id(value)))}
                    if late:
                        source = maker[id(value)]
                        yield Violation(
                            "order", f"stage {number}: {instance} runs before subgraph {source} is finished"
                        )
                done.add(instance)
        for instance in stage.instances():
            pending[instance.subgraph_id].discard(instance)


def _touched(subgraph: Subgraph, cut: Slice | None) -> dict[int, Region]:
    """Regions of all values that one slice of a subgraph's outputs needs, by the value's identity."""
    regions: dict[int, Region] = {}
    for output in subgraph.outputs:
        box = [(0, extent) for extent in output.shape]
        if cut is not None:
            box[cut.axis] = (cut.start, cut.end)
        regions[id(output)] = tuple(box)
    for node in reversed(subgraph.nodes):
        for position, value in enumerate(node.outputs):
            if value is None or id(value) not in regions:
                continue
            needs = input_regions(node, regions[id(value)], position)
            for operand, need in zip(node.inputs, needs, strict=True):
                if operand is not None and need is not None:
                    known = regions.get(id(operand))
                    regions[id(operand)] = need if known is None else hull(known, need)
            for captured in node.captures:
                regions[id(captured)] = tuple((0, extent) for extent in captured.shape)
    return regions


def _meets(cut: Slice | None, region: Region | None) -> bool:
    """Whether a slice of a value has something of a region of it."""
    if region is None or any(start >= stop for start, stop in region):
        return False
    return cut is None or (cut.start < region[cut.axis][1] and region[cut.axis][0] < cut.end)


def _check_quality(problem: ScheduleProblem, schedule: Schedule) -> Iterator[Violation]:
    cost = sum(problem.cost_of(stage) for stage in schedule.stages)
    quality = schedule.quality
    if abs(cost - quality.cost) > 1e-9 * max(1.0, abs(cost)):
        yield Violation("cost", f"stated {quality.cost:g} {quality.unit}, recomputed {cost:g}")
    if quality.bound > cost * (1 + 1e-9):
        yield Violation("bound", f"bound {quality.bound:g} lies above the cost {cost:g}")
