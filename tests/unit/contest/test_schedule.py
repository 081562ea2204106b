"""Graphs of the contest that no schedule runs, and those whose tiles are many."""

from __future__ import annotations

from typing import Any

import pytest

from tilewright.contest.problem import parse_problem
from tilewright.contest.rules import Step, latencies_of
from tilewright.contest.schedule import schedule_problem
from tilewright.errors import InfeasibleMapping
from tilewright.planning import Budget


def square(side: int, capacity: int, **changes: Any) -> dict[str, Any]:
    """A square tensor multiplied by itself."""
    return {
        "widths": [side] * 2,
        "heights": [side] * 2,
        "inputs": [[0, 0]],
        "outputs": [[1]],
        "base_costs": [100],
        "op_types": ["MatMul"],
        "fast_memory_capacity": capacity,
        "slow_memory_bandwidth": 10,
        "native_granularity": [32, 32],
    } | changes


@pytest.mark.parametrize("capacity", [1, 2])
def test_a_memory_that_holds_no_tile_is_named(capacity: int) -> None:
    problem = parse_problem(square(8, capacity), "small")
    with pytest.raises(
        InfeasibleMapping, match=f"operator 0 fits 'fast_memory_capacity' = {capacity} with at most"
    ):
        schedule_problem(problem, Budget.parse("5trials"))


def test_a_memory_that_holds_single_elements_is_enough() -> None:
    schedule = schedule_problem(parse_problem(square(8, 3), "small"), Budget.parse("5trials"))
    assert schedule.schedule[0].granularity == (1, 1, 1)


def test_long_walks_in_machine_code_take_what_the_interpreted_ones_do() -> None:
    """Above and below the number of steps from which a walk is compiled."""
    pytest.importorskip("numba")
    from tilewright.contest import walker
    from tilewright.contest.walk import walk

    problem = parse_problem(square(33, 5_000, native_granularity=[2, 2]), "many tiles")
    steps = [Step((0,), (2, 2, 2))]
    assert walker.MAX_INTERPRETED < 17**3
    compiled = latencies_of(problem, steps)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(walker, "compiled", walk)
        assert latencies_of(problem, steps) == compiled
