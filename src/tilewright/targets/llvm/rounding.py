"""Quantisation in few instructions: `saturate(round(x) + zero)` as bytes, from how expressions spell it.

Bounds are applied to `x` itself, since rounding keeps order; what is left fits int32, where the processor
rounds halves to even while it converts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Call, Const, Expr
from tilewright.records import dataclass
from tilewright.targets.llvm.emitter import Emitter
from tilewright.targets.llvm.values import Type, Val, vec

# Divisors between this and its inverse neither overflow nor vanish with bytes as quotients.
_SMALLEST = 2.0**-60
# Beyond this, rounded values plus any byte saturate whatever they are.
_FAR = float(1 << 24)
_ROUND = 1.5 * 2.0**23
# Up to this much is taken off bytes as exactly in float32 as in integers.
_MOST_LESS = 1 << 16
_LIMITS = {DType.INT8: (-128, 127), DType.UINT8: (0, 255)}
# Instructions of x86 that narrow two vectors of integers, by the lanes of one of int32.
_PACKS = {4: ("sse2", ".128"), 8: ("avx2", ""), 16: ("avx512", ".512")}
PACKED_VECTORS = 4


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
    if dtype not in _LIMITS or expr.result is not DType.FLOAT32:
        return None
    bounds = _LIMITS[dtype]
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
        case Call(
            "add", (Call("round") as rounded, Const(number, _) | Call("cast", (Const(number, _),)))
        ) if float(number).is_integer():
            expr, zero = rounded, int(number)
        case Call("add", (Call("round") as rounded, Call("cast", (inner,)))) if inner.result in _LIMITS:
            expr, zero_expr = rounded, inner
    match expr:
        case Call("round", (value,)) if abs(zero) <= 255 and low.is_integer() and high.is_integer():
            divisor = 1.0
            match value:
                case Call("div", (dividend, Const(number, _))) if _SMALLEST < number < 1 / _SMALLEST:
                    value, divisor = dividend, float(number)
            return Rounding(value, zero, zero_expr, int(low), int(high), divisor)
    return None


def match_bytes(expr: Expr) -> Rounding | None:
    """The same of an expression that is bytes itself, perhaps clipped once more."""
    dtype = expr.result
    low, high = _LIMITS.get(dtype, (0, 0))
    while isinstance(expr, Call) and expr.function in ("min", "max") and dtype in _LIMITS:
        inner, bound = expr.args if isinstance(expr.args[1], Const) else reversed(expr.args)
        if not isinstance(bound, Const):
            return None
        if expr.function == "min":
            high = min(high, int(bound.value))
        else:
            low = max(low, int(bound.value))
        expr = inner
    found = (
        match_rounding(expr.args[0], dtype) if isinstance(expr, Call) and expr.function == "cast" else None
    )
    if found is None:
        return None
    low, high = max(low, found.low), min(high, found.high)
    return replace(found, low=low, high=high) if low <= high else None


def match_steps(expr: Expr) -> tuple[Expr, Rounding, int] | None:
    """Bytes that are numbers again, less a zero point: the bytes, how they are rounded, and that number."""
    less = 0
    match expr:
        case Call("sub", (left, Const(number, _) | Call("cast", (Const(number, _),)))):
            expr, less = left, int(number)
    match expr:
        case Call("cast", (Call("cast", (inner,), byte) as bytes_,), DType.INT32):
            rounding = match_rounding(inner, byte)
            if rounding is not None and rounding.zero_expr is None and abs(less) <= _MOST_LESS:
                return bytes_, rounding, less
    return None


def emit_steps(e: Emitter, rounding: Rounding, x: Val, less: int) -> Val:
    """Rounded bytes, less a number, as float32 without integers in between; a NaN stays one."""
    bounds = (float(bound - rounding.zero) * rounding.divisor for bound in (rounding.low, rounding.high))
    low, high = bounds
    bounded = e.minimum(e.maximum(x, low), high)
    if rounding.divisor != 1.0:
        bounded = _quotient(e, bounded, rounding.divisor)
    # Numbers around this one are integers: it rounds, and what is taken off again leaves no negative zero.
    return e.fadd(e.fadd(bounded, _ROUND), rounding.zero - less - _ROUND)


def emit_packed(e: Emitter, rounding: Rounding, values: Sequence[Val], dtype: DType) -> Val:
    """The bytes of four vectors of float32, one vector's behind the other's, where x86 multiplies bytes.

    Numbers beyond int32 become its smallest: bounded from above before, they saturate to the right end.
    """
    lanes, (prefix, suffix) = values[0].lanes, _PACKS[values[0].lanes]
    halves, bytes_, zero = vec("i16", 2 * lanes), vec("i8", 4 * lanes), rounding.zero
    steps = [_steps(e, rounding, x) for x in values]
    words = [_pack(e, f"{prefix}.packssdw{suffix}", steps[i], steps[i + 1], halves) for i in (0, 2)]
    if zero:
        words = [e.saturating_add(word, zero) for word in words]
    pack = "packsswb" if dtype is DType.INT8 else "packuswb"
    packed = _pack(e, f"{prefix}.{pack}{suffix}", words[0], words[1], bytes_)
    if rounding.low > _LIMITS[dtype][0]:
        signed = rounding.low - 256 * (rounding.low > 127)
        packed = e.smax(packed, signed) if dtype is DType.INT8 else e.umax(packed, signed)
    # Each 128 bits hold four bytes of each vector.
    parts = lanes // 4
    order = [4 * lane + vector for vector in range(PACKED_VECTORS) for lane in range(parts)]
    return e.bitcast(e.shuffle(e.bitcast(packed, vec("i32", lanes)), None, order), bytes_)


def _steps(e: Emitter, rounding: Rounding, x: Val) -> Val:
    """The rounded value less the zero point: right within the bounds, beyond them where it is not within."""
    low, high = (float(bound - rounding.zero) for bound in (rounding.low, rounding.high))
    divisor = rounding.divisor
    bounded = e.minimum(x, high * divisor)
    if divisor != 1.0:
        bounded = _quotient(e, e.maximum(bounded, low * divisor), divisor)
    return _rounded(e, bounded)


def _rounded(e: Emitter, x: Val) -> Val:
    """The nearest integer of each float32, of two the even one."""
    if not e.has_lrint:
        return e.fptoint(e.roundeven(x), "i32")
    integer = x.type.with_element("i32")
    name = f"{integer.text} @llvm.lrint.{integer.suffix}.{x.type.suffix}("
    e.declare(f"declare {name}{x.type.text})")
    return e.op(f"call {name}{x.typed})", integer)


def _pack(e: Emitter, instruction: str, a: Val, b: Val, narrow: Type) -> Val:
    name = f"llvm.x86.{instruction}"
    e.declare(f"declare {narrow.text} @{name}({a.type.text}, {a.type.text})")
    return e.op(f"call {narrow.text} @{name}({a.typed}, {b.typed})", narrow)


def emit_rounding(e: Emitter, rounding: Rounding, x: Val, zero: Val | None, *, wide: bool = False) -> Val:
    """The bytes of `x`, or with `wide` the same values as i32; a NaN gives some byte.

    `zero` is the value of `rounding.zero_expr`.
    """
    runtime = rounding.zero_expr
    low = -_FAR if runtime is not None else float(rounding.low - rounding.zero)
    high = _FAR if runtime is not None else float(rounding.high - rounding.zero)
    divisor = rounding.divisor
    bounded = e.minimum(e.maximum(x, low * divisor), high * divisor)
    if divisor != 1.0:
        bounded = _quotient(e, bounded, divisor)
    steps = _rounded(e, bounded)
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
