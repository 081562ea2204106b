"""Elementary functions in double arithmetic, for float64 operands and for float32 functions that are not hot.

Straight-line code. Polynomials are minimax fits of our own (Remez exchange in 50-digit arithmetic, relative
error of the function as weight), lowest coefficient first, all below 2**-57. Largest errors found against
200-bit arithmetic on 4096 arguments per function, in last places: exp 0.8, expm1 1.7, log and log1p 0.8,
tanh 2.3, sigmoid 1.8, sinh and cosh 1.2, asinh 1.3, acosh 1.8, atanh 1.4, erf 0.9, atan 1.3, asin, acos 2.0.
"""

from __future__ import annotations

import math

from tilewright.targets.llvm.lane_ops import LaneOps
from tilewright.targets.llvm.values import Val
from tilewright.targets.llvm.vecmath32 import horner, log_edge

_LOG2_E = 1.4426950408889634
_LN2_HI = 0.6931471805592082  # 40 bits: its product with an exponent is exact
_LN2_LO = 7.371002565167799e-13
_LN2 = 0.6931471805599453
_ROUND = 6755399441055744.0  # 1.5 * 2**52: adding it leaves the nearest integer in the low bits of the sum
_ROUND_2_52_BITS = 0x4330000000000000
_MANTISSA_BITS = 52
_SQRT_HALF_BITS = 0x3FE6A09E667F3BCD
_EXPONENT_OFFSET = 1024
_MIN_NORMAL = 2.0**-1022
_SQUARE_LIMIT = 2.0**500  # below it a square is finite
_HALF_PI, _HALF_PI_LO = 1.5707963267948966, 6.123233995736766e-17
_QUARTER_PI, _QUARTER_PI_LO = 0.7853981633974483, 3.061616997868383e-17

# (exp(r) - 1 - r) / r**2 on |r| <= ln(2) / 2
_EXP = (
    0.5, 0.16666666666666682, 0.04166666666666609, 0.008333333333316918, 0.0013888888889117454,
    0.00019841269896679937, 2.4801586924329472e-05, 2.7557234558849544e-06, 2.7557582975303113e-07,
    2.5112144641759283e-08, 2.0826491608040514e-09,
)  # fmt: skip
_EXPM1 = (
    0.5, 0.16666666666666666, 0.041666666666666706, 0.008333333333333337, 0.00138888888888645,
    0.0001984126984125359, 2.480158736417682e-05, 2.7557319265798697e-06, 2.755724018949125e-07,
    2.5052055709109523e-08, 2.0925127731928357e-09, 1.609128560141395e-10,
)  # fmt: skip
# (log((1 + s) / (1 - s)) / s - 2) / z in z = s**2, 1/sqrt(2) <= (1 + s) / (1 - s) <= sqrt(2)
_LOG = (
    0.6666666666666666, 0.4000000000000481, 0.2857142856935891, 0.22222222625642626,
    0.18181776199205138, 0.15387104842741478, 0.1324916875119051, 0.13264309869961288,
)  # fmt: skip
# (atan(t) / t - 1) / z in z = t**2, |t| <= tan(pi / 8)
_ATAN = (
    -0.3333333333333333, 0.19999999999999932, -0.14285714285700685, 0.11111111109856221,
    -0.09090909025258755, 0.07692305536182435, -0.06666619487426632, 0.058816407582918256,
    -0.05255608287870614, 0.04705488515438516, -0.04053577357092737, 0.029559495093351998,
    -0.012916066230640596,
)  # fmt: skip
# (sinh(x) / x - 1) / z in z = x**2, |x| <= 1
_SINH = (
    0.16666666666666669, 0.008333333333333172, 0.00019841269841426134, 2.7557319156425655e-06,
    2.5052123522837884e-08, 1.605721340414202e-10, 7.760525659166164e-13,
)  # fmt: skip
# erf(x) / x - 1 in x**2 for |x| <= 1
_ERF = (
    0.1283791670955126, -0.37612638903183754, 0.11283791670955119, -0.026866170645129736,
    0.005223977625422104, -0.0008548327021854214, 0.00012055332899393883, -1.4925647465956485e-05,
    1.6462043420826241e-06, -1.6364614554752896e-07, 1.4792146609872584e-08, -1.2163045013036096e-09,
    8.70379425061722e-11, -4.222894090248793e-12,
)  # fmt: skip
# exp(x**2) erfc(x) in t = (x - 2.5) / (x + 2.5), 1 <= x <= 6
_ERFCX = (
    0.2108063640611436, -0.3717367339489733, 0.2517131932174528, -0.12503305237886372,
    0.03992253907519682, -0.0039937011628408585, -0.0026423659456927076, 0.0008759153444482305,
    0.00022837990744935222, -0.00012887539871350766, -3.417556919512088e-05, 1.8599432826277267e-05,
    7.500262299227023e-06, -2.237705205123488e-06, -1.5901474082700905e-06,
)  # fmt: skip


