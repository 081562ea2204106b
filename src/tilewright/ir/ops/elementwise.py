"""Elementwise operators: one parallel nest over the output, inputs broadcast as in numpy.

Each operator gives its scalar body once, over expressions, and its numpy meaning once. Whoever runs a
reference widens half types before it and converts the result to the output's type after it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.arrays import Array
from tilewright.ir.dtype import DType
from tilewright.ir.expr import FUNCTIONS, Const, Expr, Iter, Scalar, call, cast, select
from tilewright.ir.graph import Node
from tilewright.ir.nest import Access, Description, Nest, Nests, Opaque
from tilewright.ir.ops.build import (
    broadcast,
    choice_attr,
    copy_nest,
    dims_of,
    identity,
    input_operand,
    output_operand,
    pointwise,
    read,
    require,
    require_rank,
    require_result,
    require_scalar,
)
from tilewright.ir.ops.registry import Reference, operator

SELU_ALPHA = 1.67326319217681884765625
SELU_GAMMA = 1.05070102214813232421875


def from_numpy(function: Callable[..., Any]) -> Reference:
    """Reference of an operator whose present inputs go through `function(node, *arrays)`."""

    def reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
        return (np.asarray(function(node, *(a for a in inputs if a is not None))),)

    return reference


def _register(op_type: str, body: Callable[..., Expr], meaning: Callable[..., Any]) -> None:
    """An operator without attributes: a body over its inputs and the same thing in numpy."""

    def describe(node: Node) -> Description:
        return pointwise(node, body)

    operator(op_type, reference=from_numpy(lambda node, *arrays: meaning(*arrays)))(describe)


def _function(name: str) -> Callable[..., Expr]:
    return lambda *args: call(name, *args)


_SAME_NAME = (
    *("Abs", "Neg", "Sign", "Exp", "Log", "Sqrt", "Reciprocal", "Floor", "Ceil", "Round"),
    *("Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Tanh", "Asinh", "Acosh", "Atanh"),
    *("Erf", "Sigmoid", "Not", "And", "Or", "Xor", "Add", "Sub", "Mul", "Div"),
)
for _op_type in _SAME_NAME:
    _register(_op_type, _function(_op_type.lower()), FUNCTIONS[_op_type.lower()].numpy)

_OTHER_NAME = {
    "Equal": "eq",
    "Less": "lt",
    "LessOrEqual": "le",
    "Greater": "gt",
    "GreaterOrEqual": "ge",
    "IsNaN": "is_nan",
    "BitwiseAnd": "and",
    "BitwiseOr": "or",
    "BitwiseXor": "xor",
    "BitwiseNot": "not",
}
for _op_type, _name in _OTHER_NAME.items():
    _register(_op_type, _function(_name), FUNCTIONS[_name].numpy)


def _chain(name: str) -> Callable[..., Expr]:
    def body(first: Expr, *rest: Expr) -> Expr:
        for value in rest:
            first = call(name, first, value)
        return first

    return body


def _chained(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def meaning(first: Any, *rest: Any) -> Any:
        for value in rest:
            first = function(first, value)
        return first

    return meaning


_register("Max", _chain("max"), _chained(np.maximum))
_register("Min", _chain("min"), _chained(np.minimum))
_register("Sum", _chain("add"), _chained(np.add))
_register(
    "Mean", lambda *args: _chain("add")(*args) / len(args), lambda *args: _chained(np.add)(*args) / len(args)
)
_register("Where", select, np.where)
_register("Relu", lambda x: call("max", x, 0), lambda x: np.maximum(x, 0))


def softplus(x: Expr) -> Expr:
    """`log(1 + exp(x))` without overflow."""
    return call("max", x, 0) + call("log1p", call("exp", -call("abs", x)))


def _softplus(x: Any) -> Any:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


_register("Softplus", softplus, _softplus)
_register("Softsign", lambda x: x / (1 + call("abs", x)), lambda x: x / (1 + np.abs(x)))
_register("Mish", lambda x: x * call("tanh", softplus(x)), lambda x: x * np.tanh(_softplus(x)))
_register(
    "HardSwish",
    lambda x: x * call("max", call("min", x * (1 / 6) + 0.5, 1), 0),
    lambda x: x * np.clip(x * (1 / 6) + 0.5, 0, 1),
)
_register(
    "PRelu", lambda x, slope: select(call("lt", x, 0), x * slope, x), lambda x, s: np.where(x < 0, x * s, x)
)


@operator("LeakyRelu", reference=from_numpy(lambda n, x: np.where(x < 0, x * n.float_attr("alpha", 0.01), x)))
def leaky_relu(node: Node) -> Description:
    """`x` if it is not negative, else `alpha * x`."""
    alpha = node.float_attr("alpha", 0.01)
    return pointwise(node, lambda x: select(call("lt", x, 0), x * alpha, x))


@operator(
    "Elu", reference=from_numpy(lambda n, x: np.where(x < 0, np.expm1(x) * n.float_attr("alpha", 1.0), x))
)
def elu(node: Node) -> Description:
    """`x` if it is not negative, else `alpha * (exp(x) - 1)`."""
    alpha = node.float_attr("alpha", 1.0)
    return pointwise(node, lambda x: select(call("lt", x, 0), call("expm1", x) * alpha, x))


def _selu_reference(node: Node, x: Any) -> Any:
    alpha, gamma = node.float_attr("alpha", SELU_ALPHA), node.float_attr("gamma", SELU_GAMMA)
    return np.where(x > 0, x, np.expm1(x) * alpha) * gamma


@operator("Selu", reference=from_numpy(_selu_reference))
def selu(node: Node) -> Description:
    """`gamma * x` if positive, else `gamma * alpha * (exp(x) - 1)`."""
    alpha, gamma = node.float_attr("alpha", SELU_ALPHA), node.float_attr("gamma", SELU_GAMMA)
    return pointwise(node, lambda x: select(call("gt", x, 0), x, call("expm1", x) * alpha) * gamma)


def _celu_reference(node: Node, x: Any) -> Any:
    alpha = node.float_attr("alpha", 1.0)
    return np.maximum(x, 0) + np.minimum(np.expm1(x / alpha) * alpha, 0)


@operator("Celu", reference=from_numpy(_celu_reference))
def celu(node: Node) -> Description:
    """`max(0, x) + min(0, alpha * (exp(x / alpha) - 1))`."""
    alpha = node.float_attr("alpha", 1.0)
    return pointwise(node, lambda x: call("max", x, 0) + call("min", call("expm1", x / alpha) * alpha, 0))


@operator(
    "ThresholdedRelu", reference=from_numpy(lambda n, x: np.where(x > n.float_attr("alpha", 1.0), x, 0))
)
def thresholded_relu(node: Node) -> Description:
    """`x` above `alpha`, else 0."""
    alpha = node.float_attr("alpha", 1.0)
    return pointwise(node, lambda x: select(call("gt", x, alpha), x, 0))


def _hard_sigmoid_reference(node: Node, x: Any) -> Any:
    return np.clip(x * node.float_attr("alpha", 0.2) + node.float_attr("beta", 0.5), 0, 1)


@operator("HardSigmoid", reference=from_numpy(_hard_sigmoid_reference))
def hard_sigmoid(node: Node) -> Description:
    """`alpha * x + beta`, clipped to [0, 1]."""
    alpha, beta = node.float_attr("alpha", 0.2), node.float_attr("beta", 0.5)
    return pointwise(node, lambda x: call("max", call("min", x * alpha + beta, 1), 0))


def _gelu_reference(node: Node, x: Any) -> Any:
    if node.str_attr("approximate", "none") == "tanh":
        return x * (np.tanh((x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)) + 1) * 0.5
    return FUNCTIONS["gelu"].numpy(x)


@operator("Gelu", reference=from_numpy(_gelu_reference))
def gelu(node: Node) -> Description:
    """`x` times the normal distribution function of `x`, exact or by its tanh approximation."""
    kind = choice_attr(node, "approximate", ("none", "tanh"), "none")
    if kind == "none":
        return pointwise(node, lambda x: call("gelu", x))
    return pointwise(
        node, lambda x: x * (call("tanh", (x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)) + 1) * 0.5
    )


def _swish_reference(node: Node, x: Any) -> Any:
    return x * FUNCTIONS["sigmoid"].numpy(x * node.float_attr("alpha", 1.0))


def _swish(x: Expr, alpha: float) -> Expr:
    return call("silu", x) if alpha == 1.0 else x * call("sigmoid", x * alpha)


@operator("Swish", reference=from_numpy(_swish_reference))
def swish(node: Node) -> Description:
    """`x * sigmoid(alpha * x)`."""
    alpha = node.float_attr("alpha", 1.0)
    return pointwise(node, lambda x: _swish(x, alpha))


@operator("SwiGLU", reference=from_numpy(lambda n, gate, x: _swish_reference(n, gate) * x))
def swiglu(node: Node) -> Description:
    """`swish(gate) * x`."""
    alpha = node.float_attr("alpha", 1.0)
    return pointwise(node, lambda gate, x: _swish(gate, alpha) * x)


def _shrink_reference(node: Node, x: Any) -> Any:
    bias, lambd = node.float_attr("bias", 0.0), node.float_attr("lambd", 0.5)
    return np.where(x < -lambd, x + bias, np.where(x > lambd, x - bias, 0))


@operator("Shrink", reference=from_numpy(_shrink_reference))
def shrink(node: Node) -> Description:
    """`x + bias` below `-lambd`, `x - bias` above `lambd`, 0 between; integers compute in float64."""
    bias, lambd = node.float_attr("bias", 0.0), node.float_attr("lambd", 0.5)

    def body(x: Expr) -> Expr:
        wide = x if x.result.is_float else cast(x, DType.FLOAT64)
        inner = select(call("gt", wide, lambd), wide - bias, 0.0)
        return select(call("lt", wide, -lambd), wide + bias, inner)

    return pointwise(node, body)


def _power(base: Any, exponent: Any) -> Any:
    if np.issubdtype(base.dtype, np.integer):
        return np.power(base.astype(np.float64), exponent.astype(np.float64))
    if np.issubdtype(exponent.dtype, np.integer):
        return np.power(base.astype(np.float64), exponent.astype(np.float64)).astype(base.dtype)
    return np.power(base, exponent.astype(base.dtype))


# Exponents for which a product or a root is exact enough and far cheaper than a general power.
_POWERS: dict[float, Callable[[Expr], Expr]] = {
    0.5: lambda x: call("sqrt", x),
    1.0: lambda x: x,
    2.0: lambda x: x * x,
    3.0: lambda x: x * x * x,
    -1.0: lambda x: call("reciprocal", x),
}


@operator("Pow", reference=from_numpy(lambda _, base, exponent: _power(base, exponent)))
def power(node: Node) -> Description:
    """`base ** exponent` in the base's type; integer bases compute in float64.

    So do integer exponents that float32 might not hold: whether they are odd decides the sign.
    """

    def body(x: Expr, y: Expr) -> Expr:
        if isinstance(y, Const) and x.result.is_float and y.value in _POWERS:
            return _POWERS[y.value](x)
        odd_may_be_lost = y.result.is_integer and not (isinstance(y, Const) and abs(y.value) < 2**24)
        is_wide = not x.result.is_float or (odd_may_be_lost and y.result.size_bytes >= 4)
        wide = DType.FLOAT64 if is_wide else x.result
        raised = call("pow", cast(x, wide), cast(y, wide))
        return cast(raised, x.result) if x.result.is_float else raised

    return pointwise(node, body)


@operator(
    "Mod", reference=from_numpy(lambda n, a, b: np.fmod(a, b) if n.int_attr("fmod", 0) else np.mod(a, b))
)
def modulo(node: Node) -> Description:
    """Remainder with the divisor's sign, or with the dividend's (`fmod=1`)."""
    require(node, node.int_attr("fmod", 0) in (0, 1), f"fmod is {node.int_attr('fmod', 0)}, not 0 or 1")
    return pointwise(node, _function("fmod" if node.int_attr("fmod", 0) else "mod"))


def _bit_shift_reference(node: Node, a: Any, b: Any) -> Any:
    shift = np.left_shift if node.str_attr("direction", "") == "LEFT" else np.right_shift
    # Beyond the width only the sign bit is left: 0, or -1 for a right shift of a negative number.
    beyond = np.where((a < 0) & (shift is np.right_shift), -1, 0)
    within = (b >= 0) & (b < a.dtype.itemsize * 8)
    return np.where(within, shift(a, np.where(within, b, 0).astype(b.dtype)), beyond.astype(a.dtype))


@operator("BitShift", reference=from_numpy(_bit_shift_reference))
def bit_shift(node: Node) -> Description:
    """Shift to the LEFT or RIGHT, arithmetic for signed types; amounts beyond the width shift all out."""
    direction = choice_attr(node, "direction", ("LEFT", "RIGHT"), "")
    dtype = node.output.dtype
    width = dtype.size_bytes * 8

    def body(x: Expr, amount: Expr) -> Expr:
        within = call("lt", amount, width)
        if dtype.is_signed:
            within = call("and", within, call("ge", amount, 0))
        shifted = call(f"shift_{direction.lower()}", x, select(within, amount, 0))
        beyond: Expr | int = 0
        if dtype.is_signed and direction == "RIGHT":
            beyond = select(call("lt", x, 0), Const(-1, x.result), 0)
        return select(within, shifted, beyond)

    return pointwise(node, body)


def _is_inf_reference(node: Node, x: Any) -> Any:
    negative = np.isneginf(x) & bool(node.int_attr("detect_negative", 1))
    return negative | (np.isposinf(x) & bool(node.int_attr("detect_positive", 1)))


@operator("IsInf", reference=from_numpy(_is_inf_reference))
def is_inf(node: Node) -> Description:
    """Whether a value is infinite, of the signs asked for."""
    negative, positive = node.int_attr("detect_negative", 1), node.int_attr("detect_positive", 1)

    def body(x: Expr) -> Expr:
        infinite = call("is_inf", x)
        if negative and positive:
            return infinite
        if not negative and not positive:
            return Const(False, DType.BOOL)
        return call("and", infinite, call("gt" if positive else "lt", x, 0))

    return pointwise(node, body)


def _clip_bounds(node: Node) -> tuple[Scalar | None, Scalar | None]:
    """Bounds given as attributes, the form before opset 11."""
    low, high = node.attributes.get("min"), node.attributes.get("max")
    assert low is None or isinstance(low, int | float)
    assert high is None or isinstance(high, int | float)
    return low, high


def _clip_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    x = inputs[0]
    assert x is not None
    low, high = _clip_bounds(node)
    bounds = [a.reshape(()) if a is not None else None for a in inputs[1:]] + [None, None]
    for bound, function in (
        (low, np.maximum),
        (bounds[0], np.maximum),
        (high, np.minimum),
        (bounds[1], np.minimum),
    ):
        if bound is not None:
            x = np.asarray(function(x, np.asarray(bound).astype(x.dtype)))
    return (x,)


@operator("Clip", reference=_clip_reference)
def clip(node: Node) -> Description:
    """`min(max(x, low), high)`; bounds that are constants become literals."""
    require_result(node, node.require(0).shape)
    for scalar in (1, 2):
        require_scalar(node, scalar)
    out = output_operand(node)
    dims = dims_of(out.shape)
    reads = [broadcast(input_operand(node, 0), dims)]
    value = read(0, reads[0])
    attributes = _clip_bounds(node)
    for position, function in ((1, "max"), (2, "min")):
        attribute, constant = attributes[position - 1], node.constant(position)
        if attribute is not None:
            value = call(function, value, attribute)
        elif constant is not None:
            value = call(function, value, constant.reshape(()).item())
        elif node.input(position) is not None:
            reads.append(broadcast(input_operand(node, position), dims))
            value = call(function, value, read(len(reads) - 1, reads[-1]))
    return (Nest(dims, tuple(reads), Access(out, identity(dims)), value),)


def _cast_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    x = inputs[0]
    assert x is not None
    target = node.output.dtype
    if target is DType.BOOL:
        return (x != 0,)
    if node.require(0).dtype.is_float and target.is_float:
        return (x,)  # the runner's conversion of results is the cast
    return (x.astype(target.numpy),)


@operator("Cast", "CastLike", reference=_cast_reference)
def cast_operator(node: Node) -> Description:
    """The output's type says what to convert to; float to integer truncates toward zero."""
    choice_attr(node, "round_mode", ("up", "down", "nearest"), "up")
    return _copy(node)


