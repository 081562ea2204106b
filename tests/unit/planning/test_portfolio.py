"""The one loop over recipes: the least cost, the first of equals, and what became of every recipe."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tilewright.errors import InfeasibleMapping, InternalError
from tilewright.planning import Budget
from tilewright.planning.portfolio import PLAIN_RECIPE, Recipe, best_of

RECIPES = tuple(Recipe(name, "sequential", "arena") for name in ("a", "b", "c", "d"))
COSTS = {"a": 3.0, "b": 2.0, "c": 2.0}


def plan(recipe: Recipe) -> str:
    if recipe.partition not in COSTS:
        raise InfeasibleMapping(f"{recipe.partition} does not fit.")
    return recipe.partition


def test_the_least_cost_wins_and_the_first_of_equals() -> None:
    best = best_of(RECIPES, plan, COSTS.__getitem__)
    assert (best.plan, best.recipe) == ("b", RECIPES[1])
    assert [attempt.cost for attempt in best.attempts] == [3.0, 2.0, 2.0, None]
    assert best.attempts[3].error == "d does not fit."


def test_an_incumbent_is_replaced_only_by_less_and_never_planned_again() -> None:
    planned: list[str] = []

    def counted(recipe: Recipe) -> str:
        planned.append(recipe.partition)
        return plan(recipe)

    first = best_of(RECIPES[:2], counted, COSTS.__getitem__)
    second = best_of(RECIPES[2:], counted, COSTS.__getitem__, incumbent=first)
    assert (second.plan, planned) == ("b", ["a", "b", "c", "d"])
    assert [attempt.what for attempt in second.attempts] == [str(recipe) for recipe in RECIPES]
    assert best_of((), counted, COSTS.__getitem__, incumbent=first).plan == "b"


def test_a_budget_leaves_recipes_untried_once_there_is_a_plan() -> None:
    def spend(num: int) -> Callable[[], bool]:
        return Budget(num).start().spend

    for num, tried in ((0, 1), (1, 1), (2, 2), (9, 4)):
        best = best_of(RECIPES, plan, COSTS.__getitem__, spend=spend(num))
        assert (len(best.attempts), best.num_untried) == (tried, 4 - tried)
    late = best_of(RECIPES[::-1], plan, COSTS.__getitem__, spend=spend(1))
    assert ([a.cost for a in late.attempts], late.num_untried) == ([None, 2.0], 2)
    more = best_of(RECIPES[:2], plan, COSTS.__getitem__, incumbent=late, spend=spend(0))
    assert (more.plan, more.num_untried) == (late.plan, 4)


def test_without_any_plan_the_first_error_is_told() -> None:
    with pytest.raises(InfeasibleMapping, match="d does not fit"):
        best_of(RECIPES[3:], plan, COSTS.__getitem__)


def test_a_fault_of_ours_is_no_attempt() -> None:
    def wrong(recipe: Recipe) -> str:
        raise InternalError("a bound is above a cost")

    with pytest.raises(InternalError, match="above a cost"):
        best_of((PLAIN_RECIPE,), wrong, COSTS.__getitem__)


def test_progress_is_told_where_there_is_a_choice() -> None:
    told: list[tuple[str, int, int]] = []
    best_of(RECIPES[:1], plan, COSTS.__getitem__, lambda *what: told.append(what))
    assert told == []
    best_of(RECIPES[:2], plan, COSTS.__getitem__, lambda *what: told.append(what))
    first, second = map(str, RECIPES[:2])
    assert told == [(first, 0, 2), (f"{second} (best so far: {first})", 1, 2)]
