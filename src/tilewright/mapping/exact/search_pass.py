"""One pass over all levels of a space: search states of a level, then those of the next inner one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.loops.mapping import LevelLoops, Loop, Mapping
from tilewright.mapping.exact import search_states
from tilewright.mapping.exact.space import Space

Array = np.ndarray[Any, Any]
ALL = 2**62
"""As many search states of a point as there are."""
_NUM_BEST = 32
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Question:
    """What a pass looks for: mappings of an objective below a limit, in no more cycles than the cap.

    `max_search_states` are kept of a level, and `width` of them on each tile, those that promise most.
    """

    objective: int
    limit: float
    cap_cycles: float
    max_search_states: int
    width: int = ALL


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """What one pass gives: values of mappings, the least first, and the least value that found no place.

    `mapping` puts the mapping together that has one of these values.
    """

    values: tuple[float, ...]
    mapping: Callable[[int], Mapping]
    least_lost: float
    num_search_states: int


def search(space: Space, question: Question, is_over: Callable[[], bool]) -> Found | None:
    """All mappings of a value below the limit, the best of them; None when time is over."""
    try:
        return _Pass(space, question, is_over).run()
    except _TimeOver:
        return None


class _TimeOver(Exception):
    """The caller's time is over."""


class _Pool:
    """Search states of one level."""

    def __init__(self, capacity: int, num_columns: int, num_points: int) -> None:
        self.rows = np.empty((capacity, num_columns))
        self.values = np.empty(capacity)
        self.run_dims = np.empty(capacity, np.int64)
        self.points = np.empty(capacity, np.int64)
        self.following = np.empty(capacity, np.int64)
        self.heads = np.empty(num_points, np.int64)
        self.parents = np.empty(capacity, np.int32)
        self.made_by = np.empty(capacity, np.int32)
        self.count = 0

    def clear(self) -> None:
        self.heads[:] = -1
        self.count = 0

    def put(self, row: Array, point: int) -> None:
        """The first search state."""
        self.rows[0] = row
        self.values[0] = 0.0
        self.run_dims[0], self.points[0], self.following[0] = -1, point, -1
        self.parents[0] = self.made_by[0] = -1
        self.heads[point] = 0
        self.count = 1


@dataclass(frozen=True, slots=True)
class _History:
    """How the search states of one level came to be: those below `num_entered` by a spatial choice of the
    level outside, the others by a loop from a search state of their own level."""

    num_entered: int
    parents: Array
    made_by: Array

    @classmethod
    def of(cls, pool: _Pool, num_entered: int) -> _History:
        return cls(num_entered, pool.parents[: pool.count].copy(), pool.made_by[: pool.count].copy())


