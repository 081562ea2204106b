"""Where ONNX Runtime, ONNX's reference or generated code differ from the interpreter, and why none is wrong.

`docs/conformance.md` shows this table. A rule applies to single nodes, as narrowly as it can be told: by
operator, attributes, types and values. Whatever no rule explains is a finding.
"""

# mypy: disable-error-code="union-attr"

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tests.fuzz.causes import (
    Applies,
    aligned_to_fraction,
    beyond_int32,
    both,
    by_coordinates,
    clamped_infinity,
    close,
    close_or_non_finite,
    confirmed,
    crop_of_same_extent,
    either,
    ends_at_the_largest_integer,
    extrapolates_beyond_type,
    has_nan,
    has_non_finite,
    interpolated_integers,
    is_empty,
    is_float64,
    is_integer,
    large_integers,
    last_bit_of_integers,
    nan_as_bound,
    next_integer,
    non_finite_in_one,
    of_no_steps,
    one_group,
    power_overflows,
    product_overflows,
    same_padding_beyond_kernel,
    squares_overflow_half,
    starts_before_the_first,
    to_integer,
    wider_than_input,
)
from tests.fuzz.explained_models import EXPLAINED_MODELS, EXTREMES
from tests.fuzz.opinions import CPU, REFERENCE, RUNTIME, Difference


