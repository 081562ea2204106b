"""Independent check of a schedule. Shares no code with any scheduler."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from tilewright.ir.graph import Value
from tilewright.ir.region import Region
from tilewright.partition.check_rows import needs
from tilewright.partition.split import Split
from tilewright.planning import Violation
from tilewright.progress import checkpoint
from tilewright.schedule.base import Instance, Schedule, ScheduleProblem, space_of
from tilewright.schedule.check_lanes import check_lanes
from tilewright.schedule.check_merges import check_merges
from tilewright.schedule.space import CHECKABLE


def check_schedule(problem: ScheduleProblem, schedule: Schedule) -> tuple[Violation, ...]:
    """Everything wrong with a schedule: nothing, if it is valid.

    Checked: subgraphs are split as their outputs and the problem allow, and every instance runs exactly once;
    no instance starts before everything that it reads is finished, the instance before it included where that
    keeps rows for it, where groups of one stage count as unordered; no empty stage or group, none without a
    core, no more groups than the machine runs; stages that merge do so legally; layers that run at the same
    time inside of a kernel wait for nothing of each other; the stated cost, and that bounds are not above it,
    of spaces that hold the schedule.
    """
    found = check_stages(problem, schedule)
    if any(violation.rule in _NO_COST for violation in found):
        return found
    return (*found, *_check_quality(problem, schedule))


_NO_ORDER = ("splits", "cover", "merge", "lanes")
_NO_COST = (*_NO_ORDER, "order")
"""Rules of which a schedule that breaks one has no order, or no cost."""


def check_stages(problem: ScheduleProblem, schedule: Schedule) -> tuple[Violation, ...]:
    """The same without the stated cost."""
    form = (*_check_form(problem, schedule), *_check_splits(problem, schedule), *_check_cover(schedule))
    if not any(violation.rule in ("splits", "cover") for violation in form):
        form = (*form, *check_merges(problem, schedule), *check_lanes(problem, schedule))
    if any(violation.rule in _NO_ORDER for violation in form):
        return form
    return (*form, *_check_order(schedule))


def _check_form(problem: ScheduleProblem, schedule: Schedule) -> Iterator[Violation]:
    if schedule.partition is not problem.partition:
        yield Violation("partition", "the schedule is of another partition")
    for number, stage in enumerate(schedule.stages):
        checkpoint()
        if not stage.groups or any(not group.instances for group in stage.groups):
            yield Violation("empty", f"stage {number} is empty or has an empty group")
        if any(group.num_cores is not None and group.num_cores < 1 for group in stage.groups):
            yield Violation("cores", f"stage {number} has a group on no core")
        if len(stage.groups) > problem.limits.num_groups and stage.strategy == "parallel":
            yield Violation(
                "groups", f"stage {number} has {len(stage.groups)} groups of {problem.limits.num_groups}"
            )


def _check_splits(problem: ScheduleProblem, schedule: Schedule) -> Iterator[Violation]:
    subgraphs = schedule.partition.subgraphs
    if len(schedule.splits) != len(subgraphs):
        yield Violation("splits", f"{len(schedule.splits)} splits for {len(subgraphs)} subgraphs")
    for subgraph, split in zip(subgraphs, schedule.splits, strict=False):
        cuts = list(_cuts(split))
        if (cuts or split.tilings) and not problem.allows_slices:
            yield Violation("slices", f"subgraph {subgraph.id} is split, which the problem does not allow")
        shapes = [v.shape for v in subgraph.outputs]
        is_valid = len({dim for dim, _ in cuts}) == len(cuts) and all(
            0 <= dim < len(shape) and 1 <= factor <= shape[dim] for dim, factor in cuts for shape in shapes
        )
        if not is_valid:
            yield Violation("splits", f"subgraph {subgraph.id}: outputs {shapes} cannot be split, {split}")


def _check_cover(schedule: Schedule) -> Iterator[Violation]:
    missing = {
        Instance(subgraph.id, index)
        for subgraph, split in zip(schedule.partition.subgraphs, schedule.splits, strict=False)
        for index in range(prod(factor for _, factor in _cuts(split)))
    }
    seen: set[Instance] = set()
    for instance in schedule.instances():
        if instance in seen:
            yield Violation("cover", f"instance {instance} runs twice")
        elif instance not in missing:
            yield Violation("cover", f"there is no instance {instance}")
        seen.add(instance)
        missing.discard(instance)
    if missing:
        first = min(missing, key=lambda i: (i.subgraph_id, i.index))
        yield Violation("cover", f"{len(missing)} instances never run: {first} is the first")


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
                split = schedule.splits[subgraph.id]
                regions: dict[Value, Region] | None = None
                for value in subgraph.inputs:
                    late = pending.get(maker.get(id(value), -1), set()) - done
                    source = maker.get(id(value), -1)
                    if late and any(True for s in (split, schedule.splits[source]) for _ in _cuts(s)):
                        if regions is None:
                            results = {v: _box(v, split, instance.index) for v in subgraph.outputs}
                            regions = needs(subgraph.nodes, results)
                        made = {i: _box(value, schedule.splits[source], i.index) for i in late}
                        late = {i for i in late if _meet(made[i], regions.get(value))}
                    if late:
                        yield Violation(
                            "order", f"stage {number}: {instance} runs before subgraph {source} is finished"
                        )
                earlier = Instance(subgraph.id, instance.index - 1)
                if instance.index % _chain_length(split) and earlier in pending[subgraph.id] - done:
                    yield Violation(
                        "order", f"stage {number}: {instance} runs before {earlier}, which keeps rows for it"
                    )
                done.add(instance)
        for instance in stage.instances():
            pending[instance.subgraph_id].discard(instance)


def _cuts(split: Split) -> Iterator[tuple[int, int]]:
    """Axes that are really cut with their factors, the outer first."""
    rest: Split | None = split
    while rest is not None:
        if rest.factor != 1:
            yield -1 if rest.dim is None else rest.dim, rest.factor
        rest = rest.inner


def _chain_length(split: Split) -> int:
    """How many instances in a row keep rows for each other."""
    while split.inner is not None:
        split = split.inner
    return split.factor if split.keeps_rows else 1


def _box(value: Value, split: Split, index: int) -> Region:
    """What an instance makes of a value: digits of its index, the innermost cut's last."""
    box = [(0, extent) for extent in value.shape]
    for dim, factor in reversed(list(_cuts(split))):
        index, digit = divmod(index, factor)
        extent = value.shape[dim]
        box[dim] = (extent * digit // factor, extent * (digit + 1) // factor)
    return tuple(box)


def _meet(made: Region, read: Region | None) -> bool:
    """Whether two regions of a value have an element in common."""
    return read is not None and all(
        max(m[0], r[0]) < min(m[1], r[1]) for m, r in zip(made, read, strict=True)
    )


def _check_quality(problem: ScheduleProblem, schedule: Schedule) -> Iterator[Violation]:
    try:
        cost = problem.estimate(schedule.stages, schedule.splits).cost(problem.objective)
    except ValueError as error:
        yield Violation("merge", str(error))
        return
    quality = schedule.quality
    if abs(cost - quality.cost) > 1e-9 * max(1.0, abs(cost)):
        yield Violation("cost", f"stated {quality.cost:g} {quality.unit}, recomputed {cost:g}")
    place = space_of(schedule.partition, schedule.stages, schedule.splits)
    for bound in quality.bounds:
        if bound.is_proven and bound.value > cost * (1 + 1e-9):
            yield Violation("bound", f"bound {bound.value:g} of {bound.space} lies above the cost {cost:g}")
        for rule in bound.space.rules:
            if rule.text in CHECKABLE and not any(kept.implies(rule) for kept in place.rules):
                yield Violation("space", f"the bound {bound.value:g} is of {bound.space}, which this is not")
