"""The search over plans of one program: each is judged by simulating it whole.

Late acceptance (Burke and Bykov 2017): a plan is gone on from if it is no worse than the current one, or than
that of some steps ago, so that a way may lead through worse plans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from tilewright.joint.overlapped.moves import Beginning, Moves
from tilewright.joint.overlapped.plan import NestPlan
from tilewright.planning import Meter
from tilewright.records import dataclass

LENGTH = 20
"""Steps that a plan is compared with the one before."""
_FIRST_WORSE = 1.03
"""How much worse than its best plan a way may become, at most: behind an opening, and behind a better one."""
_MUCH_BETTER = 0.99
"""What a plan of other planners costs at most of the best one before it, if an opening is taken again."""
_MOST_BETWEEN = 4
"""Steps between two plans of other planners, at most."""
_MOST_DRAWN = 400
"""Moves in a row that are impossible, known or refused by bounds, before the next plan of other planners
comes, and where there is none, before the search ends."""


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """A plan's cost, and the seconds of the busiest unit that its kernels lose, in the plan's order.

    `is_known`: it runs as one before, whose cost this is. `num_runs` is how often units run, which a check of
    the plan takes time for.
    """

    plan: NestPlan
    cost: float
    losses_s: Sequence[float]
    is_known: bool = False
    num_runs: int = 0


class Judge(Protocol):
    """What prices plans: the target's simulator, on the plan as a whole."""

    def __call__(self, plan: NestPlan, most: float) -> Judged | None:
        """What a plan costs; None of one that is impossible, or seen to cost more than `most` unsimulated."""
        ...


@dataclass(slots=True, eq=False)
class _Walk:
    """A way of the search: where it is, its best plan, what late acceptance compares with, the steps of its
    opening that are left, and how many trials ago its best plan was found."""

    current: Judged
    best: Judged
    costs: list[float]
    first: Iterator[Beginning]
    is_opening: bool = True
    num_since: int = 0

    @classmethod
    def of(cls, start: Judged, opening: Sequence[Beginning], length: int) -> _Walk:
        """The one from a plan on."""
        return cls(start, start, [start.cost] * length, iter(opening))


def search(
    judge: Judge,
    moves: Moves,
    start: Judged,
    meter: Meter,
    report: Callable[[Judged, str, float], None],
    opening: Sequence[Beginning] = (),
    *,
    beginning: Sequence[Beginning] | None = None,
    second: Callable[[], Judged | None] = lambda: None,
    length: int = LENGTH,
    seen: set[NestPlan] | None = None,
) -> Judged:
    """The best plan found from one on, which is never worse; `report` is given each plan that was judged,
    what was done to get it, and the least cost so far. Plans that were `seen`, to which this search adds its
    own, are not tried again.

    The steps of an `opening` are taken first, from the start on those of a `beginning` in place of it; the
    search goes on from the best plan of them, at first through plans that are a little worse. Plans of other
    planners are tried in between: after one that was much better the opening's steps from there, after any
    that was better the next one, else after twice as many steps as before.
    Where `length` trials in a row found no better plan, it goes on from a `second` start in the same way if
    there is one, and from then on with the two in turns, each as long as it gains."""
    walk, best = _Walk.of(start, opening if beginning is None else beginning, length), start
    waiting: _Walk | None = None
    is_alone = False
    seen = set() if seen is None else seen
    seen.add(start.plan)
    step = refused = 0
    is_paid = False
    due, between = 0, 1
    while True:
        is_stuck = refused >= _MOST_DRAWN
        if not is_alone and not walk.is_opening and (walk.num_since >= length or is_stuck):
            if waiting is None and (found := second()) is not None:
                waiting = _Walk.of(found, opening, length)
            is_alone = waiting is None or is_stuck
            if waiting is not None:
                walk, waiting, refused = waiting, walk, 0
                walk.num_since, is_stuck = 0, False
        first, other = next(walk.first, None), None
        if first is None and walk.is_opening:
            walk.is_opening, walk.current = False, walk.best
            walk.costs = [_FIRST_WORSE * walk.best.cost] * length
        if first is None and (step >= due or is_stuck):
            other = moves.another(walk.best.plan)
            if other is None and is_stuck:
                break
        current, costs = walk.current, walk.costs
        move = other or (first(walk.best.plan) if first else moves.draw(current.plan, weights_of(current)))
        if move is None or move.plan in seen:
            refused += 1
            continue
        most = max(current.cost, costs[step % length])
        if not is_paid and not meter.spend():
            break
        seen.add(move.plan)
        found = judge(move.plan, most)
        is_paid = found is None or found.is_known
        if other is not None and (found is None or not is_paid):  # else the next one comes at once
            due, between = step + between, min(2 * between, _MOST_BETWEEN)
        refused = refused + 1 if is_paid else 0
        walk.num_since += not is_paid
        if found is None:
            continue
        if found.cost <= most:
            walk.current = found
            if found.cost < walk.best.cost:
                is_much = found.cost <= _MUCH_BETTER * walk.best.cost
                walk.best, walk.num_since = found, 0
                costs[:] = [min(cost, _FIRST_WORSE * found.cost) for cost in costs]
                best = min(best, found, key=lambda judged: judged.cost)
                if other is not None:
                    due, between = step + 1, 1
                    if is_much:
                        walk.first, walk.is_opening = iter(opening), True
        if found.is_known:
            continue
        report(found, move.what, best.cost)
        costs[step % length] = walk.current.cost
        step += 1
    return best


def weights_of(judged: Judged) -> list[float]:
    """How likely kernels are to be changed: by what they lose of the time, and all of them a little."""
    total = sum(judged.losses_s)
    share = 0.3 * total / max(1, len(judged.losses_s)) or 1.0
    return [loss + share for loss in judged.losses_s]
