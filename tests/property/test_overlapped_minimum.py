"""The search over plans of one program against all plans of a small space: it reaches the least, or finds
less, as its own space is larger, and no bound is above it."""

from __future__ import annotations

import pytest
from tests.support.one_program import ROUNDING, found


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", [2, 8, 9])
def test_the_search_reaches_the_least_of_all_plans_and_no_bound_is_above_it(seed: int) -> None:
    case = found(seed, most=3, trials=30)
    assert case.bound <= case.least * ROUNDING
    assert case.is_least


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(100, 200))
def test_no_bound_is_above_the_least_of_all_plans(seed: int) -> None:
    case = found(seed, most=3, trials=20)
    assert case.bound <= case.least * ROUNDING


@pytest.mark.slow
def test_the_search_reaches_the_least_of_all_plans_nearly_always() -> None:
    cases = [found(seed, most=5, trials=60) for seed in range(500)]
    assert all(case.bound <= case.least * ROUNDING for case in cases)
    assert sum(case.is_least for case in cases) >= 475
