"""Cases of elementwise operators."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from tests.property.strategies import Array, Case, Draw, case, generator, integers, reals, shapes

from tilewright.ir.graph import Attribute

_EXACT_UNARY = ("Abs", "Neg", "Sign", "Floor", "Ceil", "Round", "Relu")


def broadcast_shapes(draw: Draw, count: int) -> list[tuple[int, ...]]:
    """Shapes that broadcast together: axes of a common shape set to 1 or left away in front."""
    common = shapes(draw)
    found = []
    for _ in range(count):
        kept = tuple(1 if draw(st.integers(0, 3)) == 0 else extent for extent in common)
        found.append(kept[draw(st.integers(0, len(kept))) :])
    return found


@generator(*_EXACT_UNARY)
def exact_unary(draw: Draw, op_type: str) -> Case:
    x = reals(draw, shapes(draw), 3.0, draw(st.sampled_from([np.float32, np.float64, np.float16])))
    if op_type == "Round":
        x = (np.rint(x * 2) / 2).astype(x.dtype)  # halves, which round to even
    if op_type in ("Abs", "Neg", "Sign", "Relu") and draw(st.booleans()):
        x = integers(draw, x.shape, -100, 100, draw(st.sampled_from([np.int8, np.int32, np.int64])))
    return case(op_type, [x], opset=14 if op_type == "Relu" else 13 if op_type != "Round" else 11, exact=True)


@generator("Sin", "Cos", "Tan", "Atan", "Sinh", "Cosh", "Tanh", "Asinh", "Erf", "Exp", "Sigmoid", "Softplus")
@generator("Softsign", "Mish")
def smooth(draw: Draw, op_type: str) -> Case:
    opset = 22 if op_type not in ("Tanh", "Erf", "Exp", "Sigmoid") else 13
    dtype = np.float64 if draw(st.integers(0, 4)) == 0 else np.float32
    return case(op_type, [reals(draw, shapes(draw), 1.5, dtype)], opset=opset)


@generator("Asin", "Acos", "Atanh", "Acosh", "Log", "Sqrt", "Reciprocal")
def partial(draw: Draw, op_type: str) -> Case:
    x = np.tanh(reals(draw, shapes(draw))) * np.float32(0.9)
    if op_type in ("Acosh", "Log", "Sqrt", "Reciprocal"):
        x = np.abs(x) + np.float32(1.1 if op_type == "Acosh" else 0.1)
    return case(op_type, [x], opset=13 if op_type in ("Log", "Sqrt", "Reciprocal") else 22)


_ATTRIBUTES: dict[str, tuple[int, dict[str, tuple[float, float]]]] = {
    "LeakyRelu": (16, {"alpha": (0.0, 0.5)}),
    "Elu": (6, {"alpha": (0.5, 2.0)}),
    "Selu": (6, {"alpha": (1.0, 2.0), "gamma": (0.5, 2.0)}),
    "Celu": (12, {"alpha": (0.5, 2.0)}),
    "ThresholdedRelu": (10, {"alpha": (-0.5, 1.0)}),
    "HardSigmoid": (6, {"alpha": (0.125, 0.5), "beta": (0.0, 0.625)}),
    "HardSwish": (14, {}),
    "Shrink": (9, {"bias": (-1.0, 1.0), "lambd": (0.125, 1.0)}),
    "Swish": (24, {"alpha": (0.5, 2.0)}),
}


@generator(*_ATTRIBUTES)
def activation(draw: Draw, op_type: str) -> Case:
    opset, ranges = _ATTRIBUTES[op_type]
    attributes: dict[str, Attribute] = {
        name: draw(st.floats(low, high, width=32))
        for name, (low, high) in ranges.items()
        if draw(st.booleans())
    }
    x = reals(draw, shapes(draw), 2.0)
    if op_type == "Shrink" and draw(st.booleans()):
        x = integers(draw, x.shape, -4, 4, np.int32)
    return case(op_type, [x], attributes, opset=opset)


@generator("Gelu")
def gelu(draw: Draw, op_type: str) -> Case:
    kind = draw(st.sampled_from(["none", "tanh", None]))
    attributes: dict[str, Attribute] = {} if kind is None else {"approximate": kind}
    return case(op_type, [reals(draw, shapes(draw), 2.0)], attributes, opset=20)


@generator("SwiGLU")
def swiglu(draw: Draw, op_type: str) -> Case:
    shape = shapes(draw)
    attributes: dict[str, Attribute] = {"alpha": 1.5} if draw(st.booleans()) else {}
    return case(op_type, [reals(draw, shape), reals(draw, shape)], attributes, opset=28)


@generator("PRelu")
def prelu(draw: Draw, op_type: str) -> Case:
    shape = shapes(draw)
    slope = tuple(1 if draw(st.booleans()) else e for e in shape)[draw(st.integers(0, len(shape) - 1)) :]
    return case(op_type, [reals(draw, shape), reals(draw, slope)], opset=16)


@generator("Add", "Sub", "Mul", "Div", "Mod")
def arithmetic(draw: Draw, op_type: str) -> Case:
    left, right = broadcast_shapes(draw, 2)
    dtype: Any = draw(st.sampled_from([np.float32, np.int32, np.int64, np.uint8]))
    attributes: dict[str, Attribute] = {}
    if op_type == "Mod":
        attributes["fmod"] = 1 if dtype is np.float32 else draw(st.integers(0, 1))
    unsigned = dtype is np.uint8
    a = integers(draw, left, 0 if unsigned else -9, 9, dtype)
    b = integers(draw, right, 1, 4, dtype)
    if not unsigned:
        b = b * integers(draw, right, 0, 1, dtype) * 2 - b  # both signs, never 0
        b = np.where(b == 0, 1, b).astype(dtype)
    if draw(st.integers(0, 2)) == 0:  # a scalar, which becomes a literal
        b = np.asarray(b.ravel()[:1].reshape((1,) * draw(st.integers(0, a.ndim))))
    constants = draw(st.sampled_from([(), (1,)]))
    opset = 14 if op_type != "Mod" else 13
    return case(op_type, [a, b], attributes, opset=opset, constants=constants, exact=op_type != "Div")


@generator("Pow")
def power(draw: Draw, op_type: str) -> Case:
    left, right = broadcast_shapes(draw, 2)
    base = np.asarray(np.abs(reals(draw, left)) + np.float32(0.2))
    if draw(st.booleans()):
        exponent = np.array(draw(st.sampled_from([0.5, 1.0, 2.0, 3.0, -1.0, 1.5])), np.float32)
        return case(op_type, [base, exponent], opset=15, constants=(1,))
    if draw(st.booleans()):
        return case(
            op_type, [integers(draw, left, -3, 3, np.int32), integers(draw, right, 0, 3, np.int64)], opset=15
        )
    other = draw(st.sampled_from([np.float32, np.int64]))
    return case(op_type, [base, integers(draw, right, -2, 3, other)], opset=15)


@generator("Max", "Min", "Sum", "Mean")
def variadic(draw: Draw, op_type: str) -> Case:
    inputs = [integers(draw, s) for s in broadcast_shapes(draw, draw(st.integers(1, 4)))]
    return case(op_type, inputs, opset=13, exact=op_type != "Mean")


@generator("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")
def comparison(draw: Draw, op_type: str) -> Case:
    dtype = draw(st.sampled_from([np.float32, np.int32, np.int64]))
    inputs = [integers(draw, s, -2, 2, dtype) for s in broadcast_shapes(draw, 2)]
    constants = draw(st.sampled_from([(), (0,), (1,)]))
    return case(op_type, inputs, opset=16 if "Or" in op_type else 13, constants=constants, exact=True)


@generator("And", "Or", "Xor", "Not")
def logical(draw: Draw, op_type: str) -> Case:
    count = 1 if op_type == "Not" else 2
    inputs = [integers(draw, s, 0, 1, np.bool_) for s in broadcast_shapes(draw, count)]
    return case(op_type, inputs, opset=7 if count == 2 else 1, exact=True)


@generator("BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot", "BitShift")
def bitwise(draw: Draw, op_type: str) -> Case:
    count = 1 if op_type == "BitwiseNot" else 2
    dtypes = [np.uint8, np.uint32, np.uint64] if op_type == "BitShift" else [np.int8, np.int32, np.uint16]
    dtype = draw(st.sampled_from(dtypes))
    inputs = [integers(draw, s, 0, 100, dtype) for s in broadcast_shapes(draw, count)]
    attributes: dict[str, Attribute] = {}
    if op_type == "BitShift":
        inputs[1] = np.asarray(inputs[1] % np.array(8, dtype))
        attributes["direction"] = draw(st.sampled_from(["LEFT", "RIGHT"]))
    return case(op_type, inputs, attributes, opset=11 if op_type == "BitShift" else 18, exact=True)


@generator("Where")
def where(draw: Draw, op_type: str) -> Case:
    condition, left, right = broadcast_shapes(draw, 3)
    dtype = draw(st.sampled_from([np.float32, np.int64, np.bool_]))
    inputs = [
        integers(draw, condition, 0, 1, np.bool_),
        *(integers(draw, s, -3, 3, dtype) for s in (left, right)),
    ]
    return case(op_type, inputs, opset=16, exact=True)


@generator("IsNaN", "IsInf")
def special(draw: Draw, op_type: str) -> Case:
    values = np.array([0.0, 1.0, np.nan, np.inf, -np.inf], np.float32)
    x = values[integers(draw, shapes(draw), 0, 4, np.int64)]
    attributes: dict[str, Attribute] = {}
    if op_type == "IsInf":
        attributes = {f"detect_{sign}": draw(st.integers(0, 1)) for sign in ("negative", "positive")}
    return case(op_type, [x], attributes, opset=20, exact=True)


@generator("Clip")
def clip(draw: Draw, op_type: str) -> Case:
    dtype = draw(st.sampled_from([np.float32, np.int32]))
    bounds: list[Array | None] = [
        np.array(draw(st.integers(low, low + 2)), dtype) if draw(st.booleans()) else None for low in (-2, 1)
    ]
    constants = tuple(i + 1 for i, b in enumerate(bounds) if b is not None and draw(st.booleans()))
    inputs: list[Array | None] = [integers(draw, shapes(draw), -5, 5, dtype), *bounds]
    while inputs[-1] is None:
        inputs.pop()
    return case(op_type, inputs, opset=13, constants=constants, exact=True)


_CASTABLE = (np.float32, np.float64, np.float16, np.int8, np.int32, np.int64, np.uint8, np.bool_)


@generator("Cast", "CastLike")
def conversion(draw: Draw, op_type: str) -> Case:
    source, target = draw(st.sampled_from(_CASTABLE)), draw(st.sampled_from(_CASTABLE))
    # Negative to unsigned is undefined in C, and so is not promised.
    low = 0 if target is np.uint8 else -20
    x = integers(draw, shapes(draw), low, 60) / (1 if source in (np.bool_,) else 4)
    x = x.astype(source)
    if op_type == "CastLike":
        return case(op_type, [x, np.zeros(1, target)], opset=19, exact=True)
    from onnx import helper

    return case(op_type, [x], {"to": helper.np_dtype_to_tensor_dtype(np.dtype(target))}, opset=19, exact=True)


@generator("Identity")
def same(draw: Draw, op_type: str) -> Case:
    dtype = draw(st.sampled_from(_CASTABLE))
    return case(op_type, [integers(draw, shapes(draw, 0), -3, 3).astype(dtype)], opset=19, exact=True)


@generator("Dropout")
def dropout(draw: Draw, op_type: str) -> Case:
    inputs = [reals(draw, shapes(draw)), np.array(0.3, np.float32), np.array(False)]
    count = draw(st.integers(1, 3))
    mask = (True, draw(st.booleans()))
    outputs = mask if mask[1] else mask[:1]
    return case(op_type, inputs[:count], opset=13, constants=(1, 2), outputs=outputs, exact=True)


@generator("Trilu")
def trilu(draw: Draw, op_type: str) -> Case:
    x = reals(draw, shapes(draw, low=2))
    inputs = [x, np.array(draw(st.integers(-5, 5)), np.int64)][: draw(st.integers(1, 2))]
    constants = draw(st.sampled_from([(), (1,)]))
    return case(
        op_type, inputs, {"upper": draw(st.integers(0, 1))}, opset=14, constants=constants, exact=True
    )
