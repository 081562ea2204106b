"""Recipes, which say how to plan, and the one loop that takes the best of several.

A recipe is a value of the options that choose planners. What serves one target serves all: whatever makes
plans of recipes and prices them has the best of any number of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sized
from typing import Generic, TypeVar

from tilewright.errors import InternalError, TilewrightError
from tilewright.planning.budget import Meter
from tilewright.progress import Progress
from tilewright.records import dataclass

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Recipe:
    """A partitioner, a scheduler and a memory planner by name and options.

    `execution` is how the target runs the plan, as options of the target that differ from those it has.
    `splits_sums`: sums of products are cut into parts first, where their layers get cheaper.

    >>> print(Recipe("graphturbo{alpha=1.25}", "depth-first", "longest-liveness"))
    graphturbo{alpha=1.25}, depth-first, longest-liveness
    >>> print(Recipe("pcgc", "ios", "arena", splits_sums=True))
    split-sums, pcgc, ios, arena
    """

    partition: str
    schedule: str
    memory: str
    execution: str = ""
    splits_sums: bool = False

    def __str__(self) -> str:
        first = "split-sums" if self.splits_sums else ""
        return ", ".join(filter(None, (first, self.partition, self.schedule, self.memory, self.execution)))


PLAIN_RECIPE = Recipe("layerwise", "sequential", "arena")
"""What every target can run, and what nothing may be slower than."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """What was tried, and the cost of its plan, or why there is none; its recipe, if it has one."""

    what: str
    cost: float | None
    error: str = ""
    recipe: Recipe | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Best(Generic[T]):
    """The plan of least cost, the first of equals, everything that was tried, and how many recipes a budget
    left untried."""

    plan: T
    recipe: Recipe
    attempts: tuple[Attempt, ...] = ()
    num_untried: int = 0


def best_of(
    recipes: Iterable[Recipe],
    make: Callable[[Recipe], T],
    cost: Callable[[T], float],
    report: Progress | None = None,
    *,
    incumbent: Best[T] | None = None,
    meter: Meter | None = None,
    show: Callable[[T], str] | None = None,
) -> Best[T]:
    """Make and price a plan of each recipe. A recipe of which none can be made is an attempt that failed.

    Recipes are asked for one by one: what comes next may depend on the plans before.

    The `incumbent` is the best of recipes before; its attempts come first, and equals do not replace it.
    A recipe is an evaluation of the `meter`: as soon as there is a plan, the rest are left untried once that
    is spent or the user interrupts, and what is under way then is dropped. `show` says of the best plan what
    its progress tells.

    Raises:
        TilewrightError: none can be made of any; the error of the first.
    """
    best: tuple[float, T, Recipe] | None = None
    attempts: list[Attempt] = []
    if incumbent is not None:
        best = (cost(incumbent.plan), incumbent.plan, incumbent.recipe)
        attempts += incumbent.attempts
    num_untried = 0 if incumbent is None else incumbent.num_untried
    first_error: TilewrightError | None = None
    total = len(recipes) if isinstance(recipes, Sized) else 0
    is_over = False
    guard = contextlib.nullcontext if meter is None else meter.ending_early
    with contextlib.ExitStack() as listing:
        if best is not None:
            listing.enter_context(guard())
        for number, recipe in enumerate(recipes):
            if is_over or (meter is not None and not meter.spend() and best is not None):
                is_over = True
                num_untried += 1
                continue
            if report is not None and total != 1:
                shown = "" if best is None or show is None else f", {show(best[1])}"
                so_far = "" if best is None else f" (best so far: {best[2]}{shown})"
                report(f"{recipe}{so_far}", min(number, max(total - 1, 0)), total)
            is_over, is_first = True, best is None
            with contextlib.nullcontext() if is_first else guard():
                try:
                    plan = make(recipe)
                    price = cost(plan)
                except InternalError:
                    raise
                except TilewrightError as error:
                    first_error = first_error or error
                    attempts.append(Attempt(str(recipe), None, str(error), recipe))
                else:
                    attempts.append(Attempt(str(recipe), price, recipe=recipe))
                    if best is None or price < best[0]:
                        best = (price, plan, recipe)
                is_over = False
            num_untried += is_over
            if is_first and best is not None:
                listing.enter_context(guard())
    if best is None:
        assert first_error is not None
        raise first_error
    return Best(best[1], best[2], tuple(attempts), num_untried)
