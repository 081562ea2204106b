"""Recipes of operators on elements and along axes: arithmetic, reductions, normalisations."""

from __future__ import annotations

import numpy as np
from tests.fuzz.sketch import Sketch, Step, allowed_types, schema_of

from tilewright.ir.dtype import DType

UNARY = [
    "Abs",
    "Neg",
    "Sign",
    "Floor",
    "Ceil",
    "Round",
    "Sqrt",
    "Reciprocal",
    "Exp",
    "Log",
    "Sin",
    "Cos",
    "Tan",
    "Asin",
    "Acos",
    "Atan",
    "Sinh",
    "Cosh",
    "Tanh",
    "Asinh",
    "Acosh",
    "Atanh",
    "Erf",
    "Sigmoid",
    "Relu",
    "LeakyRelu",
    "Elu",
    "Celu",
    "Selu",
    "ThresholdedRelu",
    "HardSigmoid",
    "HardSwish",
    "Softplus",
    "Softsign",
    "Mish",
    "Gelu",
    "IsNaN",
    "IsInf",
    "Not",
    "BitwiseNot",
    "Identity",
    "Shrink",
    "Swish",
]
BINARY = [
    "Add",
    "Sub",
    "Mul",
    "Div",
    "Add",
    "Mul",
    "Less",
    "LessOrEqual",
    "Greater",
    "GreaterOrEqual",
    "Equal",
    "And",
    "Or",
    "Xor",
]
BITWISE = ["BitwiseAnd", "BitwiseOr", "BitwiseXor"]
VARIADIC = ["Max", "Min", "Sum", "Mean"]
REDUCE = [
    "ReduceSum",
    "ReduceMean",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    "ReduceL1",
    "ReduceL2",
    "ReduceSumSquare",
    "ReduceLogSum",
    "ReduceLogSumExp",
]


def unary(m: Sketch) -> Step | None:
    name = m.choice(UNARY)
    x = m.value(name)
    if x is None:
        return None
    attributes = {}
    if name in ("LeakyRelu", "Elu", "Celu", "ThresholdedRelu") and m.flag():
        attributes["alpha"] = m.choice((0.5, 1.5, 0.1))
    if name == "HardSigmoid" and m.flag():
        attributes.update(alpha=0.25, beta=0.75)
    if name == "IsInf" and m.flag():
        attributes.update(detect_negative=m.number(0, 1), detect_positive=m.number(0, 1))
    if name == "Gelu" and m.flag():
        attributes["approximate"] = "tanh"
    if name == "Shrink":
        attributes.update(lambd=0.75, bias=m.choice((0.0, 0.5)))
    return m.step(name, [x], **attributes)


def binary(m: Sketch) -> Step | None:
    name = m.choice(BINARY)
    x = m.value(name)
    if x is None:
        return None
    pair = [x, m.partner(x)]
    return m.step(name, pair if m.flag() else pair[::-1])


def bitwise(m: Sketch) -> Step | None:
    name = m.choice(BITWISE)
    x = m.value(name)
    return None if x is None else m.step(name, [x, m.partner(x)])


def bit_shift(m: Sketch) -> Step | None:
    x = m.value("BitShift")
    if x is None:
        return None
    return m.step("BitShift", [x, m.partner(x)], direction=m.choice(("LEFT", "RIGHT")))


def modulo(m: Sketch) -> Step | None:
    x = m.value("Mod")
    if x is None:
        return None
    fmod = 1 if m.arrays[x].dtype.kind not in "iu" else m.number(0, 1)
    return m.step("Mod", [x, m.partner(x)], fmod=fmod)


def power(m: Sketch) -> Step | None:
    x = m.value("Pow")
    if x is None:
        return None
    y = m.partner(x)
    if m.flag():
        others = [d for d in allowed_types("Pow", m.opset, 1) if not d.name.startswith("COMPLEX")]
        y = m.fresh(m.arrays[y].shape, m.choice(sorted(others, key=lambda d: d.value)))
    return m.step("Pow", [x, y])


def variadic(m: Sketch) -> Step | None:
    name = m.choice(VARIADIC)
    x = m.value(name)
    if x is None:
        return None
    return m.step(name, [x, *(m.partner(x) for _ in range(m.number(0, 2)))])


def where(m: Sketch) -> Step | None:
    x = m.value("Where", position=1)
    if x is None:
        return None
    shape = m.arrays[x].shape
    condition = m.fresh(shape if m.flag() else shape[m.number(0, len(shape)) :], DType.BOOL)
    return m.step("Where", [condition, x, m.partner(x)])


def clip(m: Sketch) -> Step | None:
    x = m.value("Clip")
    if x is None:
        return None
    bounds = [m.like(x, ()) if m.flag(0.8) else "" for _ in range(m.number(0, 2))]
    return m.step("Clip", [x, *bounds])


