"""sin, cos and tan in double arithmetic for every finite argument: at most 1.6, 1.6 and 2.7 ulp of a double.

Up to 2**30 the argument is reduced by fused multiply-adds with pi / 2 in three parts. A larger one, rare
enough for a branch, is multiplied with the bits of 2 / pi that matter at its exponent (Payne and Hanek,
1983), one lane after another in a function that the module gets on first use.
"""

from __future__ import annotations

import functools
import itertools
import math

from tilewright.targets.llvm.emitter import Emitter, Param
from tilewright.targets.llvm.values import DOUBLE, I64, PTR, Int, Operand, Val
from tilewright.targets.llvm.vecmath32 import horner

_HALF_PI, _HALF_PI_LO, _HALF_PI_LOLO = 1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33
_TWO_OVER_PI = 0.6366197723675814
_ROUND = 6755399441055744.0  # 1.5 * 2**52: adding it leaves the nearest integer in the low bits of the sum
_LARGE = 2.0**30
_REDUCE = "tilewright_reduce_quarter_turns"

# (sin(r) / r - 1) / z and (cos(r) - 1 + z / 2) / z**2 in z = r**2, |r| <= pi / 4: minimax, 2**-67 and 2**-73.
_SIN = (
    -0.16666666666666666, 0.008333333333333325, -0.0001984126984125607, 2.7557319214338776e-06,
    -2.5052104881276995e-08, 1.6058356367619965e-10, -7.57795448608836e-13,
)  # fmt: skip
_COS = (
    0.041666666666666664, -0.0013888888888888885, 2.4801587301579644e-05, -2.755731921862273e-07,
    2.0876755039859077e-09, -1.1470363451261006e-11, 4.7410111517882983e-14,
)  # fmt: skip


def sin(e: Emitter, x: Val) -> Val:
    """Sine of an angle in radians; NaN at infinity."""
    r, turns = _reduce(e, e.fabs(x))
    value = _flip(e, _pick(e, turns, _sin_near(e, r), _cos_near(e, r)), turns)
    sign = e.and_(e.bitcast(x, turns.type), -(2**63))
    return e.bitcast(e.xor(e.bitcast(value, turns.type), sign), x.type)


def cos(e: Emitter, x: Val) -> Val:
    """Cosine of an angle in radians; NaN at infinity."""
    r, turns = _reduce(e, e.fabs(x))
    return _flip(e, _pick(e, turns, _cos_near(e, r), _sin_near(e, r)), e.iadd(turns, 1))


def tan(e: Emitter, x: Val) -> Val:
    """Tangent of an angle in radians; NaN at infinity."""
    r, turns = _reduce(e, e.fabs(x))
    sine, cosine = _sin_near(e, r), _cos_near(e, r)
    quotient = e.fdiv(_pick(e, turns, sine, cosine), _pick(e, turns, cosine, e.fneg(sine)))
    sign = e.and_(e.bitcast(x, turns.type), -(2**63))
    return e.bitcast(e.xor(e.bitcast(quotient, turns.type), sign), x.type)


def _sin_near(e: Emitter, r: Val) -> Val:
    z = e.fmul(r, r)
    return e.fma(e.fmul(r, z), horner(e, z, _SIN), r)


def _cos_near(e: Emitter, r: Val) -> Val:
    z = e.fmul(r, r)
    high = e.fma(z, -0.5, 1.0)
    # What rounding 1 - z/2 lost goes back with the small terms.
    lost = e.fma(z, -0.5, e.fsub(1.0, high))
    return e.fadd(high, e.fma(e.fmul(z, z), horner(e, z, _COS), lost))


def _pick(e: Emitter, turns: Val, even: Val, odd: Val) -> Val:
    return e.select(e.icmp("eq", e.and_(turns, 1), 0), even, odd)


def _flip(e: Emitter, value: Val, turns: Val) -> Val:
    """Negated where the second bit of `turns` is set."""
    sign = e.shl(e.and_(turns, 2), 62)
    return e.bitcast(e.xor(e.bitcast(value, turns.type), sign), value.type)


def _reduce(e: Emitter, x: Val) -> tuple[Val, Val]:
    """`(r, turns)` with x = turns * pi/2 + r, |r| <= pi/4, for x >= 0; turns modulo 4."""
    integer = x.type.with_element("i64")
    shifted = e.fma(x, _TWO_OVER_PI, _ROUND)
    n = e.fsub(shifted, _ROUND)
    r = e.fma(n, -_HALF_PI_LOLO, e.fma(n, -_HALF_PI_LO, e.fma(n, -_HALF_PI, x)))
    turns = e.bitcast(shifted, integer)
    large = e.and_(e.fcmp("oge", x, _LARGE), e.fcmp("olt", x, math.inf))

    def slow() -> list[Operand]:
        slow_r, slow_turns = _reduce_large(e, x)
        return [e.select(large, slow_r, r), e.select(large, slow_turns, turns)]

    reduced = e.if_(e.any_lane(large), slow, lambda: [r, turns], [x.type, integer])
    return reduced[0], reduced[1]