def _split_exponent(e: LaneOps, x: Val, bias: int) -> tuple[Val, Val]:
    """`(r, bits)`: x = n ln 2 + r with n the nearest integer, and `n + bias` in the low 52 bits of `bits`."""
    shifted = e.fma(x, _LOG2_E, _ROUND + bias)
    n = e.fsub(shifted, _ROUND + bias)
    r = e.fma(n, -_LN2_LO, e.fma(n, -_LN2_HI, x))
    return r, e.bitcast(shifted, x.type.with_element("i64"))


def _power_of_two(e: LaneOps, biased: Val) -> Val:
    """2**n from `n + 1023` in the low bits of `biased`."""
    return e.bitcast(e.shl(biased, _MANTISSA_BITS), biased.type.with_element("double"))


# exp rounds to zero below.
_EXP_ZERO = -746.0


def _scaled_exp(e: LaneOps, x: Val, factor: float) -> Val:
    """factor * exp(x), with overflow and underflow only where the product has them.

    Where it is zero, another argument is computed: a product that underflows takes x86 a hundred cycles.
    """
    is_zero = e.fcmp("olt", x, _EXP_ZERO)
    r, bits = _split_exponent(e, e.minimum(e.select(is_zero, 0.0, x), 711.0), 2 * 1023)
    half = e.lshr(bits, 1)
    p = horner(e, r, (1.0, 1.0, *_EXP))
    if factor != 1.0:
        p = e.fmul(p, factor)
    value = e.fmul(e.fmul(p, _power_of_two(e, half)), _power_of_two(e, e.isub(bits, half)))
    return e.select(is_zero, 0.0, value)


def exp(e: LaneOps, x: Val) -> Val:
    """The exponential, denormal results included."""
    return _scaled_exp(e, x, 1.0)


def expm1(e: LaneOps, x: Val) -> Val:
    """exp(x) - 1, accurate near zero."""
    # 2**(n-1) and a final doubling: 2**1024 is no float64.
    r, bits = _split_exponent(e, e.minimum(e.maximum(x, -40.0), 710.0), 1022)
    power = _power_of_two(e, bits)
    p = e.fma(e.fmul(r, r), horner(e, r, _EXPM1), r)
    halved = e.fma(power, p, e.fsub(power, 0.5))
    # For n = 0 halving would round denormals.
    value = e.select(e.fcmp("oeq", power, 0.5), p, e.fadd(halved, halved))
    return e.copysign(value, x)


def tanh(e: LaneOps, x: Val) -> Val:
    """-t / (t + 2) with t = expm1(-2|x|)."""
    t = expm1(e, e.fmul(e.minimum(e.fabs(x), 20.0), -2.0))
    return e.copysign(e.fdiv(t, e.fadd(t, 2.0)), x)


def sigmoid(e: LaneOps, x: Val) -> Val:
    """1 / (1 + exp(-x))."""
    small = exp(e, e.fneg(e.fabs(x)))
    return e.fdiv(e.select(e.fcmp("olt", x, 0.0), small, 1.0), e.fadd(small, 1.0))


def cosh(e: LaneOps, x: Val) -> Val:
    """(exp(x) + exp(-x)) / 2."""
    half = _scaled_exp(e, e.fabs(x), 0.5)
    return e.fadd(half, e.fdiv(0.25, half))


def sinh(e: LaneOps, x: Val) -> Val:
    """(exp(x) - exp(-x)) / 2, by a polynomial below 1 where that difference cancels."""
    magnitude = e.fabs(x)
    half = _scaled_exp(e, magnitude, 0.5)
    far = e.copysign(e.fsub(half, e.fdiv(0.25, half)), x)
    z = e.fmul(x, x)
    near = e.fma(e.fmul(x, z), horner(e, z, _SINH), x)
    return e.select(e.fcmp("ogt", magnitude, 1.0), far, near)


