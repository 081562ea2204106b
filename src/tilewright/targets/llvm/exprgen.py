"""Scalar expressions of the IR as instructions on vectors of any width, one lane included.

Values are held in the compute type of their element type: booleans as i1, half types as float. Every
function is total: integer division by zero gives 0, the smallest integer divided by -1 wraps, shifts by the
width or more give what numpy gives, float to integer conversion saturates (NaN gives 0).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Acc, Call, Const, Expr, Iter, Read, Scalar
from tilewright.records import dataclass
from tilewright.targets.llvm.emitter import Emitter
from tilewright.targets.llvm.rounding import Rounding, emit_rounding, emit_steps, match_rounding, match_steps
from tilewright.targets.llvm.values import Type, Val, vec
from tilewright.targets.llvm.vecmath import VECTOR_FUNCTIONS

COMPUTE_ELEMENTS: Mapping[DType, str] = {
    DType.FLOAT32: "float", DType.FLOAT64: "double", DType.FLOAT16: "float", DType.BFLOAT16: "float",
    DType.BOOL: "i1", DType.INT8: "i8", DType.UINT8: "i8", DType.INT16: "i16", DType.UINT16: "i16",
    DType.INT32: "i32", DType.UINT32: "i32", DType.INT64: "i64", DType.UINT64: "i64",
}  # fmt: skip
# Half types lie in memory as plain bits: moving lanes of them needs no half arithmetic of the target.
STORAGE_ELEMENTS: Mapping[DType, str] = {
    **COMPUTE_ELEMENTS, DType.FLOAT16: "i16", DType.BFLOAT16: "i16", DType.BOOL: "i8",
}  # fmt: skip
_HALF_ELEMENTS = {DType.FLOAT16: "half", DType.BFLOAT16: "bfloat"}

Known = Callable[[Expr], "Val | None"]


@dataclass(frozen=True, slots=True)
class Divisor:
    """A float divisor that many values share: `scale` brings tiny ones into range, 1/scaled is `inverse`."""

    scale: Val
    scaled: Val
    inverse: Val


Divisors = Callable[[Expr], "Divisor | None"]
# Divisors below this are scaled up first: their inverse might overflow.
_TINY_DIVISOR = {"float": 2.0**-100, "double": 2.0**-1000}


def compute_type(dtype: DType, lanes: int = 1) -> Type:
    """The LLVM type in which values of `dtype` are computed."""
    return vec(COMPUTE_ELEMENTS[dtype], lanes)


def storage_type(dtype: DType, lanes: int = 1) -> Type:
    """The LLVM type in which values of `dtype` lie in memory."""
    return vec(STORAGE_ELEMENTS[dtype], lanes)


def unsupported_function(expr: Expr) -> str | None:
    """Why no instructions exist for the expression, or None when they do."""
    for node in expr.walk():
        if node.result not in COMPUTE_ELEMENTS:
            return f"values of type {node.result} have no machine form"
        if isinstance(node, Call) and node.function not in _ANY_OPS:
            dtype = node.args[-1].result if node.function == "select" else node.args[0].result
            known = _FLOAT_OPS if dtype.is_float else _BOOL_OPS if dtype is DType.BOOL else _INTEGER_OPS
            if node.function not in known:
                return f"{node.function} of {dtype}"
    return None


def from_storage(emitter: Emitter, value: Val, dtype: DType) -> Val:
    """A loaded value in its compute type."""
    if dtype is DType.BOOL:
        return emitter.icmp("ne", value, 0)
    half = _HALF_ELEMENTS.get(dtype)
    if half is not None:
        return emitter.to_float(emitter.bitcast(value, value.type.with_element(half)))
    return value


def to_storage(emitter: Emitter, value: Val, dtype: DType) -> Val:
    """A computed value as it is stored."""
    if dtype is DType.BOOL:
        return emitter.cast("zext", value, "i8")
    half = _HALF_ELEMENTS.get(dtype)
    if half is not None:
        return emitter.bitcast(emitter.from_float(value, half), value.type.with_element("i16"))
    return value


def stored_literal(value: Scalar, dtype: DType) -> int | float:
    """A number as it lies in memory: the bits of half types, else itself."""
    if dtype in _HALF_ELEMENTS:
        with np.errstate(all="ignore"):
            return int(np.asarray(value, np.float64).astype(dtype.numpy).view(np.int16))
    return value


def emit_expr(
    emitter: Emitter,
    expr: Expr,
    reads: Callable[[int], Val],
    acc: Val | None = None,
    iters: Callable[[str], Val] | None = None,
    *,
    lanes: int = 1,
    known: Known | None = None,
    divisors: Divisors | None = None,
) -> Val:
    """Instructions for `expr` on `lanes` lanes.

    `reads` gives a read in its compute type, `iters` the value of a loop index as i64, `known` a value that
    stands for a sub-expression already computed, `divisors` what was prepared of the divisor of a quotient.
    A product that is summed becomes one fused operation.
    """
    return _Generator(emitter, reads, acc, iters, lanes, known, divisors).value(expr)


def prepare_divisor(emitter: Emitter, divisor: Val) -> Divisor:
    """What `divide_by` needs of a divisor; worth it when more than one value is divided."""
    e = emitter
    tiny = _TINY_DIVISOR[divisor.type.element]
    is_tiny = e.fcmp("olt", e.fabs(divisor), tiny)
    scale = e.select(is_tiny, e.constant(divisor.type, 1 / tiny), 1.0)
    scaled = e.fmul(divisor, scale)
    return Divisor(scale, scaled, e.fdiv(1.0, scaled))


def divide_by(emitter: Emitter, value: Val, divisor: Divisor) -> Val:
    """`value / divisor` by multiplication and one correction: as exact as division, several times faster."""
    e = emitter
    scaled = e.fmul(value, divisor.scale)
    quotient = e.fmul(scaled, divisor.inverse)
    rest = e.fma(e.fneg(quotient), divisor.scaled, scaled)
    exact = e.fma(rest, divisor.inverse, quotient)
    # Infinities and zero divisors: the correction is NaN, the quotient already right.
    return e.select(e.fcmp("uno", exact, exact), quotient, exact)


def combine_values(emitter: Emitter, combine: str, dtype: DType, a: Val, b: Val) -> Val:
    """One step of a reduction."""
    if dtype is DType.BOOL and combine in ("sum", "prod"):
        combine = "or" if combine == "sum" else "and"
    if combine == "sum":
        return emitter.fadd(a, b) if dtype.is_float else emitter.iadd(a, b)
    if combine == "prod":
        return emitter.fmul(a, b) if dtype.is_float else emitter.imul(a, b)
    if combine == "and":
        return emitter.and_(a, b)
    if combine == "or":
        return emitter.or_(a, b)
    return _extremum(emitter, combine, dtype, a, b)


def accumulate(
    emitter: Emitter, combine: str, dtype: DType, total: Val, body: Expr, value: Callable[[Expr], Val]
) -> Val:
    """`total` with the body's value combined in; sums of float products are fused."""
    if combine == "sum" and dtype.is_float and isinstance(body, Call) and body.function == "mul":
        return emitter.fma(value(body.args[0]), value(body.args[1]), total)
    return combine_values(emitter, combine, dtype, total, value(body))


