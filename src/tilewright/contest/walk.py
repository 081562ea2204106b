"""The walk over the tiles and steps of a subgraph that the contest's rules describe, in time and memory."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np

from tilewright.contest.problem import ContestProblem
from tilewright.contest.subgraph import FULL, SUM, Subgraph

SMALL = 8
"""Operators of a graph up to which the walk is interpreted: nothing has to be compiled or loaded."""


def num_steps(depth: int, k: int) -> int:
    """Steps of a sum."""
    return -(-depth // k)


def step_compute(problem: ContestProblem, subgraph: Subgraph, k: int, steps: int) -> list[float]:
    """Compute time of every step of a tile.

    Sides that are tiles fill the array once, whatever their size; sides that are slices of the sum or whole
    are streamed, so they cost in proportion; a root pays its slice of the sum.
    """
    native_w, native_h, _ = problem.native
    compute = np.zeros(steps)
    first = np.arange(steps) * k
    for operator, rows, columns, is_root, depth in subgraph.works:
        made = problem.operators[operator]
        active = num_steps(depth, k)
        fixed, sliced = made.cost, False
        if rows == FULL:
            fixed *= problem.heights[made.output] / native_h
        elif rows == SUM:
            fixed, sliced = fixed / native_h, True
        if columns == FULL:
            fixed *= problem.widths[made.output] / native_w
        elif columns == SUM:
            fixed, sliced = fixed / native_w, True
        if is_root and made.is_product:
            fixed, sliced = fixed / problem.depth(operator), True
        if not active:
            compute[-1] += fixed
            continue
        begin = first[:active]
        compute[:active] += fixed * (np.minimum(depth, begin + k) - begin) if sliced else fixed
    return [float(time) for time in compute]


def walk(
    order: Sequence[int],
    num_columns: int,
    tile: tuple[int, int, int],
    shape: tuple[int, int],
    compute: Sequence[float],
    loads: Sequence[Sequence[int]],
    stored: int,
    accumulated: int,
    held: int,
    capacity: int,
    bandwidth: float,
) -> tuple[float, int]:
    """Time and peak memory of a subgraph, infinite where its memory does not suffice.

    `loads` holds, for each slice, the tensor's number, its ranges along rows and columns, its height and
    width, and the steps in which it is needed (0: the last one); slices of a tensor are neighbours.
    `stored` and `accumulated` count output tiles that are stored and that lie in memory.
    """
    w, h, k = tile
    width, height = shape
    steps = len(compute)
    num_loads = len(loads)
    boxes = [(0, 0, 0, 0)] * num_loads
    before = [(0, 0, 0, 0)] * num_loads
    is_active = [False] * num_loads
    was_active = [False] * num_loads
    total = 0.0
    peak = 0
    for place in order:
        r, c = place // num_columns, place % num_columns
        tile_height = min(height, (r + 1) * h) - r * h
        tile_width = min(width, (c + 1) * w) - c * w
        area = tile_height * tile_width
        for s in range(steps):
            is_last = s == steps - 1
            for e in range(num_loads):
                load = loads[e]
                needed = load[5]
                is_active[e] = s < needed or (is_last and needed == 0)
                if load[1] == 0:
                    top, bottom = min(load[3], r * h), min(load[3], (r + 1) * h)
                elif load[1] == 1:
                    top, bottom = min(load[3], s * k), min(load[3], (s + 1) * k)
                else:
                    top, bottom = 0, load[3]
                if load[2] == 0:
                    left, right = min(load[4], c * w), min(load[4], (c + 1) * w)
                elif load[2] == 1:
                    left, right = min(load[4], s * k), min(load[4], (s + 1) * k)
                else:
                    left, right = 0, load[4]
                boxes[e] = (top, bottom, left, right)
            inputs = 0
            moved = 0
            for e in range(num_loads):
                if not is_active[e]:
                    continue
                load, box = loads[e], boxes[e]
                size = (box[1] - box[0]) * (box[3] - box[2])
                is_whole = size == load[3] * load[4]
                is_new, is_there = True, False
                for f in range(num_loads):
                    if loads[f][0] != load[0]:
                        continue
                    other = boxes[f]
                    if is_active[f] and f != e:
                        is_other_whole = (other[1] - other[0]) * (other[3] - other[2]) == load[3] * load[4]
                        if (other == box and f < e) or (is_other_whole and not is_whole):
                            is_new = False
                    if was_active[f]:
                        old = before[f]
                        if old == box or (old[1] - old[0]) * (old[3] - old[2]) == load[3] * load[4]:
                            is_there = True
                if is_new:
                    inputs += size
                    if not is_there:
                        moved += size
            if is_last:
                moved += area * stored
            peak = max(peak, held + inputs + accumulated * area)
            if peak > capacity:
                return inf, peak
            total += max(compute[s], moved / bandwidth)
            for e in range(num_loads):
                before[e] = boxes[e]
                was_active[e] = is_active[e]
    return total, peak


def row_snake(rows: int, columns: int) -> list[int]:
    """Tiles row by row, every other row backwards.

    >>> row_snake(2, 3)
    [0, 1, 2, 5, 4, 3]
    """
    return [r * columns + (c if r % 2 == 0 else columns - 1 - c) for r in range(rows) for c in range(columns)]


def column_snake(rows: int, columns: int) -> list[int]:
    """Tiles column by column, every other column upwards.

    >>> column_snake(2, 3)
    [0, 3, 4, 1, 2, 5]
    """
    return [(r if c % 2 == 0 else rows - 1 - r) * columns + c for c in range(columns) for r in range(rows)]