def _reduce_large(e: Emitter, x: Val) -> tuple[Val, Val]:
    """`_reduce` lane by lane for lanes of at least 2**30; the others get some value."""
    if not e.defines(_REDUCE):
        _define_reduce(e)
    integer = x.type.with_element("i64")
    arguments, remainders, turns = e.alloca(x.type), e.alloca(x.type), e.alloca(integer)
    e.store(x, arguments)

    def one(lane: Int, _: list[Val]) -> None:
        places = [e.gep(buffer, lane, "i64") for buffer in (remainders, turns)]
        e.call(_REDUCE, [e.load(DOUBLE, e.gep(arguments, lane, "i64")), *places], declare=False)

    e.loop(0, x.lanes, 1, one)
    return e.load(x.type, remainders), e.load(integer, turns)


def _define_reduce(e: Emitter) -> None:
    """`void (double x, ptr remainder, ptr turns)` for x >= 2**30.

    x = m * 2**k with an integer m. Bits of 2/pi worth 4 or more after scaling by 2**k give whole turns and
    are left out; m times the 192 bits after them, modulo 2**192, is the fraction of a turn: its top two bits
    are the quadrant, and the 137 correct bits below leave over 70 even for the double closest to a multiple
    of pi/2.
    """
    words = _two_over_pi_words()
    params = (Param("x", DOUBLE), Param("remainder", PTR), Param("turns", PTR))
    with e.function(_REDUCE, params, linkage="internal") as (x, remainder, turns):
        table = e.constant_array("i64", words)
        bits = e.bitcast(x, I64)
        field = e.and_(e.lshr(bits, 52), 0x7FF)
        mantissa = e.or_(e.and_(bits, 2**52 - 1), 2**52)
        # Bit 0 of the table is the first of the 64 zeros that stand before the binary point.
        start = e.smin(e.smax(e.isub(field, 1075 + 2 - 64), 0), 64 * (len(words) - 3) - 1)
        first, shift = e.lshr(start, 6), e.and_(start, 63)
        loaded = [e.load(I64, e.gep(table, e.iadd(first, i), "i64")) for i in range(4)]
        window = [
            e.or_(e.shl(high, shift), e.lshr(e.lshr(low, 1), e.isub(63, shift)))
            for high, low in itertools.pairwise(loaded)
        ]
        wide = e.cast("zext", mantissa, "i128")
        products = [e.imul(wide, e.cast("zext", word, "i128")) for word in window]
        middle = e.iadd(products[1], e.lshr(products[2], 64))
        top = e.iadd(e.cast("trunc", products[0], "i64"), e.cast("trunc", e.lshr(middle, 64), "i64"))
        next_ = e.cast("trunc", middle, "i64")
        last = e.cast("trunc", products[2], "i64")
        e.store(e.lshr(e.iadd(top, 2**61), 62), turns)
        # The signed fraction of a quarter turn in 128 bits, from -1/2 up to 1/2.
        high = e.or_(e.shl(top, 2), e.lshr(next_, 62))
        low = e.or_(e.shl(next_, 2), e.lshr(last, 62))
        sign = e.ashr(high, 63)
        high, low = e.xor(high, sign), e.xor(low, sign)
        fraction = e.fma(
            e.cast("uitofp", high, "double"), 2.0**-64, e.fmul(e.cast("uitofp", low, "double"), 2.0**-128)
        )
        angle = e.fma(fraction, _HALF_PI, e.fmul(fraction, _HALF_PI_LO))
        e.store(e.select(e.icmp("slt", sign, 0), e.fneg(angle), angle), remainder)


@functools.cache
def _two_over_pi_words() -> tuple[int, ...]:
    """64 zero bits, then the first 1216 bits of 2 / pi, as signed 64-bit words, most significant first.

    pi by Machin's formula in integers: exact to the last bit that is kept.
    """
    kept, guard = 64 * 19, 64
    one = 1 << (kept + guard)

    def arctan_inverse(n: int) -> int:
        total, power, k = 0, one // n, 1
        while power:
            total += power // k if k % 4 == 1 else -(power // k)
            power //= n * n
            k += 2
        return total

    pi = 4 * (4 * arctan_inverse(5) - arctan_inverse(239))
    quotient = (2 * one * one // pi) >> guard
    words = [0, *((quotient >> (kept - 64 * (i + 1))) & (2**64 - 1) for i in range(kept // 64))]
    return tuple(word - 2**64 if word >= 2**63 else word for word in words)
