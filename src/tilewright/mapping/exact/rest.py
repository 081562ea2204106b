"""What the levels inside a tile cost at least, for every tile: what a search need not look at, seen before.

A tile that a level holds says what enters it at least: every tile enters whole for each operand that the
innermost loop outside it moves, and only the others may be kept while the loops run that do not move them.
Over the tiles that fit, level by level from the inside, the least of that is a bound on all that may come
inside of a given tile, whatever the order of loops is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.mapping.exact.lattice import Lattice

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Entry:
    """What words of an operand cost on their way from the level `outer` to the next that holds it, `inner`
    (-1: the compute units), in energy and in cycles of each port (of reading, of writing).

    `fill` is for each word that enters, `serve` for each that is taken (of outputs: given), `reduce` for each
    output that is read to be added to: of energy for those of all instances, of cycles for those of one. An
    access serves `num_served` at most; `num_outer` and `num_inner` are how many instances the levels have.
    `stays[dim]`: no loop of the dim may be spread over instances of the inner level.
    """

    operand: int
    inner: int
    outer: int
    num_served: int
    num_outer: int
    num_inner: int
    stays: Array
    fill: Array
    serve: Array
    reduce: Array

    def cost(
        self, words: Array | float, served: Array | float, touched: float, of_one: Array | float = 0.0
    ) -> Array:
        """So many words that enter and are served, `of_one` of them by each instance at least; first sums of
        outputs are not read."""
        added = np.maximum(0.0, np.asarray(served) - touched * self.num_outer)
        words, served, added = np.broadcast_arrays(words, served, added)
        energy = self.fill[0] * words + self.serve[0] * served + self.reduce[0] * added
        entering = np.maximum(words / self.num_inner, of_one)
        leaving = np.maximum(served / self.num_outer, of_one)
        cycles = (
            np.multiply.outer(self.fill[1:], entering)
            + np.multiply.outer(self.serve[1:], leaving)
            + np.multiply.outer(self.reduce[1:], added / self.num_outer)
        )
        return np.concatenate([energy[None], cycles])


@dataclass(frozen=True, slots=True)
class View:
    """What is asked of a space: `depends[operand, dim]`, windows as `search_states` has them, which tiles fit
    each level."""

    lattice: Lattice
    depends: Array
    windows: Array
    fits: Sequence[Array]
    num_macs: int
    skips_pixels: bool


def least_rest(space: View, entries: Sequence[Entry], num_costs: int) -> list[tuple[Array, Array]]:
    """Of each level `[cost, point]` of all that comes inside: for each tile that its loops may still cut, and
    for each tile that the next level inside is given.

    What operands cost that no level further in holds is left out: search states know it themselves.
    """
    lattice = space.lattice
    num_points = len(lattice.num_tiles)
    inside = np.zeros((num_costs, num_points))
    given = inside
    rests = []
    for number in range(len(space.fits)):
        if number > 0:
            entering = [entry for entry in entries if entry.inner == number - 1]
            inside = inside + _least_entering(space, entering, num_costs)
            inside[:, ~space.fits[number - 1]] = np.inf
            given = inside.copy()
            for step in lattice.steps:
                axis = inside.reshape(num_costs, -1, step.count + 1, step.weight)
                np.minimum.accumulate(axis, axis=2, out=axis)
        last = np.zeros(num_costs)
        for entry in entries:
            if entry.inner < 0 and entry.outer < number:
                served = space.num_macs / entry.num_served
                last += entry.cost(0.0, served, float(lattice.touched[entry.operand]))
        rests.append((inside + last[:, None], given + last[:, None]))
    return rests


def _least_entering(space: View, entries: Sequence[Entry], num_costs: int) -> Array:
    """The cost of what enters a level with each tile, for the best innermost loop outside it."""
    lattice = space.lattice
    num_points = len(lattice.num_tiles)
    if not entries:
        return np.zeros((num_costs, num_points))
    kept = [_cost(space, entry, _least_words(space, entry.operand)) for entry in entries]
    best = np.full((num_costs, num_points), np.inf)
    for dim, extent in enumerate(lattice.tiles[lattice.whole]):
        if extent == 1:
            continue
        total = np.zeros((num_costs, num_points))
        for entry, cost in zip(entries, kept, strict=True):
            is_moved = space.depends[entry.operand, dim]
            total += _cost(space, entry, _moved_words(space, entry.operand, dim)) if is_moved else cost
        total[:, lattice.tiles[:, dim] == extent] = np.inf  # no loop of the dim is left outside
        np.minimum(best, total, out=best)
    best[:, lattice.whole] = np.sum([cost[:, lattice.whole] for cost in kept], axis=0)
    return best


def _cost(space: View, entry: Entry, words: Array) -> Array:
    lattice = space.lattice
    touched, volumes = float(lattice.touched[entry.operand]), lattice.volumes[entry.operand]
    # The first tile of an instance enters whole, and so does each along a dim that slides no window.
    windowed = space.windows[space.windows[:, 0] == entry.operand][:, (1, 3)]
    apart = entry.stays & space.depends[entry.operand]
    apart[windowed.reshape(-1)] = False
    of_one = volumes * (lattice.tiles[-1, apart] / lattice.tiles[:, apart]).prod(axis=1)
    together = np.full(len(words), float(entry.num_served))
    if entry.operand not in space.windows[:, 0]:
        # Equal tiles differ in dims that the operand does not depend on.
        together = np.minimum(together, lattice.copies[entry.operand])
    return entry.cost(words, np.maximum(words / together, touched), touched, of_one)


def _least_words(space: View, operand: int) -> Array:
    """Words that enter if every loop that does not move the operand is innermost."""
    lattice = space.lattice
    touched = float(lattice.touched[operand])
    words: Array = lattice.volumes[operand] * lattice.num_tiles / lattice.copies[operand]
    for _, a, _, b, _ in space.windows[space.windows[:, 0] == operand]:
        # A loop may end where the next one's step arrives, and the tile stays.
        both = (lattice.tiles[:, a] < lattice.tiles[-1, a]) & (lattice.tiles[:, b] < lattice.tiles[-1, b])
        words[both] = touched
    return np.maximum(words, touched)


def _moved_words(space: View, operand: int, dim: int) -> Array:
    """Words that enter at least if the innermost loop moves the operand: all, but where a window slides."""
    lattice = space.lattice
    words: Array = lattice.volumes[operand] * lattice.num_tiles
    for t, a, step_a, b, step_b in space.windows:
        if t != operand or dim not in (a, b):
            continue
        if space.skips_pixels:
            return np.full(len(words), float(lattice.touched[operand]))
        extent = 1 + step_a * (lattice.tiles[:, a] - 1) + step_b * (lattice.tiles[:, b] - 1)
        move = (step_a if dim == a else step_b) * lattice.tiles[:, dim]
        return np.asarray(words * np.minimum(1.0, move / extent))
    return words
