"""Constant factors as tiles want them: rows of the depth in its order, padded with zeros to whole tiles."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import ceil
from typing import Any

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.nest import Dim
from tilewright.targets.cuda.kernel import Packed
from tilewright.targets.cuda.products.match import Product, Side
from tilewright.targets.cuda.products.tiles import ProductPlan
from tilewright.targets.cuda.rates import Kind

Array = np.ndarray[Any, Any]


def packed(product: Product, plan: ProductPlan, side: int) -> Packed:
    """One factor of a product, as its kernel reads it."""
    found = product.sides[side]
    tile_rows = plan.tile.columns if side else plan.tile.rows
    arrange = partial(
        _arranged,
        found,
        product.batch,
        product.depth,
        padded_rows(found, tile_rows),
        plan.padded_steps,
        plan.kind,
    )
    return Packed(found.ref.operand, arrange, f"{plan.kind} rows of {plan.padded_steps}")


def padded_rows(side: Side, tile_rows: int) -> int:
    """Rows of a factor in whole tiles."""
    return ceil(side.num_rows / tile_rows) * tile_rows


def _arranged(
    side: Side,
    batch: Sequence[Dim],
    depth: Sequence[Dim],
    num_rows: int,
    num_steps: int,
    kind: Kind,
    data: Array,
) -> Array:
    def offsets(dims: Sequence[Dim]) -> Array:
        """Elements to each combination of loops, the last one moving first."""
        total = np.zeros(1, np.int64)
        for dim in dims:
            own = side.ref.form.coefficient(dim.name) * np.arange(dim.extent)
            total = (total[:, None] + own).reshape(-1)
        return total

    outer, rows, steps = offsets(batch), offsets(side.rows), offsets(depth)
    places = outer[:, None, None] + rows[:, None] + steps + side.ref.form.offset
    found = np.zeros((len(outer), num_rows, num_steps), data.dtype)
    found[:, : len(rows), : len(steps)] = data.reshape(-1)[places]
    return _multiplied(found, kind)


def _multiplied(data: Array, kind: Kind) -> Array:
    """Numbers in the type in which they are multiplied, rounded to the nearest."""
    if kind == "tf32":
        bits = data.astype(np.float32).view(np.uint32)
        is_finite = np.isfinite(data)
        rounded = (bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
        return np.where(is_finite, rounded, bits).view(np.float32)
    if kind == "bf16":
        return data.astype(DType.BFLOAT16.numpy)
    return data
