"""The checker of scope plans: reads of other buffers, copies of other rows, buffers at home elsewhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.golden.test_faults import planned_by
from tests.property.test_rows import planned as planned_with_copies

from tilewright.memory.check_scopes import check_scopes
from tilewright.memory.scopes import ScopePlan
from tilewright.targets.npu.plan import SimulatedPlan

NAMES = ("rows", "shared", "sliced", "groups", "lanes", "kernels")


def with_step(plan: ScopePlan, number: int, **changes: Any) -> ScopePlan:
    steps = list(plan.steps)
    steps[number] = replace(steps[number], **changes)
    return replace(plan, timeline=replace(plan.timeline, steps=tuple(steps)))


def rules(planned: SimulatedPlan, plan: ScopePlan) -> set[str]:
    return {violation.rule for violation in check_scopes(plan, planned.bindings)}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", NAMES)
def test_a_step_reads_the_buffers_that_its_edges_and_its_chain_name(name: str) -> None:
    planned = planned_by(name)[0]
    plan = planned.scopes
    assert rules(planned, plan) == set()
    num_changes = 0
    for number, step in enumerate(plan.steps):
        for place, read in enumerate(step.reads):
            if read.buffer is None:
                continue
            right = plan.buffers[read.buffer]
            for other in plan.buffers:
                if other.value is read.value and other.id != right.id and num_changes < 60:
                    reads = list(step.reads)
                    reads[place] = replace(read, buffer=other.id)
                    num_changes += 1
                    assert rules(planned, with_step(plan, number, reads=tuple(reads))), (number, other)
            without = tuple(r for r in step.reads if r is not read)
            assert rules(planned, with_step(plan, number, reads=without)), number
    assert num_changes or name in ("groups", "lanes", "kernels")


def test_copies_are_of_the_rows_that_later_instances_read() -> None:
    plan, bindings = planned_with_copies(4)
    copies = [n for n, s in enumerate(plan.steps) if any(plan.buffers[w].is_kept for w in s.writes)]
    copies = [n for n in copies if not plan.steps[n].operators]
    assert len(copies) == 2
    for number in copies:
        step = plan.steps[number]
        (read,), (written,) = step.reads, step.writes
        others = [b.id for b in plan.buffers if b.value is read.value and b.id != written]
        changed: list[dict[str, Any]] = [
            {"writes": (written, written)},
            {"reads": (read, read)},
            {"reads": (), "writes": ()},
            {"reads": (replace(read, region=((0, 0), *read.region[1:])),)},
            {"reads": (replace(read, buffer=None),)},
            {"reads": (replace(read, buffer=written),)},
            *({"writes": (other,)} for other in others),
            *({"reads": (replace(read, buffer=other),)} for other in others if other != read.buffer),
        ]
        for changes in changed:
            found = {v.rule for v in check_scopes(with_step(plan, number, **changes), bindings)}
            assert found & {"rows", "source", "regions"}, changes


@pytest.mark.parametrize("name", NAMES)
def test_buffers_are_asked_for_in_the_level_where_they_belong(name: str) -> None:
    planned = planned_by(name)[0]
    plan = planned.scopes
    problem = plan.timeline.problem
    for place, buffer in enumerate(problem.buffers):
        for level in range(len(problem.levels)):
            buffers = list(problem.buffers)
            buffers[place] = replace(buffer, level=level)
            changed = replace(
                plan, timeline=replace(plan.timeline, problem=replace(problem, buffers=tuple(buffers)))
            )
            assert ("scope" in rules(planned, changed)) is (level != buffer.level)
