"""What may be told of a difference between two engines: its cause, by attributes, types and values."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tests.fuzz.opinions import Array, Difference, is_float
from tests.fuzz.special import float_limits

from tilewright.ir.dtype import DType

Applies = Callable[[Difference], bool]


def floats(d: Difference) -> list[Array]:
    return [a for a in d.step.arrays.values() if is_float(a)]


def has_nan(d: Difference) -> bool:
    return any(np.isnan(a.astype(np.float64)).any() for a in floats(d))


def has_non_finite(d: Difference) -> bool:
    """Or what overflows on the way: squares and sums of such numbers."""
    for a in floats(d):
        largest = 2.0**14 if a.dtype == np.float16 else 2.0**60
        wide = a.astype(np.float64)
        if not np.isfinite(wide).all() or np.abs(wide).max(initial=0.0) > largest:
            return True
    return False


def is_nan(array: Array | None) -> Array:
    return np.isnan(array.astype(np.float64)) if array is not None else np.zeros(())


def last_bit_of_integers(d: Difference) -> bool:
    """Integers too large for float64 to hold, one of its steps apart."""
    if d.ours.dtype.kind not in "iu" or d.ours.shape != d.theirs.shape:
        return False
    ours, theirs = d.ours.astype(np.float64)[d.wrong], d.theirs.astype(np.float64)[d.wrong]
    return bool((np.abs(ours) > 2.0**53).all() and (np.abs(ours - theirs) <= np.spacing(np.abs(ours))).all())


def non_finite_in_one(d: Difference) -> bool:
    """Elements that differ are not finite for one of the two, and there is a cause for that."""
    if d.ours.shape != d.theirs.shape or not is_float(d.ours):
        return False
    both = np.isfinite(d.ours.astype(np.float64)) & np.isfinite(d.theirs.astype(np.float64))
    return has_non_finite(d) and not (both & d.wrong).any()


def confirmed(d: Difference) -> bool:
    """ONNX Runtime gives what ours does."""
    return d.confirmed


def is_integer(d: Difference) -> bool:
    x = d.step.inputs()[0]
    return x is not None and x.dtype.kind in "iu"


def large_integers(d: Difference) -> bool:
    """What float32 or float64 sums do not hold exactly, or what overflows on the way to the result."""
    x = d.step.inputs()[0]
    if not is_integer(d) or x is None:
        return False
    if (np.abs(x.astype(np.float64)) >= 2.0**23).any():
        return True
    results = [np.abs(a.astype(np.float64)) for a in (d.ours, d.theirs)]
    return d.ours.shape == d.theirs.shape and bool((np.maximum(*results)[d.wrong] >= 2.0**23).all())


def power_overflows(d: Difference) -> bool:
    """Integer powers that their type does not hold, wherever they differ."""
    base, exponent = d.step.inputs()
    if base is None or exponent is None or d.ours.dtype.kind not in "iu":
        return False
    with np.errstate(all="ignore"):
        wide = np.power(base.astype(np.float64), exponent.astype(np.float64))
    limits = np.iinfo(d.ours.dtype)
    wrong = np.broadcast_to(wide, d.ours.shape)[d.wrong]
    return not ((wrong > float(limits.min)) & (wrong < float(limits.max))).any()


def next_integer(d: Difference) -> bool:
    if d.ours.dtype.kind not in "iu":
        return False
    a, b = d.ours.astype(np.float64), d.theirs.astype(np.float64)
    return bool((np.abs(a - b) <= 1).all())


def beyond_int32(d: Difference) -> bool:
    x, scale = d.step.inputs()[:2]
    if x is None or scale is None:
        return False
    with np.errstate(all="ignore"):
        quotient = np.abs(x.astype(np.float64)).max(initial=0) / np.abs(scale.astype(np.float64)).min()
    return not quotient < 2.0**31


def slice_arguments(d: Difference) -> list[tuple[int, int, int, int]]:
    """Extent, start, end and step of each axis that a Slice names."""
    x, starts, ends, axes, steps = d.step.inputs()
    if x is None or starts is None or ends is None or axes is None or steps is None:
        return []
    rows = zip(starts, ends, axes, steps, strict=True)
    return [(x.shape[axis], int(start), int(end), int(step)) for start, end, axis, step in rows]


def ends_at_the_largest_integer(d: Difference) -> bool:
    return any(step < 0 and end in (2**31 - 1, 2**63 - 1) for _, _, end, step in slice_arguments(d))


def starts_before_the_first(d: Difference) -> bool:
    return any(step < 0 and start < -extent for extent, start, _, step in slice_arguments(d))


def is_empty(d: Difference) -> bool:
    return d.step.inputs()[0].size == 0  # type: ignore[union-attr]


def same_padding_beyond_kernel(d: Difference) -> bool:
    weight = (*d.step.inputs(), None)[1]
    kernel = d.step.attribute("kernel_shape", [] if weight is None else weight.shape[2:])
    strides = d.step.attribute("strides", [1] * len(kernel))
    dilations = d.step.attribute("dilations", [1] * len(kernel))
    odd = any(s > k for s, k in zip(strides, kernel, strict=False)) or any(n > 1 for n in dilations)
    return str(d.step.attribute("auto_pad", "")).startswith("SAME") and odd


def wider_than_input(d: Difference) -> bool:
    """A window that is wider than what it slides over, padding included."""
    x, weight = (*d.step.inputs(), None)[:2]
    if x is None or d.step.attribute("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return False
    kernel = d.step.attribute("kernel_shape", [] if weight is None else weight.shape[2:])
    dilations = d.step.attribute("dilations", [1] * len(kernel))
    pads = d.step.attribute("pads", [0] * 2 * len(kernel))
    spans = [
        extent + pads[i] + pads[i + len(kernel)] - (kernel[i] - 1) * dilations[i]
        for i, extent in enumerate(x.shape[2:])
    ]
    return min(spans, default=1) < 1


def extrapolates_beyond_type(d: Difference) -> bool:
    """What a Resize gives outside of its region is no value of its integer type."""
    outside = float(d.step.attribute("extrapolation_value", 0.0))
    limits = np.iinfo(d.ours.dtype) if is_integer(d) else None
    return limits is not None and not limits.min <= outside <= limits.max


def one_group(d: Difference) -> bool:
    return int(d.step.attribute("group", 1)) == 1


def resize(d: Difference, name: str, default: str = "") -> str:
    return str(d.step.attribute(name, default))


def aligned_to_fraction(d: Difference) -> bool:
    inputs = d.step.inputs()
    by_scales = len(inputs) < 4 or inputs[3] is None or inputs[3].size == 0
    kept = resize(d, "keep_aspect_ratio_policy", "stretch") != "stretch"
    return resize(d, "coordinate_transformation_mode") == "align_corners" and (by_scales or kept)


def crop_of_same_extent(d: Difference) -> bool:
    x, roi = d.step.inputs()[:2]
    if resize(d, "coordinate_transformation_mode") != "tf_crop_and_resize" or x is None or roi is None:
        return False
    axes = list(d.step.attribute("axes", range(x.ndim)))
    return any(
        d.ours.shape[a] == x.shape[a] and (roi[i], roi[i + len(axes)]) != (0, 1) for i, a in enumerate(axes)
    )


def interpolated_integers(d: Difference) -> bool:
    return is_integer(d) and resize(d, "mode", "nearest") != "nearest"


def by_coordinates(d: Difference) -> bool:
    mode = resize(d, "coordinate_transformation_mode", "half_pixel")
    return resize(d, "mode", "nearest") == "nearest" or mode in ("tf_crop_and_resize", "pytorch_half_pixel")


def to_integer(d: Difference) -> bool:
    """Each element that differs was NaN, infinite or out of the integer type's range."""
    x = d.step.inputs()[0]
    if x is None or not is_float(x) or d.ours.dtype.kind not in "iu":
        return False
    limits = np.iinfo(d.ours.dtype)
    wide = np.broadcast_to(x.astype(np.float64), d.ours.shape)[d.wrong]
    return not (np.isfinite(wide) & (wide > float(limits.min) - 1) & (wide < float(limits.max))).any()


