"""A joint tiling of a chain, and what it moves, computes and holds, in closed form.

A step is a tile of every loop. Of a value that is retained from a loop inwards a step makes only what its
predecessors in these loops did not leave, of loops further out everything anew: it is computed again, or read
again if it comes from outside. Sides of boxes are independent, so sums over all steps are products of sums.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from tilewright.mapping.chains.chain import CannotFuse, Chain, ChainPart
from tilewright.mapping.chains.sides import Side, still_side, tiles_of

_MAX_COUNT = 1 << 55  # tiles may cover what strides jump over, several times as much
STREAMED = -1
"""In place of a depth: a constant that is read word by word in every step that needs it."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """Loops with more than one step, from the outermost: their places in `chain.loops`, and tiles."""

    order: tuple[int, ...]
    tiles: tuple[int, ...]

    def __str__(self) -> str:
        return ", ".join(f"{loop}: {tile}" for loop, tile in zip(self.order, self.tiles, strict=True))

    def sides(self, chain: Chain) -> tuple[Side, ...]:
        """The steps of each loop, in this order."""
        extents = (chain.loops[i].extent for i in self.order)
        return tuple(tiles_of(extent, tile) for extent, tile in zip(extents, self.tiles, strict=True))


@dataclass(frozen=True, slots=True)
class ChainPlan:
    """A tiling with a depth for each part: the place in the order from which on it is retained."""

    tiling: Tiling
    depths: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChainCount:
    """What a plan moves past the outermost level, computes, and holds on chip, in words.

    `computed_words` are elements of intermediate values that are made: more than there are where some are
    made again.
    """

    read_words: int
    written_words: int
    num_macs: int
    held_by_part: tuple[int, ...]
    computed_words: int

    @property
    def held_words(self) -> int:
        """What is kept for all parts together."""
        return sum(self.held_by_part)

    @property
    def moved_words(self) -> int:
        """Read and written."""
        return self.read_words + self.written_words


@dataclass(frozen=True, slots=True)
class PartCount:
    """One part under a plan: what each step needs and makes of it, and the words that wait on chip."""

    needed: tuple[Side, ...]
    fresh: tuple[Side, ...]
    fresh_words: int
    held_words: int


def _needed(chain: Chain, part: ChainPart, tiling: Tiling, counts: Sequence[PartCount]) -> tuple[Side, ...]:
    """What each step needs of a part, by what its readers make; `counts` are those of the parts before it."""
    made = [
        tiling.sides(chain) if reader.node is chain.anchor else counts[reader.part].fresh
        for reader in part.readers
    ]
    return tuple(
        chain.needed(part, loop, [sides[place] for sides in made]) for place, loop in enumerate(tiling.order)
    )


def _count_part(part: ChainPart, tiling: Tiling, needed: tuple[Side, ...], depth: int) -> PartCount:
    """Fresh and held words of a part that is retained from a depth inwards; see the module's text."""
    still = part.num_still_words(tiling.order)
    is_retained = depth != STREAMED and part.is_held
    fresh = tuple(side.fresh if is_retained and place >= depth else side for place, side in enumerate(needed))
    held = span = still
    for place in range(len(needed) - 1, -1, -1):
        side = needed[place]
        held = side.rows * held + (side.kept * (span - held) if place >= depth else 0)
        span *= side.span
    if not is_retained:
        held = int(depth == STREAMED)
    return PartCount(needed, fresh, still * prod(side.total for side in fresh), held)


def count_parts(chain: Chain, plan: ChainPlan) -> list[PartCount]:
    """Each part under a plan."""
    counts: list[PartCount] = []
    for part, depth in zip(chain.parts, plan.depths, strict=True):
        if part.kind == "result":
            counts.append(_count_result(chain, plan.tiling))
        else:
            counts.append(_count_part(part, plan.tiling, _needed(chain, part, plan.tiling, counts), depth))
    return counts


