"""Scalar expressions: what a nest computes in one iteration.

An expression is immutable and stands over the values read in that iteration. One object may be an argument
of several others: it is one value then, computed once. So whatever goes through an expression meets every
part once, however many ways lead to it (there may be exponentially many), and without recursion, because
fused chains are deep. `FUNCTIONS` is the complete vocabulary; interpreters and code generators implement
these names and nothing else. Half-precision operands are read as float32 and rounded when the nest writes
its result.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.records import dataclass

Scalar = int | float | bool
ResultRule = Literal["same", "bool", "select", "cast"]
T = TypeVar("T")

MAX_TREE_PARTS = 4096
"""Longer texts, counting a shared part wherever it occurs, name what they share instead of repeating it."""


class Expr:
    """Base of all scalar expressions; operators build `Call` trees, Python numbers become constants."""

    __slots__ = ()

    @property
    def result(self) -> DType:
        """Element type of the value."""
        raise AssertionError("Expr is abstract")

    def __add__(self, other: Expr | Scalar) -> Expr:
        return call("add", self, other)

    def __radd__(self, other: Scalar) -> Expr:
        return call("add", other, self)

    def __sub__(self, other: Expr | Scalar) -> Expr:
        return call("sub", self, other)

    def __rsub__(self, other: Scalar) -> Expr:
        return call("sub", other, self)

    def __mul__(self, other: Expr | Scalar) -> Expr:
        return call("mul", self, other)

    def __rmul__(self, other: Scalar) -> Expr:
        return call("mul", other, self)

    def __truediv__(self, other: Expr | Scalar) -> Expr:
        return call("div", self, other)

    def __rtruediv__(self, other: Scalar) -> Expr:
        return call("div", other, self)

    def __neg__(self) -> Expr:
        return call("neg", self)

    def children(self) -> tuple[Expr, ...]:
        """Direct sub-expressions."""
        return ()

    def walk(self) -> Iterator[Expr]:
        """This expression and everything below it, each part once, from the top."""
        seen: set[int] = set()
        stack: list[Expr] = [self]
        while stack:
            part = stack.pop()
            if id(part) not in seen:
                seen.add(id(part))
                yield part
                stack.extend(reversed(part.children()))

    def postorder(self) -> Iterator[Expr]:
        """This expression and everything below it, each part once, children before their parents."""
        seen: set[int] = set()
        stack: list[tuple[Expr, Iterator[Expr]]] = [(self, iter(self.children()))]
        while stack:
            part, rest = stack[-1]
            child = next(rest, None)
            if child is None:
                stack.pop()
                if id(part) not in seen:
                    seen.add(id(part))
                    yield part
            elif id(child) not in seen:
                stack.append((child, iter(child.children())))


@dataclass(frozen=True, slots=True)
class Read(Expr):
    """The value of the nest's `index`-th read, in the operand's compute type."""

    index: int
    dtype: DType

    @property
    def result(self) -> DType:
        """Element type of the value."""
        return self.dtype


@dataclass(frozen=True, slots=True)
class Const(Expr):
    """A literal."""

    value: Scalar
    dtype: DType

    @property
    def result(self) -> DType:
        """Element type of the value."""
        return self.dtype


@dataclass(frozen=True, slots=True)
class Iter(Expr):
    """The current index of a loop dimension, as int64."""

    dim: str

    @property
    def result(self) -> DType:
        """Element type of the value."""
        return DType.INT64


@dataclass(frozen=True, slots=True)
class Acc(Expr):
    """The reduced value; only meaningful in a nest's `finish` expression."""

    dtype: DType

    @property
    def result(self) -> DType:
        """Element type of the value."""
        return self.dtype


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Call(Expr):
    """A scalar function applied to sub-expressions. Build with `call`, which checks and types it."""

    function: str
    args: tuple[Expr, ...]
    dtype: DType

    def __eq__(self, other: object) -> bool:
        """Whether both compute the same, whatever they share."""
        return self is other or (isinstance(other, Call) and structure(self) == structure(other))

    def __hash__(self) -> int:
        return hash(structure(self))

    def __repr__(self) -> str:
        return f"Call({format_expr(self)})"

    @property
    def result(self) -> DType:
        """Element type of the value."""
        return self.dtype

    def children(self) -> tuple[Expr, ...]:
        """Direct sub-expressions."""
        return self.args


