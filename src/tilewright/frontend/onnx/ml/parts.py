"""What definitions of classical models share: rows of floats, places in lists, transforms of scores."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from tilewright.arrays import Array, grouped
from tilewright.frontend.onnx.microsoft.definition import Definition
from tilewright.ir.dtype import DType

# As ai.onnx.ml numbers them in TreeEnsemble.
POST_TRANSFORMS: Final = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
# Elements of a table that is made for a node: a quarter of a gigabyte of float32.
MAX_TABLE_ELEMENTS: Final = 1 << 26
# Scores nearer to zero than this are zeros to SOFTMAX_ZERO.
_NEAR_ZERO = 1e-7
# S. Winitzki's approximation of the inverse error function has this constant; onnxruntime takes pi as short.
_WINITZKI = 0.147
_PI = 3.14159


def rows(d: Definition, position: int = 0) -> tuple[str, int]:
    """An input as a matrix, and how many features it has: one row if it has one axis."""
    shape = d.shape(position, 1, 2)
    name = f"x{position}"
    return (name, shape[1]) if len(shape) == 2 else (unsqueezed(d, name, 0), shape[0])


def as_type(d: Definition, name: str, dtype: DType, wanted: DType = DType.FLOAT32) -> str:
    """A value converted to a type."""
    return name if dtype is wanted else d("Cast", name, to=wanted.value)


def float_rows(d: Definition) -> tuple[str, int]:
    """The first input as a matrix of float32."""
    name, num_features = rows(d)
    return as_type(d, name, d.value(0).dtype), num_features


def unsqueezed(d: Definition, name: str, axis: int) -> str:
    """A value with one more axis."""
    return d("Unsqueeze", name, d.whole_numbers([axis]))


def listed(d: Definition, values: Any, dtype: DType) -> str:
    """A list of numbers of a type as a constant."""
    return d.constant(np.asarray(values).astype(dtype.numpy))


def columns(d: Definition, name: str, low: int, high: int) -> str:
    """Some columns of a matrix."""
    return d("Slice", name, *(d.whole_numbers([n]) for n in (low, high, -1)))


def side_by_side(d: Definition, *names: str) -> str:
    """Matrices of as many rows as one."""
    return d("Concat", *names, axis=-1)


def post_transform(d: Definition) -> str:
    """The attribute, checked."""
    name = d.text("post_transform") or "NONE"
    d.require(name in POST_TRANSFORMS, f"post_transform is {name!r}, not one of {', '.join(POST_TRANSFORMS)}")
    return name


def transformed(d: Definition, scores: str, name: str, dtype: DType = DType.FLOAT32) -> str:
    """Scores of rows after a transform."""
    match name:
        case "SOFTMAX":
            return d("Softmax", scores, axis=-1)
        case "LOGISTIC":
            return d("Sigmoid", scores)
        case "SOFTMAX_ZERO":
            return _softmax_zero(d, scores, dtype)
        case "PROBIT":
            return probit(d, scores, dtype)
    return scores


def _softmax_zero(d: Definition, scores: str, dtype: DType) -> str:
    """A softmax in which zeros stay near to zero: they get no part of the sum."""
    largest = d("ReduceMax", scores, d.whole_numbers([-1]))
    is_zero = d("LessOrEqual", d("Abs", scores), d.number(_NEAR_ZERO, dtype))
    powers = d("Exp", d("Sub", scores, largest))
    none = d.number(0.0, dtype)
    total = d("ReduceSum", d("Where", is_zero, none, powers), d.whole_numbers([-1]))
    kept = d("Where", is_zero, d("Mul", scores, d("Exp", d("Neg", largest))), powers)
    return d("Div", kept, d("Where", d("Equal", total, none), d.number(1.0, dtype), total))


def probit(d: Definition, scores: str, dtype: DType) -> str:
    """The inverse of the normal distribution function, as onnxruntime approximates it."""

    def number(value: float) -> str:
        return d.number(value, dtype)

    x = d("Sub", d("Mul", scores, number(2.0)), number(1.0))
    log = d("Log", d("Mul", d("Sub", number(1.0), x), d("Add", x, number(1.0))))
    half = d("Add", d("Mul", log, number(0.5)), number(2 / (_PI * _WINITZKI)))
    root = d("Sqrt", d("Sub", d("Mul", half, half), d("Mul", log, number(1 / _WINITZKI))))
    size = d("Mul", d("Sqrt", d("Sub", root, half)), number(math.sqrt(2.0)))
    return d("Where", d("Less", x, number(0.0)), d("Neg", size), size)


# Places in lists --------------------------------------------------------------------------------------

# Up to so many keys each is compared.
_MOST_COMPARED = 32
# Whole numbers become places in a table that is so many times as long as there are keys.
_MOST_EMPTY = 8
_FREE_ENTRIES = 1 << 12


def place_in(d: Definition, name: str, dtype: DType, keys: Array) -> str:
    """For each element its place among keys, the first of equal ones; as many as there are for others.

    Few keys are compared one by one, whole numbers near to each other look up a table, the rest is found by
    halving.
    """
    count = len(keys)
    keys = np.asarray(keys).astype(dtype.numpy)
    none = d.constant(np.array(count, np.int64))
    if count <= _MOST_COMPARED:
        if not count:
            return d("Where", d("Equal", name, name), none, none)
        equal = d("Equal", unsqueezed(d, name, -1), d.constant(keys))
        if dtype.is_float and np.isnan(keys).any():
            both = d("And", unsqueezed(d, d("IsNaN", name), -1), d.constant(np.isnan(keys)))
            equal = d("Or", equal, both)
        places = d("Where", equal, d.whole_numbers(range(count)), none)
        return d("ReduceMin", places, d.whole_numbers([-1]), keepdims=0)
    is_number = ~np.isnan(keys) if dtype.is_float else np.ones(count, np.bool_)
    nan_place = count if is_number.all() else int(np.argmin(is_number))
    values, first, _ = grouped(keys[is_number])
    first = np.flatnonzero(is_number)[first]
    if not len(values):
        return d("Where", d("IsNaN", name), d.constant(np.array(nan_place, np.int64)), none)
    if dtype.is_integer and int(values[-1]) - int(values[0]) <= max(_MOST_EMPTY * count, _FREE_ENTRIES):
        return _by_table(d, as_type(d, name, dtype, DType.INT64), values.astype(np.int64), first, count)
    return _by_halving(d, name, values, first, count, nan_place)


def _by_table(d: Definition, name: str, values: Array, first: Array, count: int) -> str:
    low, high = int(values[0]), int(values[-1])
    table = np.full(high - low + 2, count, np.int64)
    table[values - low] = first
    ends = (d.constant(np.array(n, np.int64)) for n in (low, high))
    inside = d(
        "And", *(d(op, name, end) for op, end in zip(("GreaterOrEqual", "LessOrEqual"), ends, strict=True))
    )
    offset = d("Sub", name, d.constant(np.array(low, np.int64)))
    none = d.constant(np.array(high - low + 1, np.int64))
    return d("Gather", d.constant(table), d("Where", inside, offset, none), axis=0)


def _by_halving(d: Definition, name: str, values: Array, first: Array, count: int, nan_place: int) -> str:
    num_levels = max(len(values) - 1, 1).bit_length()
    padded = np.full(1 << num_levels, values[-1], values.dtype)
    padded[: len(values)] = values
    table = d.constant(padded)
    place = d("Where", d("Equal", name, name), *[d.constant(np.array(0, np.int64))] * 2)
    for level in reversed(range(num_levels)):
        probe = d("Add", place, d.constant(np.array(1 << level, np.int64)))
        place = d("Where", d("GreaterOrEqual", name, d("Gather", table, probe, axis=0)), probe, place)
    places = np.full(1 << num_levels, first[-1], np.int64)
    places[: len(first)] = first
    found = d("Gather", d.constant(places), place, axis=0)
    is_found = d("Equal", name, d("Gather", table, place, axis=0))
    other = d.constant(np.array(count, np.int64))
    if nan_place != count:
        other = d("Where", d("IsNaN", name), d.constant(np.array(nan_place, np.int64)), other)
    return d("Where", is_found, found, other)