def _copy(node: Node) -> Nests:
    require_result(node, node.require(0).shape)
    out = output_operand(node)
    dims = dims_of(out.shape)
    source = input_operand(node, 0)
    return (copy_nest(dims, Access(source, identity(dims)), Access(out, identity(dims))),)


def _first(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    x = inputs[0]
    assert x is not None
    return (x,)


@operator("Identity", reference=_first)
def identity_operator(node: Node) -> Description:
    """A copy."""
    return _copy(node)


def _drops(ratio: Array | None, mode: Array | None) -> bool:
    """Whether elements are dropped at random: only in training, and not at ratio 0."""
    training = mode is not None and bool(mode.reshape(()))
    return training and (ratio is None or float(ratio.reshape(())) != 0.0)


def _dropout_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    x, ratio, mode = (*inputs, None, None)[:3]
    assert x is not None
    assert not _drops(ratio, mode), "Dropout in training mode is random"
    return (x, np.ones(x.shape, dtype=bool))


@operator("Dropout", reference=_dropout_reference)
def dropout(node: Node) -> Description:
    """A copy, and a mask of ones if asked for: the operator at inference."""
    for position in (0, 1):
        require_result(node, node.require(0).shape, position)
    for scalar in (1, 2):
        require_scalar(node, scalar)
    mode, ratio = node.constant(2), node.constant(1)
    if node.input(2) is not None and mode is None:
        return Opaque("whether Dropout trains is data")
    if _drops(ratio, mode):
        return Opaque("Dropout in training mode is random")
    nests = _copy(node)
    if len(node.outputs) > 1 and node.outputs[1] is not None:
        mask = output_operand(node, 1)
        dims = dims_of(mask.shape)
        one = cast(Const(True, DType.BOOL), mask.dtype.compute)
        nests += (Nest(dims, (), Access(mask, identity(dims)), one),)
    return nests


def _trilu_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    x = inputs[0]
    assert x is not None
    k = inputs[1] if len(inputs) > 1 else None
    diagonal = 0 if k is None else int(k.reshape(()))
    rows, columns = np.arange(x.shape[-2])[:, None], np.arange(x.shape[-1])
    keep = columns >= rows + diagonal if node.int_attr("upper", 1) else columns <= rows + diagonal
    return (np.where(keep, x, np.zeros((), dtype=x.dtype)),)


@operator("Trilu", reference=_trilu_reference)
def trilu(node: Node) -> Description:
    """The elements on or above (`upper=1`) or below the `k`-th diagonal of the last two axes, else 0."""
    require_result(node, require_rank(node, 0, 2))
    require_scalar(node, 1)
    out = output_operand(node)
    dims = dims_of(out.shape)
    reads = [Access(input_operand(node, 0), identity(dims))]
    diagonal: Expr = Const(0, DType.INT64)
    constant = node.constant(1)
    if constant is not None:
        diagonal = Const(int(constant.reshape(())), DType.INT64)
    elif node.input(1) is not None:
        reads.append(broadcast(input_operand(node, 1), dims))
        diagonal = cast(read(1, reads[1]), DType.INT64)
    comparison = "ge" if node.int_attr("upper", 1) else "le"
    keep = call(comparison, Iter(dims[-1].name), Iter(dims[-2].name) + diagonal)
    value = read(0, reads[0])
    zero = Const(False, DType.BOOL) if value.result is DType.BOOL else 0
    return (Nest(dims, tuple(reads), Access(out, identity(dims)), select(keep, value, zero)),)
