"""One problem on one machine as the search sees it: tables for each level, and one pass over all levels."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from tilewright.arrays import distinct
from tilewright.cost.bound import level_capacities
from tilewright.errors import MachineError
from tilewright.hardware.machine import Level, TensorKind
from tilewright.loops.mapping import LevelLoops, Loop, Mapping
from tilewright.mapping.base import MappingProblem
from tilewright.mapping.exact import search_states, windows
from tilewright.mapping.exact.lattice import Lattice
from tilewright.mapping.launch import has_shape

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Spatial:
    """The ways to spread a tile over the instances that one instance of a level feeds."""

    factors: Array  # int64 [choices, dims]
    weights: Array  # int64 [choices]: what they take from a point's number
    exponents: Array  # int16 [choices, steps]


@dataclass(frozen=True, slots=True)
class Found:
    """What one pass gives: mappings, the least value first, and the least value that found no free row."""

    mappings: tuple[tuple[float, Mapping], ...]
    least_lost: float
    num_search_states: int


@dataclass(slots=True)
class Space:
    """Tables of a problem and a machine. Levels are numbered from the innermost."""

    task: MappingProblem
    lattice: Lattice
    max_search_states: int
    levels: tuple[Level, ...] = field(init=False)
    depends: Array = field(init=False)
    windows: Array = field(init=False)
    windowed: Array = field(init=False)
    steps: Array = field(init=False)
    fits: list[Array] = field(init=False)
    spatial: list[Spatial] = field(init=False)

    def __post_init__(self) -> None:
        problem = self.task.problem
        self.levels = self.task.machine.levels
        names = list(problem.extents)
        self.depends = np.array([[name in o.dims() for name in names] for o in problem.operands])
        windows = []
        for number, operand in enumerate(problem.operands):
            for axis in operand.axes:
                for (a, step_a), (b, step_b) in pairwise(axis):
                    windows.append((number, names.index(a), step_a, names.index(b), step_b))
        self.windows = np.array(windows, np.int64).reshape(-1, 5)
        self.windowed = distinct(self.windows[:, 0])
        self.steps = np.array([(s.dim, s.factor, s.weight) for s in self.lattice.steps], np.int64).reshape(
            -1, 3
        )
        self.fits = [self._fits(number) for number in range(len(self.levels))]
        self.spatial = [self._spatial(number) for number in range(len(self.levels))]

    @property
    def output(self) -> int:
        """The number of the operand that is accumulated."""
        return next(i for i, o in enumerate(self.task.problem.operands) if o.kind is TensorKind.OUTPUT)

    def fan_out(self, number: int) -> int:
        """Instances of the next inner level, or compute units, that one instance of a level feeds."""
        return self.task.machine.fan_out(number)

    def keeps(self, number: int, operand: int) -> bool:
        """Whether a level holds an operand."""
        return self.task.problem.operands[operand].kind in self.levels[number].holds

    def _fits(self, number: int) -> Array:
        lattice, task = self.lattice, self.task
        fits = np.ones(len(lattice.num_tiles), np.bool_)
        for kinds, words, _ in level_capacities(task.machine, self.levels[number], task.cost_options):
            inside = [i for i, o in enumerate(task.problem.operands) if o.kind in kinds]
            if inside:
                copies = [task.problem.operands[i].copies if number == 0 else 1 for i in inside]
                fits &= np.array(copies) @ lattice.volumes[inside] <= words
        return fits

    def _spatial(self, number: int) -> Spatial:
        limit = self.fan_out(number)
        steps = self.lattice.steps
        names = list(self.task.problem.extents)
        chosen: list[tuple[int, ...]] = [()]
        for step in steps:
            chosen = [
                (*before, count)
                for before in chosen
                for count in range(step.count + 1 if self.task.may_spread(names[step.dim], number) else 1)
                if prod(s.factor**c for s, c in zip(steps, (*before, count), strict=False)) <= limit
            ]
        block = self.task.block
        if block is not None and self.levels[number].name == block.shared:
            products = (prod(s.factor**c for s, c in zip(steps, counts, strict=True)) for counts in chosen)
            chosen = [counts for counts, n in zip(chosen, products, strict=True) if has_shape(n, block)]
        factors = np.ones((len(chosen), len(self.task.problem.dims)), np.int64)
        for row, counts in enumerate(chosen):
            for step, count in zip(steps, counts, strict=True):
                factors[row, step.dim] *= step.factor**count
        order = np.argsort(-factors.prod(axis=1), kind="stable")
        exponents = np.array(chosen, np.int16).reshape(len(chosen), len(steps))[order]
        weights = exponents.astype(np.int64) @ np.array([s.weight for s in steps], np.int64)
        return Spatial(factors[order], weights, exponents)

    def facts(self, number: int, *, counts_cycles: bool = True) -> Array:
        """What a search state on this level knows of each operand; columns as `search_states` names them."""
        facts = np.zeros((len(self.task.problem.operands), search_states.NUM_FACTS))
        outermost = len(self.levels) - 1
        for t in range(len(facts)):
            is_output = t == self.output
            serving = next((n for n in range(number, outermost + 1) if self.keeps(n, t)), None)
            if serving is None:
                name = self.levels[outermost].name
                raise MachineError(
                    f"level {name}: the outermost level must hold {self.task.problem.operands[t].kind}."
                )
            inner = [n for n in reversed(range(number)) if self.keeps(n, t)]
            read_pj, write_pj = self.access_pj(serving)
            row = facts[t]
            row[search_states.SERVE_PJ] = write_pj if is_output else read_pj
            row[search_states.REDUCE_PJ] = read_pj if is_output else 0.0
            row[search_states.SERVE_BLOCK] = self.levels[serving].words_per_access
            row[search_states.SERVE_LIMIT] = self.charged(serving)
            row[search_states.HAS_NEXT] = bool(inner)
            row[search_states.TOUCHED] = self.lattice.touched[t]
            row[search_states.FED] = prod(self.fan_out(n) for n in range(number + 1))
            if inner:
                row[search_states.FILL_BLOCK] = self.levels[inner[0]].words_per_access
                row[search_states.FILL_PJ] = self.access_pj(inner[0])[1] * self.share(inner[0])
                row[search_states.TAIL_PJ] = self._tail_pj(t, inner)
            if serving == outermost and counts_cycles:
                read, written = self._cycles_of_word()
                row[search_states.READ_CYCLES] = read
                if is_output:
                    # Where both take turns, all cycles are of one kind.
                    takes_turns = self.levels[outermost].has_shared_port
                    row[search_states.READ_CYCLES if takes_turns else search_states.WRITE_CYCLES] += written
        return facts

    def _cycles_of_word(self) -> tuple[float, float]:
        """Cycles in which the outermost level reads a word, and writes one; 0 where no rate is given."""
        machine, level = self.task.machine, self.levels[-1]
        rates = machine.read_bytes_per_cycle(level), machine.write_bytes_per_cycle(level)
        read, written = (level.word_bits / 8 / rate if rate else 0.0 for rate in rates)
        return read, written

    def _tail_pj(self, operand: int, inner: list[int]) -> float:
        """The least energy of what happens within the levels inside the next one."""
        words = float(self.lattice.touched[operand])
        is_output = operand == self.output
        total = 0.0
        for outer, level in pairwise(inner):
            read_pj, write_pj = self.access_pj(outer)
            filled, served = (max(words, self.levels[n].words_per_access) for n in (level, outer))
            total += filled * self.access_pj(level)[1] * self.share(level)
            total += served * (write_pj if is_output else read_pj) * self.share(outer)
        last = inner[-1]
        read_pj, write_pj = self.access_pj(last)
        served = self.task.problem.num_macs / prod(self.fan_out(n) for n in range(last + 1))
        whole = max(served, self.levels[last].words_per_access)
        if not is_output:
            return total + whole * read_pj * self.share(last)
        # Of the reads, the first partial sum of every instance's share is spared.
        spared = words * self.task.machine.num_instances(self.levels[last])
        return total + (whole * write_pj + max(0.0, served - spared) * read_pj) * self.share(last)

    def access_pj(self, number: int) -> tuple[float, float]:
        """Energy of a word: (read, written)."""
        level = self.levels[number]
        return level.read_access_pj / level.words_per_access, level.write_access_pj / level.words_per_access

    def charged(self, number: int) -> float:
        """Instances that an access is charged for at most."""
        level = self.levels[number]
        return self.task.machine.num_instances(level) / level.num_instances_per_access

    def share(self, number: int) -> float:
        """The least share of the used instances that is charged."""
        return min(1.0, 1 / self.levels[number].num_instances_per_access)

    def rounding_pj(self, number: int) -> float:
        """The most that whole accesses of more instances cost, of all that search states on a level still
        count."""
        total = 0.0
        for t in range(len(self.task.problem.operands)):
            kept = [n for n in range(len(self.levels)) if self.keeps(n, t)]
            serving = next(n for n in kept if n >= number)
            for n in kept:
                level = self.levels[n]
                if n > serving or level.words_per_access == 1 or self.task.machine.num_instances(level) == 1:
                    continue
                access_pj = level.read_access_pj + (level.write_access_pj if t == self.output else 0.0)
                if n < serving:
                    access_pj += level.write_access_pj  # of what enters it
                total += self.charged(n) * access_pj
        return total

    def entering(self, number: int) -> Array:
        """For each operand: whether a level keeps it, and prices; columns as `search_states.enter` reads
        them."""
        _, write_pj = self.access_pj(number)
        prices = np.zeros((len(self.task.problem.operands), 3))
        for t in range(len(prices)):
            prices[t] = (self.keeps(number, t), write_pj, self.charged(number))
        return prices

    def totals(self, number: int) -> Array:
        """Multiply-accumulates, their energy, units that spatial loops of this level and inside can feed."""
        macs = self.task.problem.num_macs
        return np.array(
            [macs, macs * self.task.machine.mac_pj, prod(self.fan_out(n) for n in range(number + 1))],
            np.float64,
        )

    def root(self) -> Array:
        """The search state of the whole problem in the outermost level."""
        num_operands, num_windowed = len(self.task.problem.operands), len(self.windowed)
        row = np.ones(search_states.num_columns(num_operands, num_windowed))
        for u in range(num_windowed):
            windows.forget(row, search_states.FIRST + 3 * num_operands + u * windows.NUM_COLUMNS)
        outermost = len(self.levels) - 1
        facts = self.facts(outermost)[self.output]
        words = facts[search_states.TOUCHED]
        row[search_states.ENERGY], row[search_states.FIRST_SUMS] = 0.0, words
        row[search_states.READ] = -words * self._cycles_of_word()[0]
        row[search_states.WRITTEN] = 0.0
        return row

    def least(self, objective: int, cap_cycles: float = np.inf) -> float:
        """A lower bound before any search."""
        outermost = len(self.levels) - 1
        energy, cycles = search_states.least(
            self.root(),
            self.lattice.whole,
            self.facts(outermost),
            self.lattice.copies,
            self.totals(outermost),
        )
        return float(search_states.value(objective, energy, cycles, cap_cycles))

    def search(self, objective: int, limit: float, cap_cycles: float, end_s: float | None) -> Found | None:
        """All mappings of a value below `limit`, the best of them; None when time is up."""
        return _Pass(self, objective, limit, cap_cycles, end_s).run()


_NUM_BEST = 256


class _Pool:
    """Search states of one level."""

    def __init__(self, capacity: int, num_columns: int, num_points: int) -> None:
        self.rows = np.empty((capacity, num_columns))
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


@dataclass(frozen=True, slots=True)
class _History:
    """How the search states of one level came to be: those below `num_entered` by a spatial choice of the
    level outside, the others by a loop from a search state of their own level."""

    num_entered: int
    parents: Array
    made_by: Array


class _Pass:
    def __init__(
        self, space: Space, objective: int, limit: float, cap_cycles: float, end_s: float | None
    ) -> None:
        self.space, self.objective, self.limit, self.cap = space, objective, limit, cap_cycles
        self.end_s = end_s
        self.lost = np.inf
        self.num_search_states = 0
        # Where time costs nothing, partial mappings that differ in it only are equal.
        self.counts_cycles = objective != search_states.ENERGY_WITHIN or cap_cycles < np.inf

    def run(self) -> Found | None:
        space, lattice = self.space, self.space.lattice
        columns = search_states.num_columns(len(space.task.problem.operands), len(space.windowed))
        outer, inner = (_Pool(space.max_search_states, columns, len(lattice.num_tiles)) for _ in range(2))
        outermost = len(space.levels) - 1
        outer.clear()
        outer.rows[0] = space.root()
        outer.run_dims[0], outer.points[0], outer.following[0] = -1, lattice.whole, -1
        outer.parents[0] = outer.made_by[0] = -1
        outer.heads[lattice.whole] = 0
        outer.count = 1
        history: dict[int, _History] = {}
        for number in range(outermost, 0, -1):
            entered = outer.count
            self._temporal(outer, number)
            history[number] = _History(
                entered, outer.parents[: outer.count].copy(), outer.made_by[: outer.count].copy()
            )
            self.num_search_states += outer.count
            if self.end_s is not None and time.monotonic() > self.end_s:
                return None
            self._spatial(outer, inner, number)
            outer, inner = inner, outer
            if self.end_s is not None and time.monotonic() > self.end_s:
                return None
        history[0] = _History(
            outer.count, outer.parents[: outer.count].copy(), outer.made_by[: outer.count].copy()
        )
        spatial = space.spatial[0]
        best = np.full(_NUM_BEST, np.inf)
        best_of = np.zeros((_NUM_BEST, 2), np.int64)
        num_found = search_states.finish(
            outer.rows, outer.points, outer.count,
            spatial.factors, spatial.weights, spatial.exponents, lattice.exponents, lattice.tiles,
            space.depends, space.windows, space.output,
            space.facts(0, counts_cycles=self.counts_cycles), space.totals(0),
            self.objective, self.limit, self.cap, best, best_of,
        )  # fmt: skip
        mappings = tuple(
            (float(best[i]), self._mapping(history, outer, int(best_of[i, 0]), int(best_of[i, 1])))
            for i in range(num_found)
        )
        return Found(mappings, float(self.lost), self.num_search_states)

    def _temporal(self, pool: _Pool, number: int) -> None:
        space, lattice = self.space, self.space.lattice
        facts = space.facts(number, counts_cycles=self.counts_cycles)
        pool.count, lost = search_states.put_temporal_loops(
            pool.rows, pool.run_dims, pool.points, pool.following, pool.heads, pool.parents, pool.made_by,
            pool.count, lattice.exponents, lattice.tiles, space.steps,
            space.depends, space.windows, space.windowed,
            facts, lattice.copies, space.totals(number), space.rounding_pj(number),
            self.objective, self.limit, self.cap,
        )  # fmt: skip
        self.lost = min(self.lost, lost)

    def _spatial(self, outer: _Pool, inner: _Pool, number: int) -> None:
        space, lattice = self.space, self.space.lattice
        spatial = space.spatial[number]
        facts, inner_facts = (space.facts(n, counts_cycles=self.counts_cycles) for n in (number, number - 1))
        inner.clear()
        inner.count, lost = search_states.put_spatial_loops(
            outer.rows, outer.points, outer.count,
            inner.rows, inner.run_dims, inner.points, inner.following, inner.heads,
            inner.parents, inner.made_by,
            spatial.factors, spatial.weights, spatial.exponents, lattice.exponents, lattice.tiles,
            space.fits[number - 1], space.depends, space.windows, space.windowed,
            space.task.cost_options.skips_pixels,
            space.output, space.entering(number - 1), facts, inner_facts,
            lattice.volumes, lattice.num_tiles, lattice.copies, space.totals(number - 1),
            space.rounding_pj(number - 1), self.objective, self.limit, self.cap,
        )  # fmt: skip
        self.lost = min(self.lost, lost)

    def _mapping(self, history: dict[int, _History], last: _Pool, state: int, choice: int) -> Mapping:
        """Follow a search state back to the whole problem."""
        space = self.space
        names = list(space.task.problem.extents)

        def spatial_loops(number: int, chosen: int) -> tuple[Loop, ...]:
            factors = space.spatial[number].factors[chosen]
            return tuple(Loop(n, int(f)) for n, f in zip(names, factors, strict=True) if f > 1)

        inside = int(last.points[state] - space.spatial[0].weights[choice])
        rest = tuple(
            Loop(n, int(f)) for n, f in zip(names, space.lattice.tiles[inside], strict=True) if f > 1
        )
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
