"""The best joint tiling of a chain, by looking at all but those that cannot be better.

For each tiling and order of its loops, depths of the intermediate values are tried one after another, from
the anchor up; what comes from outside then has a front of (held, read) each, and these are put together. A
tiling is dropped where its smallest boxes do not fit, or where no part can read little enough.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations, product
from math import prod

from tilewright.mapping.chains.chain import Chain, Part
from tilewright.mapping.chains.plan import (
    STREAMED,
    ChainCount,
    ChainPlan,
    PartCount,
    Tiling,
    compulsory_words,
    count_part,
    count_result,
    least_macs,
    needed_sides,
    total_count,
)
from tilewright.mapping.chains.sides import Side
from tilewright.mapping.factors import divisors

_ALL_TILES_UP_TO = 16  # of longer loops only tiles that divide them


@dataclass(frozen=True, slots=True)
class ChainLimits:
    """What a chain may use: words on chip, whether weights stay there, and how much may be computed again.

    `recomputed` is a share of the chain's multiply-accumulates.
    """

    capacity_words: int
    keeps_weights: bool = True
    recomputed: float = 1.0


@dataclass(frozen=True, slots=True)
class BestPlan:
    """The best plan that a search met; `is_whole` if it looked at the whole space."""

    plan: ChainPlan
    count: ChainCount
    is_whole: bool
    num_tilings: int


Key = tuple[int, int]  # words moved, multiply-accumulates


def best_plan(chain: Chain, limits: ChainLimits, deadline_s: float = 10.0) -> BestPlan | None:
    """The plan that moves least, of equal ones that which computes least; None where nothing fits."""
    search = _Search(chain, limits)
    end = time.monotonic() + deadline_s
    is_whole, number = True, 0
    for tiling in _tilings(search):
        number += 1
        search.look_at(tiling)
        if search.is_least():
            break
        if time.monotonic() > end:
            is_whole = False
            break
    if search.best is None:
        return None
    _, plan, count = search.best
    return BestPlan(plan, count, is_whole, number)


def tile_sizes(extent: int) -> list[int]:
    """Tiles that are tried of a loop: all of a short one, of a long one those that divide it."""
    return list(range(1, extent + 1)) if extent <= _ALL_TILES_UP_TO else divisors(extent)


def _tilings(search: _Search) -> Iterator[Tiling]:
    """Those whose smallest boxes fit, with fewer steps first; then every order of the loops that step."""
    extents = [loop.extent for loop in search.chain.loops]
    choices = sorted(
        product(*map(tile_sizes, extents)),
        key=lambda tiles: prod(-(-e // t) for e, t in zip(extents, tiles, strict=True)),
    )
    for tiles in choices:
        stepping = [i for i, extent in enumerate(extents) if tiles[i] < extent]
        tiling = Tiling(tuple(stepping), tuple(tiles[i] for i in stepping))
        if not search.may_fit(tiling):
            continue
        for order in permutations(stepping):
            yield Tiling(order, tuple(tiles[i] for i in order))


class _Search:
    """The best of the tilings that were looked at."""

    def __init__(self, chain: Chain, limits: ChainLimits) -> None:
        self.chain, self.limits = chain, limits
        self.least = compulsory_words(chain), least_macs(chain)
        self.most_macs = int(self.least[1] * (1 + limits.recomputed))
        self.best: tuple[Key, ChainPlan, ChainCount] | None = None
        kinds = [part.kind for part in chain.parts]
        self.num_made = sum(kind in ("result", "intermediate") for kind in kinds)

    def is_least(self) -> bool:
        """Whether nothing can be better: what must be moved is moved once, and nothing computed twice."""
        return self.best is not None and self.best[0] <= self.least

    def may_fit(self, tiling: Tiling) -> bool:
        """Whether the boxes of one step fit where everything is retained: no order has smaller ones."""
        counts = self._all_retained(tiling)
        held = sum(
            self._least_held(part, tiling, count)
            for part, count in zip(self.chain.parts, counts, strict=True)
        )
        return held <= self.limits.capacity_words

    def look_at(self, tiling: Tiling) -> None:
        """Try all depths of a tiling."""
        if self.best is not None and self._least_moved(tiling) > self.best[0][0]:
            return
        self._choose(tiling, [count_result(self.chain, tiling)], [0])

    def _all_retained(self, tiling: Tiling) -> list[PartCount]:
        counts = [count_result(self.chain, tiling)]
        for part in self.chain.parts[1:]:
            counts.append(count_part(part, tiling, needed_sides(self.chain, part, tiling, counts), 0))
        return counts

    def _least_held(self, part: Part, tiling: Tiling, count: PartCount) -> int:
        if part.may_stream:
            return int(part.kind != "constant" or self.limits.keeps_weights)
        rows = prod(side.rows for side in count.needed)
        return rows * part.num_still_words(tiling.order) if part.is_held else 0

    def _least_moved(self, tiling: Tiling) -> int:
        """No depths of a tiling move less: each part from outside with all that the others leave at least."""
        counts = self._all_retained(tiling)
        least = [
            self._least_held(part, tiling, count)
            for part, count in zip(self.chain.parts, counts, strict=True)
        ]
        moved = self.chain.parts[0].num_words
        for part, count, least_of_part in zip(self.chain.parts, counts, least, strict=True):
            if part.kind in ("input", "constant"):
                free = self.limits.capacity_words - sum(least) + least_of_part
                words = [
                    o.fresh_words
                    for _, o in self._options(part, tiling, count.needed)
                    if o.held_words <= free
                ]
                moved += min(words, default=part.num_words)
        return moved

    def _options(self, part: Part, tiling: Tiling, needed: tuple[Side, ...]) -> list[tuple[int, PartCount]]:
        """Depths of a part that differ in what they hold or make, each with its count."""
        depths: Sequence[int] = range(len(needed) + 1) if part.is_held else (len(needed),)
        is_kept = part.kind != "constant" or self.limits.keeps_weights
        if part.may_stream:
            depths = (STREAMED, *depths) if is_kept else (STREAMED,)
        options: dict[tuple[Side, ...], tuple[int, PartCount]] = {}
        for depth in depths:
            count = count_part(part, tiling, needed, depth)
            if not is_kept:
                count = replace(count, held_words=0)
            known = options.get(count.fresh)
            if known is None or count.held_words < known[1].held_words:
                options[count.fresh] = depth, count
        return list(options.values())

    def _choose(self, tiling: Tiling, counts: list[PartCount], depths: list[int]) -> None:
        """Depths of the next part that is made, and of all after it."""
        place = len(counts)
        held = sum(count.held_words for count in counts)
        if held > self.limits.capacity_words:
            return
        if place == self.num_made:
            self._close(tiling, counts, depths, self.limits.capacity_words - held)
            return
        part = self.chain.parts[place]
        for depth, count in self._options(part, tiling, needed_sides(self.chain, part, tiling, counts)):
            self._choose(tiling, [*counts, count], [*depths, depth])

    def _close(self, tiling: Tiling, counts: list[PartCount], depths: list[int], free_words: int) -> None:
        """Depths of what comes from outside: a front of (held, read), put together part by part."""
        front: list[tuple[int, int, tuple[tuple[int, PartCount], ...]]] = [(0, 0, ())]
        for part in self.chain.parts[self.num_made :]:
            needed = needed_sides(self.chain, part, tiling, counts)
            options = self._options(part, tiling, needed)
            longer = sorted(
                (
                    (h + c.held_words, w + c.fresh_words, (*chosen, (d, c)))
                    for h, w, chosen in front
                    for d, c in options
                ),
                key=lambda entry: entry[:2],
            )
            front = []
            for entry in longer:
                if entry[0] <= free_words and (not front or entry[1] < front[-1][1]):
                    front.append(entry)
        if not front:
            return
        chosen = front[-1][2]
        count = total_count(self.chain, [*counts, *(c for _, c in chosen)])
        key = count.moved_words, count.num_macs
        if count.num_macs > self.most_macs:
            return
        if self.best is None or key < self.best[0]:
            plan = ChainPlan(tiling, (*depths, *(d for d, _ in chosen)))
            self.best = key, plan, count
