"""The search over plans of one program: each is judged by simulating it whole.

Late acceptance (Burke and Bykov 2017): a plan is gone on from if it is no worse than the current one, or than
that of some steps ago, so that a way may lead through worse plans.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tilewright.joint.overlapped.moves import Move, Moves
from tilewright.joint.overlapped.plan import NestPlan
from tilewright.planning import Meter
from tilewright.records import dataclass

LENGTH = 20
"""Steps that a plan is compared with the one before."""
_MOST_DRAWN = 400
"""Moves in a row that are impossible, known or refused by bounds, before the search ends."""


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """A plan's cost, and the seconds for which its kernels keep the machine waiting, in the plan's order."""

    plan: NestPlan
    cost: float
    waits_s: Sequence[float]


class Judge(Protocol):
    """What prices plans: the target's simulator, on the plan as a whole."""

    def __call__(self, plan: NestPlan, most: float) -> Judged | None:
        """What a plan costs; None of one that is impossible, or seen to cost more than `most` unsimulated."""
        ...


def search(
    judge: Judge,
    moves: Moves,
    start: Judged,
    meter: Meter,
    report: Callable[[Judged, str, float], None],
    opening: Sequence[Move] = (),
    *,
    length: int = LENGTH,
) -> Judged:
    """The best plan found from one on, which is never worse; `report` is given each plan that was judged,
    what was done to get it, and the least cost so far. The plans of an `opening` are judged first."""
    best = current = start
    costs = [start.cost] * length
    seen = {start.plan}
    step = refused = 0
    is_paid = False
    first = iter(opening)
    while refused < _MOST_DRAWN:
        move = next(first, None) or moves.draw(current.plan, weights_of(current))
        if move is None or move.plan in seen:
            refused += 1
            continue
        seen.add(move.plan)
        most = max(current.cost, costs[step % length])
        if not is_paid and not meter.spend():
            break
        found = judge(move.plan, most)
        is_paid = found is None
        if found is None:
            refused += 1
            continue
        refused = 0
        if found.cost <= most:
            current = found
            if found.cost < best.cost:
                best = found
        report(found, move.what, best.cost)
        costs[step % length] = current.cost
        step += 1
    return best


def weights_of(judged: Judged) -> list[float]:
    """How likely kernels are to be changed: by what they let the machine wait, and all of them a little."""
    total = sum(judged.waits_s)
    share = 0.3 * total / max(1, len(judged.waits_s)) or 1.0
    return [wait + share for wait in judged.waits_s]