def call(function: str, *args: Expr | Scalar) -> Expr:
    """Apply a function of `FUNCTIONS`; Python numbers take the type of the first typed argument.

    >>> str(call("max", Read(0, DType.FLOAT32), 0).result)
    'float32'
    """
    spec = FUNCTIONS[function]
    typed = next(
        a.result for a in args if isinstance(a, Expr) and not (spec.rule == "select" and a is args[0])
    )
    operands = tuple(a if isinstance(a, Expr) else Const(a, typed) for a in args)
    if len(operands) != spec.arity or spec.rule == "cast":
        raise AssertionError(f"{function} takes {spec.arity} arguments (casts go through `cast`)")
    checked = operands[1:] if spec.rule == "select" else operands
    if any(a.result is not checked[0].result for a in checked):
        types = ", ".join(str(a.result) for a in operands)
        raise AssertionError(f"{function}: operand types differ: {types}")
    return Call(function, operands, DType.BOOL if spec.rule == "bool" else checked[0].result)


def cast(value: Expr, dtype: DType) -> Expr:
    """Convert to another type (identity when it has it already); float to int truncates toward zero."""
    if value.result is dtype:
        return value
    return Call("cast", (value,), dtype)


def select(condition: Expr, if_true: Expr | Scalar, if_false: Expr | Scalar) -> Expr:
    """`if_true` where the boolean condition holds, else `if_false`."""
    return call("select", condition, if_true, if_false)


@dataclass(frozen=True, slots=True)
class ScalarFunction:
    """One word of the vocabulary: its arity, how its result is typed, what it means on numpy arrays."""

    arity: int
    rule: ResultRule
    numpy: Callable[..., Any]
    cost_flop: int = 1


def _int_div(a: Any, b: Any) -> Any:
    if np.issubdtype(np.asarray(a).dtype, np.floating):
        return np.divide(a, b)
    safe = np.where(b == 0, 1, b)
    quotient = np.floor_divide(a, safe)
    # C division truncates toward zero where numpy floors.
    fix = (quotient * safe != a) & ((np.asarray(a) < 0) != (np.asarray(safe) < 0))
    return np.where(np.asarray(b) == 0, 0, quotient + fix).astype(np.asarray(a).dtype)


# W. J. Cody, Rational Chebyshev approximations for the error function, Math. Comp. 23 (1969): erf below
# 0.46875, erfc up to 4; numerator and denominator from the highest power down, the denominator's is one.
_ERF_NUMERATOR = (
    1.85777706184603153e-1, 3.16112374387056560e0, 1.13864154151050156e2, 3.77485237685302021e2,
    3.20937758913846947e3,
)  # fmt: skip
_ERF_DENOMINATOR = (
    1.0,
    2.36012909523441209e1,
    2.44024637934444173e2,
    1.28261652607737228e3,
    2.84423683343917062e3,
)
_ERFC_NUMERATOR = (
    2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594e0, 6.61191906371416295e1,
    2.98635138197400131e2, 8.81952221241769090e2, 1.71204761263407058e3, 2.05107837782607147e3,
    1.23033935479799725e3,
)  # fmt: skip
_ERFC_DENOMINATOR = (
    1.0, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2, 1.62138957456669019e3,
    3.29079923573345963e3, 4.36261909014324716e3, 3.43936767414372164e3, 1.23033935480374942e3,
)  # fmt: skip


