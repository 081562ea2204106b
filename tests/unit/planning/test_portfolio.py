"""The one loop over recipes: the least cost, the first of equals, and what became of every recipe."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tilewright.errors import InfeasibleMapping, InternalError
from tilewright.planning import UNLIMITED, Budget, Meter
from tilewright.planning.portfolio import PLAIN_RECIPE, Recipe, best_of
from tilewright.progress import checkpoint, ending_with, interrupt_search

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
    def meter(num: int) -> Meter:
        return Budget(num).start()

    for num, tried in ((0, 1), (1, 1), (2, 2), (9, 4)):
        best = best_of(RECIPES, plan, COSTS.__getitem__, meter=meter(num))
        assert (len(best.attempts), best.num_untried) == (tried, 4 - tried)
    late = best_of(RECIPES[::-1], plan, COSTS.__getitem__, meter=meter(1))
    assert ([a.cost for a in late.attempts], late.num_untried) == ([None, 2.0], 2)
    more = best_of(RECIPES[:2], plan, COSTS.__getitem__, incumbent=late, meter=meter(0))
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
    told.clear()
    best_of(RECIPES[:2], plan, COSTS.__getitem__, lambda *what: told.append(what), show=str.upper)
    assert told[1] == (f"{second} (best so far: {first}, A)", 1, 2)


def test_a_plan_under_way_is_dropped_when_the_time_is_over() -> None:
    now_s = 0.0

    def clock() -> float:
        return now_s

    def slow(recipe: Recipe) -> str:
        nonlocal now_s
        for _ in range(4):
            checkpoint()
            now_s += 1.0
        return plan(recipe)

    # The first plan takes as long as it takes.
    for deadline_s, tried, dropped_s in ((1.0, 1, 4.0), (6.5, 1, 7.0), (9.0, 2, 9.0), (90.0, 4, 16.0)):
        now_s = 0.0
        meter = Budget(UNLIMITED, deadline_s).start(clock)
        with ending_with(meter):
            best = best_of(RECIPES, slow, COSTS.__getitem__, meter=meter)
        assert (len(best.attempts), best.num_untried, now_s) == (tried, 4 - tried, dropped_s)
        assert meter.cut_off is (tried < 4)


def test_recipes_that_take_a_while_to_name_end_with_the_time() -> None:
    now_s, named = 0.0, []

    def recipes() -> Iterator[Recipe]:
        nonlocal now_s
        for recipe in RECIPES:
            checkpoint()
            now_s += 1.0
            named.append(recipe)
            yield recipe

    meter = Budget(UNLIMITED, 2.5).start(lambda: now_s)
    with ending_with(meter):
        best = best_of(recipes(), plan, COSTS.__getitem__, meter=meter)
    assert (best.plan, len(best.attempts), len(named)) == ("b", 2, 3)


def test_an_interrupt_keeps_the_best_where_there_is_one() -> None:
    def interrupted(recipe: Recipe) -> str:
        if recipe == RECIPES[2]:
            raise KeyboardInterrupt
        return plan(recipe)

    meter = Budget(UNLIMITED).start(is_interruptible=True)
    best = best_of(RECIPES, interrupted, COSTS.__getitem__, meter=meter)
    assert (best.plan, best.num_untried, meter.is_interrupted) == ("b", 2, True)
    assert not meter.spend()
    for num in (2, 1):  # none was made before; or it is no search that may end so
        meter = Budget(UNLIMITED).start(is_interruptible=num == 2)
        with pytest.raises(KeyboardInterrupt):
            best_of(RECIPES[num:], interrupted, COSTS.__getitem__, meter=meter)


def test_a_signal_asks_the_search_around_to_end_at_its_next_look() -> None:
    meter = Budget(UNLIMITED).start(is_interruptible=True)
    assert not interrupt_search()
    reached = []
    with ending_with(meter):
        assert not interrupt_search()  # it has no answer
        with meter.ending_early():
            assert interrupt_search()
            reached.append("the signal returns")
            checkpoint()
            reached.append("more work")
        checkpoint()  # what is needed for the answer goes on
    assert reached == ["the signal returns"]
    assert meter.is_interrupted
    assert not interrupt_search()
    assert not Budget(UNLIMITED).start().interrupt()
