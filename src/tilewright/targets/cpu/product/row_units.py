"""The pieces that the rows of a product are cut into, of as many rows as a run has."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.targets.cpu.product.loops import StridedLoop
from tilewright.targets.cpu.product.tiling import RowTile
from tilewright.targets.llvm.emitter import Emitter
from tilewright.targets.llvm.values import Int


def row_loop(outer: Sequence[StridedLoop], row: StridedLoop | None) -> StridedLoop | None:
    """The outermost loop of the pieces, if it is one over rows of which a run may have fewer.

    `row` is the loop that register tiles cut, None where a piece is all of it.
    """
    loop = next(iter(outer), row)
    return loop if loop is not None and loop.rows is not None else None


def asked_units(
    e: Emitter,
    loop: StridedLoop,
    num_rows: Int,
    outer: Sequence[StridedLoop],
    tiles: Sequence[RowTile],
    num_units: int,
) -> Int:
    """Of `num_units` pieces, those of the first rows; without loops outside they are the tiles of one."""
    assert loop.rows is not None
    extent = e.iterations(loop.rows, num_rows)
    if outer:
        return e.mul(extent, num_units // loop.extent)
    first, *others = tiles
    if not others:
        return e.udiv(e.add(extent, first.rows - 1), first.rows)
    # The first tiles have one row more than those behind them.
    (second,) = others
    behind = e.udiv(e.add(e.max(e.sub(extent, second.start), 0), second.rows - 1), second.rows)
    before = e.udiv(e.add(e.min(extent, second.start), first.rows - 1), first.rows)
    return e.add(before, behind)
