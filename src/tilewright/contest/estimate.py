"""Times of a subgraph at all granularities at once, as arrays.

Tiles differ only in what the tile before them left (nothing, its row or its column) and in being the last of
their row or column, steps in being first, last or between, so times are sums of few classes. This is exact
where sums are equally long and no two slices of a tensor are the same in some tile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from tilewright.contest.problem import MAX_STEPS, ContestProblem
from tilewright.contest.subgraph import FULL, SUM, TILE, Load, Subgraph

Array = Any


class _Slices(NamedTuple):
    """Elements of the slices that a step holds, by what they depend on: c times the sides that are given."""

    rc: float  # times w h
    rf: float  # times h
    fc: float  # times w
    ff: float
    rk: float  # times h k
    kc: float  # times k w
    kf: float  # times k


@lru_cache(maxsize=4096)
def tile_sides(extent: int, native: int, *, only_powers: bool) -> tuple[int, ...]:
    """Sides of tiles along an axis, the largest first: the least side for every number of tiles.

    >>> tile_sides(256, 128, only_powers=False)[:4], tile_sides(256, 128, only_powers=True)[:3]
    ((128, 86, 64, 52), (128, 64, 32))
    """
    if only_powers:
        first = -(-extent // -(-extent // native))
        counts = [-(-extent // first) << i for i in range(first.bit_length())]
        return tuple(dict.fromkeys(-(-extent // n) for n in counts if n <= extent))
    sides = []
    side = min(native, extent)
    while side:
        count = -(-extent // side)
        side = -(-extent // count)  # the least side that gives as many
        sides.append(side)
        side -= 1
    return tuple(sides)


class Case(NamedTuple):
    """All that the time of a subgraph depends on, if it is simple."""

    width: int
    height: int
    depth: int
    least_depth: int
    is_simple: bool  # sums are equally long
    meets: tuple[bool, bool]  # a slice of the sum may be a tile's columns, or its rows
    lone: frozenset[int]  # tensors whose slices may be the same, or are needed in some steps only
    always: _Slices  # needed in every step
    at_end: _Slices  # needed in the last one
    compute_whole: float  # of all steps of a tile, for what is sliced along the sum
    least_root_depth: int
    compute_sum: float  # for each unit of the sum
    compute_step: float
    compute_end: float
    stored: int
    num_sinks: int
    num_roots: int
    num_retained: int
    held: int

    @classmethod
    def of(
        cls,
        problem: ContestProblem,
        subgraph: Subgraph,
        resident: frozenset[int],
        retained: frozenset[int],
        single: tuple[bool, bool, bool] = (False, False, False),
        without: frozenset[int] = frozenset(),
    ) -> Case:
        """The case of granularities with one column, one row, one step of the sum, or more.

        Tensors `without` are not counted.
        """
        by_tensor: dict[int, set[Load]] = {}
        for load in subgraph.loads:
            if load.tensor not in resident and load.tensor not in without:
                by_tensor.setdefault(load.tensor, set()).add(_widened(load, single))
        is_simple = len(set(subgraph.root_depths)) <= 1
        meets = [False, False]
        always: list[Load] = []
        at_end: list[Load] = []
        lone = []
        for tensor, same in by_tensor.items():
            whole = [x for x in same if x.rows == FULL and x.columns == FULL]
            kinds = {(x.rows, x.columns): x for x in sorted(whole or same, key=lambda x: x.depth)}
            if max(x.depth for x in whole or same) < max(x.depth for x in same):
                is_simple = False
                lone.append(tensor)
            distinct = [
                x._replace(depth=max(y.depth for y in whole or same if y[1:3] == x[1:3]))
                for x in kinds.values()
            ]
            for first, second in combinations(distinct, 2):
                if _may_meet(first.rows, second.rows) and _may_meet(first.columns, second.columns):
                    lone.append(tensor)
                    meets[0] |= first.columns != second.columns
                    meets[1] |= first.rows != second.rows
            for x in distinct:
                (always if x.depth else at_end).append(x)
        compute = compute_rates(problem, subgraph)
        num_retained = sum(t in retained for t in subgraph.sinks)
        return cls(
            width=subgraph.width,
            height=subgraph.height,
            depth=subgraph.depth,
            least_depth=subgraph.least_depth,
            is_simple=is_simple,
            meets=(meets[0], meets[1]),
            lone=frozenset(lone),
            always=_slices(problem, always),
            at_end=_slices(problem, at_end),
            compute_whole=compute[3],
            least_root_depth=min(subgraph.root_depths, default=0),
            compute_sum=compute[0],
            compute_step=compute[1],
            compute_end=compute[2],
            stored=len(subgraph.sinks) - num_retained,
            num_sinks=len(subgraph.sinks),
            num_roots=len(subgraph.root_depths),
            num_retained=num_retained,
            held=sum(map(problem.size, resident)) + sum(map(problem.size, retained)),
        )


NOTHING = _Slices(0, 0, 0, 0, 0, 0, 0)


def _widened(load: Load, single: tuple[bool, bool, bool]) -> Load:
    """A load whose ranges of one tile or one step are the whole axis."""
    one_column, one_row, one_step = single
    rows, columns = load.rows, load.columns
    if (rows == TILE and one_row) or (rows == SUM and one_step):
        rows = FULL
    if (columns == TILE and one_column) or (columns == SUM and one_step):
        columns = FULL
    return load._replace(rows=rows, columns=columns)


def _may_meet(first: int, second: int) -> bool:
    """Whether two ranges may be the same somewhere."""
    return first == second or FULL not in (first, second)


def _slices(problem: ContestProblem, loads: Sequence[Load]) -> _Slices:
    sums = dict.fromkeys(_Slices._fields, 0.0)
    for tensor, rows, columns, _ in loads:
        width, height = problem.widths[tensor], problem.heights[tensor]
        if rows == TILE:
            name, size = {TILE: ("rc", 1), SUM: ("rk", 1), FULL: ("rf", width)}[columns]
        elif rows == SUM:
            name, size = ("kc", 1) if columns == TILE else ("kf", width)
        else:
            name, size = {TILE: ("fc", height), SUM: ("kf", height), FULL: ("ff", width * height)}[columns]
        sums[name] += size
    return _Slices(**sums)


def compute_rates(problem: ContestProblem, subgraph: Subgraph) -> tuple[float, float, float, float]:
    """Compute time for each unit of the sum, in every step, in the last one; of the sliced over all steps."""
    rates = [0.0, 0.0, 0.0, 0.0]
    native_w, native_h, _ = problem.native
    for operator, rows, columns, is_root, depth in subgraph.works:
        made = problem.operators[operator]
        time, part = made.cost, 1 if depth else 2
        if rows == FULL:
            time *= problem.heights[made.output] / native_h
        if columns == FULL:
            time *= problem.widths[made.output] / native_w
        if rows == SUM:
            time, part = time / native_h, 0
        if columns == SUM:
            time, part = time / native_w, 0
        if is_root and made.is_product:
            time, part = time / problem.depth(operator), 0
        rates[part] += time
        if part == 0:
            rates[3] += time * depth
    return rates[0], rates[1], rates[2], rates[3]


class Grid(NamedTuple):
    """Granularities of a shape as arrays that broadcast: widths, heights, depths."""

    w: Array
    h: Array
    k: Array
    columns: Array
    rows: Array
    steps: Array
    last_w: Array  # of the last tile of a row
    last_h: Array
    last_k: Array
    is_even: bool  # all tiles are equal, whatever the granularity

    def part(self, w: Array, h: Array, k: Array) -> Grid:
        """The granularities of these widths, heights and depths."""
        return Grid(
            self.w[w], self.h[:, h], self.k[:, :, k],
            self.columns[w], self.rows[:, h], self.steps[:, :, k],
            self.last_w[w], self.last_h[:, h], self.last_k[:, :, k], self.is_even,
        )  # fmt: skip

    @property
    def shape(self) -> tuple[int, int, int]:
        """Numbers of widths, heights and depths."""
        return self.w.shape[0], self.h.shape[1], self.k.shape[2]


@lru_cache(maxsize=512)
def grid_of(
    width: int, height: int, depth: int, most_k: int, native: tuple[int, int, int], only_powers: bool
) -> Grid:
    """Granularities of a shape, a sum and the longest step."""
    w = np.array(tile_sides(width, native[0], only_powers=only_powers), float)[:, None, None]
    h = np.array(tile_sides(height, native[1], only_powers=only_powers), float)[None, :, None]
    k = np.array(
        tile_sides(depth, min(native[2], most_k), only_powers=only_powers) if depth else (1,), float
    )[None, None, :]
    steps = np.ceil(depth / k) if depth else np.ones_like(k)
    columns, rows = np.ceil(width / w), np.ceil(height / h)
    last_k = depth - (steps - 1) * k if depth else k
    last_w, last_h = width - (columns - 1) * w, height - (rows - 1) * h
    is_even = bool((last_w == w).all() and (last_h == h).all())
    return Grid(w, h, k, columns, rows, steps, last_w, last_h, last_k, is_even)


class _Tiles(NamedTuple):
    """Times of a tile by what the tile before it left, and what a tile holds."""

    case: Case
    grid: Grid
    bandwidth: float

    def fresh(self, w: Array, h: Array) -> Array:
        """Nothing is there."""
        always, end = self.case.always, self.case.at_end
        whole = always.rc * w * h + always.rf * h + always.fc * w + always.ff
        ending = end.rc * w * h + end.rf * h + end.fc * w + end.ff
        return self._time(w, h, whole, whole + self._sliced(w, h, self.grid.k) + ending)

    def same_row(self, w: Array, h: Array) -> Array:
        """Slices that do not depend on the column are there."""
        always, end = self.case.always, self.case.at_end
        first = always.rc * w * h + always.fc * w
        return self._time(w, h, first, first + always.kc * self.grid.k * w + end.rc * w * h + end.fc * w)

    def same_column(self, w: Array, h: Array) -> Array:
        """Slices that do not depend on the row are there."""
        always, end = self.case.always, self.case.at_end
        first = always.rc * w * h + always.rf * h
        return self._time(w, h, first, first + always.rk * self.grid.k * h + end.rc * w * h + end.rf * h)

    def held(self) -> Array:
        """Elements in memory at most."""
        case, grid = self.case, self.grid
        w, h = grid.w, grid.h
        always, end = case.always, case.at_end
        whole = always.rc * w * h + always.rf * h + always.fc * w + always.ff
        ending = end.rc * w * h + end.rf * h + end.fc * w + end.ff
        inputs = whole + np.maximum(self._sliced(w, h, grid.k), self._sliced(w, h, grid.last_k) + ending)
        tiles = np.maximum(case.num_sinks, np.where(grid.steps == 1, 0, case.num_roots)) - case.num_retained
        return inputs + tiles * w * h

    def _sliced(self, w: Array, h: Array, k: Array) -> Array:
        always = self.case.always
        return (always.rk * h + always.kc * w + always.kf) * k

    def _time(self, w: Array, h: Array, first: Array, only: Array) -> Array:
        """First and last step and those between; `only` is loaded where one step is all."""
        case, grid, bandwidth = self.case, self.grid, self.bandwidth
        end = case.at_end
        sliced = self._sliced(w, h, grid.k)
        out = case.stored * w * h
        compute = case.compute_sum * grid.k + case.compute_step
        last = case.compute_sum * grid.last_k + case.compute_step + case.compute_end
        ending = end.rc * w * h + end.rf * h + end.fc * w + end.ff
        many = (
            np.maximum(compute, (first + sliced) / bandwidth)
            + np.maximum(compute, sliced / bandwidth) * np.maximum(grid.steps - 2, 0)
            + np.maximum(last, (self._sliced(w, h, grid.last_k) + ending + out) / bandwidth)
        )
        return np.where(grid.steps == 1, np.maximum(last, (only + out) / bandwidth), many)


def _snake(
    along: Callable[[Array, Array], Array],
    turn: Callable[[Array, Array], Array],
    h: Array,
    last_h: Array,
    rows: Array,
    w: Array,
    last_w: Array,
    columns: Array,
) -> Array:
    """All tiles but the first one: rows with even numbers begin at the first column, others at the last."""
    even_rows, odd_rows = np.ceil((rows - 1) / 2), np.floor((rows - 1) / 2)  # but for the last one
    is_last_even = (rows - 1) % 2 == 0

    def row(h: Array) -> tuple[Array, Array, Array, Array]:
        inner, edge = along(w, h), along(last_w, h)
        from_first = np.where(columns > 1, (columns - 2) * inner + edge, 0)
        return from_first, (columns - 1) * inner, turn(w, h), turn(last_w, h)

    even, odd, begin_even, begin_odd = row(h)
    last_even, last_odd, last_begin_even, last_begin_odd = row(last_h)
    full = (
        even_rows * even + odd_rows * odd + np.maximum(even_rows - 1, 0) * begin_even + odd_rows * begin_odd
    )
    last = np.where(is_last_even, last_even + last_begin_even, last_odd + last_begin_odd)
    return np.where(rows == 1, even, full + last)


def estimates(
    problem: ContestProblem, subgraph: Subgraph, resident: frozenset[int], grid: Grid, case: Case
) -> tuple[Array, Array, Array]:
    """Times of both directions, whether memory suffices, and a lower bound of the time."""
    tiles = _Tiles(case, grid, problem.bandwidth)
    rows, columns = grid.rows, grid.columns
    fresh = tiles.fresh(grid.w, grid.h)
    if grid.is_even:
        along, across = tiles.same_row(grid.w, grid.h), tiles.same_column(grid.w, grid.h)
        row_wise = rows * (columns - 1) * along + (rows - 1) * across
        column_wise = columns * (rows - 1) * across + (columns - 1) * along
    else:
        row_wise = _snake(
            tiles.same_row, tiles.same_column, grid.h, grid.last_h, rows, grid.w, grid.last_w, columns
        )
        column_wise = _snake(
            lambda h, w: tiles.same_column(w, h),
            lambda h, w: tiles.same_row(w, h),
            grid.w,
            grid.last_w,
            columns,
            grid.h,
            grid.last_h,
            rows,
        )
    times = np.stack(np.broadcast_arrays(fresh + row_wise, fresh + column_wise))
    num_tiles = rows * columns
    fits = (case.held + tiles.held() <= problem.capacity) & (num_tiles * grid.steps <= MAX_STEPS)
    fits = np.broadcast_to(fits, grid.shape)
    fewest = np.ceil(case.least_root_depth / grid.k)
    compute = num_tiles * (case.compute_whole + case.compute_step * fewest + case.compute_end)
    outside = {x.tensor for x in subgraph.loads} - resident
    moved: Array = float(sum(map(problem.size, outside)))
    if case.is_simple and not case.lone:
        moved = _moved(grid, case)
    moved = moved + case.stored * case.width * case.height
    return times, fits, np.broadcast_to(np.maximum(compute, moved / problem.bandwidth), grid.shape)


def _moved(grid: Grid, case: Case) -> Array:
    """Elements that are loaded at least, of a simple case, whether or not sides divide their axes."""
    rows, columns, depth = grid.rows, grid.columns, case.depth
    always, end = case.always, case.at_end
    both = _Slices(*(x + y for x, y in zip(always, end, strict=True)))
    tiles = rows * columns
    one_step = grid.steps == 1
    by_row = both.rf * case.height + np.where(one_step, always.rk * case.height * depth, 0)
    by_column = both.fc * case.width + np.where(one_step, always.kc * case.width * depth, 0)
    row_again = by_column * np.maximum(rows - (rows - 1) * grid.w / case.width, 1)
    column_again = by_row * np.maximum(columns - (columns - 1) * grid.h / case.height, 1)
    in_parts = (always.rk * case.height * columns + always.kc * case.width * rows) * depth
    return (
        both.rc * case.width * case.height
        + both.ff
        + np.minimum(by_row + row_again, by_column + column_again)
        + np.where(one_step, always.kf * depth, in_parts + always.kf * depth * tiles)
    )