def _erf(x: Any) -> Any:
    """Error function in float64, within 5 ulp of the C library's, on whole arrays."""
    given = np.asarray(x)
    value = np.abs(given.astype(np.float64))
    square = np.square(np.minimum(value, 0.5))
    near = value * np.polyval(_ERF_NUMERATOR, square) / np.polyval(_ERF_DENOMINATOR, square)
    middle = np.clip(value, 0.46875, 4.0)
    ratio = np.polyval(_ERFC_NUMERATOR, middle) / np.polyval(_ERFC_DENOMINATOR, middle)
    mid = 0.5 + (0.5 - _exp_of_minus_square(middle) * ratio)
    far = np.clip(value, 4.0, 6.0)  # from 6 on, 1 - erf is below half a unit
    fraction = np.ones_like(value)
    for n in range(30, 0, -1):
        fraction = 1 + n / (2 * np.square(far)) / fraction
    tail = 1 - _exp_of_minus_square(far) / (far * np.sqrt(np.pi) * fraction)
    magnitude = np.where(value <= 0.46875, near, np.where(value <= 4.0, mid, tail))
    magnitude = np.where(np.isnan(value), np.nan, magnitude)
    return np.copysign(magnitude, given).astype(given.dtype)


def _exp_of_minus_square(x: Any) -> Any:
    """`exp(-x²)` for x >= 0 without the error of squaring: the square of the upper half is exact."""
    upper = x.astype(np.float32).astype(np.float64)
    return np.exp(-np.square(upper)) * np.exp((upper - x) * (upper + x))


def _gelu(x: Any) -> Any:
    return x * 0.5 * (_erf(x * math.sqrt(0.5)) + 1)


def _sigmoid(x: Any) -> Any:
    # exp of a non-positive number on both branches, so that neither overflows.
    e = np.exp(-np.abs(x))
    return np.where(np.asarray(x) >= 0, 1 / (1 + e), e / (1 + e)).astype(np.asarray(x).dtype)


def _shift_left(a: Any, b: Any) -> Any:
    return np.left_shift(a, b)


