"""Vector math over the emitter, for float and double at any number of lanes.

Functions that networks spend their time in (exp, log, log1p, expm1, tanh, sigmoid, silu, erf, gelu) have
their own float versions; the others compute floats in double and round once, which is slower and nearly
correctly rounded.
Nothing calls a math library: a kernel links against nothing, and the same input gives the same bits in any
lane, at any width, on any target with fused multiply-adds.

`VECTOR_FUNCTIONS` is the one table of them by their names in `tilewright.ir.expr.FUNCTIONS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from tilewright.targets.llvm import vecmath32, vecmath64, vectrig
from tilewright.targets.llvm.emitter import Emitter
from tilewright.targets.llvm.values import Operand, Val

Unary = Callable[[Emitter, Val], Val]


def _by_element(single: Unary, double: Unary) -> Unary:
    """A function that floats and doubles each have a version of."""

    def emit(e: Emitter, x: Val) -> Val:
        if x.type.element == "float":
            return single(e, x)
        if x.type.element == "double":
            return double(e, x)
        raise TypeError(f"vector math on {x.typed}: widen it to float first (to_float)")

    return emit


def _in_double(function: Unary) -> Unary:
    """A function whose floats are computed in double and rounded."""

    def single(e: Emitter, x: Val) -> Val:
        return e.cast("fptrunc", function(e, e.cast("fpext", x, "double")), "float")

    return _by_element(single, function)


def sign(e: Emitter, x: Val) -> Val:
    """-1, 0 or 1; a zero keeps no sign, NaN stays NaN (as numpy)."""
    nonzero = e.select(e.fcmp("une", x, 0.0), e.copysign(1.0, x), e.constant(x.type, 0.0))
    return e.select(e.fcmp("uno", x, x), x, nonzero)


def pow(e: Emitter, x: Val, y: Val) -> Val:
    """x to the power y with the special cases of IEEE 754.

    Floats are computed in double. Doubles carry the logarithm in two parts; their error grows from below 1
    ulp for results near 1 to 2.5 ulp (largest found) close to overflow or underflow.
    """
    if x.type.element == "float":
        wide = pow(e, e.cast("fpext", x, "double"), e.cast("fpext", y, "double"))
        return e.cast("fptrunc", wide, "float")
    a = e.fabs(x)
    high, low = vecmath64.log_with_tail(e, a)
    ordinary = e.and_(e.fcmp("ogt", a, 0.0), e.fcmp("olt", a, math.inf))
    edge = e.select(e.fcmp("oeq", a, 0.0), e.constant(x.type, -math.inf), a)
    high, low = e.select(ordinary, high, edge), e.select(ordinary, low, 0.0)
    product = e.fmul(y, high)
    tail = e.fma(y, low, e.fma(y, high, e.fneg(product)))
    # The tail of a product beyond every result would outweigh it; 1 to any power, even infinite, is 1.
    finite = e.fcmp("olt", e.fabs(product), 1024.0)
    unit = e.and_(e.fcmp("oeq", a, 1.0), e.fcmp("oeq", y, y))
    product = e.select(unit, e.constant(x.type, 0.0), product)
    tail = e.select(e.and_(finite, e.not_(unit)), tail, 0.0)
    value = vecmath64.exp_with_tail(e, product, tail)
    whole = e.fcmp("oeq", e.trunc(y), y)
    half = e.fmul(y, 0.5)
    odd = e.and_(whole, e.fcmp("one", e.trunc(half), half))
    value = e.select(odd, e.copysign(value, x), value)
    rootless = e.and_(e.and_(e.fcmp("olt", x, 0.0), e.fcmp("ogt", x, -math.inf)), e.not_(whole))
    value = e.select(rootless, e.constant(x.type, math.nan), value)
    one = e.or_(e.fcmp("oeq", x, 1.0), e.fcmp("oeq", y, 0.0))
    return e.select(one, e.constant(x.type, 1.0), value)


def fmod(e: Emitter, x: Val, y: Val) -> Val:
    """Remainder of x / y with the sign of x: exact."""
    if x.type.element == "float":
        wide = fmod(e, e.cast("fpext", x, "double"), e.cast("fpext", y, "double"))
        return e.cast("fptrunc", wide, "float")
    remainder, divisor = e.fabs(x), e.fabs(y)
    proper = e.and_(e.fcmp("olt", remainder, math.inf), e.fcmp("ogt", divisor, 0.0))
    start = e.select(proper, remainder, e.constant(x.type, 0.0))
    large = e.fcmp("oge", e.fdiv(start, divisor), _EXACT_QUOTIENT)

    def shrink(values: list[Val]) -> tuple[Val, list[Operand]]:
        rest = _shrink_remainder(e, values[0], divisor)
        again = e.fcmp("oge", e.fdiv(e.fabs(rest), divisor), _EXACT_QUOTIENT)
        return e.any_lane(e.and_(again, proper)), [rest]

    rest = e.if_(
        e.any_lane(e.and_(large, proper)),
        lambda: e.do_while(shrink, [(x.type, start)]),
        lambda: [start],
        [x.type],
    )[0]
    rest = e.fma(e.fneg(e.trunc(e.fdiv(rest, divisor))), divisor, rest)
    # The rounded quotient may be one off, and shrinking may leave a negative remainder.
    rest = e.select(e.fcmp("olt", rest, 0.0), e.fadd(rest, divisor), rest)
    rest = e.select(e.fcmp("oge", rest, divisor), e.fsub(rest, divisor), rest)
    small = e.fcmp("olt", remainder, divisor)
    value = e.copysign(e.select(small, remainder, rest), x)
    value = e.select(e.or_(proper, small), value, e.constant(x.type, math.nan))
    return e.select(e.fcmp("uno", x, y), e.fadd(x, y), value)


_EXACT_QUOTIENT = 2.0**52


def _shrink_remainder(e: Emitter, remainder: Val, divisor: Val) -> Val:
    """A congruent value, smaller by a factor of 4 or more while the quotient is at least 4; exact.

    The product of a divisor and a 53-bit quotient differs from the remainder by a multiple of their common
    last place that fits in 53 bits, so the fused multiply-add loses nothing. Where the quotient overflows, a
    power of two times the divisor serves as well.
    """
    for power in (2.0**1022, 2.0**60):
        overflows = e.fcmp("oeq", e.fdiv(e.fabs(remainder), divisor), math.inf)
        divisor = e.select(overflows, e.fmul(divisor, power), divisor)
    quotient = e.trunc(e.fdiv(remainder, divisor))
    return e.fma(e.fneg(quotient), divisor, remainder)


def mod(e: Emitter, x: Val, y: Val) -> Val:
    """Remainder of x / y with the sign of y, as Python and numpy: `fmod`, moved into the range of y."""
    remainder = fmod(e, x, y)
    zero = e.fcmp("oeq", remainder, 0.0)
    differs = e.fcmp("olt", e.fmul(e.copysign(1.0, remainder), e.copysign(1.0, y)), 0.0)
    moved = e.select(differs, e.fadd(remainder, y), remainder)
    return e.select(zero, e.copysign(0.0, y), moved)


VECTOR_FUNCTIONS: Mapping[str, Callable[..., Val]] = {
    "mod": mod,
    "fmod": fmod,
    "pow": pow,
    "sign": sign,
    "exp": _by_element(vecmath32.exp, vecmath64.exp),
    "exp_nonpositive": _by_element(vecmath32.exp_nonpositive, vecmath64.exp),
    "expm1": _by_element(vecmath32.expm1, vecmath64.expm1),
    "log": _by_element(vecmath32.log, vecmath64.log),
    "log1p": _by_element(vecmath32.log1p, vecmath64.log1p),
    "tanh": _by_element(vecmath32.tanh, vecmath64.tanh),
    "sigmoid": _by_element(vecmath32.sigmoid, vecmath64.sigmoid),
    "silu": _by_element(vecmath32.silu, lambda e, x: e.fmul(x, vecmath64.sigmoid(e, x))),
    "erf": _by_element(vecmath32.erf, vecmath64.erf),
    "gelu": _by_element(vecmath32.gelu, vecmath64.gelu),
    "sin": _in_double(vectrig.sin),
    "cos": _in_double(vectrig.cos),
    "tan": _in_double(vectrig.tan),
    "asin": _in_double(vecmath64.asin),
    "acos": _in_double(vecmath64.acos),
    "atan": _in_double(vecmath64.atan),
    "sinh": _in_double(vecmath64.sinh),
    "cosh": _in_double(vecmath64.cosh),
    "asinh": _in_double(vecmath64.asinh),
    "acosh": _in_double(vecmath64.acosh),
    "atanh": _in_double(vecmath64.atanh),
    "reciprocal": lambda e, x: e.fdiv(1.0, x),
    "max": Emitter.maximum,
    "min": Emitter.minimum,
    "neg": Emitter.fneg,
    "abs": Emitter.fabs,
    "sqrt": Emitter.sqrt,
    "floor": Emitter.floor,
    "ceil": Emitter.ceil,
    "round": Emitter.roundeven,
    "trunc": Emitter.trunc,
}
