"""Quantisation in few instructions: `saturate(round(x) + zero)` as bytes, from how expressions spell it.

Bounds are applied to `x` itself, since rounding keeps order; what is left fits int32, where the processor
rounds halves to even while it converts.
"""

from __future__ import annotations

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Call, Const, Expr
from tilewright.records import dataclass
from tilewright.targets.llvm.emitter import Emitter
from tilewright.targets.llvm.values import Val

# Divisors between this and its inverse neither overflow nor vanish with bytes as quotients.
_SMALLEST = 2.0**-60
# Beyond this, rounded values plus any byte saturate whatever they are.
_FAR = float(1 << 24)


@dataclass(frozen=True, slots=True)
class Rounding:
    """`min(max(round(value / divisor) + zero, low), high)`; `zero_expr` is a byte known only at run time."""

    value: Expr
    zero: int
    zero_expr: Expr | None
    low: int
    high: int
    divisor: float = 1.0


def match_rounding(expr: Expr, dtype: DType) -> Rounding | None:
    """What is rounded where `expr`, a float32, becomes a byte of type `dtype`."""
    if dtype not in (DType.UINT8, DType.INT8) or expr.result is not DType.FLOAT32:
        return None
    bounds = (-128, 127) if dtype is DType.INT8 else (0, 255)
    low: float | None = None
    high: float | None = None
    while isinstance(expr, Call) and expr.function in ("min", "max"):
        inner, bound = expr.args
        if isinstance(inner, Const):
            inner, bound = bound, inner
        if not isinstance(bound, Const):
            return None
        if expr.function == "min":
            high = float(bound.value) if high is None else min(high, float(bound.value))
        else:
            low = float(bound.value) if low is None else max(low, float(bound.value))
        expr = inner
    if low is None or high is None or not bounds[0] <= low <= high <= bounds[1]:
        return None
    zero, zero_expr = 0, None
    match expr:
        case Call("add", (Call("round") as rounded, Const(number, _))) if float(number).is_integer():
            expr, zero = rounded, int(number)
        case Call("add", (Call("round") as rounded, Call("cast", (inner,)))) if inner.result in (
            DType.UINT8,
            DType.INT8,
        ):
            expr, zero_expr = rounded, inner
    match expr:
        case Call("round", (value,)) if abs(zero) <= 255 and low.is_integer() and high.is_integer():
            divisor = 1.0
            match value:
                case Call("div", (dividend, Const(number, _))) if _SMALLEST < number < 1 / _SMALLEST:
                    value, divisor = dividend, float(number)
            return Rounding(value, zero, zero_expr, int(low), int(high), divisor)
    return None


def emit_rounding(e: Emitter, rounding: Rounding, x: Val, zero: Val | None, *, wide: bool = False) -> Val:
    """The bytes of `x`, or with `wide` the same values as i32; a NaN gives some byte.

    `zero` is the value of `rounding.zero_expr`.
    """
    integer = x.type.with_element("i32")
    runtime = rounding.zero_expr
    low = -_FAR if runtime is not None else float(rounding.low - rounding.zero)
    high = _FAR if runtime is not None else float(rounding.high - rounding.zero)
    divisor = rounding.divisor
    bounded = e.minimum(e.maximum(x, low * divisor), high * divisor)
    if divisor != 1.0:
        bounded = _quotient(e, bounded, divisor)
    if e.has_lrint:
        name = f"{integer.text} @llvm.lrint.{integer.suffix}.{x.type.suffix}("
        e.declare(f"declare {name}{x.type.text})")
        steps = e.op(f"call {name}{bounded.typed})", integer)
    else:
        steps = e.fptoint(e.roundeven(bounded), "i32")
    if runtime is not None and zero is not None:
        shift = e.cast("sext" if runtime.result.is_signed else "zext", zero, "i32")
        steps = e.smin(e.smax(e.iadd(steps, shift), rounding.low), rounding.high)
    elif rounding.zero:
        steps = e.iadd(steps, rounding.zero)
    return steps if wide else e.cast("trunc", steps, "i8")


def _quotient(e: Emitter, x: Val, divisor: float) -> Val:
    """`x / divisor` as division rounds it, by multiplication and one correction (Markstein, 1990).

    The divisor is a usual float32 and `x` bounded, so that nothing overflows; quotients too small for the
    correction round to 0 anyway.
    """
    inverse = float(np.float32(1 / np.float64(divisor)))
    quotient = e.fmul(x, inverse)
    rest = e.fma(quotient, -divisor, x)
    return e.fma(rest, inverse, quotient)