def neutral_value(combine: str, dtype: DType) -> int | float:
    """What changes nothing when combined: the start of a reduction without `init`."""
    if combine in ("sum", "or"):
        return 0
    if combine == "prod":
        return 1
    if combine == "and":
        return 1 if dtype is DType.BOOL else -1
    if dtype is DType.BOOL:
        return int(combine == "min")
    if dtype.is_float:
        return float("-inf") if combine == "max" else float("inf")
    bits = 8 * dtype.size_bytes
    if dtype.is_signed:
        return -(1 << bits - 1) if combine == "max" else (1 << bits - 1) - 1
    return 0 if combine == "max" else (1 << bits) - 1


Steps = Generator[Expr, Val, Val]
"""How a value is computed: yields what it needs, is sent the values, returns its own."""


class _Generator:
    """One expression over one set of operand values."""

    def __init__(
        self,
        emitter: Emitter,
        reads: Callable[[int], Val],
        acc: Val | None,
        iters: Callable[[str], Val] | None,
        lanes: int,
        known: Known | None,
        divisors: Divisors | None,
    ) -> None:
        self._emitter = emitter
        self._reads = reads
        self._acc = acc
        self._iters = iters
        self._lanes = lanes
        self._known = known
        self._divisors = divisors
        self._made: dict[int, Val] = {}

    def value(self, expr: Expr) -> Val:
        """The value of an expression; deep ones need no deep stack: parts hand out what they wait for."""
        found = self._available(expr)
        waiting: list[tuple[Expr, Steps]] = [] if found is not None else [(expr, self._compute(expr))]
        while waiting:
            part, steps = waiting[-1]
            try:
                wanted = next(steps) if found is None else steps.send(found)
            except StopIteration as done:
                found = self._made[id(part)] = done.value
                waiting.pop()
                continue
            found = self._available(wanted)
            if found is None:
                waiting.append((wanted, self._compute(wanted)))
        assert found is not None
        return found

    def _available(self, expr: Expr) -> Val | None:
        """The value of what is no call or has been computed."""
        match expr:
            case Const(number, dtype):
                return self._emitter.constant(compute_type(dtype, self._lanes), number)
            case Read(index, _):
                return self._reads(index)
            case Acc():
                assert self._acc is not None
                return self._acc
        found = self._made.get(id(expr))
        if found is None and self._known is not None:
            found = self._known(expr)
        if found is None and isinstance(expr, Iter):
            assert self._iters is not None
            found = self._made[id(expr)] = self._iters(expr.dim)
        return found

    def _compute(self, expr: Expr) -> Steps:
        match expr:
            case Call("cast", (inner,), dtype):
                rounding = match_rounding(inner, dtype)
                if rounding is not None:
                    return (yield from self._rounded(rounding))
                steps = match_steps(inner) if dtype is DType.FLOAT32 else None
                if steps is not None and id(steps[0]) not in self._made:
                    _, rounding, less = steps
                    return emit_steps(self._emitter, rounding, (yield rounding.value), less)
                if dtype is DType.INT32 and isinstance(inner, Call) and inner.function == "cast":
                    # A byte that is used as a number again need not become one in between.
                    rounding = match_rounding(inner.args[0], inner.dtype)
                    if rounding is not None and id(inner) not in self._made:
                        return (yield from self._rounded(rounding, wide=True))
                return convert(self._emitter, (yield inner), inner.result, dtype)
            case Call("add" | "sub", (left, right), dtype) if dtype.is_float:
                return (yield from self._fused(expr.function, left, right))
            case Call("div", (dividend, divisor), dtype) if dtype.is_float:
                return (yield from self._quotient(expr, dividend, divisor))
            case Call(function, args, _):
                values = []
                for arg in args:
                    values.append((yield arg))
                typed = args[-1].result if function == "select" else args[0].result
                return apply(self._emitter, function, typed, values)
        raise AssertionError(f"unknown expression {expr!r}")

    def _rounded(self, rounding: Rounding, *, wide: bool = False) -> Steps:
        value = yield rounding.value
        zero = None if rounding.zero_expr is None else (yield rounding.zero_expr)
        return emit_rounding(self._emitter, rounding, value, zero, wide=wide)

    def _quotient(self, expr: Expr, dividend: Expr, divisor: Expr) -> Steps:
        e = self._emitter
        if isinstance(divisor, Const) and divisor.value and math.frexp(divisor.value)[0] in (0.5, -0.5):
            return e.fmul((yield dividend), 1 / divisor.value)
        prepared = None if self._divisors is None else self._divisors(expr)
        if prepared is not None:
            return divide_by(e, (yield dividend), prepared)
        value = yield dividend
        return e.fdiv(value, (yield divisor))

    def _fused(self, function: str, left: Expr, right: Expr) -> Steps:
        e = self._emitter
        for product, other, flip in ((left, right, False), (right, left, True)):
            if isinstance(product, Call) and product.function == "mul" and id(product) not in self._made:
                if self._known is not None and self._known(product) is not None:
                    continue
                a = yield product.args[0]
                b = yield product.args[1]
                c = yield other
                if function == "add":
                    return e.fma(a, b, c)
                return e.fma(e.fneg(a), b, c) if flip else e.fma(a, b, e.fneg(c))
        a = yield left
        b = yield right
        return e.fadd(a, b) if function == "add" else e.fsub(a, b)


