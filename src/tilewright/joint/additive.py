"""Shortest paths over states, where the cost of a plan is the sum of its blocks.

A block counts with its lower bound until a shortest path needs it; only then is it priced. What a state
still costs is bounded by the floors of layers that every way from it must run, so the path that is first
complete is the cheapest of the space.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from math import inf

import numpy as np

from tilewright.bit_sets import bits
from tilewright.joint.base import Block, Mask, Plan, Pricer, State
from tilewright.progress import checkpoint
from tilewright.records import dataclass

_ROUNDING = 1e-9  # of costs that are sums of floats
_WORD_BITS = 16
_WORD = (1 << _WORD_BITS) - 1
_PAGE_BITS = 16 * _WORD_BITS
_PAGE = (1 << _PAGE_BITS) - 1
_ROW = (1 << 62) - 1


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the graph to be planned: what is stored before it, and what must be behind it."""

    layers: Mask
    stored: Mask
    goal: Mask


@dataclass(slots=True)
class Found:
    """The answer of a search: no plan of the space costs less than the bound."""

    plan: Plan | None  # None: none is cheaper than what was known
    bound: float
    is_closed: bool
    num_states: int
    num_blocks: int
    num_priced: int
    costs: dict[State, float] = field(default_factory=dict)
    """The least cost of each state that was expanded."""


class Floors:
    """What a state still costs at least: floors of layers that every way to the goal runs."""

    def __init__(self, pricer: Pricer, part: Part, floors: Sequence[float]) -> None:
        self.part = part
        self.is_all_wanted = not part.layers & ~part.goal
        self.predecessors = {i: pricer.predecessors(i) for i in bits(part.layers)}
        self._floors = floors
        self._sums: dict[tuple[int, int], float] = {}
        self._known: dict[Mask, float] = {}
        self._ancestors: dict[Mask, Mask] = {}
        self.users: dict[int, Mask] = {}
        for i, before in self.predecessors.items():
            for j in bits(before):
                self.users[j] = self.users.get(j, 0) | 1 << i

    def needed(self, there: Mask) -> Mask:
        """Layers that must run: reached backwards from missing results without passing what is there."""
        found, todo = 0, self.part.goal & ~there
        if self.is_all_wanted:
            return todo
        while todo:
            low = todo & -todo
            found |= low
            todo = (todo | (self.predecessors[low.bit_length() - 1] & ~there)) & ~found
        return found

    def least(self, there: Mask) -> float:
        """The sum of their floors."""
        known = self._known.get(there)
        if known is None:
            known = self._known[there] = self._sum_of(self.needed(there))
        return known

    def _sum_of(self, layers: Mask) -> float:
        """The floors of a set, by pages of words, of which each is added up once."""
        total, first = 0.0, 0
        while layers:
            page = layers & _PAGE
            if page:
                known = self._sums.get((first, page))
                if known is None:
                    known = self._sums[first, page] = self._sum_of_page(first, page)
                total += known
            layers >>= _PAGE_BITS
            first += _PAGE_BITS
        return total

    def _sum_of_page(self, first: int, page: Mask) -> float:
        total = 0.0
        for start in range(first, first + _PAGE_BITS, _WORD_BITS):
            word = page & _WORD
            known = self._sums.get((start, word))
            if known is None:
                known = self._sums[start, word] = sum(self._floors[start + i] for i in bits(word))
            total += known
            page >>= _WORD_BITS
        return total

    def canonical(self, stored: Mask) -> Mask:
        """The stored results that may still be read, by layers upstream of what is missing, or are wanted."""
        if self.is_all_wanted:
            return stored
        missing = self.part.goal & ~stored
        upstream = self._ancestors.get(missing)
        if upstream is None:
            upstream, todo = 0, missing
            while todo:
                low = todo & -todo
                upstream |= low
                todo = (todo | self.predecessors.get(low.bit_length() - 1, 0)) & ~upstream
            self._ancestors[missing] = upstream
        useful = 0
        for i in bits(stored & self.part.layers):
            if self.users.get(i, 0) & upstream:
                useful |= 1 << i
        return useful | (stored & (self.part.goal | ~self.part.layers))


