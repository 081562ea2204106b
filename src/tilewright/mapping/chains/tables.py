"""All tiles of a chain's loops, and what follows from each for every part, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import Self

import numpy as np
from numpy.typing import NDArray

from tilewright.mapping.chains.chain import Chain
from tilewright.mapping.chains.plan import made_side, written_side
from tilewright.mapping.chains.sides import Side, tiles_of
from tilewright.mapping.factors import divisors

_ALL_TILES_UP_TO = 16  # of longer loops only tiles that divide them,
_FEW_DIVISORS, _MOST_STEPS = 6, 8  # and where these are few, those that leave so many nearly equal steps

Counts = NDArray[np.int64]


def tile_sizes(extent: int) -> list[int]:
    """Tiles that are tried of a loop: all of a short one, of a long one those that divide it, or nearly.

    >>> tile_sizes(56), tile_sizes(197)
    ([1, 2, 4, 7, 8, 14, 28, 56], [1, 25, 29, 33, 40, 50, 66, 99, 197])
    """
    if extent <= _ALL_TILES_UP_TO:
        return list(range(1, extent + 1))
    exact = divisors(extent)
    if len(exact) >= _FEW_DIVISORS:
        return exact
    return sorted({*exact, *(-(-extent // steps) for steps in range(2, _MOST_STEPS + 1))})


@dataclass(frozen=True, eq=False)
class Grid:
    """Every combination of a tile of each loop. `is_whole` where none of them had to be left out."""

    extents: tuple[int, ...]
    sizes: tuple[tuple[int, ...], ...]
    is_whole: bool

    @classmethod
    def of(cls, extents: Sequence[int], max_tilings: int) -> Self:
        """The grid; where it would be too large, every other tile of the loop that has most is left out."""
        sizes = [tile_sizes(extent) for extent in extents]
        is_whole = True
        while prod(map(len, sizes)) > max_tilings:
            most = max(range(len(sizes)), key=lambda loop: len(sizes[loop]))
            sizes[most] = sizes[most][::-2][::-1]  # the whole extent stays
            is_whole = False
        return cls(tuple(extents), tuple(map(tuple, sizes)), is_whole)

    @property
    def num_tilings(self) -> int:
        """Combinations of tiles."""
        return prod(map(len, self.sizes))

    @cached_property
    def _choices(self) -> list[Counts]:
        axes = np.meshgrid(*(np.arange(len(sizes)) for sizes in self.sizes), indexing="ij")
        return [axis.ravel().astype(np.int64) for axis in axes]

    def choice(self, loop: int, at: Counts) -> Counts:
        """Which of its tiles a loop has in each of some tilings."""
        return self._choices[loop][at]

    def tiles(self, at: int) -> tuple[int, ...]:
        """The tiles of one of the tilings."""
        return tuple(sizes[int(self._choices[loop][at])] for loop, sizes in enumerate(self.sizes))

    def product(self, by_tile: Sequence[Counts]) -> Counts:
        """For each tiling the product of numbers that are given for each loop's tiles."""
        result = np.ones(self.num_tilings, np.int64)
        for choice, numbers in zip(self._choices, by_tile, strict=True):
            result = result * numbers[choice]
        return result

    @cached_property
    def num_steps(self) -> Counts:
        """The steps of each tiling."""
        return self.product(
            [
                np.array([-(-extent // tile) for tile in sizes], np.int64)
                for extent, sizes in zip(self.extents, self.sizes, strict=True)
            ]
        )

    @cached_property
    def _has_one_step(self) -> list[NDArray[np.bool_]]:
        """For each loop, the tilings in which its tile is the whole extent."""
        return [choice == len(sizes) - 1 for choice, sizes in zip(self._choices, self.sizes, strict=True)]

    def is_in_order(self, order: Sequence[int]) -> NDArray[np.bool_]:
        """The tilings to look at in an order: loops of one step are the outermost, by their numbers.

        So each order of the loops that do step comes once.
        """
        chosen = np.ones(self.num_tilings, np.bool_)
        for outer, inner in pairwise(order):
            if outer < inner:
                chosen &= ~self._has_one_step[inner] | self._has_one_step[outer]
            else:
                chosen &= ~self._has_one_step[inner]
        return chosen


@dataclass(frozen=True, slots=True)
class Retained:
    """For each loop a bit for each part that is retained in it."""

    bits: tuple[int, ...]

    @classmethod
    def nothing(cls, num_loops: int) -> Self:
        """No part yet."""
        return cls((0,) * num_loops)

    @classmethod
    def everything(cls, num_loops: int, num_parts: int) -> Self:
        """All parts, in all loops."""
        return cls(((1 << num_parts) - 1,) * num_loops)

    def joined_by(self, part: int, loops: Sequence[int]) -> Self:
        """These, and a part that is retained in some loops."""
        return type(self)(
            tuple(bits | 1 << part if loop in loops else bits for loop, bits in enumerate(self.bits))
        )


@dataclass(frozen=True, slots=True)
class SideTable:
    """A part's sides along one loop, for each of its tiles: numbers of `Side`.

    `fresh` is the total where the part is retained in this loop.
    """

    rows: Counts
    total: Counts
    fresh: Counts
    span: Counts
    kept: Counts


class SideTables:
    """What steps need of each part along each loop, for each tile and each choice of retained parts."""

    def __init__(self, chain: Chain, grid: Grid) -> None:
        self.chain, self.grid = chain, grid
        self._sides: dict[tuple[int, int, int], tuple[Side, ...]] = {}
        self._tables: dict[tuple[int, int, int], SideTable] = {}
        loops = tuple(range(len(grid.extents)))
        self._still_words = [part.num_still_words(loops) for part in chain.parts]
        self._matters: list[int] = []  # to each part: bits of those computed from it, directly or not
        for part in chain.parts:
            matters = 0
            for reader in part.readers:
                matters |= 1 << reader.part | self._matters[reader.part]
            self._matters.append(matters)

    def still_words(self, part: int) -> int:
        """Elements of a part's axes that no loop moves."""
        return self._still_words[part]

    def of(self, part: int, loop: int, retained: Retained) -> SideTable:
        """A part's numbers along a loop."""
        key = part, loop, retained.bits[loop] & self._matters[part]
        if key not in self._tables:
            sides = self._needed(*key)
            numbers = [(s.rows, s.total, s.fresh.total, s.span, s.kept) for s in sides]
            self._tables[key] = SideTable(*np.array(numbers, np.int64).T)
        return self._tables[key]

    def _needed(self, place: int, loop: int, bits: int) -> tuple[Side, ...]:
        """What steps need of a part, for each tile of the loop."""
        key = place, loop, bits & self._matters[place]
        if key not in self._sides:
            part = self.chain.parts[place]
            if part.kind == "result":
                sides = tuple(written_side(self.chain, loop, tile) for tile in self.grid.sizes[loop])
            else:
                made = [
                    self._stepping(loop)
                    if reader.node is self.chain.anchor
                    else self._made(reader.part, loop, bits)
                    for reader in part.readers
                ]
                sides = tuple(
                    self.chain.needed(part, loop, by_reader) for by_reader in zip(*made, strict=True)
                )
            self._sides[key] = sides
        return self._sides[key]

    def _stepping(self, loop: int) -> tuple[Side, ...]:
        return tuple(tiles_of(self.grid.extents[loop], tile) for tile in self.grid.sizes[loop])

    def _made(self, place: int, loop: int, bits: int) -> tuple[Side, ...]:
        """What steps make of a part, for each tile of the loop."""
        part, is_retained = self.chain.parts[place], bool(bits >> place & 1)
        return tuple(made_side(part, loop, side, is_retained) for side in self._needed(place, loop, bits))