_NAMED: dict[str, ScalarFunction] = {
    "add": ScalarFunction(2, "same", np.add),
    "sub": ScalarFunction(2, "same", np.subtract),
    "mul": ScalarFunction(2, "same", np.multiply),
    "div": ScalarFunction(2, "same", _int_div),  # integers: truncating, x/0 = 0
    "mod": ScalarFunction(2, "same", np.mod),  # sign of the divisor
    "fmod": ScalarFunction(2, "same", np.fmod),  # sign of the dividend
    "pow": ScalarFunction(2, "same", np.power, 20),
    "max": ScalarFunction(2, "same", np.maximum),  # propagates NaN
    "min": ScalarFunction(2, "same", np.minimum),
    "neg": ScalarFunction(1, "same", np.negative),
    "abs": ScalarFunction(1, "same", np.abs),
    "sign": ScalarFunction(1, "same", np.sign),
    "exp": ScalarFunction(1, "same", np.exp, 12),
    "exp_nonpositive": ScalarFunction(1, "same", np.exp, 12),  # floats below the normal ones may be 0
    "log": ScalarFunction(1, "same", np.log, 12),
    "log1p": ScalarFunction(1, "same", np.log1p, 16),
    "expm1": ScalarFunction(1, "same", np.expm1, 16),
    "sqrt": ScalarFunction(1, "same", np.sqrt, 4),
    "reciprocal": ScalarFunction(1, "same", np.reciprocal, 4),
    "floor": ScalarFunction(1, "same", np.floor),
    "ceil": ScalarFunction(1, "same", np.ceil),
    "round": ScalarFunction(1, "same", np.rint),  # ties to even
    "trunc": ScalarFunction(1, "same", np.trunc),
    "sin": ScalarFunction(1, "same", np.sin, 16),
    "cos": ScalarFunction(1, "same", np.cos, 16),
    "tan": ScalarFunction(1, "same", np.tan, 20),
    "asin": ScalarFunction(1, "same", np.arcsin, 20),
    "acos": ScalarFunction(1, "same", np.arccos, 20),
    "atan": ScalarFunction(1, "same", np.arctan, 20),
    "sinh": ScalarFunction(1, "same", np.sinh, 20),
    "cosh": ScalarFunction(1, "same", np.cosh, 20),
    "tanh": ScalarFunction(1, "same", np.tanh, 16),
    "asinh": ScalarFunction(1, "same", np.arcsinh, 20),
    "acosh": ScalarFunction(1, "same", np.arccosh, 20),
    "atanh": ScalarFunction(1, "same", np.arctanh, 20),
    "erf": ScalarFunction(1, "same", _erf, 20),
    "gelu": ScalarFunction(1, "same", _gelu, 24),  # times the normal distribution function
    "sigmoid": ScalarFunction(1, "same", _sigmoid, 14),
    "silu": ScalarFunction(1, "same", lambda x: x * _sigmoid(x), 15),
    "eq": ScalarFunction(2, "bool", np.equal),
    "ne": ScalarFunction(2, "bool", np.not_equal),
    "lt": ScalarFunction(2, "bool", np.less),
    "le": ScalarFunction(2, "bool", np.less_equal),
    "gt": ScalarFunction(2, "bool", np.greater),
    "ge": ScalarFunction(2, "bool", np.greater_equal),
    "is_nan": ScalarFunction(1, "bool", np.isnan),
    "is_inf": ScalarFunction(1, "bool", np.isinf),
    "and": ScalarFunction(2, "same", np.bitwise_and),  # bitwise on integers, logical on bool
    "or": ScalarFunction(2, "same", np.bitwise_or),
    "xor": ScalarFunction(2, "same", np.bitwise_xor),
    "not": ScalarFunction(1, "same", np.invert),
    "shift_left": ScalarFunction(2, "same", _shift_left),
    "shift_right": ScalarFunction(2, "same", np.right_shift),
    "select": ScalarFunction(3, "select", np.where),
    "cast": ScalarFunction(1, "cast", lambda x: x),
}
FUNCTIONS: Mapping[str, ScalarFunction] = _NAMED


def fold(
    combine: Callable[[Expr, tuple[T, ...]], T], *exprs: Expr | None, made: dict[int, T] | None = None
) -> tuple[T | None, ...]:
    """What `combine` makes of each expression: it gets a part and what it made of the part's arguments.

    Every part is combined once, also if several of the expressions share it. `made`, by identity of the
    parts, is filled.
    """
    made = {} if made is None else made
    for expr in exprs:
        for part in expr.postorder() if expr is not None else ():
            if id(part) not in made:
                made[id(part)] = combine(part, tuple([made[id(c)] for c in part.children()]))
    return tuple(None if expr is None else made[id(expr)] for expr in exprs)


def structure(expr: Expr) -> tuple[Hashable, ...]:
    """The distinct parts in order, each with the numbers of its arguments: equal for what computes the same.

    Literals are told apart by their text: 0.0 and -0.0 are equal numbers, and so are True and 1.
    """
    numbers: dict[Hashable, int] = {}

    def number(part: Expr, args: tuple[int, ...]) -> int:
        match part:
            case Call(function, _, dtype):
                key: Hashable = (function, args, dtype)
            case Const(value, dtype):
                key = (repr(value), dtype)
            case _:
                key = part
        return numbers.setdefault(key, len(numbers))

    fold(number, expr)
    return tuple(numbers)