class _Pass:
    def __init__(self, space: Space, question: Question, is_over: Callable[[], bool]) -> None:
        self.space, self.question, self.is_over = space, question, is_over
        counts_cycles = question.objective != search_states.ENERGY_WITHIN or question.cap_cycles < np.inf
        counts_energy = question.objective != search_states.LATENCY
        self.tables = space.tables(counts_cycles=counts_cycles, counts_energy=counts_energy)
        self.num_ports = len(self.tables[0].tail) // 2
        self.spatial, self.alike = space.choices_within(self._most_cycles())
        self.lost = np.full(1, np.inf)

    def _most_cycles(self) -> float:
        """What takes longer is not looked for."""
        limit, most = self.question.limit, self.question.cap_cycles
        match self.question.objective:
            case search_states.LATENCY:
                most = min(most, limit)
            case search_states.EDP:
                energy_pj = self.space.least(search_states.ENERGY_WITHIN)
                most = min(most, limit / energy_pj) if energy_pj > 0 else most
        return most * (1 + _ROUNDING)

    def run(self) -> Found:
        space, lattice = self.space, self.space.lattice
        columns = search_states.num_columns(
            len(space.task.problem.operands), len(space.windowed), self.num_ports
        )
        outer, inner = (
            _Pool(self.question.max_search_states, columns, len(lattice.num_tiles)) for _ in range(2)
        )
        outer.clear()
        outer.put(space.root(self.num_ports), lattice.whole)
        history: dict[int, _History] = {}
        num_search_states = 0
        for number in range(len(space.levels) - 1, 0, -1):
            entered = outer.count
            self._temporal(outer, number)
            history[number] = _History.of(outer, entered)
            num_search_states += outer.count
            self._spatial(outer, inner, number)
            outer, inner = inner, outer
        history[0] = _History.of(outer, outer.count)
        best = np.full(_NUM_BEST, np.inf)
        best_of = np.zeros((_NUM_BEST, 2), np.int64)
        num_found = self._finish(outer, best, best_of)

        def mapping(number: int) -> Mapping:
            return self._mapping(history, outer, int(best_of[number, 0]), int(best_of[number, 1]))

        values = tuple(map(float, best[:num_found]))
        return Found(values, mapping, float(self.lost[0]), num_search_states)

    def _look_at_clock(self) -> None:
        if self.is_over():
            raise _TimeOver

    def _temporal(self, pool: _Pool, number: int) -> None:
        for exponents in self.space.phases[number]:
            self._temporal_of(pool, number, exponents)

    def _temporal_of(self, pool: _Pool, number: int, exponents: Array) -> None:
        space, lattice, tables, question = self.space, self.space.lattice, self.tables[number], self.question
        todo = np.array([lattice.whole, search_states.BEGIN, 0], np.int64)
        entered = pool.count
        while todo[search_states.AT] >= 0:
            todo[search_states.WORK] = 0
            pool.count = search_states.put_temporal_loops(
                pool.rows, pool.run_dims, pool.points, pool.following, pool.heads, pool.values,
                pool.parents, pool.made_by, entered, pool.count, exponents, lattice.tiles, space.steps,
                space.commute, space.depends, space.windows, space.windowed,
                tables.facts, space.closed[number], lattice.copies, tables.totals, tables.tail, tables.rest,
                tables.rounding_pj,
                question.objective, question.limit, question.cap_cycles, question.width, self.lost, todo,
            )  # fmt: skip
            self._look_at_clock()

    def _spatial(self, outer: _Pool, inner: _Pool, number: int) -> None:
        space, lattice, tables, question = self.space, self.space.lattice, self.tables, self.question
        spatial, at_level, next_level = self.spatial[number], tables[number], tables[number - 1]
        inner.clear()
        todo = np.zeros(3, np.int64)
        while todo[search_states.AT] < outer.count:
            todo[search_states.WORK] = 0
            inner.count = search_states.put_spatial_loops(
                outer.rows, outer.points, outer.values, outer.count,
                inner.rows, inner.run_dims, inner.points, inner.following, inner.heads, inner.values,
                inner.parents, inner.made_by, inner.count,
                spatial.factors, spatial.products, spatial.weights, spatial.packed,
                lattice.packed, lattice.guards, lattice.tiles, space.fits[number - 1],
                space.depends, space.windows, space.windowed, space.task.cost_options.skips_pixels,
                space.output, next_level.entering, at_level.closing, at_level.facts, next_level.facts,
                space.closed[number - 1], lattice.volumes, lattice.num_tiles, lattice.copies,
                next_level.totals, next_level.tail, next_level.rest, at_level.given, next_level.rounding_pj,
                question.objective, question.limit, question.cap_cycles, question.width, self.lost, todo,
            )  # fmt: skip
            self._look_at_clock()

    def _finish(self, pool: _Pool, best: Array, best_of: Array) -> int:
        space, lattice, tables, question = self.space, self.space.lattice, self.tables[0], self.question
        alike = self.alike
        todo = np.zeros(3, np.int64)
        num_found = 0
        while todo[search_states.AT] < pool.count:
            todo[search_states.WORK] = 0
            num_found = search_states.finish(
                pool.rows, pool.points, pool.values, pool.count,
                alike.products, alike.together, alike.first_choices, alike.spatial.weights,
                alike.spatial.packed, lattice.packed, lattice.guards, space.left_inside,
                tables.facts, tables.totals, 2 * self.num_ports,
                question.objective, question.limit, question.cap_cycles, best, best_of, num_found, todo,
            )  # fmt: skip
            self._look_at_clock()
        return num_found

    def _mapping(self, history: dict[int, _History], last: _Pool, state: int, choice: int) -> Mapping:
        """Follow a search state back to the whole problem."""
        space = self.space
        names = list(space.task.problem.extents)

        def spatial_loops(number: int, chosen: int) -> tuple[Loop, ...]:
            factors = self.spatial[number].factors[chosen]
            return tuple(Loop(n, int(f)) for n, f in zip(names, factors, strict=True) if f > 1)

        inside = int(last.points[state] - self.spatial[0].weights[choice])
        tile = dict(zip(names, map(int, space.lattice.tiles[inside]), strict=True))
        phases = space.task.constraints.phases_at(space.levels[0].name, space.task.problem)
        rest = tuple(Loop(n, tile[n]) for dims in phases for n in dims if tile[n] > 1)
        levels = [LevelLoops(space.levels[0].name, rest, spatial_loops(0, choice))]
        chosen = int(history[0].made_by[state])
        at = int(history[0].parents[state])
        for number in range(1, len(space.levels)):
            level_history = history[number]
            temporal: list[Loop] = []  # innermost first
            while at >= level_history.num_entered:
                dim, factor, _ = space.steps[level_history.made_by[at]]
                if temporal and temporal[-1].dim == names[dim]:
                    temporal[-1] = Loop(names[dim], temporal[-1].factor * int(factor))
                else:
                    temporal.append(Loop(names[dim], int(factor)))
                at = int(level_history.parents[at])
            levels.append(
                LevelLoops(
                    space.levels[number].name, tuple(reversed(temporal)), spatial_loops(number, chosen)
                )
            )
            chosen, at = int(level_history.made_by[at]), int(level_history.parents[at])
        return Mapping(tuple(reversed(levels)))