def convert(emitter: Emitter, value: Val, source: DType, target: DType) -> Val:
    """`value` of type `source` as `target`; half types round, and are held as float again."""
    element = COMPUTE_ELEMENTS[target]
    if target is DType.BOOL:
        if source is DType.BOOL:
            return value
        return emitter.fcmp("une", value, 0) if source.is_float else emitter.icmp("ne", value, 0)
    if source.is_float and target.is_float:
        if value.type.element != element:
            value = emitter.cast("fpext" if element == "double" else "fptrunc", value, element)
        if target in (DType.FLOAT16, DType.BFLOAT16) and source is not target:
            value = emitter.to_float(emitter.from_float(value, _HALF_ELEMENTS[target]))
        return value
    if source.is_float and target.size_bytes < 4:
        # Vectors of narrow integers would be converted lane by lane.
        bits = 8 * target.size_bytes
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if target.is_signed else (0, (1 << bits) - 1)
        wide = emitter.smin(emitter.smax(emitter.fptoint(value, "i32"), low), high)
        return emitter.cast("trunc", wide, element)
    if source.is_float:
        return emitter.fptoint(value, element, signed=target.is_signed)
    unsigned = source is DType.BOOL or not source.is_signed
    if target.is_float:
        made = emitter.cast("uitofp" if unsigned else "sitofp", value, element)
        return convert(emitter, made, target.compute, target)
    have, want = (vec(x).size_bytes if x != "i1" else 0 for x in (value.type.element, element))
    if want == have:
        return value
    return emitter.cast("trunc" if want < have else "zext" if unsigned else "sext", value, element)