@dataclass(frozen=True, slots=True)
class Explained:
    """One reason why `other` differs on `operators`; where `applies` is true it is the one."""

    other: str
    operators: tuple[str, ...]
    reason: str
    applies: Applies


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
        tuple(EXTREMES),
        "NaN among what is compared: ONNX Runtime keeps or drops it by its place; here it always wins",
        has_nan,
    ),
    Explained(
        RUNTIME,
        ("ReduceProd",),
        "factors whose product overflows before a zero comes in: the order decides between 0 and NaN",
        product_overflows,
    ),
    Explained(
        RUNTIME,
        ("Clip",),
        "NaN as a bound: ONNX Runtime ignores it; here, as in the reference, min(max(x, low), high) is NaN",
        nan_as_bound,
    ),
    Explained(
        RUNTIME,
        ("RNN", "GRU", "LSTM"),
        "no steps, or a sequence of length 0: its last state is the one it starts with; ONNX Runtime gives "
        "zeros, or crashes",
        of_no_steps,
    ),
    Explained(
        RUNTIME,
        _POOLS,
        "auto_pad SAME with dilations, or with strides beyond the kernel: ONNX Runtime ignores the dilation, "
        "and lets padding be negative",
        same_padding_beyond_kernel,
    ),
    Explained(
        RUNTIME,
        ("Resize",),
        "align_corners where scales give a fractional length: the suite aligns with it, ONNX Runtime with "
        "the rounded one",
        aligned_to_fraction,
    ),
    Explained(
        RUNTIME,
        ("Resize",),
        "tf_crop_and_resize of an axis whose extent stays: ONNX Runtime copies it and ignores its region",
        crop_of_same_extent,
    ),
    Explained(
        RUNTIME,
        ("Resize",),
        "an extrapolation_value that the integer type does not hold: clamped here and by the reference, "
        "wrapped by ONNX Runtime",
        extrapolates_beyond_type,
    ),
    Explained(
        RUNTIME,
        ("Resize",),
        "integers between elements: rounded here and by the reference; ONNX Runtime truncates, or computes "
        "in fixed point with antialias",
        interpolated_integers,
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
        non_finite_in_one,
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
        non_finite_in_one,
    ),
    Explained(
        RUNTIME,
        ("Pow",),
        "powers of integers beyond 2**53 are those of float64, the last bit of which depends on the library",
        last_bit_of_integers,
    ),
    Explained(
        RUNTIME,
        ("Pow",),
        "powers beyond the integer type: the standard leaves the result open",
        power_overflows,
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
        to_integer,
    ),
    Explained(
        RUNTIME,
        (*_INTEGER_SUMS, "Einsum", "Gemm"),
        "integers beyond 2**23: ONNX Runtime sums in floating point and saturates; here sums wrap",
        large_integers,
    ),
    Explained(
        RUNTIME,
        ("ReduceMean", "ReduceLogSumExp", "ReduceLogSum", "ReduceL2"),
        "the mean of nothing, or what is no number in an integer type: NaN in numpy and the reference, 0 in "
        "ONNX Runtime",
        either(is_empty, is_integer),
    ),
    Explained(
        RUNTIME,
        ("Shrink", "LRN", "HardSigmoid", "Selu", "Celu", "ThresholdedRelu"),
        "float64: ONNX Runtime computes with attributes or intermediate values in float32",
        both(is_float64, close(1e-6)),
    ),
    Explained(
        RUNTIME,
        ("Sigmoid", "Tanh", "Erf", "Gelu", "Softplus"),
        "ONNX Runtime's approximations are off by up to 1e-3 of values near zero",
        close(2e-3),
    ),
    Explained(
        RUNTIME,
        (*_POOLS, "Conv"),
        "a window wider than what it slides over: by the standard's rounding there is none; ONNX Runtime "
        "divides negative numbers toward zero and gives one, whose average counts taps outside",
        wider_than_input,
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
        large_integers,
    ),
    Explained(
        RUNTIME,
        ("MaxPool",),
        "which of several equal elements is the maximum",
        lambda d: d.output == 1 and is_integer(d),
    ),
    Explained(
        RUNTIME,
        ("Slice",),
        "backward to the largest integer: the standard clamps that end to the last element, which leaves "
        "nothing; ONNX Runtime takes it for the first",
        ends_at_the_largest_integer,
    ),
    Explained(
        CPU,
        ("Conv", "ConvTranspose", "RoiAlign", "GridSample", "Resize", "Einsum", "Gemm", "MatMul", *_NORMS),
        "infinities or NaN multiplied by a padded zero or by a weight of zero, which one of the two skips: "
        "the standard leaves it open",
        non_finite_in_one,
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
        either(to_integer, large_integers, both(is_integer, is_empty)),
    ),
    Explained(
        CPU,
        ("Resize",),
        "a sum half way between two integers, in float32 on one side of it and in float64 on the other",
        next_integer,
    ),
    Explained(
        RUNTIME,
        tuple(_NORMS),
        "ONNX Runtime subtracts the mean after it has multiplied: digits of large numbers cancel",
        close(1e-3),
    ),
    Explained(
        CPU,
        ("Resize", "GridSample", "ReduceMean", "Gemm"),
        "sums of integers beyond 2**53 in float64, in another order",
        large_integers,
    ),
    # ONNX's reference: what ONNX Runtime confirms, and what it cannot run.
    Explained(
        REFERENCE,
        (*_POOLS, "GlobalMaxPool"),
        "the reference pools wrongly where ceil_mode, SAME, dilations or three axes come in, leaves NaN out "
        "of averages, and gives rank 3 a wrong shape and indices; ONNX Runtime gives what is given here",
        either(confirmed, has_nan, same_padding_beyond_kernel, wider_than_input, lambda d: d.output == 1),
    ),
    Explained(
        REFERENCE,
        ("ConvTranspose",),
        "the reference mixes up groups; ONNX Runtime gives what is given here",
        both(confirmed, lambda d: not one_group(d)),
    ),
    Explained(
        REFERENCE,
        ("ConvTranspose",),
        "auto_pad SAME with strides beyond the kernel: the reference pads with less than nothing; here, as "
        "in ONNX Runtime, padding is zero at least",
        same_padding_beyond_kernel,
    ),
    Explained(
        REFERENCE,
        ("Conv", "ConvTranspose", "Resize", "GridSample", "RoiAlign", "OneHot", "LRN", *_NORMS),
        "infinities, NaN or overflow multiplied by a weight of zero, or subtracted: the order of operations "
        "decides between a number, an infinity and NaN",
        non_finite_in_one,
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
        non_finite_in_one,
    ),
    Explained(
        REFERENCE,
        ("ReduceL2",),
        "half types: the reference sums squares in the type itself, where they overflow; here in float32",
        squares_overflow_half,
    ),
    Explained(
        REFERENCE,
        ("GroupNormalization", "LayerNormalization", "RMSNormalization"),
        "float64: the reference computes in float32 unless stash_type says otherwise",
        both(is_float64, close_or_non_finite(1e-6)),
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
        either(large_integers, lambda d: d.ours.dtype.kind in "iu"),
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
        both(is_float64, close_or_non_finite(1e-6)),
    ),
    Explained(
        REFERENCE,
        ("LRN",),
        "the reference sums over other channels than the standard says; ONNX Runtime, which takes odd sizes "
        "alone, gives what is given here",
        either(confirmed, has_non_finite, lambda d: int(d.step.attribute("size", 1)) % 2 == 0),
    ),
    Explained(
        REFERENCE,
        ("GridSample",),
        "the reference truncates coordinates of integer tensors, and samples cubic borders otherwise than "
        "ONNX Runtime, which gives what is given here",
        either(confirmed, is_integer, lambda d: d.step.attribute("mode") in ("cubic", "bicubic")),
    ),
    Explained(
        REFERENCE,
        ("GridSample", "Resize", "RoiAlign"),
        "float64: the reference, or ONNX Runtime and what is given here, round coordinates to float32",
        both(is_float64, close_or_non_finite(1e-4)),
    ),
    Explained(
        REFERENCE,
        ("Resize",),
        "half types: the reference rounds after each axis, so that large numbers overflow earlier or later",
        both(lambda d: d.ours.dtype.itemsize == 2, close_or_non_finite(2e-2)),
    ),
    Explained(
        REFERENCE,
        ("Resize",),
        "infinities, also at elements of weight zero: the reference gives the largest number of the type",
        clamped_infinity,
    ),
    Explained(
        REFERENCE,
        ("RoiAlign",),
        "the reference knows only the half_pixel mode of opset 16, and takes the maximum of other numbers; "
        "ONNX Runtime gives what is given here",
        either(confirmed, lambda d: d.step.opset < 16, lambda d: d.step.attribute("mode") == "max"),
    ),
    Explained(
        REFERENCE,
        ("Resize",),
        "coordinates on a border or half way between elements: float32 here and in ONNX Runtime, float64 in "
        "the reference, which also reads integers through float64",
        either(confirmed, by_coordinates, interpolated_integers, is_integer, aligned_to_fraction),
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
        starts_before_the_first,
    ),
    Explained(
        REFERENCE,
        ("QuantizeLinear",),
        "the reference rounds through int32",
        beyond_int32,
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
        to_integer,
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
        both(confirmed, lambda d: d.step.opset < 14),
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
        "`python -m tests.fuzz.hunt 0 5000` generates random models of opset 13 and later, with every family "
        "of operators, every type, broadcasting, empty tensors, NaN, infinities, signed zeros, denormal "
        "numbers and the largest integers. Each node is compared with ONNX Runtime and with ONNX's "
        "reference. Each model is compared with generated code, whose memory lies between guard pages, and "
        "with ONNX Runtime with and without optimisations. A difference that no row of this table explains "
        "is a failure. The rows are data in `tests/fuzz/explained.py`; `python -m tests.fuzz.explained` "
        "writes this section.",
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
