"""Arrays of every type with the numbers that arithmetic treats in a way of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.ir.dtype import DType

Array = np.ndarray[Any, Any]

NUMBERS = tuple(d for d in DType if d.is_float or d.is_integer)
_ORDINARY = (0.0, -0.0, 0.5, 1.0, -1.0, 1.5, 2.5, -2.5, 3.0, -7.0, 100.0)


def special_numbers(dtype: DType, *, huge: bool = True) -> list[float | int]:
    """What lies at the edges of a type; without `huge`, what any sum treats alike in any order."""
    if dtype.is_integer:
        limits = np.iinfo(dtype.numpy)
        return [int(limits.min), int(limits.max), 0, 1, int(limits.max) // 2 + 1]
    largest, smallest = float_limits(dtype)
    numbers: list[float | int] = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0]
    if huge:
        numbers += [largest, -largest, smallest, -smallest, smallest * 3]
    return numbers


def float_limits(dtype: DType) -> tuple[float, float]:
    """The largest number of a float type and its smallest above zero, which is no normal one."""
    if dtype is DType.BFLOAT16:
        import ml_dtypes

        limits: Any = ml_dtypes.finfo(ml_dtypes.bfloat16)
    else:
        limits = np.finfo(dtype.numpy)
    return float(limits.max), float(limits.smallest_subnormal)


def draw(
    rng: np.random.Generator,
    shape: Sequence[int],
    dtype: DType,
    *,
    special: float = 0.0,
    huge: bool = True,
    whole: bool = False,
) -> Array:
    """Small numbers, of which the fraction `special` is replaced by numbers at the type's edges."""
    shape = tuple(shape)
    if dtype is DType.BOOL:
        return np.asarray(rng.integers(0, 2, shape), np.bool_)
    if dtype.is_integer:
        low = -9 if dtype.is_signed else 0
        array = np.asarray(rng.integers(low, 10, shape)).astype(dtype.numpy)
    elif whole:
        array = np.asarray(rng.integers(-8, 9, shape) / 4).astype(dtype.numpy)
    else:
        ordinary = rng.choice(_ORDINARY, shape)
        array = np.asarray(np.where(rng.random(shape) < 0.2, ordinary, rng.standard_normal(shape)))
        array = array.astype(dtype.numpy)
    if special and array.size:
        numbers = special_numbers(dtype, huge=huge)
        flat = array.reshape(-1).copy()
        for i in np.flatnonzero(rng.random(flat.size) < special):
            flat[i] = dtype.numpy.type(numbers[int(rng.integers(len(numbers)))])
        array = flat.reshape(shape)
    return array