def cast(m: Sketch) -> Step | None:
    x = m.value("Cast")
    if x is None:
        return None
    targets = sorted(allowed_types("Cast", m.opset, 0), key=lambda d: d.value)
    target = m.choice([d for d in targets if not d.name.startswith("COMPLEX")])
    if m.opset >= 15 and m.flag(0.2):
        return m.step("CastLike", [x, m.fresh((1,), target)])
    return m.step("Cast", [x], to=target.value)


def reduce_(m: Sketch) -> Step | None:
    name = m.choice(REDUCE)
    x = m.value(name, rank=(0, 4), huge=False)
    if x is None:
        return None
    rank = m.arrays[x].ndim
    axes = [int(a) for a in m.rng.permutation(rank)[: m.number(0, rank)]]
    axes = [a - rank if m.flag(0.3) else a for a in axes]
    keepdims = m.number(0, 1)
    schema = schema_of(name, m.opset)
    if len(schema.inputs) > 1:
        nothing = m.number(0, 1) if not axes else None
        extra = [m.numbers(*axes)] if axes or m.flag(0.3) else []
        return m.step(name, [x, *extra], keepdims=keepdims, noop_with_empty_axes=nothing)
    return m.step(name, [x], axes=axes or None, keepdims=keepdims)


def arg_extreme(m: Sketch) -> Step | None:
    name = m.choice(("ArgMax", "ArgMin"))
    x = m.value(name, rank=(1, 4))
    if x is None:
        return None
    rank = m.arrays[x].ndim
    return m.step(
        name,
        [x],
        axis=m.number(-rank, rank - 1),
        keepdims=m.number(0, 1),
        select_last_index=m.number(0, 1),
    )


def cumulative(m: Sketch) -> Step | None:
    x = m.value("CumSum", rank=(1, 3), huge=False)
    if x is None:
        return None
    rank = m.arrays[x].ndim
    axis = m.given(np.array(m.number(-rank, rank - 1), np.int64), constant=True)
    return m.step("CumSum", [x, axis], exclusive=m.number(0, 1), reverse=m.number(0, 1))


def top_k(m: Sketch) -> Step | None:
    x = m.value("TopK", rank=(1, 3))
    if x is None:
        return None
    axis = m.number(0, m.arrays[x].ndim - 1)
    k = m.numbers(m.number(0, m.arrays[x].shape[axis]), constant=True)
    return m.step("TopK", [x, k], 2, axis=axis, largest=m.number(0, 1))


def softmax(m: Sketch) -> Step | None:
    name = m.choice(("Softmax", "LogSoftmax", "Hardmax"))
    x = m.value(name, rank=(1, 4))
    if x is None:
        return None
    rank = m.arrays[x].ndim
    return m.step(name, [x], axis=m.number(-rank, rank - 1))


def normalisation(m: Sketch) -> Step | None:
    options = [
        "InstanceNormalization",
        "BatchNormalization",
        "LpNormalization",
        "MeanVarianceNormalization",
        "LRN",
    ]
    options += ["LayerNormalization"] * (m.opset >= 17) + ["GroupNormalization"] * (m.opset >= 21)
    options += ["RMSNormalization"] * (m.opset >= 23)
    name = m.choice(options)
    x = m.value(name, rank=(4, 4) if name == "MeanVarianceNormalization" else (2, 4), huge=False)
    if x is None:
        return None
    shape = m.arrays[x].shape
    if name in ("LpNormalization",):
        return m.step(name, [x], axis=m.number(0, len(shape) - 1), p=m.number(1, 2))
    if name == "MeanVarianceNormalization":
        return m.step(name, [x])
    if name == "LRN":
        return m.step(name, [x], size=m.choice((1, 2, 3, 5)))
    if name in ("LayerNormalization", "RMSNormalization"):
        axis = m.number(1, len(shape) - 1)
        factors = [
            m.like(x, shape[axis:], huge=False) for _ in range(m.number(1, 2 if name[0] == "L" else 1))
        ]
        return m.step(name, [x, *factors], axis=axis - (len(shape) if m.flag() else 0))
    channels = (shape[1],)
    if name == "GroupNormalization":
        groups = m.choice([g for g in range(1, shape[1] + 1) if shape[1] % g == 0] or [1])
        return m.step(
            name, [x, m.like(x, channels, huge=False), m.like(x, channels, huge=False)], num_groups=groups
        )
    factors = [m.like(x, channels, huge=False) for _ in range(2)]
    if name == "InstanceNormalization":
        return m.step(name, [x, *factors], epsilon=1e-2)
    variance = m.given(np.abs(m.arrays[m.like(x, channels, huge=False)]))
    return m.step(name, [x, *factors, m.like(x, channels, huge=False), variance])