def is_float64(d: Difference) -> bool:
    return bool(d.ours.dtype == np.float64)


def close(relative: float) -> Applies:
    """Within a relative error of the larger of the two."""

    def applies(d: Difference) -> bool:
        a, b = d.ours.astype(np.float64)[d.wrong], d.theirs.astype(np.float64)[d.wrong]
        return bool((np.abs(a - b) <= relative * np.maximum(np.abs(a), np.abs(b))).all())

    return applies


def close_or_non_finite(relative: float) -> Applies:
    def applies(d: Difference) -> bool:
        with np.errstate(all="ignore"):
            a, b = d.ours.astype(np.float64)[d.wrong], d.theirs.astype(np.float64)[d.wrong]
            close = np.abs(a - b) <= relative * np.maximum(1, np.maximum(np.abs(a), np.abs(b)))
        odd = ~(np.isfinite(a) & np.isfinite(b)) & has_non_finite(d)
        return bool((close | odd).all())

    return applies


def clamped_infinity(d: Difference) -> bool:
    """An input is infinite, and wherever it differs theirs is NaN or the largest number of the type."""
    x = d.step.inputs()[0]
    if x is None or not is_float(x) or not np.isinf(x.astype(np.float64)).any():
        return False
    largest, _ = float_limits(DType.from_numpy(d.theirs.dtype))
    wrong = np.abs(d.theirs.astype(np.float64)[d.wrong])
    return bool(((wrong == largest) | np.isnan(wrong)).all())