def shortest(
    pricer: Pricer,
    part: Part,
    sets: Iterable[Mask],
    below: float,
    *,
    floors: Sequence[float] | None = None,
    least_of: Callable[[Mask], float] | None = None,
    tight_least: Callable[[Block], float] | None = None,
    is_due: Callable[[], bool] = lambda: False,
    keep_costs: bool = False,
    is_once: bool = False,
) -> Found:
    """The cheapest plan of a part that costs less than `below`, of blocks that run these sets of layers.

    With `is_once` no block runs a layer whose result is stored.
    """
    has_floors = floors is not None
    floors = floors or [pricer.floor(i) for i in range(pricer.num_layers)]
    ahead = Floors(pricer, part, floors)
    start = State(ahead.canonical(part.stored))
    least_all = ahead.least(part.stored)
    slack = below - least_all
    blocks: list[Block] = []
    values: list[float] = []
    floor_sums: list[float] = []
    for number, layers in enumerate(sets):
        if number % 64 == 0 and is_due():
            return Found(None, least_all, False, 0, len(blocks), 0)
        floor_sum = sum(floors[i] for i in bits(layers))
        if least_of is not None and least_of(layers) - floor_sum >= slack:
            continue
        for block in pricer.blocks(layers):
            if block.reads & ~part.layers & ~part.stored:
                continue
            value = pricer.least(block)
            if value - floor_sum < slack and tight_least is not None:
                value = max(value, tight_least(block))
            if value - floor_sum < slack:
                blocks.append(block)
                values.append(value)
                floor_sums.append(floor_sum)
    if is_once and not has_floors:
        floors = _with_shares(floors, blocks, values, floor_sums)
        ahead = Floors(pricer, part, floors)
        floor_sums = [sum(floors[i] for i in bits(block.layers)) for block in blocks]
    search = _Search(pricer, ahead, part, blocks, values, floor_sums, below, is_once=is_once)
    return search.run(start, is_due, keep_costs=keep_costs)


def _with_shares(
    floors: Sequence[float], blocks: Sequence[Block], values: Sequence[float], floor_sums: Sequence[float]
) -> list[float]:
    """Floors of layers with their least share of what blocks that run them cost beyond these."""
    shares: dict[int, float] = {}
    for block, value, floor_sum in zip(blocks, values, floor_sums, strict=True):
        share = max(value - floor_sum, 0.0) / block.layers.bit_count()
        for layer in bits(block.layers):
            shares[layer] = min(shares.get(layer, inf), share)
    return [floor + shares.get(layer, 0.0) for layer, floor in enumerate(floors)]


class Certificate:
    """Potentials of states that prove a bound: no transition raises them by more than its block costs.

    A state that was expanded has its least cost, any other the whole cost less what it still costs at least.
    """

    def __init__(
        self, pricer: Pricer, part: Part, floors: Sequence[float], cost: float, costs: Mapping[State, float]
    ) -> None:
        self.part, self.floors, self.cost, self.costs = part, floors, cost, costs
        self._ahead = Floors(pricer, part, floors)

    def potential(self, state: State) -> float:
        """What a state has cost at least."""
        known = self.costs.get(State(self._ahead.canonical(state.stored), state.kept))
        return self.cost - self._ahead.least(state.stored | state.kept) if known is None else known


