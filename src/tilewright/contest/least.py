"""The least that a subgraph can cost at any granularity and order, from counts of tiles and steps."""

from __future__ import annotations

from collections.abc import Set
from functools import lru_cache
from math import inf
from typing import Any, NamedTuple

import numpy as np

from tilewright.contest.estimate import compute_rates, tile_sides
from tilewright.contest.problem import ContestProblem
from tilewright.contest.subgraph import FULL, SUM, TILE, Load, Subgraph

Array = Any


def least_steps(problem: ContestProblem, subgraph: Subgraph, depth: int) -> int:
    """The fewest steps of a sum."""
    longest = min(problem.native[2], subgraph.least_depth or problem.native[2])
    return -(-depth // longest)


def least_traffic(problem: ContestProblem, subgraph: Subgraph) -> tuple[float, dict[int, float]]:
    """Elements that come in at least, with the largest tiles; also of each tensor that is made elsewhere.

    A slice of a sum of several steps is gone when the next tile begins, so every tile asks for it again; any
    other slice stays as long as tiles of its row or column follow each other. A tensor with several kinds of
    slices counts with the largest kind, or once where it fits the memory: whole, it contains all of them.
    """
    rows = -(-subgraph.height // problem.native[1])
    columns = -(-subgraph.width // problem.native[0])
    by_tensor: dict[int, float] = {}
    by_row = by_column = 0.0
    loads: dict[int, list[Load]] = {}
    for load in subgraph.loads:
        loads.setdefault(load.tensor, []).append(load)
    for tensor, kinds in loads.items():
        size = problem.size(tensor)
        most = size
        is_single = len(kinds) == 1
        if is_single or size > problem.capacity:
            for load in kinds:
                times = 1
                if least_steps(problem, subgraph, load.depth) > 1:
                    times *= columns if load.rows == TILE and load.columns == SUM else 1
                    times *= rows if load.rows == SUM and load.columns == TILE else 1
                    times *= rows * columns if {load.rows, load.columns} == {SUM, FULL} else 1
                elif is_single:
                    by_row += size if load.rows == TILE and load.columns != TILE else 0
                    by_column += size if load.columns == TILE and load.rows != TILE else 0
                most = max(most, times * size)
        by_tensor[tensor] = most
    again = max(0, (rows - 2) * (columns - 2) - 1) * min(by_row / rows, by_column / columns)
    return sum(by_tensor.values()) + again, by_tensor


def least_compute(problem: ContestProblem, subgraph: Subgraph) -> float:
    """Compute time with the fewest tiles and steps."""
    native_w, native_h, _ = problem.native
    num_tiles = -(-subgraph.width // native_w) * -(-subgraph.height // native_h)
    time = 0.0
    for operator, rows, columns, is_root, depth in subgraph.works:
        made = problem.operators[operator]
        times = made.cost
        times *= problem.heights[made.output] / native_h if rows != TILE else 1
        times *= problem.widths[made.output] / native_w if columns != TILE else 1
        is_sliced = SUM in (rows, columns) or (is_root and made.is_product)
        if depth and not is_sliced:
            times *= least_steps(problem, subgraph, depth)
        time += times
    return num_tiles * time


def least_time_of_set(problem: ContestProblem, subgraph: Subgraph) -> float:
    """The least time whatever is resident and retained, as far as the memory holds it."""
    moved, by_tensor = least_traffic(problem, subgraph)
    near: list[tuple[float, int]] = []
    for tensor, elements in by_tensor.items():
        size = problem.size(tensor)
        if tensor in problem.maker and size < problem.capacity:
            near.append((elements, size))
    for tensor in subgraph.sinks:
        size = problem.size(tensor)
        moved += size
        if size < problem.capacity and tensor in problem.users:
            near.append((size, size))
    compute = least_compute(problem, subgraph)
    return max(compute, (moved - _most_saved(near, problem.capacity)) / problem.bandwidth)


def _most_saved(near: list[tuple[float, int]], capacity: int) -> float:
    """Elements saved by what fits, the last one in part: at least what any choice saves."""
    saved, room = 0.0, float(capacity)
    for elements, size in sorted(near, key=lambda x: -x[0] / x[1]):
        part = min(1.0, room / size)
        saved += part * elements
        room -= part * size
        if room <= 0:
            break
    return saved


def least_time(problem: ContestProblem, subgraph: Subgraph, resident: Set[int], retained: Set[int]) -> float:
    """The least time of a block at any granularity and order that fits the memory; infinite if none does.

    Granularities count by their numbers of tiles; k is as long as the memory allows. A tile takes at least
    its work, at least its elements over the bandwidth, and at least these where one step is bound by the
    other: what is loaded before its first step, and stored or computed in its last one, overlaps with that
    step alone.
    """
    case = _Case.of(problem, subgraph, resident, retained)
    columns, w, most_w = _counts(subgraph.width, problem.native[0])
    rows, h, most_h = (x[:, None] for x in _counts(subgraph.height, problem.native[1]))
    sides = _Sides(columns, rows, w, h, most_w, most_h)
    longest = min(problem.native[2], subgraph.least_depth or problem.native[2])
    best = inf
    room = problem.capacity - case.held - case.whole - case.tall * h - case.wide * w
    if subgraph.depth <= longest:
        k = subgraph.depth
        needed = (case.rows_k * h + case.columns_k * w + case.full_k) * k + case.num_sinks * w * h
        needed = needed + case.end_held(w, h)
        best = min(best, _least(case.times(problem, subgraph, sides, longest), needed <= room))
    if subgraph.depth > 1:
        room = room - max(case.num_sinks, case.num_roots) * w * h
        slope = case.rows_k * h + case.columns_k * w + case.full_k
        k = np.floor(np.minimum(room / np.maximum(slope, 1e-9), min(longest, subgraph.depth - 1)))
        # Sums that are shorter than others are done before the last step, and their slices gone.
        fits = (k >= 1) & ((case.end_held(w, h) + slope <= room) if case.depth else True)
        best = min(best, _least(case.times(problem, subgraph, sides, np.maximum(k, 1)), fits))
    return best


def _least(times: Array, fits: Array) -> float:
    return float(np.min(times, where=np.broadcast_to(fits, times.shape), initial=inf))


class _Sides(NamedTuple):
    """Numbers of columns and rows of tiles, the least sides that give them, and the greatest."""

    columns: Array
    rows: Array
    w: Array
    h: Array
    most_w: Array
    most_h: Array


@lru_cache(maxsize=512)
def _counts(extent: int, native: int) -> tuple[Array, Array, Array]:
    sides = np.array(tile_sides(extent, native, only_powers=False), float)
    counts = np.ceil(extent / sides)
    most = np.where(counts > 1, np.ceil(extent / np.maximum(counts - 1, 1)) - 1, extent)
    return counts, sides, np.minimum(most, min(native, extent))


class _Case(NamedTuple):
    """What a block asks for, by the ranges of slices; of tensors with several kinds, one that is least."""

    width: int
    height: int
    depth: int  # 0: without a sum, or sums are unequal
    rc: int  # elements of tensors by tile
    by_row: int
    by_column: int
    once: int
    rows_sum: int  # rows of the tile, slices of the sum
    columns_sum: int
    full_sum: int
    end: int  # of these, loaded in the last step
    tall: float  # in memory in every step, for each unit of a tile's height
    wide: float
    whole: float
    rows_k: int  # slices of the sum: how many for each unit of height and k
    columns_k: int
    full_k: int
    end_area: int
    end_tall: int
    end_wide: int
    stored: int
    num_sinks: int
    num_roots: int
    held: int

    @classmethod
    def of(cls, problem: ContestProblem, subgraph: Subgraph, resident: Set[int], retained: Set[int]) -> _Case:
        sums = dict.fromkeys(cls._fields, 0)
        loads: dict[int, list[Load]] = {}
        for load in subgraph.loads:
            if load.tensor not in resident:
                loads.setdefault(load.tensor, []).append(load)
        for tensor, kinds in loads.items():
            width, height, size = problem.widths[tensor], problem.heights[tensor], problem.size(tensor)
            if len(kinds) > 1 and size <= problem.capacity:
                sums["once"] += size
                ranges = {(x.rows, x.columns) for x in kinds if x.depth}
                if (FULL, FULL) in ranges:
                    sums["whole"] += size
                elif (TILE, FULL) in ranges:
                    sums["tall"] += width
                elif (FULL, TILE) in ranges:
                    sums["wide"] += height
                continue
            _add(sums, max(kinds, key=lambda x: (SUM in x[1:3], x.depth)), width, height)
        num_retained = sum(t in retained for t in subgraph.sinks)
        sums["width"], sums["height"] = subgraph.width, subgraph.height
        sums["depth"] = subgraph.depth if len(set(subgraph.root_depths)) == 1 else 0
        sums["stored"] = len(subgraph.sinks) - num_retained
        sums["num_sinks"] = len(subgraph.sinks) - num_retained
        sums["num_roots"] = len(subgraph.root_depths) - num_retained
        sums["held"] = sum(map(problem.size, resident)) + sum(map(problem.size, retained))
        return cls(**sums)

    def end_held(self, w: Array, h: Array) -> Array:
        """Elements that lie in memory in the last step alone."""
        return self.end_area * w * h + self.end_tall * h + self.end_wide * w

    def times(self, problem: ContestProblem, subgraph: Subgraph, sides: _Sides, k: Any) -> Array:
        """Lower bounds with steps of at most `k`; all steps in one where that is the whole sum."""
        columns, rows = sides.columns, sides.rows
        tiles, bandwidth = columns * rows, problem.bandwidth
        is_one = k >= max(subgraph.depth, 1)
        by_row = self.by_row + is_one * self.rows_sum
        by_column = self.by_column + is_one * self.columns_sum
        streamed = np.where(
            is_one, 0, self.rows_sum * columns + self.columns_sum * rows + self.full_sum * tiles
        )
        begun = self.rc + self.once + by_row + by_column + is_one * self.full_sum
        begun = begun + self._again(sides, by_row, by_column)
        stored = self.stored * subgraph.width * subgraph.height
        moved = (begun + streamed + stored) / bandwidth
        unit, step, end, whole = compute_rates(problem, subgraph)
        fewest = np.ceil(min(subgraph.root_depths, default=0) / k)
        compute = tiles * (whole + step * fewest + end)
        if not self.depth:
            return np.maximum(compute, moved)
        ending = stored + self.end
        slope = (self.rows_k * sides.most_h + self.columns_k * sides.most_w + self.full_k) / bandwidth
        last = tiles * (end + step - np.maximum(slope - unit, 0) * k)
        by_memory = moved + np.maximum(last - ending / bandwidth, 0)
        low_w, low_h = np.where(columns == 1, sides.w, 0), np.where(rows == 1, sides.h, 0)
        slope = (self.rows_k * low_h + self.columns_k * low_w + self.full_k) / bandwidth
        hidden = tiles * (np.maximum(unit - slope, 0) * k + step)
        by_compute = (
            compute
            + np.maximum((begun - self.end) / bandwidth - hidden, 0)
            + np.maximum(ending / bandwidth - hidden - tiles * end, 0)
        )
        return np.where(is_one, np.maximum(compute, moved), np.maximum(by_memory, by_compute))

    def _again(self, sides: _Sides, by_row: Array, by_column: Array) -> Array:
        """Elements of rows and columns that are loaded again, in the best order of tiles.

        Every move to the next tile keeps the row or the column, so all but `rows + columns - 1` tiles ask
        for a row or a column again; the least of them are counted, those of the last row and column first.
        """
        columns, rows = sides.columns, sides.rows
        is_even_row = (sides.h == sides.most_h) & (sides.h * rows == self.height)
        is_even_column = (sides.w == sides.most_w) & (sides.w * columns == self.width)
        count = (rows - 1) * (columns - 1)
        count = count - np.where(is_even_row, 0, columns - 1) - np.where(is_even_column, 0, rows - 1)
        least = np.minimum(by_row * sides.h / self.height, by_column * sides.w / self.width)
        return np.maximum(count, 0) * least


def _add(sums: dict[str, int], load: Load, width: int, height: int) -> None:
    """Count a tensor that is read in one kind of slices."""
    ranges, size = (load.rows, load.columns), width * height
    moved, held, elements = {
        (TILE, TILE): ("rc", "", 1),
        (TILE, FULL): ("by_row", "tall", width),
        (FULL, TILE): ("by_column", "wide", height),
        (FULL, FULL): ("once", "whole", size),
        (TILE, SUM): ("rows_sum", "rows_k", 1),
        (SUM, TILE): ("columns_sum", "columns_k", 1),
        (SUM, FULL): ("full_sum", "full_k", width),
        (FULL, SUM): ("full_sum", "full_k", height),
        (SUM, SUM): ("once", "", 0),
    }[ranges]
    sums[moved] += size
    if not load.depth:
        sums["end"] += size
        sums["end_area"] += ranges == (TILE, TILE)
        sums["end_tall"] += elements if held == "tall" else 0
        sums["end_wide"] += elements if held == "wide" else 0
    elif held:
        sums[held] += elements