def squares_overflow_half(d: Difference) -> bool:
    """A half type; where it differs theirs is infinite, and ours a number whose square is too large."""
    if d.ours.dtype.itemsize != 2 or d.ours.shape != d.theirs.shape:
        return False
    largest, _ = float_limits(DType.from_numpy(d.ours.dtype))
    ours, theirs = d.ours.astype(np.float64)[d.wrong], d.theirs.astype(np.float64)[d.wrong]
    return bool((np.isposinf(theirs) & np.isfinite(ours) & (ours**2 > largest)).all())


def product_overflows(d: Difference) -> bool:
    """The large factors alone are more than the type holds, and one of the two results is not finite."""
    x = d.step.inputs()[0]
    if x is None or not is_float(x) or not is_float(d.ours) or d.ours.shape != d.theirs.shape:
        return False
    wide = np.abs(x.astype(np.float64))
    largest, _ = float_limits(DType.from_numpy(x.dtype))
    large = np.log2(np.maximum(wide, 1)).sum() > np.log2(largest)
    finite = np.isfinite(d.ours.astype(np.float64)) & np.isfinite(d.theirs.astype(np.float64))
    return bool(large) and not (finite & d.wrong).any()


def nan_as_bound(d: Difference) -> bool:
    """A bound of the second or third input, which makes all of the result NaN."""
    bounds = [a for a in d.step.inputs()[1:] if a is not None and is_float(a)]
    ours = d.ours.astype(np.float64)
    return any(is_nan(a).any() for a in bounds) and bool(np.isnan(ours).all())


def of_no_steps(d: Difference) -> bool:
    """The last state of a sequence of length 0, which ONNX Runtime gives as zeros."""
    x, lengths = (*d.step.inputs(), None, None)[0:5:4]
    no_steps = x is not None and 0 in x.shape[:2]
    short = lengths is not None and bool((lengths == 0).any())
    return d.output > 0 and (no_steps or short) and not d.theirs.astype(np.float64)[d.wrong].any()


def both(*rules: Applies) -> Applies:
    return lambda d: all(rule(d) for rule in rules)


def either(*rules: Applies) -> Applies:
    return lambda d: any(rule(d) for rule in rules)
