"""Why a whole model may differ from other engines though each of its nodes alone does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from tests.fuzz.causes import is_nan
from tests.fuzz.opinions import CPU, RUNTIME, Array, is_float
from tests.fuzz.sketch import Step

EXTREMES = [
    "ArgMax",
    "ArgMin",
    "MaxPool",
    "GlobalMaxPool",
    "ReduceMax",
    "ReduceMin",
    "Hardmax",
    "TopK",
    "ScatterElements",
    "ScatterND",
    "RoiAlign",
]
"""Operators that choose among elements."""


@dataclass(frozen=True, slots=True)
class ExplainedModel:
    """One reason why a whole model differs although each of its nodes alone does not."""

    other: str
    reason: str
    applies: Callable[[Sequence[Step], Array, Array, Array], bool]


def _half_overflow(steps: Sequence[Step], ours: Array, theirs: Array, wrong: Array) -> bool:
    """A half type is among the types, and each wrong element is not finite for one of the two."""
    halves = any(a.dtype.itemsize == 2 and is_float(a) for step in steps for a in step.arrays.values())
    if not halves or not is_float(ours):
        return False
    finite = np.isfinite(ours.astype(np.float64)) & np.isfinite(theirs.astype(np.float64))
    return not (finite & wrong).any()


def _compares_nan(steps: Sequence[Step], ours: Array, theirs: Array, wrong: Array) -> bool:
    return any(
        step.op_type in EXTREMES and any(is_float(a) and is_nan(a).any() for a in step.arrays.values())
        for step in steps
    )


def _convolves_non_finite(steps: Sequence[Step], ours: Array, theirs: Array, wrong: Array) -> bool:
    """A padded Conv takes what is not finite, and each wrong element is not finite for one of the two."""
    takes = any(
        step.op_type == "Conv"
        and any(step.attribute("pads", ()))
        and any(is_float(a) and not np.isfinite(a.astype(np.float64)).all() for a in step.arrays.values())
        for step in steps
    )
    if not takes or not is_float(ours):
        return False
    finite = np.isfinite(ours.astype(np.float64)) & np.isfinite(theirs.astype(np.float64))
    return not (finite & wrong).any()


def _clips_infinity(steps: Sequence[Step], ours: Array, theirs: Array, wrong: Array) -> bool:
    """A Clip with an open end takes an infinity, and ours is not finite wherever it differs."""
    takes = any(
        step.op_type == "Clip"
        and (len(step.proto.input) < 3 or "" in step.proto.input[1:3])
        and any(is_float(a) and np.isinf(a.astype(np.float64)).any() for a in step.arrays.values())
        for step in steps
    )
    return takes and is_float(ours) and not np.isfinite(ours.astype(np.float64)[wrong]).any()


# How far from a divisor a remainder's jump may be: by the rounding errors that made it jump.
_JUMP = 1e-3


_NARROWING = frozenset({"Cast", "CastLike", "Pow", "Shrink"})


def _ends_of_the_integers(steps: Sequence[Step], ours: Array, theirs: Array, wrong: Array) -> bool:
    """Something becomes an integer, and each wrong element is what generated code makes of one too large."""
    if ours.dtype.kind not in "iu" or not any(step.op_type in _NARROWING for step in steps):
        return False
    limits = np.iinfo(ours.dtype)
    return bool(np.isin(theirs[wrong], (limits.min, 0, limits.max)).all())


def _jumps_by_the_divisor(steps: Sequence[Step], ours: Array, theirs: Array, wrong: Array) -> bool:
    """Each wrong element is off by what a Mod of the model divides by there."""
    if not is_float(ours):
        return False
    for step in steps:
        divisor = step.inputs()[1] if step.op_type == "Mod" else None
        if divisor is None or not is_float(divisor):
            continue
        try:
            size = np.abs(np.broadcast_to(divisor.astype(np.float64), ours.shape))[wrong]
        except ValueError:  # of another shape
            continue
        apart = np.abs(ours.astype(np.float64) - theirs.astype(np.float64))[wrong]
        if (np.abs(apart - size) <= _JUMP * size).all():
            return True
    return False


EXPLAINED_MODELS: tuple[ExplainedModel, ...] = (
    ExplainedModel(
        CPU,
        "between operators of a half type generated code keeps float32: what overflows or underflows in the "
        "half type alone does not, and later gives a number where the interpreter has an infinity or NaN",
        _half_overflow,
    ),
    ExplainedModel(
        CPU,
        "numbers beyond the integer type that they become: the standard leaves the result open",
        _ends_of_the_integers,
    ),
    ExplainedModel(
        RUNTIME,
        "ONNX Runtime runs most operators of half types in float32 and drops conversions between them",
        _half_overflow,
    ),
    ExplainedModel(
        RUNTIME,
        "NaN among what is compared: its place decides, and so does which kernel runs",
        _compares_nan,
    ),
    ExplainedModel(
        RUNTIME,
        "a Clip with an open end: ONNX Runtime clamps infinities to the largest number, or not; here, as in "
        "the reference, they stay",
        _clips_infinity,
    ),
    ExplainedModel(
        RUNTIME,
        "infinities or NaN beside padded zeros of a Conv: optimised, ONNX Runtime multiplies or skips them "
        "otherwise than node by node",
        _convolves_non_finite,
    ),
    ExplainedModel(
        RUNTIME,
        "the remainder of a quotient that is a rounding error from an integer: 0 for one, the divisor for "
        "the other",
        _jumps_by_the_divisor,
    ),
)