class _Search:
    """A* over states; transitions wait with their lower bounds until they come first, and are priced then."""

    def __init__(
        self,
        pricer: Pricer,
        ahead: Floors,
        part: Part,
        blocks: list[Block],
        values: list[float],
        floor_sums: list[float],
        below: float,
        *,
        is_once: bool,
    ) -> None:
        self.is_once = is_once
        self.pricer, self.ahead, self.part, self.below = pricer, ahead, part, below
        self.blocks = blocks
        self.values = np.array(values)
        self.is_priced = np.zeros(len(blocks), bool)
        self.floor_sums = np.array(floor_sums)
        place = {layer: k for k, layer in enumerate(bits(part.layers))}
        self.place = place
        self.is_in_order = part.layers == (1 << len(place)) - 1
        self.words = max(1, -(-len(place) // 62))
        self.reads = self._local([b.reads & part.layers for b in blocks])
        self.makes = self._local([b.stores for b in blocks])
        self.by_resident: dict[Mask, list[int]] = {}
        for number, block in enumerate(blocks):
            self.by_resident.setdefault(block.resident, []).append(number)
        self.groups = {kept: np.array(numbers) for kept, numbers in self.by_resident.items()}
        self.keeps_any = np.array([bool(b.keeps) for b in blocks], bool)
        self.num_priced = 0
        in_order = all(before < 1 << i for i, before in ahead.predecessors.items())
        self.is_indexed = (
            is_once and ahead.is_all_wanted and in_order and all(b.stores == b.layers for b in blocks)
        )
        self.by_first: dict[int, list[int]] = {}
        for number, block in enumerate(blocks):
            self.by_first.setdefault(next(bits(block.layers)), []).append(number)
        self.ready: dict[Mask, Mask] = {}

    def _local(self, masks: list[Mask]) -> np.ndarray:
        return np.array([self._local_words(mask) for mask in masks], np.int64).reshape(len(masks), self.words)

    def _local_words(self, mask: Mask) -> list[int]:
        if self.is_in_order:
            return [mask >> first & _ROW for first in range(0, 62 * self.words, 62)]
        words = [0] * self.words
        for layer in bits(mask & self.part.layers):
            k = self.place[layer]
            words[k // 62] |= 1 << k % 62
        return words

    def run(self, start: State, is_due: Callable[[], bool], *, keep_costs: bool) -> Found:
        blocks, values = self.blocks, self.values
        least_start = self.ahead.least(self.part.stored)
        best: dict[State, float] = {start: 0.0}
        parent: dict[State, tuple[State, int]] = {}
        closed: set[State] = set()
        count = num_visits = 0
        # (bound, tie, cost before, state before, block or -1, state)
        heap: list[tuple[float, int, float, State | None, int, State]] = [
            (least_start, 0, 0.0, None, -1, start)
        ]
        limit = self.below * (1 - _ROUNDING) if self.below < inf else inf
        while heap:
            bound, _, cost, before, number, state = heapq.heappop(heap)
            if bound >= limit:
                break
            num_visits += 1
            if is_due():
                return self._found(None, bound, best, closed, is_closed=False, keep_costs=keep_costs)
            if num_visits % 32 == 0:
                checkpoint()
            if number >= 0:
                assert before is not None
                if state in closed:
                    continue
                reached = cost + self._price(number)
                if reached >= best.get(state, inf):
                    continue
                least = reached + self.ahead.least(state.stored | state.kept)
                if least >= limit:
                    continue
                best[state] = reached
                parent[state] = (before, number)
                count += 1
                heapq.heappush(heap, (least, count, reached, None, -1, state))
                continue
            if state in closed or cost > best[state]:
                continue
            closed.add(state)
            if not self.part.goal & ~state.stored and not state.kept:
                path = []
                end = state
                while end in parent:
                    end, number = parent[end]
                    path.append(blocks[number])
                plan = Plan(cost, tuple(reversed(path)))
                return self._found(plan, cost, best, closed, is_closed=True, keep_costs=keep_costs)
            group = self._candidates(state, parent.get(state))
            if group is None:
                continue
            there = np.array(self._local_words(state.stored | state.kept), np.int64)
            ok = ~np.any(self.reads[group] & ~there, axis=1)
            ok &= self.keeps_any[group] | np.any(self.makes[group] & ~there, axis=1)
            if self.is_once:
                ok &= ~np.any(self.makes[group] & there, axis=1)
            here = self.ahead.least(state.stored | state.kept)
            ok &= cost + here + values[group] - self.floor_sums[group] < limit
            for n in group[ok]:
                number = int(n)
                raw = state.after(blocks[number])
                after = State(self.ahead.canonical(raw.stored), raw.kept)
                if after in closed:
                    continue
                reached = cost + float(values[number])
                least = reached + self.ahead.least(raw.stored | raw.kept)
                if least >= limit or reached >= best.get(after, inf):
                    continue
                count += 1
                heapq.heappush(heap, (least, count, cost, state, number, after))
        return self._found(None, self.below, best, closed, is_closed=True, keep_costs=keep_costs)

    def _candidates(self, state: State, parent: tuple[State, int] | None) -> np.ndarray | None:
        """Blocks that may run in a state, among them all that can.

        Where layers are numbered in order, what the first layer of a block reads is outside of the block, so
        that it is there if the block can run.
        """
        if not self.is_indexed:
            return self.groups.get(state.kept)
        before = None if parent is None else parent[0].stored
        ready = self.ready[state.stored] = self._ready_in(state.stored, before)
        numbers = [n for layer in bits(ready) for n in self.by_first.get(layer, ())]
        return np.array(sorted(numbers)) if numbers else None

    def _ready_in(self, stored: Mask, before: Mask | None) -> Mask:
        """Layers that are not stored while all that they read is, known of a state before."""
        predecessors, layers = self.ahead.predecessors, self.part.layers
        if before is None:
            missing, asked = 0, bits(layers & ~stored)
        else:
            new = stored & ~before
            missing = self.ready[before] & ~new
            asked = iter(
                dict.fromkeys(u for i in bits(new) for u in bits(self.ahead.users.get(i, 0) & ~stored))
            )
        for layer in asked:
            if not predecessors[layer] & layers & ~stored:
                missing |= 1 << layer
        return missing

    def _price(self, number: int) -> float:
        if not self.is_priced[number]:
            self.values[number] = self.pricer.price(self.blocks[number])
            self.is_priced[number] = True
            self.num_priced += 1
        return float(self.values[number])

    def _found(
        self,
        plan: Plan | None,
        bound: float,
        best: dict[State, float],
        closed: set[State],
        *,
        is_closed: bool,
        keep_costs: bool,
    ) -> Found:
        costs = {state: best[state] for state in closed} if keep_costs else {}
        return Found(plan, bound, is_closed, len(closed), len(self.blocks), self.num_priced, costs)
