"""Register tiles at the edges of a padded axis: which taps their rows have, and how much code that makes.

Such a tile has code of its own: runs of neighbouring taps that the same rows reach, short ones tap by tap,
longer ones as loops. A row begins and ends within the axis once, so a tile of `n` rows has at most `2 n + 1`
runs, however long the window is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from tilewright.records import dataclass
from tilewright.targets.cpu.product.loops import Window
from tilewright.targets.cpu.product.tiling import RowTile

# Runs of fewer taps are straight code: no loop to pay for, and taps of small windows are merged by LLVM.
_MIN_LOOPED_TAPS = 8
# Vector operations in the code of all tiles at edges of a kernel. A window of 7 x 7 at stride 2 has about
# 500; code of 1,000 has about half a megabyte.
MAX_EDGE_OPERATIONS = 1024


@dataclass(frozen=True, slots=True)
class TapRun:
    """Neighbouring taps that lie inside the axis for the same rows of a tile."""

    taps: range
    rows: tuple[int, ...]

    def pieces(self) -> Sequence[range]:
        """The loops that the taps become: each tap by itself where they are few."""
        if len(self.taps) >= _MIN_LOOPED_TAPS:
            return (self.taps,)
        return tuple(range(tap, tap + 1) for tap in self.taps)


def tap_runs(window: Window, first_row: int, num_rows: int, num_taps: int) -> Iterator[TapRun]:
    """The runs of a tile, in the order of taps; taps that no row reaches are left out.

    >>> window = Window("o", 1, "k", 1, -1, 8)
    >>> [(list(run.taps), run.rows) for run in tap_runs(window, 0, 3, 3)]
    [([0], (1, 2)), ([1, 2], (0, 1, 2))]
    """
    inside = [window.taps_inside(first_row + row, num_taps) for row in range(num_rows)]
    bounds = sorted({at for taps in inside for at in (taps.start, taps.stop) if taps})
    for start, stop in pairwise(bounds):
        rows = tuple(row for row, taps in enumerate(inside) if start in taps)
        if rows:
            yield TapRun(range(start, stop), rows)


def touches_edge(window: Window, tile: RowTile, number: int, num_taps: int) -> bool:
    """Whether a row of the `number`-th of the tiles lacks a tap."""
    first = tile.start + number * tile.rows
    # What lacks none lies between what begins before the axis and what ends behind it.
    ends = (window.taps_inside(row, num_taps) for row in (first, first + tile.rows - 1))
    return any(taps != range(num_taps) for taps in ends)


def edge_operations(
    window: Window, row_tiles: Sequence[RowTile], num_taps: int, num_vectors: int, most: int
) -> int:
    """Vector operations in the code of all tiles at edges, counted no further than past `most`."""
    total = 0
    for tile in row_tiles:
        for number in range(tile.count):
            if touches_edge(window, tile, number, num_taps):
                runs = tap_runs(window, tile.start + number * tile.rows, tile.rows, num_taps)
                steps = sum(len(run.pieces()) * len(run.rows) for run in runs)
                total += num_vectors * (steps + 2 * tile.rows)
                if total > most:
                    return total
    return total
