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

from tilewright.machine_code import compiled, part_of_loops
from tilewright.mapping.exact.lattice import Lattice

Array = np.ndarray[Any, Any]

KEPT, MOVED, SLID = range(3)  # a tile by the loop outside it


@dataclass(frozen=True, slots=True)
class Entries:
    """What words cost on their way from a level, `outer`, to the next that holds their operand, `inner` (-1:
    the compute units): a row for each such way, `[way]` or `[way, cost]`.

    Costs are energy, then cycles of each port of reading and of writing, where one of so many instances as
    the levels have moves its share of the words: `fill` for each word that enters, `serve` for each that is
    taken (of outputs: given), `reduce` for each output that is read to be added to. An access serves
    `num_served` at most. `stays[way, dim]`: no loop of the dim may be spread over instances of the inner
    level.
    """

    operands: Array  # int64
    inner: Array  # int64
    outer: Array  # int64
    num_served: Array  # float64
    num_outer: Array  # float64: instances of the outer level
    num_inner: Array  # float64
    stays: Array  # bool
    fill: Array  # float64
    serve: Array  # float64
    reduce: Array  # float64

    def least(self, touched: Array, num_macs: int) -> Array:
        """The least costs `[way, cost]`, of operands of which so many words are needed at all."""
        needed = touched[self.operands]
        to_units = self.inner < 0
        served = np.where(to_units, num_macs / self.num_served, needed)
        added = np.maximum(0.0, served - needed * self.num_outer)
        entering = np.where(to_units, 0.0, needed)
        costs: Array = entering[:, None] * self.fill + served[:, None] * self.serve
        costs += added[:, None] * self.reduce
        return costs


@dataclass(frozen=True, slots=True)
class View:
    """What is asked of a space: `depends[operand, dim]`, windows as `search_states` has them, which tiles fit
    each level."""

    lattice: Lattice
    depends: Array
    windows: Array
    fits: Sequence[Array]
    skips_pixels: bool


def least_rest(space: View, entries: Entries) -> list[tuple[Array, Array]]:
    """Of each level `[point, cost]` of all that enters levels inside: for each tile that its loops may still
    cut, and for each tile that the next level inside is given.

    What operands cost that no level further in holds is left out: search states know it themselves.
    """
    lattice = space.lattice
    groups = _dims_alike(space)
    cases = np.where(space.depends[entries.operands], MOVED, KEPT)
    for t, a, _, b, _ in space.windows:
        cases[np.ix_(entries.operands == t, (a, b))] = SLID
    is_apart = entries.stays & (cases == MOVED)
    inside = np.zeros((len(lattice.num_tiles), entries.fill.shape[1]))
    given = inside
    weights = np.array([step.weight for step in lattice.steps], np.int64)
    rests = [(inside, given)]
    for number, fits in enumerate(space.fits[:-1]):
        ways = entries.inner == number
        prices = np.stack([entries.fill[ways], entries.serve[ways], entries.reduce[ways]], axis=2)
        columns = np.flatnonzero(np.any(prices != 0, axis=(0, 2)) | (np.arange(prices.shape[1]) == 0))
        given = inside.copy()
        add_least_entering(
            given, fits, lattice.tiles, lattice.volumes, lattice.copies, lattice.num_tiles, lattice.touched,
            space.windows, groups, space.skips_pixels, cases[ways],
            entries.operands[ways], entries.num_served[ways], entries.num_outer[ways],
            entries.num_inner[ways], is_apart[ways], columns, np.ascontiguousarray(prices[:, columns]),
        )  # fmt: skip
        inside = given.copy()
        take_least_inside(inside, lattice.exponents, weights)
        rests.append((inside, given))
    return rests


def _dims_alike(space: View) -> Array:
    """Of each dim the first that moves the same operands, where it slides no window; -1: it has no loops."""
    first: dict[tuple[object, ...], int] = {}
    groups = []
    for dim, extent in enumerate(space.lattice.tiles[space.lattice.whole].tolist()):
        alone = dim if np.any(space.windows[:, (1, 3)] == dim) else -1
        group = first.setdefault((*space.depends[:, dim].tolist(), alone), dim) if extent > 1 else -1
        groups.append(group)
    return np.array(groups, np.int64)


