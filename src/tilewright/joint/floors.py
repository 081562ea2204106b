"""The strongest floors of layers: by linear programming, over all sets of layers that a block may run.

Floors add up over layers to at most the cost of any block, so their sum bounds every plan. What a block costs
above the sum of its floors is its waste; one that wastes more than a known plan lies above the bound is in no
better plan (reduced-cost fixing). Sets count with their lower bounds; those that hold the sum down get closer
ones, and only when all of them have these, are they priced, until none of them is left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import numpy as np

from tilewright.extras import imported
from tilewright.joint.base import Block, Mask, SetPricer
from tilewright.progress import checkpoint
from tilewright.records import dataclass

_ROUNDING = 1e-9  # relative to the bound
_ROWS_A_ROUND = 100


@dataclass(frozen=True, slots=True)
class StrongFloors:
    """Floors of layers, their sum, and the sets that waste less than what is between it and a known cost."""

    floors: tuple[float, ...]
    bound: float
    unpriced_bound: float  # from lower bounds alone, so of all plans for which these hold
    sets: tuple[Mask, ...]
    num_priced: int


def strong_floors(
    pricer: SetPricer,
    sets: Sequence[Mask],
    needed: Mask,
    below: float,
    is_due: Callable[[], bool],
    *,
    with_prices: bool = True,
) -> StrongFloors | None:
    """The floors with the greatest sum over layers that must run, or with one that reaches `below`.

    When the time is over, those that are known; None if there are none.
    """
    costs = np.array([pricer.least_of(layers) for layers in sets])
    possible = np.isfinite(costs)
    sets = [s for s, ok in zip(sets, possible, strict=True) if ok]
    costs = costs[possible]
    if not sets:
        return None
    members = np.array([[s >> i & 1 for i in range(pricer.num_layers)] for s in sets], float)
    last = 2 if with_prices else 1
    known = np.zeros(len(sets), int)  # 0: a lower bound, 1: a closer one, 2: the price
    program = _Program(
        np.array([needed >> i & 1 for i in range(pricer.num_layers)]) * members.any(axis=0), below
    )
    active = np.flatnonzero(members.sum(axis=1) == 1)
    program.add(members[active], costs[active], active)
    num_priced = 0
    best: np.ndarray | None = None
    unpriced = 0.0
    is_open = True
    while is_open and not is_due():
        checkpoint()
        floors, weights = program.solve()
        waste = costs - members @ floors
        tolerance = _ROUNDING * max(float(floors.sum()), 1.0)
        violated = np.flatnonzero(waste < -tolerance)
        if len(violated):
            worst = violated[np.argsort(waste[violated], kind="stable")[:_ROWS_A_ROUND]]
            program.add(members[worst], costs[worst], worst)
            continue
        best = floors
        loose = [n for n, weight in weights.items() if weight > 1e-9 and known[n] < last]
        if known.max() < 2:
            unpriced = float(_allowed(best, members, costs).sum())
        loose = [n for n in loose if not known[n]] or loose
        is_open = bool(loose) and float(floors.sum()) < below * (1 - _ROUNDING)
        for n in loose if is_open else []:
            if is_due():
                break
            known[n] += 1
            ask = pricer.price if known[n] == 2 else pricer.tight_least
            costs[n] = max(costs[n], _least_cost(pricer, sets[n], below, ask))
            num_priced += 1
            program.change(n, costs[n])
    if best is None:
        return None
    floors = _allowed(best, members, costs)
    bound = float(floors.sum())
    kept = costs - members @ floors < below - bound + _ROUNDING * max(bound, 1.0)
    chosen = tuple(s for s, ok in zip(sets, kept, strict=True) if ok)
    return StrongFloors(tuple(map(float, floors)), bound, unpriced, chosen, num_priced)


def _allowed(floors: np.ndarray, members: np.ndarray, costs: np.ndarray) -> np.ndarray:
    """Floors lowered until every set allows them: solvers are exact to a tolerance."""
    sums = members @ floors
    share = float(np.min(np.where(sums > 0, costs / np.maximum(sums, 1e-300), inf), initial=1.0))
    return np.maximum(floors * min(share, 1.0), 0.0)


def _least_cost(pricer: SetPricer, layers: Mask, below: float, ask: Callable[[Block], float]) -> float:
    """A lower bound of all blocks that run these layers; at most `below`, above which it does not matter."""
    values = sorted((pricer.least(block), n, block) for n, block in enumerate(pricer.blocks(layers)))
    best = below
    for least, _, block in values:
        if least >= best:
            break
        best = min(best, max(least, ask(block)))
    return best


class _Program:
    """The linear program: the greatest sum of floors, a row for each set that is known to matter."""

    def __init__(self, is_counted: np.ndarray, most: float) -> None:
        self._highspy: Any = imported("highspy", "proofs of joint plans")
        self._solver = self._highspy.Highs()
        self._solver.setOptionValue("output_flag", False)
        self._solver.setOptionValue("threads", 1)
        for i, ok in enumerate(is_counted):
            self._solver.addVar(0.0, most if ok else 0.0)
            self._solver.changeColCost(i, 1.0)
        self._solver.changeObjectiveSense(self._highspy.ObjSense.kMaximize)
        self._rows: dict[int, int] = {}

    def add(self, members: np.ndarray, costs: np.ndarray, numbers: np.ndarray) -> None:
        """Rows of sets, by their numbers."""
        for row, cost, number in zip(members, costs, numbers, strict=True):
            if int(number) in self._rows:
                self.change(int(number), float(cost))
                continue
            self._rows[int(number)] = len(self._rows)
            columns = np.flatnonzero(row).astype(np.int32)
            self._solver.addRow(
                -self._highspy.kHighsInf, float(cost), len(columns), columns, np.ones(len(columns))
            )

    def change(self, number: int, cost: float) -> None:
        """A set costs more."""
        self._solver.changeRowBounds(self._rows[number], -self._highspy.kHighsInf, float(cost))

    def solve(self) -> tuple[np.ndarray, dict[int, float]]:
        """Floors, and the weight of each set in the cheapest fractional cover."""
        self._solver.run()
        solution = self._solver.getSolution()
        duals = np.abs(np.array(solution.row_dual))
        return np.array(solution.col_value), {n: float(duals[row]) for n, row in self._rows.items()}