def substitute(
    expr: Expr,
    reads: Callable[[Read], Expr] | None = None,
    acc: Expr | None = None,
    iters: Callable[[Iter], Expr] | None = None,
) -> Expr:
    """The expression with its reads, accumulator or loop indices replaced; what is shared stays shared."""

    def replaced(part: Expr, args: tuple[Expr, ...]) -> Expr:
        match part:
            case Read() if reads is not None:
                return reads(part)
            case Acc() if acc is not None:
                return acc
            case Iter() if iters is not None:
                return iters(part)
            case Call(function, old, dtype) if any(a is not b for a, b in zip(args, old, strict=True)):
                return Call(function, args, dtype)
        return part

    (made,) = fold(replaced, expr)
    assert made is not None
    return made


def evaluate(
    expr: Expr, reads: Sequence[Any], acc: Any = None, iters: Mapping[str, Any] | None = None
) -> Any:
    """Value of an expression on numpy arrays (broadcast together), in the expression's own types."""

    def value_of(part: Expr, args: tuple[Any, ...]) -> Any:
        match part:
            case Read(index, dtype):
                return np.asarray(reads[index]).astype(dtype.numpy, copy=False)
            case Const(value, dtype):
                return np.asarray(value).astype(dtype.numpy)
            case Iter(dim):
                return np.asarray((iters or {})[dim], dtype=np.int64)
            case Acc(dtype):
                return np.asarray(acc).astype(dtype.numpy, copy=False)
            case Call("cast", _, dtype):
                return _cast_array(np.asarray(args[0]), dtype)
            case Call(function, _, dtype):
                with np.errstate(all="ignore"):
                    return np.asarray(FUNCTIONS[function].numpy(*args)).astype(dtype.numpy, copy=False)
        raise AssertionError(f"unknown expression {part!r}")

    return fold(value_of, expr)[0]


def _cast_array(value: Any, dtype: DType) -> Any:
    with np.errstate(all="ignore"):
        if dtype is DType.BOOL:
            return value != 0
        return value.astype(dtype.numpy)


def reads_of(*exprs: Expr | None) -> frozenset[int]:
    """Indices of all reads that occur in the expressions."""
    return frozenset(e.index for x in exprs if x is not None for e in x.walk() if isinstance(e, Read))


def format_expr(expr: Expr) -> str:
    """Compact text form, e.g. `max(add(acc, r1), 0.0)`; `s0 = exp(r0); add(s0, s0)` for much that is shared.

    >>> x = Read(0, DType.FLOAT32)
    >>> format_expr(x + x * 2)
    'add(r0, mul(r0, 2))'
    """
    sizes: dict[int, int] = {}
    fold(lambda part, args: min(1 + sum(args), MAX_TREE_PARTS + 1), expr, made=sizes)
    if sizes[id(expr)] <= MAX_TREE_PARTS:
        return _text(expr, {})
    uses: dict[int, int] = {}
    for part in expr.walk():
        for child in part.children():
            uses[id(child)] = uses.get(id(child), 0) + 1
    names: dict[int, str] = {}
    lines: list[str] = []
    for part in expr.postorder():
        if isinstance(part, Call) and uses.get(id(part), 0) > 1:
            text = _text(part, names)
            names[id(part)] = f"s{len(names)}"
            lines.append(f"{names[id(part)]} = {text}")
    return "; ".join([*lines, _text(expr, names)])


def _text(expr: Expr, names: Mapping[int, str]) -> str:
    """The expression as a tree, down to the parts that have names."""
    pieces: list[str] = []
    stack: list[Expr | str] = [expr]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            pieces.append(item)
            continue
        named = names.get(id(item))
        match item:
            case _ if named is not None:
                pieces.append(named)
            case Read(index, _):
                pieces.append(f"r{index}")
            case Const(value, _):
                pieces.append(repr(value))
            case Iter(dim):
                pieces.append(f"#{dim}")
            case Acc():
                pieces.append("acc")
            case Call(function, args, dtype):
                stack.append(")")
                for number, arg in enumerate(reversed(args), 1):
                    stack.append(arg)
                    if number < len(args):
                        stack.append(", ")
                pieces.append(f"{dtype if function == 'cast' else function}(")
    return "".join(pieces)


