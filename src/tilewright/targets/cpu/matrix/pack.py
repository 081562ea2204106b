"""Weights split and arranged at compile time: tile after tile in the order in which the kernel loads them.

For each panel of output columns, tap along lines, step of the depth and tap along the row there are, piece by
piece, the tiles of the panel's columns. A tile holds 16 rows; a row holds two neighbouring summed elements of
each of 16 columns. What lies behind the last column or the depth's end is zero.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.targets.cpu.kernel import Packed
from tilewright.targets.cpu.matrix.match import MatrixProblem
from tilewright.targets.cpu.matrix.plan import MatrixPlan
from tilewright.targets.cpu.matrix.tiles import TILE_BYTES, TILE_COLUMNS, TILE_DEPTH

Array = np.ndarray[Any, Any]

# Values below round to finite bfloat16.
_LARGEST_PIECE = 3e38


def pack_weights(problem: MatrixProblem, plan: MatrixPlan) -> Packed:
    """The constant factor as the kernel reads it."""
    line, row = plan.grid.line, plan.grid.row
    shape = (line.num_taps, row.num_taps, problem.depth, problem.columns)
    strides = (line.tap_b, row.tap_b, problem.depth_b, problem.columns_b)
    offset, pieces = problem.b_offset, plan.num_pieces
    steps, panel_tiles = plan.num_steps, plan.block.columns
    num_tiles = -(-problem.columns // TILE_COLUMNS)
    size_bytes = pieces * problem.num_taps * steps * num_tiles * TILE_BYTES

    def pack(array: Array) -> Array:
        flat = np.ascontiguousarray(array, dtype=np.float32).reshape(-1)
        view = np.lib.stride_tricks.as_strided(
            flat[offset:], shape, tuple(s * flat.itemsize for s in strides)
        )
        packed = np.empty(size_bytes // 2, np.uint16)
        done = 0
        # Panel by panel: what one needs stays in the caches.
        for first in range(0, num_tiles, panel_tiles):
            count = min(panel_tiles, num_tiles - first)
            columns = view[..., TILE_COLUMNS * first : TILE_COLUMNS * (first + count)]
            padded = np.zeros((*shape[:2], steps * TILE_DEPTH, count * TILE_COLUMNS), np.float32)
            padded[:, :, : problem.depth, : columns.shape[-1]] = columns
            split = split_bfloat16(padded, pieces).reshape(
                pieces, *shape[:2], steps, TILE_DEPTH // 2, 2, count, TILE_COLUMNS
            )
            # line tap, step, row tap, piece, tile, pair of rows, column, row
            tiles = split.transpose(1, 3, 2, 0, 6, 4, 7, 5)
            packed[done : done + tiles.size].reshape(tiles.shape)[...] = tiles
            done += tiles.size
        return packed

    signature = f"matrix pieces={pieces} panel={panel_tiles} shape={shape} strides={strides} offset={offset}"
    return Packed(problem.contraction.b.operand, pack, signature, size_bytes)


def split_bfloat16(values: Array, count: int) -> Array:
    """`count` bfloat16 pieces whose sum is each value, largest first, as their bits; shape [count, ...].

    Rounds to nearest even, as the processor does; what is left of an infinity counts as zero.

    >>> [hex(int(x)) for x in split_bfloat16(np.array([1.00390625], np.float32), 2)[:, 0]]
    ['0x3f80', '0x3b80']
    """
    pieces = np.empty((count, *values.shape), np.uint16)
    rest = values.astype(np.float32)
    is_plain = bool(np.abs(rest).max(initial=0.0) < _LARGEST_PIECE)  # not so for a NaN
    for number in range(count):
        bits = rest.view(np.uint32)
        rounded = bits >> 16
        rounded &= 1
        rounded += 0x7FFF
        rounded += bits
        rounded &= 0xFFFF0000
        if not is_plain:
            rounded[np.isnan(rest)] = 0x7FC00000
        pieces[number] = rounded >> 16
        if number + 1 < count:
            with np.errstate(invalid="ignore"):
                rest = rest - rounded.view(np.float32)
            if not is_plain:
                rest[~np.isfinite(rest)] = 0
    return pieces