def apply(emitter: Emitter, function: str, dtype: DType, values: list[Val]) -> Val:
    """One function of the vocabulary; `dtype` is the type of its (last) argument."""
    if function in _ANY_OPS:
        return _ANY_OPS[function](emitter, dtype, values)
    if dtype is DType.BOOL:
        return _BOOL_OPS[function](emitter, dtype, values)
    if not dtype.is_float:
        return _INTEGER_OPS[function](emitter, dtype, values)
    return _FLOAT_OPS[function](emitter, dtype, values)


Operation = Callable[[Emitter, DType, list[Val]], Val]
_SIGNED_PREDICATES = {"lt": "slt", "le": "sle", "gt": "sgt", "ge": "sge", "eq": "eq", "ne": "ne"}
_UNSIGNED_PREDICATES = {"lt": "ult", "le": "ule", "gt": "ugt", "ge": "uge", "eq": "eq", "ne": "ne"}
_FLOAT_PREDICATES = {"lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge", "eq": "oeq", "ne": "une"}


def _signed(dtype: DType) -> bool:
    return dtype.is_signed and dtype is not DType.BOOL


def _extremum(e: Emitter, function: str, dtype: DType, a: Val, b: Val) -> Val:
    if dtype.is_float:
        return e.maximum(a, b) if function == "max" else e.minimum(a, b)
    if dtype is DType.BOOL:
        return e.or_(a, b) if function == "max" else e.and_(a, b)
    if _signed(dtype):
        return e.smax(a, b) if function == "max" else e.smin(a, b)
    return e.umax(a, b) if function == "max" else e.umin(a, b)


def _compare(function: str) -> Operation:
    def emit(e: Emitter, dtype: DType, v: list[Val]) -> Val:
        if dtype.is_float:
            return e.fcmp(_FLOAT_PREDICATES[function], v[0], v[1])
        table = _SIGNED_PREDICATES if _signed(dtype) else _UNSIGNED_PREDICATES
        return e.icmp(table[function], v[0], v[1])

    return emit


def _mathematical(function: Callable[..., Val]) -> Operation:
    return lambda e, dtype, v: function(e, *v)


def _divide(e: Emitter, dtype: DType, a: Val, b: Val, *, remainder: bool) -> Val:
    """Truncating quotient or remainder; 0 where the divisor is 0, wrapping where the quotient overflows."""
    zero = e.icmp("eq", b, 0)
    if not _signed(dtype):
        made = e.binary("urem" if remainder else "udiv", a, e.select(zero, 1, b))
        return e.select(zero, 0, made)
    # Division by -1 is negation: it never meets the trapping case this way.
    negative = e.icmp("eq", b, -1)
    safe = e.select(e.or_(zero, negative), 1, b)
    made = e.irem(a, safe) if remainder else e.idiv(a, safe)
    if remainder:
        return e.select(e.or_(zero, negative), 0, made)
    return e.select(zero, 0, e.select(negative, e.isub(0, a), made))


def _integer_mod(e: Emitter, dtype: DType, v: list[Val]) -> Val:
    rest = _divide(e, dtype, v[0], v[1], remainder=True)
    if not _signed(dtype):
        return rest
    wrong = e.and_(e.icmp("ne", rest, 0), e.icmp("slt", e.xor(rest, v[1]), 0))
    return e.select(wrong, e.iadd(rest, v[1]), rest)


