"""Random tilings: the primes of every dim spread over the levels of a machine.

A tiling says how much of every dim each slot takes: a slot is the temporal or the spatial loops of a level.
Every ordered way to write an extent as a product over the slots is equally likely, as in Timeloop's space of
index factorizations. Most tilings are too big for some level, so they are drawn and tested many at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from math import comb, isinf, prod

import numpy as np
from numpy.typing import NDArray

from tilewright.cost.bound import level_capacities
from tilewright.cost.nest_analysis import evaluate
from tilewright.cost.nest_table import Encoded, Evaluator
from tilewright.cost.objective import rank
from tilewright.errors import InfeasibleMapping
from tilewright.hardware.machine import Machine
from tilewright.loops.mapping import LevelLoops, Loop, Mapping
from tilewright.loops.problem import Operand
from tilewright.mapping.base import MappingProblem
from tilewright.mapping.factors import prime_factors
from tilewright.mapping.launch import has_shape

Factors = NDArray[np.float64]
"""Factors of tilings, `[tiling, dim, slot]` or `[dim, slot]`; floats, for products beyond 64 bits."""

_TABLE_LIMIT = 50_000
_ORDERS_AT_A_TIME = 256


@dataclass(frozen=True, slots=True)
class Slot:
    """A place for loops: the temporal or the spatial ones of a level."""

    level: int  # 0 is the innermost
    is_spatial: bool


@dataclass(frozen=True, slots=True)
class Capacity:
    """Words that some tensors share at a level."""

    level: int
    operands: tuple[Operand, ...]
    words: int


class Tilings:
    """The tilings of one problem on one machine: draws them, tests them, makes mappings of them."""

    def __init__(self, problem: MappingProblem) -> None:
        self.problem = problem.problem
        self.machine = problem.machine
        self.cost_options = problem.cost_options
        self.objective = problem.objective
        self.dims = tuple(dim for dim, _ in self.problem.dims)
        self._numbers = {dim: number for number, dim in enumerate(self.dims)}
        self._orders_known: dict[tuple[str, ...], int] = {}
        self._known_rows: list[list[int]] = []
        self._row_table = np.empty((0, len(self.dims)), np.int64)
        suits = Evaluator.suits(self.problem, self.cost_options)
        self.table = Evaluator(self.problem, self.machine, self.cost_options) if suits else None
        self.slots = tuple(_slots(self.machine))
        self.capacities = tuple(capacities(problem))
        self.block = problem.block
        places = [
            np.array(
                [i for i, s in enumerate(self.slots) if not s.is_spatial or problem.may_spread(dim, s.level)]
            )
            for dim in self.dims
        ]
        self._primes = tuple(
            (row, places[row], prime, _spreads(count, len(places[row])))
            for row, (_, extent) in enumerate(self.problem.dims)
            for prime, count in prime_factors(extent)
        )

    def draw(self, random: np.random.Generator, count: int) -> Factors:
        """So many tilings, legal or not."""
        factors = np.ones((count, len(self.dims), len(self.slots)))
        for row, places, prime, spreads in self._primes:
            factors[:, row, places] *= float(prime) ** spreads.draw(random, count)
        return factors

    def legal(self, factors: Factors) -> NDArray[np.bool_]:
        """Which tilings use no more instances than there are and fit every level.

        With options that leave out skipped pixels some that do not fit pass: only the cost model counts them.
        """
        fits = np.ones(len(factors), np.bool_)
        for place, slot in enumerate(self.slots):
            if slot.is_spatial:
                asked = factors[:, :, place].prod(axis=1)
                fits &= asked <= self.machine.fan_out(slot.level)
                if self.block is not None and self.machine.levels[slot.level].name == self.block.shared:
                    fits[fits] = [has_shape(int(number), self.block) for number in asked[fits]]
        for capacity in self.capacities:
            (chosen,) = np.nonzero(fits)
            inside = sum(slot.level <= capacity.level for slot in self.slots)
            tile = factors[chosen, :, :inside].prod(axis=2)
            words = np.zeros(len(chosen))
            for operand in capacity.operands:
                copies = operand.copies if capacity.level == 0 else 1
                words += copies * self._words(operand, tile)
            fits[chosen] = words <= capacity.words
        return fits

    def _words(self, operand: Operand, tile: Factors) -> Factors:
        column = {dim: tile[:, row] for row, dim in enumerate(self.dims)}
        words = np.ones(len(tile))
        for axis in operand.axes:
            # Without skipped pixels at least this many differ: sums of progressions.
            steps = [1 if self.cost_options.skips_pixels else step for _, step in axis]
            words *= 1.0 + sum(step * (column[dim] - 1.0) for step, (dim, _) in zip(steps, axis, strict=True))
        return words

    def loops(self, factors: Factors, slot: int) -> list[str]:
        """Dims with a loop in a slot, in the problem's order."""
        return [dim for row, dim in enumerate(self.dims) if factors[row, slot] > 1]

    def temporal_slots(self) -> Iterator[tuple[int, Slot]]:
        """Slots of temporal loops with their places, innermost first."""
        return ((place, slot) for place, slot in enumerate(self.slots) if not slot.is_spatial)

    def is_order_seen(self, level: int) -> bool:
        """Whether the order of a level's temporal loops can matter: some tensor lies further in."""
        kinds = {operand.kind for operand in self.problem.operands}
        return any(kinds & set(inner.holds) for inner in self.machine.levels[:level])

    def mapping(self, factors: Factors, orders: Sequence[Sequence[str]]) -> Mapping:
        """The mapping of one tiling; `orders` lists, per level from the innermost, its loops inside out."""
        rows = {dim: row for row, dim in enumerate(self.dims)}
        temporal: dict[int, tuple[Loop, ...]] = {}
        spatial: dict[int, tuple[Loop, ...]] = {}
        for place, slot in enumerate(self.slots):
            order = self.loops(factors, place) if slot.is_spatial else orders[slot.level]
            loops = tuple(Loop(dim, int(factors[rows[dim], place])) for dim in reversed(order))
            (spatial if slot.is_spatial else temporal)[slot.level] = loops
        return Mapping(
            tuple(
                LevelLoops(self.machine.levels[number].name, temporal[number], spatial.get(number, ()))
                for number in reversed(range(len(self.machine.levels)))
            )
        )

    def ranked(
        self, factors: Factors, orders: Iterator[list[tuple[str, ...]]]
    ) -> Iterator[tuple[list[tuple[str, ...]], tuple[float, float] | None]]:
        """One tiling in many orders (see `mapping`), each with its rank by the objective; None if it does not
        fit. Orders are counted many at a time, where the cost options allow it."""
        if self.table is None:
            for order in orders:
                try:
                    cost = evaluate(
                        self.problem, self.machine, self.mapping(factors, order), self.cost_options
                    )
                except InfeasibleMapping:
                    yield order, None
                    continue
                yield order, rank(self.objective, cost.cycles, cost.energy_pj)
            return
        temporal, spatial = self._by_level(factors)
        while chunk := list(islice(orders, _ORDERS_AT_A_TIME)):
            shape = (len(chunk), *temporal.shape)
            encoded = Encoded(
                np.ascontiguousarray(np.broadcast_to(temporal, shape)),
                np.ascontiguousarray(np.broadcast_to(spatial, shape)),
                self._order_rows(chunk),
            )
            cycles, energy_pj = self.table.evaluate(encoded)
            for order, taken, energy in zip(chunk, cycles.tolist(), energy_pj.tolist(), strict=True):
                yield order, None if isinf(taken) else rank(self.objective, taken, energy)

    def _by_level(self, factors: Factors) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Temporal and spatial factors of a tiling, `[level, dim]`."""
        temporal = np.ones((len(self.machine.levels), len(self.dims)), np.int64)
        spatial = np.ones_like(temporal)
        for place, slot in enumerate(self.slots):
            (spatial if slot.is_spatial else temporal)[slot.level] = factors[:, place]
        return temporal, spatial

    def _order_rows(self, chunk: Sequence[list[tuple[str, ...]]]) -> NDArray[np.int64]:
        """Dims by number, `[mapping, level, place]`: those of each order, then those that have no loop."""
        known = self._orders_known
        for order in {level for orders in chunk for level in orders if level not in known}:
            chosen = [self._numbers[dim] for dim in order]
            known[order] = len(known)
            self._known_rows.append([*chosen, *(n for n in range(len(self.dims)) if n not in chosen)])
        numbers = np.array([[known[level] for level in orders] for orders in chunk], np.intp)
        if len(self._row_table) < len(known):
            self._row_table = np.array(self._known_rows, np.int64)
        return self._row_table[numbers]

    def everything_outermost(self) -> Mapping:
        """The mapping of the smallest tiles: all loops temporal, in the outermost level."""
        loops = tuple(Loop(dim, extent) for dim, extent in self.problem.dims if extent > 1)
        *inner, outermost = self.machine.levels
        return Mapping(
            (LevelLoops(outermost.name, loops), *(LevelLoops(level.name) for level in reversed(inner)))
        )


def capacities(problem: MappingProblem) -> Iterator[Capacity]:
    """What bounds tiles: the capacities of all levels, split as their shares say."""
    for number, level in enumerate(problem.machine.levels):
        for kinds, words, _ in level_capacities(problem.machine, level, problem.cost_options):
            inside = tuple(o for o in problem.problem.operands if o.kind in kinds)
            if inside:
                yield Capacity(number, inside, words)


def _slots(machine: Machine) -> Iterator[Slot]:
    for level in range(len(machine.levels)):
        if machine.fan_out(level) > 1:
            yield Slot(level, True)
        yield Slot(level, False)


@dataclass(frozen=True, slots=True, eq=False)
class _Spreads:
    """The ways to spread equal primes over slots; a table of all of them where that is short."""

    num_primes: int
    num_slots: int
    table: NDArray[np.int64] | None

    def draw(self, random: np.random.Generator, count: int) -> NDArray[np.int64]:
        """How many primes every slot gets, `[draw, slot]`: each way equally likely."""
        if self.table is not None:
            return self.table[random.integers(len(self.table), size=count)]
        # Bars among stars: any choice of places for the bars is one way.
        places = self.num_primes + self.num_slots - 1
        bars = random.random((count, places)).argpartition(self.num_slots - 1, axis=1)
        return _between(np.sort(bars[:, : self.num_slots - 1], axis=1), places)


def _spreads(num_primes: int, num_slots: int) -> _Spreads:
    places = num_primes + num_slots - 1
    table = None
    if comb(places, num_slots - 1) <= _TABLE_LIMIT:
        bars = np.array(list(combinations(range(places), num_slots - 1)), np.int64)
        table = _between(bars.reshape(-1, num_slots - 1), places)
    return _Spreads(num_primes, num_slots, table)


def _between(bars: NDArray[np.int64], places: int) -> NDArray[np.int64]:
    """Stars between bars, before the first and after the last."""
    edges = np.column_stack([np.full(len(bars), -1, np.int64), bars, np.full(len(bars), places, np.int64)])
    return np.diff(edges, axis=1) - 1


def num_tilings(problem: MappingProblem) -> int:
    """Size of the space of tilings, legal or not."""
    slots = len(tuple(_slots(problem.machine)))
    return prod(
        comb(count + slots - 1, slots - 1)
        for _, extent in problem.problem.dims
        for _, count in prime_factors(extent)
    )
