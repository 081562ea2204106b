"""Where ONNX Runtime, ONNX's reference or generated code differ from the interpreter, and why none is wrong.

`docs/conformance.md` shows this table. A rule applies to single nodes, as narrowly as it can be told: by
operator, attributes, types and values. Whatever no rule explains is a finding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tests.fuzz.opinions import CPU, REFERENCE, RUNTIME, Array, Difference, is_float
from tests.fuzz.sketch import Step
from tests.fuzz.special import float_limits

from tilewright.ir.dtype import DType

Applies = Callable[[Difference], bool]


@dataclass(frozen=True, slots=True)
class Explained:
    """One reason why `other` differs on `operators`; where `applies` is true it is the one."""

    other: str
    operators: tuple[str, ...]
    reason: str
    applies: Applies


def _floats(d: Difference) -> list[Array]:
    return [a for a in d.step.arrays.values() if is_float(a)]


def has_nan(d: Difference) -> bool:
    return any(np.isnan(a.astype(np.float64)).any() for a in _floats(d))


def has_non_finite(d: Difference) -> bool:
    """Or what overflows on the way: squares and sums of such numbers."""
    for a in _floats(d):
        largest = 2.0**14 if a.dtype == np.float16 else 2.0**60
        wide = a.astype(np.float64)
        if not np.isfinite(wide).all() or np.abs(wide).max(initial=0.0) > largest:
            return True
    return False


def _is_nan(array: Array | None) -> Array:
    return np.isnan(array.astype(np.float64)) if array is not None else np.zeros(())


def _last_bit_of_integers(d: Difference) -> bool:
    """Integers too large for float64 to hold, one of its steps apart."""
    if d.ours.dtype.kind not in "iu" or d.ours.shape != d.theirs.shape:
        return False
    ours, theirs = d.ours.astype(np.float64)[d.wrong], d.theirs.astype(np.float64)[d.wrong]
    return bool((np.abs(ours) > 2.0**53).all() and (np.abs(ours - theirs) <= np.spacing(np.abs(ours))).all())


def _non_finite_in_one(d: Difference) -> bool:
    """Elements that differ are not finite for one of the two, and there is a cause for that."""
    if d.ours.shape != d.theirs.shape or not is_float(d.ours):
        return False
    both = np.isfinite(d.ours.astype(np.float64)) & np.isfinite(d.theirs.astype(np.float64))
    return has_non_finite(d) and not (both & d.wrong).any()


def _confirmed(d: Difference) -> bool:
    """ONNX Runtime gives what ours does."""
    return d.confirmed


def _integer(d: Difference) -> bool:
    x = d.step.inputs()[0]
    return x is not None and x.dtype.kind in "iu"


def _large_integers(d: Difference) -> bool:
    """What float32 or float64 sums do not hold exactly, or what overflows on the way to the result."""
    x = d.step.inputs()[0]
    if not _integer(d) or x is None:
        return False
    if (np.abs(x.astype(np.float64)) >= 2.0**23).any():
        return True
    results = [np.abs(a.astype(np.float64)) for a in (d.ours, d.theirs)]
    return d.ours.shape == d.theirs.shape and bool((np.maximum(*results)[d.wrong] >= 2.0**23).all())


def _next_integer(d: Difference) -> bool:
    if d.ours.dtype.kind not in "iu":
        return False
    a, b = d.ours.astype(np.float64), d.theirs.astype(np.float64)
    return bool((np.abs(a - b) <= 1).all())


def _beyond_int32(d: Difference) -> bool:
    x, scale = d.step.inputs()[:2]
    if x is None or scale is None:
        return False
    with np.errstate(all="ignore"):
        quotient = np.abs(x.astype(np.float64)).max(initial=0) / np.abs(scale.astype(np.float64)).min()
    return not quotient < 2.0**31


def _slice_arguments(d: Difference) -> list[tuple[int, int, int, int]]:
    """Extent, start, end and step of each axis that a Slice names."""
    x, starts, ends, axes, steps = d.step.inputs()
    if x is None or starts is None or ends is None or axes is None or steps is None:
        return []
    rows = zip(starts, ends, axes, steps, strict=True)
    return [(x.shape[axis], int(start), int(end), int(step)) for start, end, axis, step in rows]


def _ends_at_the_largest_integer(d: Difference) -> bool:
    return any(step < 0 and end in (2**31 - 1, 2**63 - 1) for _, _, end, step in _slice_arguments(d))


def _starts_before_the_first(d: Difference) -> bool:
    return any(step < 0 and start < -extent for extent, start, _, step in _slice_arguments(d))


def _is_empty(d: Difference) -> bool:
    return d.step.inputs()[0].size == 0  # type: ignore[union-attr]


def _same_padding_beyond_kernel(d: Difference) -> bool:
    kernel = d.step.attribute("kernel_shape", [])
    strides = d.step.attribute("strides", [1] * len(kernel))
    dilations = d.step.attribute("dilations", [1] * len(kernel))
    odd = any(s > k for s, k in zip(strides, kernel, strict=False)) or any(n > 1 for n in dilations)
    return str(d.step.attribute("auto_pad", "")).startswith("SAME") and odd


def _one_group(d: Difference) -> bool:
    return int(d.step.attribute("group", 1)) == 1


def _resize(d: Difference, name: str, default: str = "") -> str:
    return str(d.step.attribute(name, default))


def _aligned_to_fraction(d: Difference) -> bool:
    inputs = d.step.inputs()
    by_scales = len(inputs) < 4 or inputs[3] is None or inputs[3].size == 0
    kept = _resize(d, "keep_aspect_ratio_policy", "stretch") != "stretch"
    return _resize(d, "coordinate_transformation_mode") == "align_corners" and (by_scales or kept)


def _crop_of_same_extent(d: Difference) -> bool:
    x, roi = d.step.inputs()[:2]
    if _resize(d, "coordinate_transformation_mode") != "tf_crop_and_resize" or x is None or roi is None:
        return False
    axes = list(d.step.attribute("axes", range(x.ndim)))
    return any(
        d.ours.shape[a] == x.shape[a] and (roi[i], roi[i + len(axes)]) != (0, 1) for i, a in enumerate(axes)
    )


def _interpolated_integers(d: Difference) -> bool:
    return _integer(d) and _resize(d, "mode", "nearest") != "nearest"


def _by_coordinates(d: Difference) -> bool:
    mode = _resize(d, "coordinate_transformation_mode", "half_pixel")
    return _resize(d, "mode", "nearest") == "nearest" or mode in ("tf_crop_and_resize", "pytorch_half_pixel")


def _to_integer(d: Difference) -> bool:
    """Each element that differs was NaN, infinite or out of the integer type's range."""
    x = d.step.inputs()[0]
    if x is None or not is_float(x) or d.ours.dtype.kind not in "iu":
        return False
    limits = np.iinfo(d.ours.dtype)
    wide = np.broadcast_to(x.astype(np.float64), d.ours.shape)[d.wrong]
    return not (np.isfinite(wide) & (wide > float(limits.min) - 1) & (wide < float(limits.max))).any()