_TOKEN = re.compile(r"\s*([^\s(),]+|[(),])")


def parse_expr(text: str, read_dtypes: Sequence[DType], acc_dtype: DType) -> Expr:
    """The expression that `format_expr` prints so, over reads and an accumulator of these types.

    A number takes the type of what it is computed with; alone, that of the accumulator. Equal parts are one.

    >>> format_expr(parse_expr("max(add(acc, r0), 0.0)", [DType.FLOAT32], DType.FLOAT32))
    'max(add(acc, r0), 0.0)'

    Raises:
        ValueError: the text is no expression; says where.
    """
    shared: dict[str, Expr | Scalar] = {}
    known: dict[Hashable, Expr] = {}
    value: Expr | Scalar | None = None
    for statement in text.split("; "):
        name, equals, right = statement.partition(" = ")
        value = _parsed(right if equals else statement, read_dtypes, acc_dtype, shared, known)
        if equals:
            shared[name.strip()] = value
    assert value is not None
    return value if isinstance(value, Expr) else Const(value, acc_dtype)


def _parsed(
    text: str,
    read_dtypes: Sequence[DType],
    acc_dtype: DType,
    shared: Mapping[str, Expr | Scalar],
    known: dict[Hashable, Expr],
) -> Expr | Scalar:
    calls: list[tuple[str, list[Expr | Scalar]]] = [("", [])]
    tokens = _TOKEN.findall(text)
    for token, following in zip(tokens, [*tokens[1:], ""], strict=False):
        if following == "(":
            calls.append((token, []))
        elif token == ")":
            function, args = calls.pop()
            if not calls:
                raise ValueError(f"one ) too many in {text!r}")
            made = _built(function, args, acc_dtype)
            parts = (id(x) if isinstance(x, Call) else repr(x) for x in made.children())
            key = (function, made.result, *parts)
            calls[-1][1].append(known.setdefault(key, made))
        elif token not in "(,":
            calls[-1][1].append(shared[token] if token in shared else _leaf(token, read_dtypes, acc_dtype))
    if len(calls) != 1 or len(calls[0][1]) != 1:
        raise ValueError(f"{text!r} is not one expression")
    return calls[0][1][0]


def _built(function: str, args: Sequence[Expr | Scalar], acc_dtype: DType) -> Expr:
    types = {str(dtype): dtype for dtype in DType}
    if function in types and len(args) == 1:
        (arg,) = args
        return Call("cast", (arg if isinstance(arg, Expr) else Const(arg, acc_dtype),), types[function])
    if function not in FUNCTIONS or len(args) != FUNCTIONS[function].arity or function == "cast":
        raise ValueError(f"{function!r} of {len(args)} values is no function")
    operands = list(args)
    if FUNCTIONS[function].rule == "select" and not isinstance(operands[0], Expr):
        operands[0] = Const(operands[0], DType.BOOL)
    first = 1 if FUNCTIONS[function].rule == "select" else 0
    if not any(isinstance(arg, Expr) for arg in operands[first:]):
        operands[first] = Const(operands[first], acc_dtype)  # type: ignore[arg-type]  # no expression
    try:
        return call(function, *operands)
    except AssertionError as error:
        raise ValueError(str(error)) from None


def _leaf(token: str, read_dtypes: Sequence[DType], acc_dtype: DType) -> Expr | Scalar:
    if token == "acc":
        return Acc(acc_dtype)
    if token.startswith("#"):
        return Iter(token[1:])
    if token in ("True", "False"):
        return token == "True"
    if token.startswith("r") and token[1:].isdigit() and int(token[1:]) < len(read_dtypes):
        return Read(int(token[1:]), read_dtypes[int(token[1:])])
    for number in (int, float):
        try:
            return number(token)
        except ValueError:
            continue
    raise ValueError(f"{token!r} is neither acc, a read, a loop's index nor a number")