def written_side(chain: Chain, loop: int, tile: int) -> Side:
    """What steps write along a loop of the anchor. Partial sums that several steps add to stand still."""
    part, extent = chain.parts[0], chain.loops[loop].extent
    axis = part.axis_of_loop[loop]
    if axis is None:
        return still_side(-(-extent // tile))
    # Where a group's channels share an axis, a step has all channels of its groups.
    start, stop = part.whole[axis]
    return tiles_of(extent, tile, (stop - start) // extent)


def made_side(part: ChainPart, loop: int, side: Side, is_retained: bool) -> Side:
    """What steps make of a part, by what they need of it: of the result when the last sum is done."""
    if part.kind == "result":
        return side if part.axis_of_loop[loop] is not None else side.last
    return side.fresh if is_retained and part.is_held else side


def _count_result(chain: Chain, tiling: Tiling) -> PartCount:
    """What the anchor computes: partial sums wait on chip until they are whole."""
    part = chain.parts[0]
    sides = [written_side(chain, loop, tile) for loop, tile in zip(tiling.order, tiling.tiles, strict=True)]
    count = _count_part(part, tiling, tuple(sides), 0)
    made = (made_side(part, loop, side, True) for loop, side in zip(tiling.order, sides, strict=True))
    return replace(count, fresh=tuple(made))


def count_plan(chain: Chain, plan: ChainPlan) -> ChainCount:
    """Everything that a plan moves, computes and holds."""
    parts = list(zip(chain.parts, count_parts(chain, plan), strict=True))
    outside = [count for part, count in parts if part.kind in ("input", "constant")]
    made = [(part, count) for part, count in parts if part.kind == "intermediate"]
    num_macs = chain.parts[0].macs_per_word * chain.parts[0].num_words
    written = sum(count.fresh_words for part, count in made if part.leaves)
    return ChainCount(
        read_words=sum(count.fresh_words for count in outside),
        written_words=chain.parts[0].num_words + written,
        num_macs=num_macs + sum(part.macs_per_word * count.fresh_words for part, count in made),
        held_by_part=tuple(count.held_words for _, count in parts),
        computed_words=sum(count.fresh_words for _, count in made),
    )


def compulsory_words(chain: Chain) -> int:
    """What every joint tiling moves: all that comes in and goes out, once.

    With tiles of one iteration that leave everything on chip, also what strides jump over is left out.
    """
    return _finest(chain).moved_words


def least_of_cuts(chain: Chain) -> tuple[int, int]:
    """(Words that move, multiply-accumulates) at least, wherever a chain is cut: what strides jump over
    before the last operator is neither read nor computed."""
    count, counts = _finest(chain), count_parts(chain, finest_plan(chain))
    moved, num_macs = count.moved_words, count.num_macs
    for part, made, touched in zip(chain.parts, counts, chain.touched(), strict=True):
        spared = max(0, made.fresh_words - touched)
        if part.kind in ("input", "constant"):
            moved -= spared
        elif part.kind == "intermediate":
            num_macs -= part.macs_per_word * spared
    return moved, num_macs


def least_macs(chain: Chain) -> int:
    """Multiply-accumulates where nothing is computed twice, and nothing that no operator reads."""
    return _finest(chain).num_macs


def check_countable(chain: Chain) -> None:
    """Refuse a chain whose tilings could move or compute more than arrays of numbers hold, or of which steps
    do not make all that leaves.

    Raises:
        CannotFuse: says of how much there is too much, or what is not made.
    """
    for part, made in zip(chain.parts, count_parts(chain, finest_plan(chain)), strict=True):
        if part.leaves and part.kind == "intermediate" and made.fresh_words != part.num_words:
            raise CannotFuse(f"chain: {part.value.name!r} leaves, but only a part of it is needed inside.")
    order = tuple(range(len(chain.loops)))
    nothing_kept = ChainPlan(Tiling(order, (1,) * len(order)), (len(order),) * len(chain.parts))
    count = count_plan(chain, nothing_kept)
    most = max(count.moved_words, count.num_macs, count.held_words)
    if most > _MAX_COUNT:
        raise CannotFuse(
            f"chain: steps of one iteration move or compute {most:,}, which is too much to count."
        )


@functools.lru_cache(maxsize=4)
def _finest(chain: Chain) -> ChainCount:
    return count_plan(chain, finest_plan(chain))


def finest_plan(chain: Chain) -> ChainPlan:
    """Tiles of one iteration that leave everything on chip: what moves is moved once."""
    order = tuple(range(len(chain.loops)))
    return ChainPlan(Tiling(order, (1,) * len(order)), (0,) * len(chain.parts))