def _negative_to_unsigned(d: Difference) -> bool:
    return d.ours.dtype.kind == "u" and _to_integer(d)


def _float64(d: Difference) -> bool:
    return bool(d.ours.dtype == np.float64)


def _close(relative: float) -> Applies:
    """Within a relative error of the larger of the two."""

    def applies(d: Difference) -> bool:
        a, b = d.ours.astype(np.float64)[d.wrong], d.theirs.astype(np.float64)[d.wrong]
        return bool((np.abs(a - b) <= relative * np.maximum(np.abs(a), np.abs(b))).all())

    return applies


def _close_or_non_finite(relative: float) -> Applies:
    def applies(d: Difference) -> bool:
        with np.errstate(all="ignore"):
            a, b = d.ours.astype(np.float64)[d.wrong], d.theirs.astype(np.float64)[d.wrong]
            close = np.abs(a - b) <= relative * np.maximum(1, np.maximum(np.abs(a), np.abs(b)))
        odd = ~(np.isfinite(a) & np.isfinite(b)) & has_non_finite(d)
        return bool((close | odd).all())

    return applies


def _clamped_infinity(d: Difference) -> bool:
    """An input is infinite, and theirs is the largest number of the type wherever it differs."""
    x = d.step.inputs()[0]
    if x is None or not is_float(x) or not np.isinf(x.astype(np.float64)).any():
        return False
    largest, _ = float_limits(DType.from_numpy(d.theirs.dtype))
    return bool((np.abs(d.theirs.astype(np.float64)[d.wrong]) == largest).all())


