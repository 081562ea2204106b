"""Instructions of the matrix unit: eight registers, each a tile of up to 16 rows of 64 bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.targets.llvm.emitter import Emitter
from tilewright.targets.llvm.values import Int, Val, vec, vector_literal

NUM_TILES = 8
TILE_ROWS = 16
TILE_BYTES_PER_ROW = 64


def configure(
    e: Emitter, shapes: Sequence[tuple[int, int]] = ((TILE_ROWS, TILE_BYTES_PER_ROW),) * NUM_TILES
) -> None:
    """Say how many rows, of how many bytes, each register holds. Registers start as zero."""
    palette = np.zeros(64, np.uint8)
    palette[0] = 1
    for tile, (rows, row_bytes) in enumerate(shapes):
        palette[16 + 2 * tile], palette[48 + tile] = row_bytes, rows
    place = e.alloca(vec("i32", 16))
    e.store(vector_literal("i32", [int(x) for x in palette.view(np.int32)]), place)
    _call(e, "ldtilecfg", f"ptr {place}", "ptr")


def release(e: Emitter) -> None:
    """Hand the registers back, so that switching threads need not save them."""
    _call(e, "tilerelease", "", "")


def clear(e: Emitter, tile: int) -> None:
    """Zero in a register."""
    _call(e, "tilezero", f"i8 {tile}", "i8")


def load(e: Emitter, tile: int, pointer: Val, pitch_bytes: Int) -> None:
    """Rows from memory, `pitch_bytes` apart."""
    _call(e, "tileloadd64", f"i8 {tile}, ptr {pointer}, i64 {pitch_bytes}", "i8, ptr, i64")


def store(e: Emitter, tile: int, pointer: Val, pitch_bytes: Int) -> None:
    """Rows to memory, `pitch_bytes` apart."""
    _call(e, "tilestored64", f"i8 {tile}, ptr {pointer}, i64 {pitch_bytes}", "i8, ptr, i64")


def dot(e: Emitter, operation: str, sums: int, a: int, b: int) -> None:
    """Add the product of two registers to a third, by the instruction of that name."""
    _call(e, operation, f"i8 {sums}, i8 {a}, i8 {b}", "i8, i8, i8")


def _call(e: Emitter, name: str, operands: str, types: str) -> None:
    e.declare(f"declare void @llvm.x86.{name}({types})")
    e.line(f"call void @llvm.x86.{name}({operands})")
