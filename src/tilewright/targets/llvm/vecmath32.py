"""The float32 functions that networks spend time in, in float32 arithmetic throughout.

Straight-line code: every lane does the same operations, so a value gives the same bits at any width and
position. Polynomials are minimax fits of our own (Remez exchange in 50-digit arithmetic, relative error of
the function as weight), lowest coefficient first. Errors are the largest found in a sweep of one float32 in
37 over the whole range, in units of the last place of the exact result;
tests/unit/targets/llvm/test_vecmath.py holds each function to its bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.targets.llvm.lane_ops import LaneOps
from tilewright.targets.llvm.values import Val

_LOG2_E = 1.4426950408889634
_LN2_HI = 0.6931471824645996  # ln 2 rounded to float32
_LN2_LO = -1.904654299957768e-09
_ROUND = 12582912.0  # 1.5 * 2**23: adding it leaves the nearest integer in the low bits of the sum
_MANTISSA_BITS = 23
_EXPONENT_MASK = -0x800000
_TWO_THIRDS_BITS = 0x3F2AAAAB
_MIN_NORMAL = 2.0**-126

# (exp(r) - 1 - r) / r**2 on |r| <= ln(2) / 2: relative to exp, 2**-28; relative to expm1, 2**-31.
_EXP = (0.49999994, 0.1666652, 0.041668393, 0.00836878, 0.0013814446)
_EXPM1 = (0.5, 0.16666667, 0.04166624, 0.008333286, 0.00139487, 0.00019907703)
# (log(1 + f) - f) / f**2 on |f| <= 1/3: 2**-27.7.
_LOG = (
    -0.5,
    0.3333321,
    -0.24999717,
    0.20010723,
    -0.16682306,
    0.14001517,
    -0.1216736,
    0.14003235,
    -0.12947501,
)
# (tanh(x) / x - 1) / z in z = x**2 for x <= 0.6: 2**-32.
_TANH_LIMIT = 0.6
_TANH = (-0.3333333, 0.13333255, -0.053952686, 0.021732312, -0.008255087, 0.0022146995)
# erf(x) / x - 1 in x**2 for x <= 0.921875: 2**-31; log(erfc(x)) in x up to 4: 2**-34 of erf.
_ERF_LIMIT = 0.921875
_ERF = (0.12837917, -0.37612635, 0.11283696, -0.026859399, 0.005201034, -0.000814271, 8.370094e-05)
_LOG_ERFC = (
    0.00016136048, -1.1294392, -0.6335319, -0.108026624, 0.024906646,
    -0.004059035, 0.00039835996, -1.4587269e-05, -5.021709e-07,
)  # fmt: skip
# log2 of the normal distribution's upper tail in x up to 6: it errs by 2**-28.6; 2**r on |r| <= 1/2: 2**-29.
_GELU_LIMIT = 6.0
_LOG2_TAIL = (
    -1.0, -1.1511044, -0.4592191, -0.052445248, 0.0069527323, -8.659437e-06,
    -0.00026981416, 6.9963475e-05, -8.65957e-06, 4.4742376e-07,
)  # fmt: skip
_EXP2 = (1.0, 0.6931472, 0.24022648, 0.055503324, 0.009618437, 0.0013398875, 0.00015353362)
# 2**r on |r| <= 1/2, exact at 0: 2**-23.4.
_EXP2_SHORT = (1.0, 0.693147, 0.24022242, 0.055507336, 0.0096715130, 0.0013264724)

# exp rounds to zero below.
_EXP_ZERO = -104.0
# The sigmoid rounds to one above; exp is scaled down by so many powers of two: exp(104) stays below 2**128.
_SIGMOID_ONE, _SIGMOID_SHIFT = 24.0, 30
# Below, results of `exp_nonpositive` would come near the denormal numbers: they are zero.
_EXP_NORMAL = -86.6


def horner(e: LaneOps, x: Val, coefficients: Sequence[float]) -> Val:
    """The polynomial with the given coefficients, lowest first, by fused multiply-adds."""
    value = e.constant(x.type, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        value = e.fma(value, x, coefficient)
    return value


def _split_exponent(e: LaneOps, x: Val, bias: int) -> tuple[Val, Val]:
    """`(r, bits)`: x = n ln 2 + r with n the nearest integer, and `n + bias` in the low 23 bits of `bits`."""
    shifted = e.fma(x, _LOG2_E, _ROUND + bias)
    n = e.fsub(shifted, _ROUND + bias)
    r = e.fma(n, -_LN2_LO, e.fma(n, -_LN2_HI, x))
    return r, e.bitcast(shifted, x.type.with_element("i32"))


def _power_of_two(e: LaneOps, biased: Val) -> Val:
    """2**n from `n + 127` in the low bits of `biased`."""
    return e.bitcast(e.shl(biased, _MANTISSA_BITS), biased.type.with_element("float"))


def exp(e: LaneOps, x: Val) -> Val:
    """At most 0.9 ulp, denormal results included.

    Underflows and overflows by rounding, because 2**n is applied in two halves.

    Where the result is zero, another argument is computed: x86 takes more than a hundred cycles for each
    product that underflows, and softmax over masked scores has many.
    """
    is_zero = e.fcmp("olt", x, _EXP_ZERO)
    r, bits = _split_exponent(e, e.minimum(e.select(is_zero, 0.0, x), 89.0), 2 * 127)
    half = e.lshr(bits, 1)
    scaled = e.fmul(horner(e, r, (1.0, 1.0, *_EXP)), _power_of_two(e, half))
    return e.select(is_zero, 0.0, e.fmul(scaled, _power_of_two(e, e.isub(bits, half))))


def exp_nonpositive(e: LaneOps, x: Val) -> Val:
    """exp of what is at most 0, at most 0.9 ulp; zero where exp is below 2.5e-38.

    Weights of a softmax are compared with the largest, which is 1: one multiplication by a power of two
    does, where `exp` takes two for denormal and for huge results.
    """
    is_zero = e.fcmp("olt", x, _EXP_NORMAL)
    r, bits = _split_exponent(e, e.maximum(x, _EXP_NORMAL), 127)
    value = e.fmul(horner(e, r, (1.0, 1.0, *_EXP)), _power_of_two(e, bits))
    return e.select(is_zero, 0.0, value)


def expm1(e: LaneOps, x: Val) -> Val:
    """At most 1.4 ulp."""
    # 2**(n-1) and a final doubling: 2**128 is no float32.
    r, bits = _split_exponent(e, e.minimum(e.maximum(x, -18.0), 89.0), 126)
    power = _power_of_two(e, bits)
    p = e.fma(e.fmul(r, r), horner(e, r, _EXPM1), r)
    halved = e.fma(power, p, e.fsub(power, 0.5))
    # For n = 0 halving would round denormals.
    value = e.select(e.fcmp("oeq", power, 0.5), p, e.fadd(halved, halved))
    return e.copysign(value, x)


def sigmoid(e: LaneOps, x: Val) -> Val:
    """1 / (1 + exp(-x)), at most 2.4 ulp, denormal results included.

    Both sides of the fraction are scaled: exp is finite where the result is the least denormal number.
    """
    negated = e.fneg(e.maximum(e.minimum(x, _SIGMOID_ONE), _EXP_ZERO))
    r, bits = _split_exponent(e, negated, 127 - _SIGMOID_SHIFT)
    power = e.fmul(horner(e, r, (1.0, 1.0, *_EXP)), _power_of_two(e, bits))
    scale = 2.0**-_SIGMOID_SHIFT
    return e.fdiv(scale, e.fadd(power, scale))


def silu(e: LaneOps, x: Val) -> Val:
    """x / (1 + 2**t) with t = -x log2(e).

    Above -1 at most 2.6 ulp, below at most 2**-23.7: where t is large, its own rounding shows. 2**128 is
    infinite, so that a large negative x gives a zero, and minus infinity NaN, as times a sigmoid of zero.
    """
    t = e.maximum(e.minimum(e.fmul(x, -_LOG2_E), 128.0), -126.0)
    return e.fdiv(x, e.fadd(_exp2(e, t, _EXP2_SHORT), 1.0))


def _exp2(e: LaneOps, x: Val, polynomial: Sequence[float]) -> Val:
    """2**x for x from -126 to 128, with this polynomial for the fraction."""
    shifted = e.fadd(x, _ROUND)
    fraction = horner(e, e.fsub(x, e.fsub(shifted, _ROUND)), polynomial)
    integer = x.type.with_element("i32")
    shift = e.shl(e.bitcast(shifted, integer), _MANTISSA_BITS)
    return e.bitcast(e.iadd(e.bitcast(fraction, integer), shift), x.type)


def tanh(e: LaneOps, x: Val) -> Val:
    """1 - 2 E / (1 + E) with E = exp(-2|x|), and an odd polynomial below 0.6; at most 1.5 ulp."""
    magnitude, z = e.fabs(x), e.fmul(x, x)
    near = e.fma(e.fmul(z, horner(e, z, _TANH)), x, x)
    r, bits = _split_exponent(e, e.fmul(e.minimum(magnitude, 10.0), -2.0), 127)
    small = e.fmul(horner(e, r, (1.0, 1.0, *_EXP)), _power_of_two(e, bits))
    far = e.fsub(1.0, e.fdiv(e.fadd(small, small), e.fadd(small, 1.0)))
    # The sign last: the polynomial makes +0 of -0.
    return e.copysign(e.select(e.fcmp("ogt", magnitude, _TANH_LIMIT), far, near), x)


def erf(e: LaneOps, x: Val) -> Val:
    """At most 1.2 ulp."""
    magnitude = e.fabs(x)
    near = e.fma(horner(e, e.fmul(x, x), _ERF), x, x)
    r, bits = _split_exponent(e, horner(e, e.minimum(magnitude, 4.0), _LOG_ERFC), 127)
    erfc = e.fmul(horner(e, r, (1.0, 1.0, *_EXP)), _power_of_two(e, bits))
    far = e.copysign(e.fsub(1.0, erfc), x)
    return e.select(e.fcmp("ogt", magnitude, _ERF_LIMIT), far, near)


def gelu(e: LaneOps, x: Val) -> Val:
    """max(x, 0) - |x| * Q(|x|), Q the upper tail of the normal distribution as a power of two.

    For positive x at most 1.6 ulp; for negative ones at most 2**-24, of which x times 1 + erf has twice as
    much. Where Q is below 2**-29 the result is x or a zero.
    """
    magnitude = e.minimum(e.fabs(x), _GELU_LIMIT)
    tail = _exp2(e, horner(e, magnitude, _LOG2_TAIL), _EXP2)
    value = e.fma(e.fneg(magnitude), tail, e.maximum(x, 0.0))
    return e.select(e.fcmp("olt", x, -_GELU_LIMIT), e.fmul(x, 0.0), value)


def _log_of_parts(e: LaneOps, exponent: Val, f: Val) -> Val:
    """exponent * ln 2 + log(1 + f) for |f| <= 1/3."""
    near = e.fma(e.fmul(f, f), horner(e, f, _LOG), f)
    return e.fma(exponent, _LN2_HI, e.fma(exponent, _LN2_LO, near))


def log(e: LaneOps, x: Val) -> Val:
    """At most 1.0 ulp; denormal arguments included."""
    integer = x.type.with_element("i32")
    tiny = e.fcmp("olt", x, _MIN_NORMAL)
    bits = e.bitcast(e.select(tiny, e.fmul(x, 2.0**23), x), integer)
    shift = e.and_(e.isub(bits, _TWO_THIRDS_BITS), _EXPONENT_MASK)
    f = e.fsub(e.bitcast(e.isub(bits, shift), x.type), 1.0)
    offset = e.select(tiny, e.constant(x.type, -23.0), 0.0)
    value = _log_of_parts(e, e.fma(e.cast("sitofp", shift, "float"), 2.0**-23, offset), f)
    value = e.select(e.fcmp("olt", x, math.inf), value, x)
    return log_edge(e, value, x, 0.0)


def log1p(e: LaneOps, x: Val) -> Val:
    """At most 1.6 ulp."""
    integer = x.type.with_element("i32")
    sum_bits = e.bitcast(e.fadd(x, 1.0), integer)
    shift = e.and_(e.isub(sum_bits, _TWO_THIRDS_BITS), _EXPONENT_MASK)
    # With s = 2**-exponent, f = s * (1 + x) - 1 = s * x + (s - 1) takes nothing from the rounded sum. s is
    # held as 4 s, which stays normal.
    scaled = e.bitcast(e.isub(e.bitcast(x, integer), shift), x.type)
    quadruple = e.bitcast(e.isub(0x40800000, shift), x.type)
    f = e.fadd(scaled, e.fma(quadruple, 0.25, -1.0))
    value = _log_of_parts(e, e.fmul(e.cast("sitofp", shift, "float"), 2.0**-23), f)
    value = e.select(e.fcmp("olt", x, math.inf), e.copysign(value, x), x)
    return log_edge(e, value, x, -1.0)


def log_edge(e: LaneOps, value: Val, x: Val, pole: float) -> Val:
    """`value`, but -inf where x is the pole of a logarithm and NaN below it."""
    value = e.select(e.fcmp("oeq", x, pole), e.constant(x.type, -math.inf), value)
    return e.select(e.fcmp("olt", x, pole), e.constant(x.type, math.nan), value)
