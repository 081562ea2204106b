"""Every memory planner on any number of levels: valid plans, repeatable, and a No that names the level."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.memory import (
    MEMORY_PLANNERS,
    Buffer,
    MemoryLevel,
    MemoryPlan,
    MemoryProblem,
    check_memory,
    spill_bound_bytes,
)
from tilewright.memory.packing import Packer
from tilewright.planning import Budget, Infeasible

PACKERS = tuple(name for name in MEMORY_PLANNERS.names() if isinstance(MEMORY_PLANNERS.get(name), Packer))
NUM_STEPS = 10


@st.composite
def problems(draw: st.DrawFn, *, is_bounded: bool = False) -> MemoryProblem:
    """Up to 4 levels with less than all buffers need; the outermost has no limit, unless `is_bounded`."""
    num_levels = draw(st.integers(1, 4))
    shapes = draw(
        st.lists(
            st.tuples(
                st.integers(0, 300),
                st.integers(0, NUM_STEPS - 1),
                st.integers(0, 5),
                st.sampled_from((1, 16, 64, 128)),
                st.integers(0, num_levels - 1),
            ),
            max_size=14,
        )
    )
    spans = [
        (f"b{i}", size, first, first + length, align, level)
        for i, (size, first, length, align, level) in enumerate(shapes)
    ]
    buffers = []
    for name, size, first, last, align, level in spans:
        dying = [other for other, *_, end, _, _ in spans if end == first and other != name]
        reuse = draw(st.lists(st.sampled_from(dying), unique=True)) if dying else []
        reads = draw(st.lists(st.integers(first, last), unique=True, max_size=3)) if last > first else []
        buffers.append(Buffer(name, size, first, last, align, tuple(reuse), level, tuple(sorted(reads))))
    capacities: list[int | None] = [draw(st.integers(0, 900)) for _ in range(num_levels)]
    if not is_bounded:
        capacities[-1] = None
    levels = (MemoryLevel(f"level{i}", capacity) for i, capacity in enumerate(capacities))
    return MemoryProblem(tuple(buffers), tuple(levels))


def spilled_bytes(buffers: Sequence[Buffer], plan: MemoryPlan) -> int:
    return sum(b.size_bytes for b in buffers if plan.levels[b.name] > b.level)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", MEMORY_PLANNERS.names())
@given(problem=problems())
@settings(max_examples=60, deadline=None)
def test_where_the_outermost_level_has_no_limit_there_is_a_valid_plan(
    name: str, problem: MemoryProblem
) -> None:
    plan = MEMORY_PLANNERS.get(name).solve(problem, Budget(60))
    assert isinstance(plan, MemoryPlan)
    assert check_memory(problem, plan) == ()
    assert plan.provenance.planner == name
    if len(problem.levels) > 1:
        assert spill_bound_bytes(problem) <= spilled_bytes(problem.buffers, plan) == plan.quality.cost
    assert MEMORY_PLANNERS.get(name).solve(problem, Budget(60)) == plan


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", MEMORY_PLANNERS.names())
@given(problem=problems(is_bounded=True))
@settings(max_examples=40, deadline=None)
def test_what_fits_nowhere_names_the_outermost_level(name: str, problem: MemoryProblem) -> None:
    answer = MEMORY_PLANNERS.get(name).solve(problem, Budget(60))
    if isinstance(answer, MemoryPlan):
        assert check_memory(problem, answer) == ()
        return
    assert isinstance(answer, Infeasible)
    assert answer.level == problem.levels[-1].name
    assert answer.need > answer.capacity == problem.levels[-1].capacity_bytes
    assert answer.culprits


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["largest-size", "longest-liveness"])
@pytest.mark.parametrize("pack", PACKERS)
@given(problem=problems())
@settings(max_examples=15, deadline=None)
def test_spill_policies_work_with_every_packer_and_leave_levels_out(
    name: str, pack: str, problem: MemoryProblem
) -> None:
    without = problem.levels[0].name
    plain = MEMORY_PLANNERS.get(f"{name}{{pack={pack}}}").solve(problem, Budget(60))
    assert isinstance(plain, MemoryPlan)
    assert check_memory(problem, plain) == ()
    planner = MEMORY_PLANNERS.get(f"{name}{{pack={pack}, without={without}}}")
    plan = planner.solve(problem, Budget(60))
    if len(problem.levels) == 1:
        need = any(b.size_bytes for b in problem.buffers)
        assert isinstance(plan, Infeasible) == need
        return
    assert isinstance(plan, MemoryPlan)
    assert check_memory(problem, plan) == ()
    assert not any(b.size_bytes for b in problem.buffers if plan.levels[b.name] == 0)


def test_these_problems_do_spill_and_write_in_place() -> None:
    """Sixteen buffers in a row, four live at a time, in levels of two and one: the rest goes outside."""
    buffers = tuple(
        Buffer(f"b{i}", 64, i, i + 3, may_reuse=(f"b{i - 3}",) if i >= 3 else ()) for i in range(16)
    )
    levels = (MemoryLevel("inner", 128), MemoryLevel("middle", 64), MemoryLevel("outer"))
    problem = MemoryProblem(buffers, levels)
    for name in MEMORY_PLANNERS.names():
        plan = MEMORY_PLANNERS.get(name).solve(problem, Budget(60))
        assert isinstance(plan, MemoryPlan)
        assert check_memory(problem, plan) == ()
        assert [use.num_spilled > 0 for use in plan.uses] == [True, True, False], name
        if name != "naive":
            assert plan.in_place_of, name


def test_a_planner_that_looks_for_the_least_peak_takes_no_more_than_the_levels_above() -> None:
    """The bound of what leaves is reached where sizes are equal and nothing is fragmented."""
    buffers = tuple(Buffer(f"b{i}", 64, 0, 1) for i in range(5))
    levels = (MemoryLevel("inner", 128), MemoryLevel("middle", 64), MemoryLevel("outer"))
    problem = MemoryProblem(buffers, levels)
    for name in MEMORY_PLANNERS.names():
        plan = MEMORY_PLANNERS.get(name).solve(problem, Budget(60))
        assert isinstance(plan, MemoryPlan)
        assert plan.quality.cost == spill_bound_bytes(problem) == 3 * 64
        assert [use.num_buffers for use in plan.uses] == [2, 1, 2]
