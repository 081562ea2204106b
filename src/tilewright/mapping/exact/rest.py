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

    def costs(
        self, words: Array | float, served: Array | float, touched: float, of_one: Array | float = 0.0
    ) -> dict[int, Array]:
        """Of so many words that enter and are served, `of_one` of them by each instance at least; first sums
        of outputs are not read. By the number of each cost that is not 0: of all ports an entry passes two.
        """
        added = np.maximum(0.0, np.asarray(served) - touched * self.num_outer)
        entering = np.maximum(words / self.num_inner, of_one)
        leaving = np.maximum(served / self.num_outer, of_one)
        listed = {0: self.fill[0] * words + self.serve[0] * served + self.reduce[0] * added}
        for number in np.flatnonzero((self.fill != 0) | (self.serve != 0) | (self.reduce != 0)).tolist():
            if number > 0:
                moving = self.fill[number] * entering + self.serve[number] * leaving
                listed[number] = moving + self.reduce[number] * added / self.num_outer
        return listed


def add_costs(total: Array, costs: dict[int, Array]) -> None:
    """Add costs to those of the same numbers in `total[cost]`."""
    for number, cost in costs.items():
        total[number] += cost


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
    inside = np.zeros((num_costs, len(lattice.num_tiles)))
    given = inside
    rests = []
    for number in range(len(space.fits)):
        if number > 0:
            entering = [entry for entry in entries if entry.inner == number - 1]
            given = inside + _least_entering(space, entering, num_costs)
            given[:, ~space.fits[number - 1]] = np.inf
            inside = given.copy()
            for step in lattice.steps:
                axis = inside.reshape(num_costs, -1, step.count + 1, step.weight)
                for count in range(step.count):
                    np.minimum(axis[:, :, count], axis[:, :, count + 1], out=axis[:, :, count + 1])
        last = np.zeros((num_costs, 1))
        for entry in entries:
            if entry.inner < 0 and entry.outer < number:
                served = space.num_macs / entry.num_served
                add_costs(last, entry.costs(0.0, served, float(lattice.touched[entry.operand])))
        rests.append((inside + last, given + last))
    return rests


def _least_entering(space: View, entries: Sequence[Entry], num_costs: int) -> Array:
    """The cost of what enters a level with each tile, for the best innermost loop outside it."""
    lattice = space.lattice
    shape = num_costs, len(lattice.num_tiles)
    if not entries:
        return np.zeros(shape)
    kept = [_costs(space, entry, _least_words(space, entry.operand)) for entry in entries]
    moved = [_costs(space, entry, lattice.volumes[entry.operand] * lattice.num_tiles) for entry in entries]
    best = np.full(shape, np.inf)
    for dims in _dims_alike(space):
        total = np.zeros(shape)
        for entry, if_kept, if_moved in zip(entries, kept, moved, strict=True):
            if not space.depends[entry.operand, dims[0]]:
                add_costs(total, if_kept)
            elif dims[0] in _windowed(space, entry.operand):
                add_costs(total, _costs(space, entry, _slid_words(space, entry.operand, dims[0])))
            else:
                add_costs(total, if_moved)
        has_loop = np.any(lattice.tiles[:, dims] < lattice.tiles[lattice.whole, dims], axis=1)
        total[:, ~has_loop] = np.inf
        np.minimum(best, total, out=best)
    best[:, lattice.whole] = 0.0
    for if_kept in kept:  # no loop is outside
        add_costs(best[:, lattice.whole], {number: cost[lattice.whole] for number, cost in if_kept.items()})
    return best


def _dims_alike(space: View) -> list[list[int]]:
    """The dims that have loops, together those that move the same operands and slide no window."""
    alike: dict[tuple[object, ...], list[int]] = {}
    for dim, extent in enumerate(space.lattice.tiles[space.lattice.whole]):
        if extent > 1:
            alone = dim if np.any(space.windows[:, (1, 3)] == dim) else -1
            alike.setdefault((*space.depends[:, dim].tolist(), alone), []).append(dim)
    return list(alike.values())


def _windowed(space: View, operand: int) -> Array:
    """The dims that slide a window of an operand."""
    dims: Array = space.windows[space.windows[:, 0] == operand][:, (1, 3)].reshape(-1)
    return dims


def _costs(space: View, entry: Entry, words: Array) -> dict[int, Array]:
    lattice = space.lattice
    touched, volumes = float(lattice.touched[entry.operand]), lattice.volumes[entry.operand]
    # The first tile of an instance enters whole, and so does each along a dim that slides no window.
    apart = entry.stays & space.depends[entry.operand]
    apart[_windowed(space, entry.operand)] = False
    of_one = volumes * (lattice.tiles[-1, apart] / lattice.tiles[:, apart]).prod(axis=1)
    together = np.full(len(words), float(entry.num_served))
    if entry.operand not in space.windows[:, 0]:
        # Equal tiles differ in dims that the operand does not depend on.
        together = np.minimum(together, lattice.copies[entry.operand])
    return entry.costs(words, np.maximum(words / together, touched), touched, of_one)


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


def _slid_words(space: View, operand: int, dim: int) -> Array:
    """Words that enter at least if the innermost loop slides a window of the operand."""
    lattice = space.lattice
    words: Array = lattice.volumes[operand] * lattice.num_tiles
    if space.skips_pixels:
        return np.full(len(words), float(lattice.touched[operand]))
    for t, a, step_a, b, step_b in space.windows:
        if t == operand and dim in (a, b):
            extent = 1 + step_a * (lattice.tiles[:, a] - 1) + step_b * (lattice.tiles[:, b] - 1)
            move = (step_a if dim == a else step_b) * lattice.tiles[:, dim]
            return np.asarray(words * np.minimum(1.0, move / extent))
    return words