def _integer_pow(e: Emitter, dtype: DType, v: list[Val]) -> Val:
    """Repeated squaring, wrapping; a negative exponent gives the truncated power: 0 unless the base is ±1."""
    base, exponent = v
    type = base.type
    one = e.constant(type, 1)

    def step(_: object, carried: list[Val]) -> list[Val]:
        result, square, left = carried
        odd = e.icmp("ne", e.and_(left, 1), 0)
        return [e.select(odd, e.imul(result, square), result), e.imul(square, square), e.lshr(left, 1)]

    bits = 8 * type.element_bytes
    power = e.loop(0, bits, 1, step, [(type, 1), (type, base), (type, exponent)])[0]
    if not _signed(dtype):
        return power
    odd = e.icmp("ne", e.and_(exponent, 1), 0)
    minus = e.and_(e.icmp("eq", base, -1), odd)
    unit = e.or_(e.icmp("eq", base, 1), e.icmp("eq", base, -1))
    inverse = e.select(unit, e.select(minus, e.constant(type, -1), one), 0)
    return e.select(e.icmp("slt", exponent, 0), inverse, power)


def _shift(left: bool) -> Operation:
    def emit(e: Emitter, dtype: DType, v: list[Val]) -> Val:
        bits = 8 * v[0].type.element_bytes
        inside = e.icmp("ult", v[1], bits)
        amount = e.select(inside, v[1], bits - 1)
        if left:
            return e.select(inside, e.shl(v[0], amount), 0)
        if _signed(dtype):
            return e.ashr(v[0], amount)
        return e.select(inside, e.lshr(v[0], amount), 0)

    return emit


def _is_inf(e: Emitter, dtype: DType, v: list[Val]) -> Val:
    return e.fcmp("oeq", e.fabs(v[0]), float("inf"))


def _never(e: Emitter, dtype: DType, v: list[Val]) -> Val:
    return e.constant(v[0].type.with_element("i1"), 0)


def _integer_sign(e: Emitter, dtype: DType, v: list[Val]) -> Val:
    if not _signed(dtype):
        return e.umin(v[0], 1)
    return e.smax(e.smin(v[0], 1), -1)


def _integer_abs(e: Emitter, dtype: DType, v: list[Val]) -> Val:
    return e.smax(v[0], e.isub(0, v[0])) if _signed(dtype) else v[0]


_ANY_OPS: dict[str, Operation] = {
    **{name: _compare(name) for name in _SIGNED_PREDICATES},
    "select": lambda e, t, v: e.select(v[0], v[1], v[2]),
    "cast": lambda e, t, v: v[0],
    "max": lambda e, t, v: _extremum(e, "max", t, v[0], v[1]),
    "min": lambda e, t, v: _extremum(e, "min", t, v[0], v[1]),
}
_INTEGER_OPS: dict[str, Operation] = {
    "add": lambda e, t, v: e.iadd(v[0], v[1]),
    "sub": lambda e, t, v: e.isub(v[0], v[1]),
    "mul": lambda e, t, v: e.imul(v[0], v[1]),
    "div": lambda e, t, v: _divide(e, t, v[0], v[1], remainder=False),
    "mod": _integer_mod,
    "fmod": lambda e, t, v: _divide(e, t, v[0], v[1], remainder=True),
    "pow": _integer_pow,
    "neg": lambda e, t, v: e.isub(0, v[0]),
    "abs": _integer_abs,
    "sign": _integer_sign,
    "reciprocal": lambda e, t, v: _divide(e, t, e.constant(v[0].type, 1), v[0], remainder=False),
    **{name: (lambda e, t, v: v[0]) for name in ("floor", "ceil", "round", "trunc")},
    "is_nan": _never,
    "is_inf": _never,
    "and": lambda e, t, v: e.and_(v[0], v[1]),
    "or": lambda e, t, v: e.or_(v[0], v[1]),
    "xor": lambda e, t, v: e.xor(v[0], v[1]),
    "not": lambda e, t, v: e.not_(v[0]),
    "shift_left": _shift(True),
    "shift_right": _shift(False),
}
# As in numpy: a sum of booleans is "or", a product "and".
_BOOL_OPS: dict[str, Operation] = {
    **{name: _INTEGER_OPS[name] for name in ("and", "or", "xor", "not")},
    "add": lambda e, t, v: e.or_(v[0], v[1]),
    "mul": lambda e, t, v: e.and_(v[0], v[1]),
}
_FLOAT_OPS: dict[str, Operation] = {
    "add": lambda e, t, v: e.fadd(v[0], v[1]),
    "sub": lambda e, t, v: e.fsub(v[0], v[1]),
    "mul": lambda e, t, v: e.fmul(v[0], v[1]),
    "div": lambda e, t, v: e.fdiv(v[0], v[1]),
    "is_nan": lambda e, t, v: e.fcmp("uno", v[0], v[0]),
    "is_inf": _is_inf,
    **{name: _mathematical(function) for name, function in VECTOR_FUNCTIONS.items()},
}