def _normalise(e: LaneOps, x: Val) -> tuple[Val, Val]:
    """`(exponent, m)`: a normal positive x = 2**exponent * m with 1/sqrt(2) <= m < sqrt(2).

    In unsigned shifts and float arithmetic only: AVX2 has neither a signed 64-bit shift nor a conversion.
    """
    bits = e.bitcast(x, x.type.with_element("i64"))
    shifted = e.lshr(e.iadd(bits, (_EXPONENT_OFFSET << _MANTISSA_BITS) - _SQRT_HALF_BITS), _MANTISSA_BITS)
    exponent = e.fsub(
        e.bitcast(e.or_(shifted, _ROUND_2_52_BITS), x.type), 2.0**_MANTISSA_BITS + _EXPONENT_OFFSET
    )
    scale = e.shl(e.isub(shifted, _EXPONENT_OFFSET), _MANTISSA_BITS)
    return exponent, e.bitcast(e.isub(bits, scale), x.type)


def _log_of_parts(e: LaneOps, exponent: Val, m: Val, tail: Val | float) -> Val:
    """exponent * ln 2 + log(m) + tail, where the tail is small."""
    f = e.fsub(m, 1.0)
    s = e.fdiv(f, e.fadd(f, 2.0))
    z = e.fmul(s, s)
    half_square = e.fmul(e.fmul(f, f), 0.5)
    low = e.fma(s, e.fma(z, horner(e, z, _LOG), half_square), e.fma(exponent, _LN2_LO, tail))
    return e.fma(exponent, _LN2_HI, e.fsub(f, e.fsub(half_square, low)))


def log(e: LaneOps, x: Val) -> Val:
    """The natural logarithm, denormal arguments included."""
    tiny = e.fcmp("olt", x, _MIN_NORMAL)
    exponent, m = _normalise(e, e.select(tiny, e.fmul(x, 2.0**54), x))
    exponent = e.fsub(exponent, e.select(tiny, e.constant(x.type, 54.0), 0.0))
    value = _log_of_parts(e, exponent, m, 0.0)
    return log_edge(e, e.select(e.fcmp("olt", x, math.inf), value, x), x, 0.0)


def log1p(e: LaneOps, x: Val) -> Val:
    """log(1 + x), accurate near zero."""
    total = e.fadd(x, 1.0)
    lost = e.select(e.fcmp("olt", x, 1.0), e.fsub(x, e.fsub(total, 1.0)), e.fsub(1.0, e.fsub(total, x)))
    exponent, m = _normalise(e, total)
    value = _log_of_parts(e, exponent, m, e.fdiv(lost, total))
    value = e.select(e.fcmp("olt", x, math.inf), e.copysign(value, x), x)
    return log_edge(e, value, x, -1.0)


def log_with_tail(e: LaneOps, x: Val) -> tuple[Val, Val]:
    """log(x) of a positive finite x as a sum `(high, low)` with about eight more bits than a double."""
    tiny = e.fcmp("olt", x, _MIN_NORMAL)
    exponent, m = _normalise(e, e.select(tiny, e.fmul(x, 2.0**54), x))
    exponent = e.fsub(exponent, e.select(tiny, e.constant(x.type, 54.0), 0.0))
    f = e.fsub(m, 1.0)
    divisor = e.fadd(f, 2.0)
    s = e.fdiv(f, divisor)
    divisor_tail = e.fsub(f, e.fsub(divisor, 2.0))
    s_tail = e.fdiv(e.fma(e.fneg(s), divisor_tail, e.fma(e.fneg(s), divisor, f)), divisor)
    z = e.fmul(s, s)
    cubic = e.fmul(e.fmul(s, z), horner(e, z, _LOG))
    doubled = e.fadd(s, s)
    whole = e.fmul(exponent, _LN2_HI)
    high, lost = _two_sum(e, whole, doubled)
    low = e.fadd(lost, e.fma(exponent, _LN2_LO, e.fma(s_tail, 2.0, cubic)))
    return _two_sum(e, high, low)


def _two_sum(e: LaneOps, a: Val, b: Val) -> tuple[Val, Val]:
    """The rounded sum and what the rounding lost."""
    total = e.fadd(a, b)
    part = e.fsub(total, a)
    return total, e.fadd(e.fsub(a, e.fsub(total, part)), e.fsub(b, part))