def _product_overflows(d: Difference) -> bool:
    """The large factors alone are more than the type holds, and one of the two results is not finite."""
    x = d.step.inputs()[0]
    if x is None or not is_float(x) or not is_float(d.ours) or d.ours.shape != d.theirs.shape:
        return False
    wide = np.abs(x.astype(np.float64))
    largest, _ = float_limits(DType.from_numpy(x.dtype))
    large = np.log2(np.maximum(wide, 1)).sum() > np.log2(largest)
    finite = np.isfinite(d.ours.astype(np.float64)) & np.isfinite(d.theirs.astype(np.float64))
    return bool(large) and not (finite & d.wrong).any()


def _nan_as_bound(d: Difference) -> bool:
    """A bound of the second or third input, which makes all of the result NaN."""
    bounds = [a for a in d.step.inputs()[1:] if a is not None and is_float(a)]
    ours = d.ours.astype(np.float64)
    return any(_is_nan(a).any() for a in bounds) and bool(np.isnan(ours).all())


def _of_no_steps(d: Difference) -> bool:
    """The last state of a sequence of length 0, which ONNX Runtime gives as zeros."""
    x, lengths = (*d.step.inputs(), None, None)[0:5:4]
    no_steps = x is not None and 0 in x.shape[:2]
    short = lengths is not None and bool((lengths == 0).any())
    return d.output > 0 and (no_steps or short) and not d.theirs.astype(np.float64)[d.wrong].any()


def _both(*rules: Applies) -> Applies:
    return lambda d: all(rule(d) for rule in rules)


def _either(*rules: Applies) -> Applies:
    return lambda d: any(rule(d) for rule in rules)


