"""The best granularity and traversal of a subgraph: all of them estimated at once, few walked.

Ranges of one tile or one step are the whole axis, so granularities are grouped by these. Left to be walked
are sums of different lengths, and tensors of which a tile may be the same slice as one of the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from math import inf
from typing import Any, NamedTuple

import numpy as np

from tilewright.contest.estimate import NOTHING, Case, Grid, estimates, grid_of
from tilewright.contest.least import least_time
from tilewright.contest.problem import ContestProblem
from tilewright.contest.rules import walked_loads
from tilewright.contest.subgraph import Subgraph
from tilewright.contest.walk import column_snake, num_steps, row_snake, step_compute, walk

ROW_WISE, COLUMN_WISE = 0, 1

NUM_WALKED = 4
"""Granularities that are walked where the estimate is not exact and nothing has to be proven."""

MAX_WALKED_STEPS = 1 << 16
"""Tiles times steps of a subgraph above which a granularity that has to be walked is left out."""


class Tiling(NamedTuple):
    """A granularity, the direction of the snake over its tiles, and the time."""

    time: float
    granularity: tuple[int, int, int]
    direction: int

    def order(self, subgraph: Subgraph) -> tuple[int, ...]:
        """Tiles in their order."""
        w, h, _ = self.granularity
        snake = row_snake if self.direction == ROW_WISE else column_snake
        return tuple(snake(-(-subgraph.height // h), -(-subgraph.width // w)))


_ROUNDING = 1e-12  # of costs that are sums of floats

NONE = Tiling(inf, (1, 1, 1), ROW_WISE)


def best_tiling(
    problem: ContestProblem,
    subgraph: Subgraph,
    *,
    resident: frozenset[int],
    retained: frozenset[int],
    is_exhaustive: bool,
    walker: Callable[..., tuple[float, int]] = walk,
    known: dict[Any, Tiling] | None = None,
) -> Tiling:
    """The fastest granularity and direction; infinite where none fits.

    Exhaustive: over the least sides for every number of tiles and steps. Otherwise sides are halved.
    """
    key = (_structure(problem, subgraph, resident, retained), is_exhaustive)
    found = known.get(key) if known is not None else None
    if found is None:
        tensors = [x.tensor for x in subgraph.loads if x.tensor not in resident]
        case = Case.of(problem, subgraph, resident, retained)
        has_twice = len(set(tensors)) < len(tensors)
        choice = _Choice(problem, subgraph, resident, retained, has_twice, walker, {})
        found = choice.best(case, is_exhaustive=is_exhaustive)
        if known is not None:
            known[key] = found
    return found


def _structure(
    problem: ContestProblem, subgraph: Subgraph, resident: frozenset[int], retained: frozenset[int]
) -> tuple[Any, ...]:
    """All that the time depends on, whatever tensors and operators are called."""
    by_tensor: dict[int, list[tuple[int, int, int]]] = {}
    for tensor, *ranges in subgraph.loads:
        if tensor not in resident:
            by_tensor.setdefault(tensor, []).append((ranges[0], ranges[1], ranges[2]))
    loads = sorted((problem.widths[t], problem.heights[t], tuple(sorted(r))) for t, r in by_tensor.items())
    works = []
    for operator, *how in subgraph.works:
        made = problem.operators[operator]
        depth = problem.depth(operator) if made.is_product else 0
        works.append(
            (made.cost, problem.widths[made.output], problem.heights[made.output], depth, tuple(how))
        )
    num_retained = sum(t in retained for t in subgraph.sinks)
    held = sum(map(problem.size, resident)) + sum(map(problem.size, retained))
    return (
        subgraph.width, subgraph.height, subgraph.root_depths, subgraph.least_depth, len(subgraph.sinks),
        num_retained, held, tuple(loads), tuple(sorted(works)),
    )  # fmt: skip


class _Choice(NamedTuple):
    problem: ContestProblem
    subgraph: Subgraph
    resident: frozenset[int]
    retained: frozenset[int]
    has_twice: bool
    walker: Callable[..., tuple[float, int]]
    computes: dict[int, list[float]]  # of every step, by k

    def best(self, case: Case, *, is_exhaustive: bool) -> Tiling:
        best = NONE
        for only_powers in (True, False) if is_exhaustive else (True,):
            if not only_powers and best.time < inf:
                least = least_time(self.problem, self.subgraph, self.resident, self.retained)
                if best.time <= least * (1 + _ROUNDING):
                    break
            grid = grid_of(
                case.width, case.height, case.depth, case.least_depth, self.problem.native, only_powers
            )
            for part, grouped, single in self._parts(case, grid):
                best = self._best_of_grid(part, grouped, single, best, is_exhaustive=is_exhaustive)
        return best

    def _parts(self, case: Case, grid: Grid) -> Iterator[tuple[Grid, Case, tuple[bool, bool, bool]]]:
        """Granularities in groups for which ranges are the whole axis or not."""
        if not self.has_twice or not case.is_simple:
            yield grid, case, (False, False, False)
            return
        counts = (grid.columns[:, 0, 0], grid.rows[0, :, 0], grid.steps[0, 0, :])
        for single in product((True, False), (True, False), (True, False)):
            w, h, k = ((n == 1) == alone for n, alone in zip(counts, single, strict=True))
            if w.any() and h.any() and k.any():
                yield (
                    grid.part(w, h, k),
                    Case.of(self.problem, self.subgraph, self.resident, self.retained, single),
                    single,
                )

    def _best_of_grid(
        self, grid: Grid, case: Case, single: tuple[bool, bool, bool], best: Tiling, *, is_exhaustive: bool
    ) -> Tiling:
        times, fits, least = estimates(self.problem, self.subgraph, self.resident, grid, case)
        exact = fits & case.is_simple
        for meets, side, last in zip(case.meets, (grid.w, grid.h), (grid.last_w, grid.last_h), strict=True):
            if meets:
                exact = exact & (side != grid.k) & (last != grid.k)
                exact = exact & (side != grid.last_k) & (last != grid.last_k)
        if exact.any():
            ranked = np.where(exact, times, inf)
            place = int(np.argmin(ranked))
            if ranked.flat[place] < best.time:
                best = self._tiling(grid, place, float(ranked.flat[place]))
        lowest = times.min(axis=0)
        unsure = ~exact & (grid.rows * grid.columns * grid.steps <= MAX_WALKED_STEPS)
        if not unsure.any():
            return best
        if case.is_simple and not case.lone:
            unsure &= fits
        else:
            low = self._without_lone(case, single)
            low_times, low_fits, low_least = estimates(self.problem, self.subgraph, self.resident, grid, low)
            unsure &= low_fits
            if low.is_simple:
                least = np.maximum(least, np.maximum(low_least, low_times.min(axis=0)))
        unsure = unsure & ((least if is_exhaustive else lowest) < best.time * (1 - _ROUNDING))
        places = np.flatnonzero(unsure.ravel())
        ranks = np.argsort(lowest.ravel()[places], kind="stable")
        for rank in ranks if is_exhaustive else ranks[:NUM_WALKED]:
            place = int(places[rank])
            if is_exhaustive and least.flat[place] >= best.time * (1 - _ROUNDING):
                continue
            for direction in (ROW_WISE, COLUMN_WISE):
                time = self._walked(_granularity(grid, place), direction, case)
                if time < best.time * (1 - _ROUNDING):
                    best = Tiling(time, _granularity(grid, place), direction)
        return best

    def _without_lone(self, case: Case, single: tuple[bool, bool, bool]) -> Case:
        """A case that takes no longer and holds no more: without the tensors whose slices may be the same."""
        low = Case.of(self.problem, self.subgraph, self.resident, self.retained, single, case.lone)
        return low if low.is_simple else low._replace(num_roots=0, at_end=NOTHING)

    def _tiling(self, grid: Grid, place: int, time: float) -> Tiling:
        size = int(np.prod(grid.shape))
        return Tiling(time, _granularity(grid, place % size), place // size)

    def _compute(self, k: int, steps: int) -> list[float]:
        known = self.computes.get(k)
        if known is None:
            known = self.computes[k] = step_compute(self.problem, self.subgraph, k, steps)
        return known

    def _walked(self, granularity: tuple[int, int, int], direction: int, case: Case) -> float:
        w, h, k = granularity
        subgraph = self.subgraph
        rows, columns = -(-case.height // h), -(-case.width // w)
        steps = max([1, *(num_steps(d, k) for d in subgraph.root_depths)])
        num_split = sum(num_steps(d, k) > 1 for d in subgraph.root_depths)
        time, _ = self.walker(
            row_snake(rows, columns) if direction == ROW_WISE else column_snake(rows, columns),
            columns,
            granularity,
            (case.width, case.height),
            self._compute(k, steps),
            walked_loads(self.problem, subgraph, k, self.resident),
            case.stored,
            max(case.num_sinks, num_split) - case.num_retained,
            case.held,
            self.problem.capacity,
            self.problem.bandwidth,
        )
        return float(time)


def _granularity(grid: Grid, place: int) -> tuple[int, int, int]:
    i, j, m = np.unravel_index(place, grid.shape)
    return int(grid.w[i, 0, 0]), int(grid.h[0, j, 0]), int(grid.k[0, 0, m])
