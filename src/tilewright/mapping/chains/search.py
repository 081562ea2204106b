"""The best joint tilings of a chain, by looking at all but those that cannot be among them.

All tiles of all loops stand in arrays. For each order of the loops, depths of the intermediate values are
tried one after another, from the anchor up: sides of boxes are independent, so what a tiling holds and
computes is a product of numbers by loop. What comes from outside then has (held, read) for each depth, and
these are put together for the tilings that could still be among the best.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import permutations
from math import inf

import numpy as np
from numpy.typing import NDArray

from tilewright.mapping.chains.chain import Chain, ChainPart
from tilewright.mapping.chains.plan import (
    STREAMED,
    ChainCount,
    ChainPlan,
    Tiling,
    compulsory_words,
    count_plan,
    least_macs,
)
from tilewright.mapping.chains.tables import Counts, Grid, Retained, SideTables

_MAX_TILINGS = 1 << 18

Values = NDArray[np.float64]
ValueOf = Callable[[Counts, Counts], Values]
"""What plans are worth, the less the better, by the words they move and their multiply-accumulates."""
Key = tuple[float, int, int, int]  # the value, words moved, multiply-accumulates, steps


@dataclass(frozen=True, slots=True)
class ChainLimits:
    """What a chain may use: words on chip, whether weights stay there, and how much may be computed again.

    `recomputed` is a share of the chain's multiply-accumulates.
    """

    capacity_words: int
    keeps_weights: bool = True
    recomputed: float = 1.0


@dataclass(frozen=True, slots=True)
class RankedPlan:
    """A plan with what it moves and computes, and the value by which it was ranked."""

    plan: ChainPlan
    count: ChainCount
    value: float


@dataclass(frozen=True, slots=True)
class Ranking:
    """The best plans, the best first, no two with the same tiles; none where nothing fits.

    `is_whole` says that no plan that was left out could be among them, `is_cut_off` that time ended the
    search. No plan has a lower value than `bound`, which is infinite where none fits.
    """

    plans: tuple[RankedPlan, ...]
    bound: float
    is_whole: bool
    is_cut_off: bool
    num_tilings: int


def words_moved(moved_words: Counts, num_macs: Counts) -> Values:
    """The value of plans where only traffic past the outermost level counts."""
    del num_macs
    return moved_words.astype(np.float64)


def rank_plans(
    chain: Chain,
    limits: ChainLimits,
    deadline_s: float = 10.0,
    *,
    value_of: ValueOf = words_moved,
    num_plans: int = 1,
) -> Ranking:
    """The plans of least value; of equal ones those that move least, then those that compute least.

    `value_of` must not fall where words or multiply-accumulates grow.
    """
    grid = Grid.of([loop.extent for loop in chain.loops], _MAX_TILINGS)
    search = _Search(chain, limits, grid, value_of, num_plans, time.monotonic() + deadline_s)
    for order in permutations(range(len(chain.loops))):
        search.look_at(order)
        if search.is_over():
            break
    plans, is_whole = search.ranked(), grid.is_whole and not search.is_cut_off
    bound = search.least_key[0]
    if is_whole:
        bound = plans[0].value if plans else inf
    return Ranking(plans, bound, is_whole, search.is_cut_off, search.num_tilings)


@dataclass(frozen=True, slots=True)
class _State:
    """Tilings of the grid for which depths of the first parts are chosen.

    `held` and `num_macs` are words on chip and multiply-accumulates of those, for each tiling.
    """

    at: Counts
    held: Counts
    num_macs: Counts
    depths: tuple[int, ...]
    retained: Retained


@dataclass(frozen=True, slots=True)
class _Option:
    """A depth of a part from outside: words held and words read, for each tiling."""

    depth: int
    held: Counts
    read: Counts


class _Search:
    """The best plans so far, by their tilings' places in the grid."""

    def __init__(
        self,
        chain: Chain,
        limits: ChainLimits,
        grid: Grid,
        value_of: ValueOf,
        num_plans: int,
        end_s: float,
    ) -> None:
        self.chain, self.limits, self.grid = chain, limits, grid
        self.value_of, self.num_plans, self.end_s = value_of, num_plans, end_s
        self.tables = SideTables(chain, grid)
        self.most_macs = least_macs(chain) * (1 + limits.recomputed)
        self.num_made = sum(part.kind in ("result", "intermediate") for part in chain.parts)
        self.best: dict[int, tuple[Key, ChainPlan]] = {}
        self.worst: Key | None = None  # of the best, once there are enough of them
        self.least_key = self._key(compulsory_words(chain), least_macs(chain), 1)
        self.is_proven = self.is_cut_off = False
        self.num_tilings = 0
        self.least_held = np.stack([self._least_box(p, place) for place, p in enumerate(chain.parts)])
        # Of all parts from a place on.
        self.least_after = self.least_held[::-1].cumsum(axis=0)[::-1]
        self.fitting = np.flatnonzero(self.least_after[0] <= limits.capacity_words)

    def is_over(self) -> bool:
        """Whether nothing can be better, or time is up."""
        if not self.is_proven and time.monotonic() > self.end_s:
            self.is_cut_off = True
        return self.is_proven or self.is_cut_off

    def ranked(self) -> tuple[RankedPlan, ...]:
        """The best plans, the best first."""
        listed = sorted(self.best.values(), key=lambda entry: entry[0])
        return tuple(RankedPlan(plan, count_plan(self.chain, plan), key[0]) for key, plan in listed)

    def look_at(self, order: Sequence[int]) -> None:
        """Try all tilings with their loops in this order."""
        at = self.fitting[self.grid.is_in_order(order)[self.fitting]]
        self.num_tilings += len(at)
        if len(at) and self.worst is not None:
            everything = Retained.everything(len(order), self.num_made)
            free = self.limits.capacity_words - self.least_after[0, at] + self.least_after[self.num_made, at]
            state = _State(at, free, free, (), everything)
            moved = self._least_moved(state, self._options(order, state), free)
            at = at[self.value_of(moved, np.full(len(at), self.least_key[2])) <= self.worst[0]]
        if len(at):
            nothing = Retained.nothing(len(order))
            held = self._held(0, order, nothing, 0, at)
            num_macs = self.chain.parts[0].macs_per_word * self.chain.parts[0].num_words
            self._choose(order, _State(at, held, np.full(len(at), num_macs), (0,), nothing))

    def _least_box(self, part: ChainPart, place: int) -> Counts:
        """What steps hold of a part at least: their boxes where all is retained, or a word that streams."""
        if part.may_stream:
            return np.ones(self.grid.num_tilings, np.int64)
        if not part.is_held:
            return np.zeros(self.grid.num_tilings, np.int64)
        num_loops = len(self.grid.extents)
        everything = Retained.everything(num_loops, place)
        rows = [self.tables.of(place, loop, everything).rows for loop in range(num_loops)]
        return self.tables.still_words(place) * self.grid.product(rows)

    def _held(self, place: int, order: Sequence[int], retained: Retained, depth: int, at: Counts) -> Counts:
        """Words that wait on chip of a part that is retained from a depth inwards; see `count_parts`."""
        held = span = np.full(len(at), self.tables.still_words(place))
        for position in range(len(order) - 1, -1, -1):
            table = self.tables.of(place, order[position], retained)
            tile = self.grid.choice(order[position], at)
            kept = table.kept[tile] * (span - held) if position >= depth else 0
            held = table.rows[tile] * held + kept
            span = span * table.span[tile]
        return held

    def _fresh(self, place: int, order: Sequence[int], retained: Retained, depth: int, at: Counts) -> Counts:
        """Words of a part that all steps together make or read."""
        words = np.full(len(at), self.tables.still_words(place))
        for position, loop in enumerate(order):
            table = self.tables.of(place, loop, retained)
            numbers = table.fresh if position >= depth else table.total
            words = words * numbers[self.grid.choice(loop, at)]
        return words

    def _depths(self, place: int, order: Sequence[int], retained: Retained, at: Counts) -> list[int]:
        """Depths of a part, but for those where the outermost loop of those that retain it saves nothing."""
        depths = []
        for depth, loop in enumerate(order):
            table, tile = self.tables.of(place, loop, retained), self.grid.choice(loop, at)
            if (table.fresh[tile] != table.total[tile]).any():
                depths.append(depth)
        return [*depths, len(order)]

    def _choose(self, order: Sequence[int], state: _State) -> None:
        """Depths of the next part that is made, and of all after it."""
        place = len(state.depths)
        if not len(state.at) or self.is_over():
            return
        if place == self.num_made:
            self._close(order, state)
            return
        part, retained = self.chain.parts[place], state.retained
        available = self.limits.capacity_words - state.held
        if place + 1 < len(self.chain.parts):
            available = available - self.least_after[place + 1, state.at]
        depths = self._depths(place, order, retained, state.at) if part.is_held else [len(order)]
        for depth in depths:
            held = np.zeros(len(state.at), np.int64)
            if part.is_held:
                held = self._held(place, order, retained, depth, state.at)
            made = self._fresh(place, order, retained, depth, state.at)
            num_macs = state.num_macs + part.macs_per_word * made
            fits = (held <= available) & (num_macs <= self.most_macs)
            if part.leaves:
                fits &= made == part.num_words
            further = _State(
                state.at[fits],
                (state.held + held)[fits],
                num_macs[fits],
                (*state.depths, depth),
                retained.joined_by(place, order[depth:]) if part.is_held else retained,
            )
            self._choose(order, further)

    def _options(self, order: Sequence[int], state: _State) -> list[list[_Option]]:
        """The depths of each part from outside."""
        listed = []
        for place in range(self.num_made, len(self.chain.parts)):
            part, at, retained = self.chain.parts[place], state.at, state.retained
            options = []
            if part.may_stream:
                read = self._fresh(place, order, retained, len(order), at)
                options.append(_Option(STREAMED, np.ones(len(at), np.int64), read))
            if part.kind != "constant" or self.limits.keeps_weights:
                for depth in self._depths(place, order, retained, at):
                    held = self._held(place, order, retained, depth, at)
                    options.append(_Option(depth, held, self._fresh(place, order, retained, depth, at)))
            listed.append(options)
        return listed

    def _least_moved(self, state: _State, listed: Sequence[Sequence[_Option]], free: Counts) -> Counts:
        """Words that tilings move at least where parts from outside have so many words on chip together.

        Each has what the others leave at least; where that is too little, so many that none is chosen.
        """
        never = np.iinfo(np.int64).max >> 8
        moved = np.full(len(state.at), self.chain.written_words)
        spare = free - self.least_after[self.num_made, state.at]
        for place, options in enumerate(listed, self.num_made):
            available = spare + self.least_held[place, state.at]
            reads = [np.where(option.held <= available, option.read, never) for option in options]
            moved = np.minimum(moved + np.min(reads, axis=0), never)
        return moved

    def _close(self, order: Sequence[int], state: _State) -> None:
        """Depths of what comes from outside, for the tilings that can be among the best."""
        listed = self._options(order, state)
        free = self.limits.capacity_words - state.held
        moved = self._least_moved(state, listed, free)
        values, steps = self.value_of(moved, state.num_macs), self.grid.num_steps[state.at]
        chosen = np.flatnonzero(values < np.inf if self.worst is None else values <= self.worst[0])
        ranks = np.lexsort((steps[chosen], state.num_macs[chosen], moved[chosen], values[chosen]))
        for number in chosen[ranks]:
            least = float(values[number]), int(moved[number]), int(state.num_macs[number]), int(steps[number])
            if self.is_over() or (self.worst is not None and least >= self.worst):
                return
            self._put_together(order, state, listed, int(number), int(free[number]))

    def _put_together(
        self,
        order: Sequence[int],
        state: _State,
        listed: Sequence[Sequence[_Option]],
        number: int,
        free_words: int,
    ) -> None:
        """The least that one tiling reads: a front of (held, read, depths), part by part."""
        front: list[tuple[int, int, tuple[int, ...]]] = [(0, 0, ())]
        for options in listed:
            longer = sorted(
                (held + int(option.held[number]), read + int(option.read[number]), (*depths, option.depth))
                for held, read, depths in front
                for option in options
            )
            front = []
            for entry in longer:
                if entry[0] <= free_words and (not front or entry[1] < front[-1][1]):
                    front.append(entry)
        if front:
            _, read, depths = front[-1]
            at, num_macs = int(state.at[number]), int(state.num_macs[number])
            key = self._key(self.chain.written_words + read, num_macs, int(self.grid.num_steps[at]))
            self._take(at, key, self._plan(order, at, (*state.depths, *depths)))

    def _key(self, moved_words: int, num_macs: int, num_steps: int) -> Key:
        value = self.value_of(np.array([moved_words]), np.array([num_macs]))
        return float(value[0]), moved_words, num_macs, num_steps

    def _plan(self, order: Sequence[int], at: int, depths: Sequence[int]) -> ChainPlan:
        """The plan without loops of one step, which are the outermost."""
        tiles = self.grid.tiles(at)
        stepping = tuple(loop for loop in order if tiles[loop] < self.grid.extents[loop])
        others = len(order) - len(stepping)
        tiling = Tiling(stepping, tuple(tiles[loop] for loop in stepping))
        return ChainPlan(tiling, tuple(d if d == STREAMED else max(0, d - others) for d in depths))

    def _take(self, at: int, key: Key, plan: ChainPlan) -> None:
        if at in self.best:
            if key < self.best[at][0]:
                self.best[at] = key, plan
        elif self.worst is None or key < self.worst:
            self.best[at] = key, plan
            if len(self.best) > self.num_plans:
                del self.best[max(self.best, key=lambda place: self.best[place][0])]
        if len(self.best) == self.num_plans:
            self.worst = max(key for key, _ in self.best.values())
            self.is_proven = self.worst[:3] <= self.least_key[:3]