def exp_with_tail(e: LaneOps, x: Val, tail: Val) -> Val:
    """exp(x + tail) for a tail below the last place of x."""
    r, bits = _split_exponent(e, e.minimum(e.maximum(x, -746.0), 711.0), 2 * 1023)
    half = e.lshr(bits, 1)
    p = horner(e, e.fadd(r, tail), (1.0, 1.0, *_EXP))
    return e.fmul(e.fmul(p, _power_of_two(e, half)), _power_of_two(e, e.isub(bits, half)))


def asinh(e: LaneOps, x: Val) -> Val:
    """log(|x| + sqrt(x**2 + 1)) with the sign of x."""
    a = e.fabs(x)
    z = e.fmul(a, a)
    near = e.fadd(a, e.fdiv(z, e.fadd(e.sqrt(e.fadd(z, 1.0)), 1.0)))
    return e.copysign(_log1p_or_log_twice(e, near, a), x)


def acosh(e: LaneOps, x: Val) -> Val:
    """log(x + sqrt(x**2 - 1)); NaN below 1."""
    t = e.fsub(x, 1.0)
    value = _log1p_or_log_twice(e, e.fadd(t, e.sqrt(e.fmul(t, e.fadd(t, 2.0)))), x)
    return e.select(e.fcmp("olt", x, 1.0), e.constant(x.type, math.nan), value)


def _log1p_or_log_twice(e: LaneOps, near: Val, x: Val) -> Val:
    """log1p(near), or log(2 x) where x is so large that its square overflows."""
    large = e.fcmp("ogt", x, _SQUARE_LIMIT)
    value = log1p(e, e.select(large, x, near))
    return e.fadd(value, e.select(large, e.constant(x.type, _LN2), 0.0))


def atanh(e: LaneOps, x: Val) -> Val:
    """log((1 + x) / (1 - x)) / 2; infinite at 1, NaN beyond."""
    a = e.fabs(x)
    value = log1p(e, e.fdiv(e.fadd(a, a), e.fsub(1.0, a)))
    return e.copysign(e.fmul(value, 0.5), x)


def erf(e: LaneOps, x: Val) -> Val:
    """The error function."""
    magnitude = e.fabs(x)
    near = e.fma(horner(e, e.fmul(x, x), _ERF), x, x)
    a = e.minimum(magnitude, 6.0)
    erfcx = horner(e, e.fdiv(e.fsub(a, 2.5), e.fadd(a, 2.5)), _ERFCX)
    far = e.copysign(e.fsub(1.0, e.fmul(exp(e, e.fmul(e.fneg(a), a)), erfcx)), x)
    return e.select(e.fcmp("ogt", magnitude, 1.0), far, near)


def gelu(e: LaneOps, x: Val) -> Val:
    """x times the normal distribution function of x."""
    return e.fmul(e.fmul(x, 0.5), e.fadd(erf(e, e.fmul(x, math.sqrt(0.5))), 1.0))


def atan(e: LaneOps, x: Val) -> Val:
    """The angle whose tangent is x, in [-pi/2, pi/2]."""
    a = e.fabs(x)
    middle, far = e.fcmp("ogt", a, math.tan(math.pi / 8)), e.fcmp("ogt", a, math.tan(3 * math.pi / 8))

    def pick(near_value: Val | float, middle_value: Val | float, far_value: float) -> Val:
        inner = e.select(middle, _lane(e, x, middle_value), near_value)
        return e.select(far, _lane(e, x, far_value), inner)

    t = e.fdiv(pick(a, e.fsub(a, 1.0), -1.0), e.select(far, a, pick(1.0, e.fadd(a, 1.0), 1.0)))
    z = e.fmul(t, t)
    low = e.fma(e.fmul(t, z), horner(e, z, _ATAN), pick(0.0, _QUARTER_PI_LO, _HALF_PI_LO))
    value = e.fadd(pick(0.0, _QUARTER_PI, _HALF_PI), e.fadd(t, low))
    return e.copysign(value, x)


def _lane(e: LaneOps, like: Val, value: Val | float) -> Val:
    return e.constant(like.type, value)


def asin(e: LaneOps, x: Val) -> Val:
    """atan(x / sqrt(1 - x**2)); NaN beyond 1."""
    return atan(e, e.fdiv(x, e.sqrt(e.fmul(e.fsub(1.0, x), e.fadd(x, 1.0)))))


def acos(e: LaneOps, x: Val) -> Val:
    """2 atan(sqrt((1 - x) / (1 + x))); NaN beyond 1."""
    return e.fmul(atan(e, e.sqrt(e.fdiv(e.fsub(1.0, x), e.fadd(x, 1.0)))), 2.0)
