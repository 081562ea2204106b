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
from tilewright.targets.cpu.matrix.plan import Plan
from tilewright.targets.cpu.matrix.tiles import TILE_BYTES, TILE_COLUMNS, TILE_DEPTH

Array = np.ndarray[Any, Any]


def pack_weights(problem: MatrixProblem, plan: Plan) -> Packed:
    """The constant factor as the kernel reads it."""
    line, row = plan.grid.line, plan.grid.row
    shape = (line.num_taps, row.num_taps, problem.depth, problem.columns)
    strides = (line.tap_b, row.tap_b, problem.depth_b, problem.columns_b)
    offset, pieces = problem.b_offset, plan.num_pieces
    steps, panel_tiles = plan.num_steps, plan.block.columns
    num_tiles = -(-problem.columns // TILE_COLUMNS)

    def pack(array: Array) -> Array:
        flat = np.ascontiguousarray(array, dtype=np.float32).reshape(-1)
        view = np.lib.stride_tricks.as_strided(
            flat[offset:], shape, tuple(s * flat.itemsize for s in strides)
        )
        padded = np.zeros((*shape[:2], steps * TILE_DEPTH, num_tiles * TILE_COLUMNS), np.float32)
        padded[:, :, : problem.depth, : problem.columns] = view
        split = split_bfloat16(padded, pieces).reshape(
            pieces, *shape[:2], steps, TILE_DEPTH // 2, 2, num_tiles, TILE_COLUMNS
        )
        # tile, line tap, step, row tap, piece, pair of rows, column, row
        tiles = split.transpose(6, 1, 3, 2, 0, 4, 7, 5)
        parts: list[Array] = []
        for first in range(0, num_tiles, panel_tiles):
            panel = tiles[first : first + panel_tiles]
            parts.append(np.ascontiguousarray(np.moveaxis(panel, 0, 4)).reshape(-1))
        return np.concatenate(parts)

    signature = f"matrix pieces={pieces} panel={panel_tiles} shape={shape} strides={strides} offset={offset}"
    size_bytes = pieces * problem.num_taps * steps * num_tiles * TILE_BYTES
    return Packed(problem.contraction.b.operand, pack, signature, size_bytes)


def split_bfloat16(values: Array, count: int) -> Array:
    """`count` bfloat16 pieces whose sum is each value, largest first, as their bits; shape [count, ...].

    Rounds to nearest even, as the processor does; what is left of an infinity counts as zero.

    >>> [hex(int(x)) for x in split_bfloat16(np.array([1.00390625], np.float32), 2)[:, 0]]
    ['0x3f80', '0x3b80']
    """
    pieces = np.empty((count, *values.shape), np.uint16)
    rest = values.astype(np.float32)
    for number in range(count):
        bits = rest.view(np.uint32)
        rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
        rounded[np.isnan(rest)] = 0x7FC0
        pieces[number] = rounded
        with np.errstate(invalid="ignore"):
            rest = rest - (rounded.astype(np.uint32) << 16).view(np.float32)
        rest[~np.isfinite(rest)] = 0
    return pieces
