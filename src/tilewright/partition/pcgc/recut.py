"""Fused clusters are cut again where the parts cost less (PCGC's Algorithm 2, corrected), or exactly.

The published algorithm tests its loop variable where it means the best mode, and leaves open what a split
costs: here the sum over its parts, each with what it writes and reads again. It is greedy. Where the atoms of
a cluster form a tree every set of edges can be cut, and the best one is found by programming over connected
subtrees (intervals, for a chain); where they do not, or the budget ends first, intervals of an order in which
they can run are tried beside the greedy answers. A bound on the secondary cost is a price on it (Lagrange).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from math import inf
from typing import Protocol, TypeVar

from tilewright.bit_sets import bits
from tilewright.partition.pcgc.pieces import FREE, Cost, Pieces

MAX_SUBTREES = 2048
"""Of one cluster; with more of them intervals are tried instead."""
MAX_INTERVAL = 24
"""Atoms of an interval beside the whole cluster: longer ones take longer to price."""
_MAX_SPLITS, _EDGES_OF_SPLIT = 12, 16
_PRICE_STEPS = 40
_ROUNDING = 1e-9
_ROOT = 0

Parts = tuple[int, ...]
"""Of a cluster, as masks of atoms."""


@dataclass(frozen=True, slots=True)
class Cutting:
    """Clusters, and the parts of each of them."""

    parts: tuple[Parts, ...]
    cost: Cost


def cost_of(pieces: Pieces, parts: Sequence[int]) -> Cost:
    """What parts cost together; infinite where one of them cannot run."""
    costs = [pieces.cost(part, is_needed=True) for part in parts]
    known = [cost for cost in costs if cost is not None]
    if len(known) < len(costs):
        return Cost(inf, inf)
    return reduce(Cost.__add__, known, FREE)


def whole(clusters: Sequence[Pieces]) -> Cutting:
    """Nothing cut: the static fusion."""
    return _cutting(clusters, [(pieces.all,) for pieces in clusters])


def apart(clusters: Sequence[Pieces]) -> Cutting:
    """All cut that may be."""
    return _cutting(clusters, [tuple(1 << i for i in range(p.num_atoms)) for p in clusters])


def _cutting(clusters: Sequence[Pieces], parts: Sequence[Parts]) -> Cutting:
    costs = [cost_of(pieces, chosen) for pieces, chosen in zip(clusters, parts, strict=True)]
    return Cutting(tuple(parts), reduce(Cost.__add__, costs, FREE))


def greedy(
    clusters: Sequence[Pieces], most: float = inf, price: float = 0.0, max_splits: int | None = None
) -> Cutting:
    """The best split of each part in turn, as long as one pays and the model's secondary cost allows it.

    As Algorithm 2: `most` is its threshold H, which a plan that is above it before a split need not meet.
    `max_splits` of a part are tried; None: all.
    """
    parts: list[list[int]] = [[] for _ in clusters]
    secondary = whole(clusters).cost.secondary
    for number in reversed(range(len(clusters))):
        pieces = clusters[number]
        work = [pieces.all]
        while work:
            part = work.pop()
            before = cost_of(pieces, [part])
            best, chosen = before.weighted(price) * (1 - _ROUNDING), None
            for split in splits_of(pieces, part, max_splits):
                cost = cost_if_known(pieces, split)
                if cost is None or cost.weighted(price) >= best:
                    continue
                after = secondary - before.secondary + cost.secondary
                if after <= most or after <= secondary:
                    best, chosen = cost.weighted(price), split
            if chosen is None:
                parts[number].append(part)
            else:
                secondary += cost_of(pieces, chosen).secondary - before.secondary
                work += chosen
    return _cutting(clusters, [tuple(sorted(p)) for p in parts])


def cost_if_known(pieces: Pieces, parts: Sequence[int]) -> Cost | None:
    """The same as `cost_of` within the budget; None beyond it, or where a part cannot run."""
    total = FREE
    for part in parts:
        cost = pieces.cost(part)
        if cost is None:
            return None
        total += cost
    return total


def splits_of(pieces: Pieces, mask: int, max_splits: int | None = None) -> Sequence[Parts]:
    """Each way to take a part in two at an edge, by the atoms of the first; what then no longer hangs
    together is apart.

    Either what follows from the reader is one side, or what the producer follows from. Of neighbours, where
    there are more than `max_splits`, those stay between whose sides least passes.
    """
    key = mask, max_splits
    if key not in pieces.known_splits:
        pieces.known_splits[key] = _splits_of(pieces, mask, max_splits)
    return pieces.known_splits[key]


def _splits_of(pieces: Pieces, mask: int, max_splits: int | None) -> Sequence[Parts]:
    found: dict[Parts, tuple[int, int]] = {}
    edges = [(u, v) for u, v in pieces.edges if mask >> u & 1 and mask >> v & 1]
    if max_splits is not None:
        # Of very many edges a few from everywhere: to look at each would take longer than to price some.
        edges = edges[:: -(-len(edges) // (_EDGES_OF_SPLIT * max_splits)) or 1]
    for u, v in edges:
        behind, before = pieces.behind(v, mask), pieces.before(u, mask)
        for first in (mask & ~behind, before):
            rest = mask & ~first
            split = (*pieces.components(first), *pieces.components(rest))
            if split not in found:
                found[split] = first.bit_count(), pieces.crossing_bytes(first, rest)
    splits = sorted(found, key=found.__getitem__)
    if max_splits is None or len(splits) <= max_splits:
        return splits
    bounds = [len(splits) * i // max_splits for i in range(max_splits + 1)]
    near = (splits[start:stop] for start, stop in pairwise(bounds))
    return [min(some, key=lambda split: found[split][1]) for some in near]


@dataclass(frozen=True, slots=True)
class _Choice:
    """A part that begins at a root, its cost, and the roots of what remains beside it."""

    mask: int
    cost: Cost
    rest: tuple[int, ...]


class Program:
    """All ways to cut a cluster that are programmed over, by the root at which a part begins."""

    def __init__(self, pieces: Pieces) -> None:
        self.pieces = pieces
        listed = _subtrees(pieces) if pieces.is_tree else None
        self.is_exact = listed is not None
        self.listed = _intervals(pieces) if listed is None else listed
        self.choices: dict[int, list[_Choice]] = {root: [] for root in sorted(self.listed, reverse=True)}

    def price(self, size: int) -> None:
        """Ask what parts of so many atoms cost, as far as the budget goes."""
        for root, listed in self.listed.items():
            for mask, rest in listed:
                if mask.bit_count() == size:
                    cost = self.pieces.cost(mask, is_needed=size == 1)
                    if cost is None:
                        self.is_exact = False
                    else:
                        self.choices[root].append(_Choice(mask, cost, rest))

    def solve(self, price: float) -> tuple[Parts, Cost]:
        """The parts that cost least at a price of the secondary cost."""
        best: dict[int, tuple[Cost, _Choice]] = {}
        for root in self.choices:
            options: list[tuple[Cost, _Choice]] = []
            for choice in self.choices[root]:
                cost = reduce(Cost.__add__, (best[r][0] for r in choice.rest if r in best), choice.cost)
                if all(r in best for r in choice.rest):
                    options.append((cost, choice))
            if options:
                best[root] = min(options, key=lambda option: option[0].rank(price))
        if _ROOT not in best:
            return (self.pieces.all,), Cost(inf, inf)
        parts: list[int] = []
        waiting = [_ROOT]
        while waiting:
            choice = best[waiting.pop()][1]
            parts.append(choice.mask)
            waiting += choice.rest
        return tuple(sorted(parts)), best[_ROOT][0]


def _subtrees(pieces: Pieces) -> dict[int, list[tuple[int, tuple[int, ...]]]] | None:
    """By atom, the connected parts whose topmost atom it is in a tree that hangs from atom 0, and the atoms
    below it that then begin other parts; None where these are too many. Atoms are renamed so that children
    have larger numbers than their parents: by breadth first."""
    parents = {0: -1}
    order = [0]
    for atom in order:
        for other in bits(pieces.successors[atom] | pieces.predecessors[atom]):
            if other not in parents:
                parents[other] = atom
                order.append(other)
    place = {atom: i for i, atom in enumerate(order)}
    found: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
    num_found = 0
    for atom in reversed(order):
        options: list[tuple[int, tuple[int, ...]]] = [(1 << atom, ())]
        for child in (c for c in order if parents[c] == atom):
            below = [(0, (place[child],)), *found[place[child]]]
            if len(options) * len(below) > MAX_SUBTREES:
                return None
            options = [(mask | m, rest + r) for mask, rest in options for m, r in below]
        found[place[atom]] = options
        num_found += len(options)
        if num_found > MAX_SUBTREES:
            return None
    return found


def _intervals(pieces: Pieces) -> dict[int, list[tuple[int, tuple[int, ...]]]]:
    """By first atom, the intervals of atoms in their order that hang together, and where the next begins."""
    found: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
    last = pieces.num_atoms
    for first in range(last):
        stops = [stop for stop in range(first + 1, last + 1) if stop - first <= MAX_INTERVAL]
        if first == 0 and last not in stops:
            stops.append(last)
        options: list[tuple[int, tuple[int, ...]]] = []
        for stop in stops:
            mask = (1 << stop) - (1 << first)
            if sum(1 for _ in pieces.components(mask)) == 1:
                options.append((mask, (stop,) if stop < last else ()))
        found[first] = options
    return found


class Exact:
    """The best parts of all clusters at any price of the secondary cost."""

    def __init__(self, clusters: Sequence[Pieces]) -> None:
        self.clusters = clusters
        self.programs = [Program(pieces) for pieces in clusters]
        for price in (0.0, inf):
            self._greedy(price, _MAX_SPLITS)
        # What costs least to ask comes first: a budget that ends leaves out large parts.
        for size in range(1, 1 + max((pieces.num_atoms for pieces in clusters), default=0)):
            for program in self.programs:
                program.price(size)

    @property
    def is_exact(self) -> bool:
        """Whether nothing that may be cut costs less."""
        return all(program.is_exact for program in self.programs)

    def at(self, price: float) -> Cutting:
        """The best at a price: where a cluster is not programmed exactly, of intervals and greedy answers."""
        others = [self._greedy(price, max_splits) for max_splits in (_MAX_SPLITS, None)]
        parts: list[Parts] = []
        total = FREE
        for number, program in enumerate(self.programs):
            chosen, cost = program.solve(price)
            for other in (greedy_parts[number] for greedy_parts in others if number in greedy_parts):
                other_cost = cost_of(program.pieces, other)
                if other_cost.rank(price) < cost.rank(price):
                    chosen, cost = other, other_cost
            parts.append(chosen)
            total += cost
        return Cutting(tuple(parts), total)

    def _greedy(self, price: float, max_splits: int | None) -> Mapping[int, Parts]:
        """The greedy answer for those clusters that are not programmed exactly, by their numbers."""
        numbers = [number for number, program in enumerate(self.programs) if not program.is_exact]
        cut = greedy([self.clusters[n] for n in numbers], price=price, max_splits=max_splits)
        return dict(zip(numbers, cut.parts, strict=True))

    def within(self, most: float) -> Cutting | None:
        """The cheapest found whose secondary cost is at most so much; None where the least is more.

        The price of the secondary cost is searched; what lies between two prices is not seen, as of any
        bound by Lagrange's.
        """
        return cheapest_within(self.at, most)


class Costed(Protocol):
    """What has a cost."""

    @property
    def cost(self) -> Cost:
        """The cost."""
        ...


C = TypeVar("C", bound=Costed)


def cheapest_within(at: Callable[[float], C], most: float) -> C | None:
    """The cheapest answer at any price of the secondary cost that keeps to a bound on it; None: none does."""
    free = at(0.0)
    if free.cost.secondary <= most:
        return free
    best = at(inf)
    if best.cost.secondary > most:
        return None
    low, high = 0.0, 1.0
    while high < _HIGHEST_PRICE and at(high).cost.secondary > most:
        low, high = high, high * 16
    for _ in range(_PRICE_STEPS):
        middle = (low + high) / 2
        answer = at(middle)
        if answer.cost.secondary <= most:
            high = middle
            best = min(best, answer, key=lambda cutting: cutting.cost.target)
        else:
            low = middle
    return best


_HIGHEST_PRICE = 1e18


def frontier(at: Callable[[float], C], most_points: int = 64) -> tuple[C, ...]:
    """The answers that are best at some price, from the least target on: the frontier's convex hull."""
    first, last = at(0.0), at(inf)
    corners = {first.cost: first}
    waiting = [(first, last)]
    if last.cost.secondary < first.cost.secondary:
        corners[last.cost] = last
    while waiting and len(corners) < most_points:
        cheap, dear = waiting.pop()
        saved = cheap.cost.secondary - dear.cost.secondary
        if saved <= 0:
            continue
        price = (dear.cost.target - cheap.cost.target) / saved
        middle = at(price)
        is_below = middle.cost.weighted(price) < cheap.cost.weighted(price) * (1 - _ROUNDING)
        if middle.cost not in corners and is_below:
            corners[middle.cost] = middle
            waiting += [(cheap, middle), (middle, dear)]
    return tuple(sorted(corners.values(), key=lambda cutting: cutting.cost.target))