@compiled
def add_least_entering(
    given: Array, fits: Array, tiles: Array, volumes: Array, copies: Array, num_tiles: Array, touched: Array,
    windows: Array, groups: Array, skips_pixels: bool, cases: Array,
    operands: Array, num_served: Array, num_outer: Array, num_inner: Array, is_apart: Array, columns: Array,
    prices: Array,
) -> None:  # fmt: skip
    """Add to `given[point, cost]` what enters a level with each tile, for the best innermost loop outside it.

    Infinite where the tile does not fit. `groups`: see `_dims_alike`. `cases[way, dim]`: what a loop of the
    dim, innermost outside the level, does to the tile. The rest as `Entries` has it, of the ways that enter
    the level: `prices[way, column]` to fill, to serve and to reduce, of energy and of the costs that are not
    all 0; along dims that are `is_apart` each instance's tiles enter whole.
    """
    num_points, num_dims = tiles.shape
    num_ways, num_costs, _ = prices.shape
    whole = num_points - 1
    costs = np.empty((3, num_ways, num_costs))
    of_one, together, has_window = np.empty(num_ways), np.empty(num_ways), np.zeros(num_ways, np.bool_)
    for way in range(num_ways):
        for dim in range(num_dims):
            has_window[way] |= cases[way, dim] == SLID
    has_loop, best, total = np.empty(num_dims, np.bool_), np.empty(num_costs), np.empty(num_costs)
    for point in range(num_points):
        if not fits[point]:
            for cost in range(given.shape[1]):
                given[point, cost] = np.inf
            continue
        for dim in range(num_dims):
            has_loop[dim] = False
        for dim in range(num_dims):
            if groups[dim] >= 0 and tiles[point, dim] < tiles[whole, dim]:
                has_loop[groups[dim]] = True
        for way in range(num_ways):
            t = operands[way]
            # The first tile of an instance enters whole, and so does each along a dim that slides no window.
            whole_extents, extents = 1.0, 1.0
            for dim in range(num_dims):
                if is_apart[way, dim]:
                    whole_extents *= tiles[whole, dim]
                    extents *= tiles[point, dim]
            of_one[way] = volumes[t, point] * (whole_extents / extents)
            together[way] = num_served[way]
            if not has_window[way]:  # equal tiles differ in dims that the operand does not depend on
                together[way] = min(together[way], copies[t, point])
            words = volumes[t, point] * num_tiles[point]
            take_costs(
                costs, MOVED, way, words, together, touched[t], of_one, num_outer, num_inner, prices,
            )  # fmt: skip
            words /= copies[t, point]  # every loop that does not move the operand is innermost
            for w in range(windows.shape[0]):
                a, b = windows[w, 1], windows[w, 3]
                # A loop may end where the next one's step arrives, and the tile stays.
                if (
                    windows[w, 0] == t
                    and tiles[point, a] < tiles[whole, a]
                    and tiles[point, b] < tiles[whole, b]
                ):
                    words = touched[t]
            take_costs(
                costs, KEPT, way, max(words, touched[t]), together, touched[t], of_one, num_outer, num_inner,
                prices,
            )  # fmt: skip
        for cost in range(num_costs):
            best[cost] = np.inf
        for dim in range(-1 if point == whole else 0, num_dims):  # -1: no loop is outside
            if dim >= 0 and not has_loop[dim]:
                continue
            for cost in range(num_costs):
                total[cost] = 0.0
            for way in range(num_ways):
                t = operands[way]
                case = KEPT if dim < 0 else cases[way, dim]
                if case == SLID:
                    words = volumes[t, point] * num_tiles[point]
                    words = slid_words(tiles, point, words, touched[t], windows, t, dim, skips_pixels)
                    take_costs(
                        costs, SLID, way, words, together, touched[t], of_one, num_outer, num_inner,
                        prices,
                    )  # fmt: skip
                for cost in range(num_costs):
                    total[cost] += costs[case, way, cost]
            for cost in range(num_costs):
                best[cost] = min(best[cost], total[cost])
        for cost in range(num_costs):
            given[point, columns[cost]] += best[cost]


@part_of_loops
def take_costs(
    costs: Array, case: int, way: int, words: float, together: Array, touched: float, of_one: Array,
    num_outer: Array, num_inner: Array, prices: Array,
) -> None:  # fmt: skip
    """Costs `[case, way]` of so many words that enter, `of_one` of them each instance at least, `together` of
    them served by one access; first sums of outputs are not read."""
    served = max(words / together[way], touched)
    added = max(0.0, served - touched * num_outer[way])
    entering, leaving = max(words, of_one[way] * num_inner[way]), max(served, of_one[way] * num_outer[way])
    energy = prices[way, 0, 0] * words + prices[way, 0, 1] * served + prices[way, 0, 2] * added
    costs[case, way, 0] = energy
    for cost in range(1, prices.shape[1]):
        costs[case, way, cost] = (
            prices[way, cost, 0] * entering + prices[way, cost, 1] * leaving + prices[way, cost, 2] * added
        )


@part_of_loops
def slid_words(
    tiles: Array, point: int, words: float, touched: float, windows: Array, operand: int, dim: int,
    skips_pixels: bool,
) -> float:  # fmt: skip
    """Words that enter at least if the innermost loop slides a window of the operand; `words`: if tiles enter
    whole."""
    if skips_pixels:
        return touched
    for w in range(windows.shape[0]):
        a, step_a, b, step_b = windows[w, 1], windows[w, 2], windows[w, 3], windows[w, 4]
        if windows[w, 0] == operand and dim in (a, b):
            extent = 1 + step_a * (tiles[point, a] - 1) + step_b * (tiles[point, b] - 1)
            move = (step_a if dim == a else step_b) * tiles[point, dim]
            return float(words * min(1.0, move / extent))
    return words


@compiled
def take_least_inside(least: Array, exponents: Array, weights: Array) -> None:
    """Of each point `[point, cost]` the least of all points that its loops may leave."""
    for step in range(weights.size):
        for point in range(least.shape[0]):
            if exponents[point, step] > 0:
                for cost in range(least.shape[1]):
                    least[point, cost] = min(least[point, cost], least[point - weights[step], cost])
