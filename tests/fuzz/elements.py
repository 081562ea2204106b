"""Nodes that compute element by element, normalise or reduce."""

from __future__ import annotations

import numpy as np
from tests.fuzz.maker import FLOATS, INTEGERS, Maker
from tests.fuzz.pick import broadcasts, is_float, is_image, is_single, partners

from tilewright.ir.dtype import DType


def unary(m: Maker) -> None:
    names = ["Relu", "Neg", "Abs", "Identity", "Clip"]
    if m.exact:
        names += ["Sign", "Floor", "Ceil", "Round"]
    else:
        names += ["Sigmoid", "Tanh", "HardSwish", "Erf", "LeakyRelu", "Elu", "Softplus", "Gelu"]
        names += ["HardSigmoid", "Exp", "Cos", "Softsign", "Mish"]
    x = m.pick(is_float)
    if x is None:
        return
    name = m.choice(names)
    if name == "Clip":
        low, high = (m.literal(np.array(n, x.dtype.numpy)) for n in (-2.0, 2.0))
        m.add(name, [x, low, high])
    else:
        m.add(name, [x])


def binary(m: Maker) -> None:
    x = m.pick(lambda v: v.dtype is not DType.BOOL)
    if x is None:
        return
    m.add(m.choice(("Add", "Mul", "Sub", "Add", "Max", "Min")), partners(m, x))


def compare(m: Maker) -> None:
    x = m.pick(lambda v: v.dtype is not DType.BOOL)
    if x is None or not m.exact:
        return
    condition = m.add(m.choice(("Less", "Greater", "Equal", "LessOrEqual")), partners(m, x), DType.BOOL)
    if condition is None or m.flag(0.3):
        return
    if m.flag(0.3):
        condition = m.add("Not", [condition])
    a = m.pick(lambda v: v.dtype is x.dtype and broadcasts(v.shape, x.shape)) or x
    other = m.constant(x.shape[-1:], x.dtype)
    assert condition is not None
    m.add("Where", [condition, a, other], x.dtype)


def logic(m: Maker) -> None:
    x = m.pick(lambda v: v.dtype is DType.BOOL)
    if x is not None:
        m.add(m.choice(("And", "Or", "Xor")), partners(m, x))


def cast(m: Maker) -> None:
    x = m.pick()
    if x is None:
        return
    if m.exact:
        target = m.choice((*FLOATS[:3], *INTEGERS, DType.BOOL))
    elif is_float(x):
        target = m.choice(FLOATS)
    else:
        return
    if is_float(x) and target in INTEGERS:
        limits, array = np.iinfo(target.numpy), m.arrays[x].astype(np.float64)
        if array.min() < limits.min or array.max() > limits.max:
            return  # what becomes of numbers out of range is not defined
    y = m.add("Cast", [x], target, to=target.value)
    if y is not None and m.flag(0.6):
        m.add("Cast", [y], DType.FLOAT32, to=DType.FLOAT32.value)


def arg_max(m: Maker) -> None:
    x = m.pick(lambda v: is_float(v) and len(v.shape) >= 1)
    if x is not None and m.exact:
        name, axis = m.choice(("ArgMax", "ArgMin")), m.number(0, len(x.shape) - 1)
        m.add(name, [x], DType.INT64, axis=axis, keepdims=m.number(0, 1), select_last_index=m.number(0, 1))


def batch_norm(m: Maker) -> None:
    x = m.pick(lambda v: is_single(v) and len(v.shape) >= 2)
    if x is not None:
        c = x.shape[1]
        inputs = [x, m.constant((c,)), m.constant((c,)), m.constant((c,)), m.positive((c,))]
        m.add("BatchNormalization", inputs, epsilon=0.0 if m.exact else 1e-5)


def normalisation(m: Maker) -> None:
    x = m.pick(lambda v: is_float(v) and len(v.shape) >= 2 and v.shape[-1] > 1)
    if x is None or m.exact:
        return
    match m.number(0, 3):
        case 0:
            m.add(m.choice(("Softmax", "LogSoftmax")), [x], axis=m.number(0, len(x.shape) - 1))
        case 1:
            axis = m.number(1, len(x.shape) - 1)
            factors = [m.constant(x.shape[axis:], x.dtype) for _ in range(2)]
            m.add("LayerNormalization", [x, *factors], axis=axis, epsilon=1e-2)
        case 2 if is_image(x) and is_single(x):
            c = x.shape[1]
            inputs = [x, m.constant((c,)), m.constant((c,))]
            m.add("InstanceNormalization", inputs, epsilon=1e-2)
        case _:
            m.add("Softmax", [x], axis=-1)


def reduce_(m: Maker) -> None:
    x = m.pick(lambda v: v.dtype in (DType.FLOAT32, DType.FLOAT64, DType.INT32) and len(v.shape) >= 1)
    if x is None:
        return
    names = ["ReduceSum", "ReduceMax", "ReduceMin"]
    if is_float(x):
        names += ["ReduceMean"] if m.exact else ["ReduceMean", "ReduceL2", "ReduceLogSumExp"]
    count = m.number(1, len(x.shape))
    axes = sorted(int(a) for a in m.rng.choice(len(x.shape), count, replace=False))
    m.add(m.choice(names), [x, m.integers(*axes)], keepdims=m.number(0, 1))


def cumulative(m: Maker) -> None:
    x = m.pick(lambda v: is_single(v) and len(v.shape) >= 1)
    if x is not None:
        axis = m.literal(np.array(m.number(0, len(x.shape) - 1), np.int64))
        m.add("CumSum", [x, axis], exclusive=m.number(0, 1), reverse=m.number(0, 1))


def top_k(m: Maker) -> None:
    x = m.pick(lambda v: is_single(v) and len(v.shape) >= 1)
    if x is not None and m.exact:
        axis = m.number(0, len(x.shape) - 1)
        m.add("TopK", [x, m.integers(m.number(1, x.shape[axis]))], DType.FLOAT32, DType.INT64, axis=axis)
