"""What a partial mapping knows of loops that slide a window, so that words are counted as the cost does.

The cost (rule 2 of `nest_analysis.py`) takes a tile's words whole, unless it has moved as it moved before:
then only those that the last tile lacks. The innermost loop's steps all move alike, by `MOVE`. A step further
out moves the tile by that loop's own distance less what the loops inside it went, each counted once
as every second iteration stands for the following ones; it is a repetition only if that is `MOVE`, too, or if
both are nothing. As moves are positive, that takes a loop inside of which the operand moves along no other
axis. So for each operand with windows a search state keeps the axis in question, the innermost loop, and the
loops further out whose step may yet turn out to be a repetition: the way that is left (their distance less
what was gone inside them, without the innermost loop), and the share of all tiles that their steps are.

Two of them are kept; of a third the steps count as repetitions, which can only make a mapping look
too good: a bound stays one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.cost.nest_table import new_positions
from tilewright.machine_code import part_of_loops

Array = np.ndarray[Any, Any]

# Axis (the row of `windows` plus 1; 0: none), the innermost loop's move and factor, the share of tiles that
# counts as repeated, then way left and share of loops further out, the outermost first; share 0: no loop.
AXIS, MOVE, FACTOR, GRANTED, WAY, SHARE = range(6)
_NUM_SLOTS = 2
NUM_COLUMNS = WAY + 2 * _NUM_SLOTS


@part_of_loops
def forget(row: Array, at: int) -> None:
    """No loop moves the operand along a window; `at` is the first of its columns."""
    for column in range(at, at + NUM_COLUMNS):
        row[column] = 0.0
    row[at + FACTOR] = 1.0


@part_of_loops
def _put_outside(row: Array, at: int) -> None:
    """The innermost loop becomes one of those further out."""
    move, factor = row[at + MOVE], row[at + FACTOR]
    count = 0
    for slot in range(_NUM_SLOTS):
        way, share = row[at + WAY + 2 * slot] - move, row[at + SHARE + 2 * slot]
        row[at + WAY + 2 * slot] = row[at + SHARE + 2 * slot] = 0.0
        if share > 0 and way >= 0:
            row[at + WAY + 2 * count], row[at + SHARE + 2 * count] = way, share
            count += 1
    if count == _NUM_SLOTS:
        row[at + GRANTED] += row[at + SHARE]
        for column in range(at + WAY, at + NUM_COLUMNS - 2):
            row[column] = row[column + 2]
        count -= 1
    row[at + WAY + 2 * count], row[at + SHARE + 2 * count] = move, (factor - 1) / factor


@part_of_loops
def add_loop(
    row: Array, at: int, operand: int, dim: int, factor: int, tile: int, depends: Array, windows: Array,
    goes_on: bool,
) -> bool:  # fmt: skip
    """Put a temporal loop inside all others; says whether it slides a window.

    `tile`: what lies inside the loop, of its dim. `goes_on`: the innermost loop is of this dim and level, so
    that both are one loop. `windows`: operand, dim, step, dim, step of each axis with two terms.
    """
    axis = move = 0
    for w in range(windows.shape[0]):
        if windows[w, 0] == operand:
            for term in (1, 3):
                if windows[w, term] == dim:
                    axis, move = w + 1, windows[w, term + 1] * tile
    if axis == 0 and depends[operand, dim]:
        forget(row, at)
        return False
    if axis > 0 and goes_on:
        row[at + FACTOR] *= factor
    else:
        if row[at + MOVE] > 0:
            _put_outside(row, at)
        row[at + FACTOR] = factor if axis > 0 else 1.0
    row[at + MOVE] = move
    if axis > 0 and row[at + AXIS] != axis:
        row[at + GRANTED] = 0.0
        for column in range(at + WAY, at + NUM_COLUMNS):
            row[column] = 0.0
        row[at + AXIS] = axis
    row[at + GRANTED] /= factor
    for slot in range(at + WAY, at + NUM_COLUMNS, 2):
        row[slot + 1] /= factor
    return axis > 0


@part_of_loops
def is_covered(a: Array, b: Array, at: int, same_innermost: bool) -> bool:
    """Whether of what enters later as much is repeated after `a` as after `b`, whatever comes inside.

    `same_innermost`: both go on with the same dim, or both with none.
    """
    if b[at + MOVE] == 0 and b[at + GRANTED] == 0 and b[at + SHARE] == 0:
        return True
    if not same_innermost or a[at + AXIS] != b[at + AXIS] or a[at + MOVE] != b[at + MOVE]:
        return False
    if a[at + FACTOR] < b[at + FACTOR] or a[at + GRANTED] < b[at + GRANTED] * (1 - 1e-12):
        return False
    for slot in range(at + WAY, at + NUM_COLUMNS, 2):
        if b[slot + 1] > 0 and (a[slot] != b[slot] or a[slot + 1] < b[slot + 1] * (1 - 1e-12)):
            return False
    return True


@part_of_loops
def share_that_enters(
    row: Array, at: int, share: float, tiles: Array, point: int, windows: Array, skips_pixels: bool,
) -> float:  # fmt: skip
    """The share of all iterations' tiles whose words enter a level with a point's tile.

    `share` is what loops leave that the operand does not depend on, right outside the level.
    """
    repeated = row[at + GRANTED]
    move = row[at + MOVE]
    for slot in range(at + WAY, at + NUM_COLUMNS, 2):
        if row[slot] == 2 * move:
            repeated += row[slot + 1]
    if move == 0:
        return float(max(0.0, share - repeated))
    w = int(row[at + AXIS]) - 1
    a, b = tiles[point, windows[w, 1]], tiles[point, windows[w, 3]]
    new, extent = new_positions(a, windows[w, 2], b, windows[w, 4], int(move), skips_pixels)
    whole = max(0.0, 1 / row[at + FACTOR] - repeated)
    return float(whole + (1 - whole) * new / extent)