_EXTREMES = [
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
_POOLS = ("MaxPool", "AveragePool", "LpPool")
_INTEGER_SUMS = [
    "ReduceSum",
    "ReduceProd",
    "ReduceL1",
    "ReduceL2",
    "ReduceSumSquare",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceMean",
]
_NORMS = [
    "BatchNormalization",
    "InstanceNormalization",
    "LayerNormalization",
    "GroupNormalization",
    "RMSNormalization",
]

EXPLAINED: tuple[Explained, ...] = (
    Explained(
        RUNTIME,
        tuple(_EXTREMES),
        "NaN among what is compared: ONNX Runtime keeps or drops it by its place; here it always wins",
        has_nan,
    ),
    Explained(
        RUNTIME,
        ("ReduceProd",),
        "factors whose product overflows before a zero comes in: the order decides between 0 and NaN",
        _product_overflows,
    ),
    Explained(
        RUNTIME,
        ("Clip",),
        "NaN as a bound: ONNX Runtime ignores it; here, as in the reference, min(max(x, low), high) is NaN",
        _nan_as_bound,
    ),
    Explained(
        RUNTIME,
        ("RNN", "GRU", "LSTM"),
        "no steps, or a sequence of length 0: its last state is the one it starts with; ONNX Runtime gives "
        "zeros, or crashes",
        _of_no_steps,
    ),
    Explained(
        RUNTIME,
        _POOLS,
        "auto_pad SAME with dilations, or with strides beyond the kernel: ONNX Runtime ignores the dilation, "
        "and lets padding be negative",
        _same_padding_beyond_kernel,
    ),
    Explained(
        RUNTIME,
        ("Resize",),
        "align_corners where scales give a fractional length: the suite aligns with it, ONNX Runtime with "
        "the rounded one",
        _aligned_to_fraction,
    ),
    Explained(
        RUNTIME,
        ("Resize",),
        "tf_crop_and_resize of an axis whose extent stays: ONNX Runtime copies it and ignores its region",
        _crop_of_same_extent,
    ),
    Explained(
        RUNTIME,
        ("Resize",),
        "integers between elements: rounded here and by the reference; ONNX Runtime truncates, or computes "
        "in fixed point with antialias",
        _interpolated_integers,
    ),
    Explained(
        RUNTIME,
        (
            "Resize",
            "GridSample",
            "RoiAlign",
            "LRN",
            "Conv",
            "ConvTranspose",
            "LpPool",
            "AveragePool",
            "Einsum",
            *_NORMS,
        ),
        "infinities, NaN or overflow multiplied by a weight of zero, or subtracted: the order of operations "
        "decides between a number, an infinity and NaN",
        _non_finite_in_one,
    ),
    Explained(
        RUNTIME,
        (
            "LogSoftmax",
            "Softmax",
            "ReduceLogSumExp",
            "ReduceLogSum",
            "LpNormalization",
            "MeanVarianceNormalization",
            "CumSum",
            "ReduceL2",
            "ReduceSumSquare",
            "ReduceMean",
            "ReduceSum",
            "ReduceProd",
            "ReduceL1",
            "Gemm",
            "MatMul",
            "Pow",
        ),
        "infinities, NaN or overflow in a sum: the order of operations decides between an infinity and NaN",
        _non_finite_in_one,
    ),
    Explained(
        RUNTIME,
        ("Pow",),
        "powers of integers beyond 2**53 are those of float64, the last bit of which depends on the library",
        _last_bit_of_integers,
    ),
    Explained(
        RUNTIME,
        ("QuantizeLinear", "DynamicQuantizeLinear"),
        "NaN or infinities have no integer",
        has_non_finite,
    ),
    Explained(
        RUNTIME,
        ("Cast", "CastLike"),
        "NaN, infinities and numbers beyond the integer type: the standard leaves the result open",
        _to_integer,
    ),
    Explained(
        RUNTIME,
        (*_INTEGER_SUMS, "Einsum", "Gemm"),
        "integers beyond 2**23: ONNX Runtime sums in floating point and saturates; here sums wrap",
        _large_integers,
    ),
    Explained(
        RUNTIME,
        ("ReduceMean", "ReduceLogSumExp", "ReduceLogSum", "ReduceL2"),
        "the mean of nothing, or what is no number in an integer type: NaN in numpy and the reference, 0 in "
        "ONNX Runtime",
        _either(_is_empty, _integer),
    ),
    Explained(
        RUNTIME,
        ("Shrink", "LRN", "HardSigmoid", "Selu", "Celu", "ThresholdedRelu"),
        "float64: ONNX Runtime computes with attributes or intermediate values in float32",
        _both(_float64, _close(1e-6)),
    ),
    Explained(
        RUNTIME,
        ("Sigmoid", "Tanh", "Erf", "Gelu", "Softplus"),
        "ONNX Runtime's approximations are off by up to 1e-3 of values near zero",
        _close(2e-3),
    ),
    Explained(
        RUNTIME,
        (*_POOLS, "Conv"),
        "a window wider than what it slides over: by the standard's rounding there is none; ONNX Runtime "
        "divides negative numbers toward zero and gives one",
        lambda d: 0 in d.ours.shape and 0 not in d.step.inputs()[0].shape,  # type: ignore[union-attr]
    ),
    Explained(
        RUNTIME,
        ("Sign",),
        "the sign of NaN: NaN in numpy and the reference, 0 in ONNX Runtime",
        has_nan,
    ),
    Explained(
        RUNTIME,
        ("Shrink",),
        "integers beyond 2**23: ONNX Runtime computes in float32",
        _large_integers,
    ),
    Explained(
        RUNTIME,
        ("MaxPool",),
        "which of several equal elements is the maximum",
        lambda d: d.output == 1 and _integer(d),
    ),
    Explained(
        RUNTIME,
        ("Slice",),
        "backward to the largest integer: the standard clamps that end to the last element, which leaves "
        "nothing; ONNX Runtime takes it for the first",
        _ends_at_the_largest_integer,
    ),
    Explained(
        CPU,
        ("Conv", "ConvTranspose", "RoiAlign", "GridSample", "Resize", "Einsum", "Gemm", "MatMul", *_NORMS),
        "infinities or NaN multiplied by a padded zero or by a weight of zero, which one of the two skips: "
        "the standard leaves it open",
        _non_finite_in_one,
    ),
    Explained(
        CPU,
        ("DynamicQuantizeLinear", "QuantizeLinear"),
        "NaN or infinities have no integer",
        has_non_finite,
    ),
    Explained(
        CPU,
        ("Cast", "CastLike", "Pow", "Shrink", "ReduceMean", "ReduceLogSumExp", "ReduceLogSum", "ReduceL2"),
        "NaN, infinities and numbers beyond the integer type: the standard leaves the result open",
        _either(_to_integer, _large_integers, _both(_integer, _is_empty)),
    ),
    Explained(
        CPU,
        ("Resize",),
        "a sum half way between two integers, in float32 on one side of it and in float64 on the other",
        _next_integer,
    ),
    Explained(
        RUNTIME,
        tuple(_NORMS),
        "ONNX Runtime subtracts the mean after it has multiplied: digits of large numbers cancel",
        _close(1e-3),
    ),
    Explained(
        CPU,
        ("Resize", "GridSample", "ReduceMean", "Gemm"),
        "sums of integers beyond 2**53 in float64, in another order",
        _large_integers,
    ),
    # ONNX's reference: what ONNX Runtime confirms, and what it cannot run.
    Explained(
        REFERENCE,
        (*_POOLS, "GlobalMaxPool"),
        "the reference pools wrongly where ceil_mode, SAME, dilations or three axes come in, leaves NaN out "
        "of averages, and gives rank 3 a wrong shape and indices; ONNX Runtime gives what is given here",
        _either(_confirmed, has_nan, _same_padding_beyond_kernel, lambda d: d.output == 1),
    ),
    Explained(
        REFERENCE,
        ("ConvTranspose",),
        "the reference mixes up groups; ONNX Runtime gives what is given here",
        _both(_confirmed, lambda d: not _one_group(d)),
    ),
    Explained(
        REFERENCE,
        ("ConvTranspose",),
        "auto_pad SAME with strides beyond the kernel: the reference pads with less than nothing; here, as "
        "in ONNX Runtime, padding is zero at least",
        _same_padding_beyond_kernel,
    ),
    Explained(
        REFERENCE,
        ("Conv", "ConvTranspose", "Resize", "GridSample", "RoiAlign", "OneHot", "LRN", *_NORMS),
        "infinities, NaN or overflow multiplied by a weight of zero, or subtracted: the order of operations "
        "decides between a number, an infinity and NaN",
        _non_finite_in_one,
    ),
    Explained(
        REFERENCE,
        (
            "LogSoftmax",
            "Softmax",
            "ReduceLogSumExp",
            "LpNormalization",
            "Pow",
            "CumSum",
            "Einsum",
            "MeanVarianceNormalization",
            "Mean",
            "Sum",
            "GlobalAveragePool",
            "ReduceL2",
            "Gemm",
            "MatMul",
        ),
        "infinities, NaN or overflow in a sum: the order of operations decides between an infinity and NaN",
        _non_finite_in_one,
    ),
    Explained(
        REFERENCE,
        ("LogSoftmax",),
        "the reference takes the logarithm of a softmax that has underflown or lost digits",
        lambda d: bool((d.theirs.astype(np.float64)[d.wrong] < -6).all()),
    ),
    Explained(
        REFERENCE,
        ("LpNormalization",),
        "with p=1 the reference sums numbers, not magnitudes; with p=2 it divides by a norm of zero",
        lambda d: int(d.step.attribute("p", 2)) == 1 or has_non_finite(d) or (d.ours[d.wrong] == 0).all(),
    ),
    Explained(
        REFERENCE,
        ("Gemm", "OneHot", "Mean", "Pow"),
        "the reference computes large integers in float64",
        _either(_large_integers, lambda d: d.ours.dtype.kind in "iu"),
    ),
    Explained(
        REFERENCE,
        (
            "Erf",
            "HardSwish",
            "LeakyRelu",
            "Elu",
            "Celu",
            "Selu",
            "HardSigmoid",
            "LRN",
            "ThresholdedRelu",
            "Shrink",
            "Gelu",
        ),
        "float64: the reference computes with float32 attributes or values, or with decimal ones",
        _both(_float64, _close_or_non_finite(1e-6)),
    ),
    Explained(
        REFERENCE,
        ("LRN",),
        "the reference sums over other channels than the standard says; ONNX Runtime, which takes odd sizes "
        "alone, gives what is given here",
        _either(_confirmed, has_non_finite, lambda d: int(d.step.attribute("size", 1)) % 2 == 0),
    ),
    Explained(
        REFERENCE,
        ("GridSample",),
        "the reference truncates coordinates of integer tensors, and samples cubic borders otherwise than "
        "ONNX Runtime, which gives what is given here",
        _either(_confirmed, _integer, lambda d: d.step.attribute("mode") in ("cubic", "bicubic")),
    ),
    Explained(
        REFERENCE,
        ("GridSample", "Resize", "RoiAlign"),
        "float64: the reference, or ONNX Runtime and what is given here, round coordinates to float32",
        _both(_float64, _close_or_non_finite(1e-4)),
    ),
    Explained(
        REFERENCE,
        ("Resize",),
        "half types: the reference rounds after each axis, so that large numbers overflow earlier or later",
        _both(lambda d: d.ours.dtype.itemsize == 2, _close_or_non_finite(2e-2)),
    ),
    Explained(
        REFERENCE,
        ("Resize",),
        "infinities, also at elements of weight zero: the reference gives the largest number of the type",
        _clamped_infinity,
    ),
    Explained(
        REFERENCE,
        ("RoiAlign",),
        "the reference knows only the half_pixel mode of opset 16, and takes the maximum of other numbers; "
        "ONNX Runtime gives what is given here",
        _either(_confirmed, lambda d: d.step.opset < 16, lambda d: d.step.attribute("mode") == "max"),
    ),
    Explained(
        REFERENCE,
        ("Resize",),
        "coordinates on a border or half way between elements: float32 here and in ONNX Runtime, float64 in "
        "the reference, which also reads integers through float64",
        _either(_confirmed, _by_coordinates, _interpolated_integers, _integer, _aligned_to_fraction),
    ),
    Explained(
        REFERENCE,
        ("QuantizeLinear", "DynamicQuantizeLinear"),
        "NaN or infinities have no integer, and the scale of zeros alone is free",
        lambda d: has_non_finite(d) or not np.any(d.step.inputs()[0]),
    ),
    Explained(
        REFERENCE,
        ("Slice",),
        "backward from before the first element: the standard clamps that start to the first element, numpy "
        "and with it the reference start with none",
        _starts_before_the_first,
    ),
    Explained(
        REFERENCE,
        ("QuantizeLinear",),
        "the reference rounds through int32",
        _beyond_int32,
    ),
    Explained(
        REFERENCE,
        ("QuantizeLinear",),
        "before opset 23 the reference divides half types in their type; here and in ONNX Runtime in float32",
        lambda d: (
            d.step.opset < 23 and d.step.inputs()[1] is not None and d.step.inputs()[1].dtype.itemsize == 2
        ),  # type: ignore[union-attr]
    ),
    Explained(
        REFERENCE,
        ("Cast", "CastLike"),
        "NaN, infinities and numbers beyond the integer type: the standard leaves the result open",
        _to_integer,
    ),
    Explained(
        REFERENCE,
        ("ReduceSumSquare", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp"),
        "the reference widens small integers",
        lambda d: d.ours.dtype != d.theirs.dtype and d.ours.dtype.kind in "iu",
    ),
    Explained(
        REFERENCE,
        ("ScatterElements", "ScatterND", "TopK"),
        "NaN among what is compared: the reference keeps or drops it by its place",
        has_nan,
    ),
    Explained(
        REFERENCE,
        ("BatchNormalization",),
        "at opset 13 the reference runs another definition; ONNX Runtime gives what is given here",
        _both(_confirmed, lambda d: d.step.opset < 14),
    ),
)


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
        step.op_type in _EXTREMES and any(is_float(a) and _is_nan(a).any() for a in step.arrays.values())
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

# Operators on which ONNX Runtime itself crashes, with what it then was given.
CRASHES = {"InstanceNormalization": "an empty tensor"}


def explanation(d: Difference) -> Explained | None:
    """The rule that explains a difference, None if there is none."""
    for rule in EXPLAINED:
        if rule.other == d.other and d.step.op_type in rule.operators and rule.applies(d):
            return rule
    return None


# The page ---------------------------------------------------------------------------------------------

PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"
HEADING = "## Differences from other engines"


def section() -> str:
    """What `docs/conformance.md` says about the differences that are explained."""
    lines = [
        HEADING,
        "",
        "`python -m tests.fuzz.hunt 0 5000` makes random models of opsets 13 and later: every family of "
        "operators, every type, broadcasting, empty tensors, NaN, infinities, signed zeros, denormal numbers "
        "and the largest integers. Each node is judged by ONNX Runtime and ONNX's reference, each model by "
        "the generated code between guard pages and by ONNX Runtime with and without its optimisations. A "
        "difference that none of these rules explains is a failure. The rules are data of "
        "`tests/fuzz/explained.py`, which writes this section: `python -m tests.fuzz.explained`.",
        "",
        "| other | operators | why it differs |",
        "|---|---|---|",
    ]
    lines += [f"| {rule.other} | {', '.join(rule.operators)} | {rule.reason} |" for rule in EXPLAINED]
    lines += [f"| {rule.other} | whole models | {rule.reason} |" for rule in EXPLAINED_MODELS]
    lines += [f"| {RUNTIME} | {name} | it crashes, given {what} |" for name, what in CRASHES.items()]
    return "\n".join([*lines, ""])


def main() -> None:
    """Write the section anew; it is the last one of the page."""
    kept = PAGE.read_text().partition(HEADING)[0].rstrip("\n")
    PAGE.write_text(f"{kept}\n\n{section()}")


if __name__ == "__main__":
    main()
