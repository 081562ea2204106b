"""Constant factors as tiles want them: rows of the depth in its order, padded with zeros to whole tiles."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import ceil

import numpy as np

from tilewright.arrays import Array
from tilewright.ir.dtype import DType
from tilewright.ir.nest import Dim
from tilewright.targets.cuda.kernel import Packed
from tilewright.targets.cuda.products.match import Product, Side
from tilewright.targets.cuda.products.tiles import ProductPlan
from tilewright.targets.cuda.rates import BYTE_KINDS, Kind


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
        0 if product.bytes is None else product.bytes.known_zero,
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
    zero: int,
    data: Array,
) -> Array:
    places = _places(side, batch, depth)
    values = data.reshape(-1)
    if kind in BYTE_KINDS:
        values = (values.astype(np.int16) - zero).astype(np.int8)
    found = np.zeros((len(places), num_rows, num_steps), values.dtype)
    found[:, : places.shape[1], : places.shape[2]] = values[places]
    return _multiplied(found, kind)


def packed_sums(product: Product) -> Packed:
    """Of products of bytes: the sum of each row of the constant factor less its zero point, as int32."""
    assert product.bytes is not None
    side, zero = product.sides[product.bytes.known], product.bytes.known_zero

    def sums(data: Array) -> Array:
        values = data.reshape(-1)[_places(side, product.batch, product.depth)]
        total: Array = (values.astype(np.int32) - zero).sum(-1, dtype=np.int32)
        return total

    return Packed(side.ref.operand, sums, "sums of rows")


def _places(side: Side, batch: Sequence[Dim], depth: Sequence[Dim]) -> Array:
    """Where the elements of a factor lie, by batch, row and step."""

    def offsets(dims: Sequence[Dim]) -> Array:
        """Elements to each combination of loops, the last one moving first."""
        total = np.zeros(1, np.int64)
        for dim in dims:
            own = side.ref.form.coefficient(dim.name) * np.arange(dim.extent)
            total = (total[:, None] + own).reshape(-1)
        return total

    outer, rows, steps = offsets(batch), offsets(side.rows), offsets(depth)
    places: Array = outer[:, None, None] + rows[:, None] + steps + side.ref.form.offset
    return places


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
