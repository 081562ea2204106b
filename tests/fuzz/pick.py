"""Which values steps take: by element type, by rank, by what broadcasts with them."""

from __future__ import annotations

from tests.fuzz.maker import Maker

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Value


def is_float(value: Value) -> bool:
    return value.dtype.is_float


def is_single(value: Value) -> bool:
    return value.dtype is DType.FLOAT32


def is_image(value: Value) -> bool:
    return is_float(value) and 3 <= len(value.shape) <= 5


def broadcasts(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return all(i == j or 1 in (i, j) for i, j in zip(reversed(a), reversed(b), strict=False))


def partners(m: Maker, x: Value) -> list[Value]:
    """`x` and something it broadcasts with, in either order."""
    kind, shape = m.number(0, 6), x.shape
    y = m.pick(lambda v: v.dtype is x.dtype and broadcasts(v.shape, shape)) if kind >= 3 else None
    if y is None:
        if kind == 0:
            other: tuple[int, ...] = ()
        elif kind == 1 and len(shape) >= 2:
            other = tuple(d if a == 1 else 1 for a, d in enumerate(shape))
        elif kind == 2:
            other = shape[m.number(0, len(shape)) :]
        else:
            other = tuple(d if m.flag() else 1 for d in shape)
        y = m.constant(other, x.dtype)
    return [x, y] if m.flag() else [y, x]
