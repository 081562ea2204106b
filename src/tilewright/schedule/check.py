"""Independent check of a schedule. Shares no code with any scheduler."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewright.ir.graph import Value
from tilewright.ir.region import Region, hull, input_regions
from tilewright.partition.base import Subgraph
from tilewright.planning import Violation
from tilewright.progress import checkpoint
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
        checkpoint()
        if not stage.groups or any(not group.instances for group in stage.groups):
            yield Violation("empty", f"stage {number} is empty or has an empty group")
        if len(stage.groups) > problem.limits.num_groups:
            yield Violation(
                "groups", f"stage {number} has {len(stage.groups)} groups of {problem.limits.num_groups}"
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
    yield from _check_tiling(subgraph_id, slices, outputs)


def _check_tiling(subgraph_id: int, slices: Sequence[Slice], outputs: Sequence[Value]) -> Iterator[Violation]:
    """Slices follow each other along one axis; parts of one slice do so along their own."""
    axis = slices[0].axis
    extents = {v.shape[axis] if axis < len(v.shape) else -1 for v in outputs}
    parts: dict[tuple[int, int, int], list[Slice | None]] = {}
    for s in slices:
        parts.setdefault((s.start, s.end, s.axis), []).append(s.inner)
    end = 0
    for (start, stop, own), inner in sorted(parts.items(), key=lambda item: item[0]):
        whole = inner == [None]
        if own != axis or start != end or stop <= start or not (whole or None not in inner):
            piece = Slice(own, start, stop)
            yield Violation(
                "cover", f"subgraph {subgraph_id}: slice {piece} leaves a gap or an overlap at {end}"
            )
            return
        if not whole:
            yield from _check_tiling(subgraph_id, [part for part in inner if part is not None], outputs)
        end = stop
    if extents != {end}:
        yield Violation("cover", f"subgraph {subgraph_id}: slices end at {end}, outputs at {sorted(extents)}")


def _check_order(schedule: Schedule) -> Iterator[Violation]:
    pending: dict[int, set[Instance]] = {}
    for instance in schedule.instances():
        pending.setdefault(instance.subgraph_id, set()).add(instance)
    maker = {id(v): s.id for s in schedule.partition.subgraphs for v in s.outputs}
    for number, stage in enumerate(schedule.stages):
        checkpoint()
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
        for axis, start, end in () if cut is None else cut.cuts:
            box[axis] = (start, end)
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
    cuts = () if cut is None else cut.cuts
    return all(start < region[axis][1] and region[axis][0] < end for axis, start, end in cuts)


def _check_quality(problem: ScheduleProblem, schedule: Schedule) -> Iterator[Violation]:
    cost = problem.estimate(schedule.stages).cost(problem.objective)
    quality = schedule.quality
    if abs(cost - quality.cost) > 1e-9 * max(1.0, abs(cost)):
        yield Violation("cost", f"stated {quality.cost:g} {quality.unit}, recomputed {cost:g}")
    if quality.bound > cost * (1 + 1e-9):
        yield Violation("bound", f"bound {quality.bound:g} lies above the cost {cost:g}")
