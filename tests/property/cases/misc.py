"""Cases of constant generators and running sums."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from tests.property.strategies import Array, Case, Draw, case, generator, integers, reals, shapes

from tilewright.ir.graph import Attribute

_VALUES: dict[str, Attribute] = {
    "value": np.arange(6, dtype=np.float16).reshape(2, 3),
    "value_float": 1.5,
    "value_floats": (0.5, -2.0),
    "value_int": 7,
    "value_ints": (3, -1, 2),
}


@generator("Constant")
def constant(draw: Draw, op_type: str) -> Case:
    name = draw(st.sampled_from(sorted(_VALUES)))
    return case(op_type, [], {name: _VALUES[name]}, opset=13, exact=True)


@generator("Shape")
def shape(draw: Draw, op_type: str) -> Case:
    attributes: dict[str, Attribute] = {
        name: draw(st.integers(-5, 5)) for name in ("start", "end") if draw(st.booleans())
    }
    return case(op_type, [reals(draw, shapes(draw))], attributes, opset=15, exact=True)


@generator("Size")
def size(draw: Draw, op_type: str) -> Case:
    return case(op_type, [reals(draw, shapes(draw))], opset=13, exact=True)


@generator("ConstantOfShape")
def constant_of_shape(draw: Draw, op_type: str) -> Case:
    dtype = draw(st.sampled_from([np.float32, np.int64, np.bool_, np.float16]))
    attributes: dict[str, Attribute] = {"value": np.array([3], dtype)} if draw(st.booleans()) else {}
    target = np.array(shapes(draw), np.int64)
    return case(op_type, [target], attributes, opset=9, constants=(0,), exact=True)


@generator("Range")
def arange(draw: Draw, op_type: str) -> Case:
    dtype = draw(st.sampled_from([np.float32, np.int32, np.int64]))
    delta = draw(st.sampled_from([1, 2, 3, -1, -2]))
    start = draw(st.integers(-5, 5))
    limit = start + delta * draw(st.integers(1, 5)) - draw(st.integers(0, abs(delta) - 1)) * np.sign(delta)
    inputs: list[Array] = [np.array(v, dtype) for v in (start, limit, delta)]
    return case(op_type, inputs, opset=11, constants=(0, 1, 2), exact=True)


@generator("EyeLike")
def eye_like(draw: Draw, op_type: str) -> Case:
    from onnx import TensorProto

    attributes: dict[str, Attribute] = {"k": draw(st.integers(-4, 4))}
    if draw(st.booleans()):
        attributes["dtype"] = draw(st.sampled_from([TensorProto.FLOAT, TensorProto.INT64]))
    x = reals(draw, shapes(draw, low=2, high=2))
    return case(op_type, [x], attributes, opset=9, exact=True)


@generator("CumSum", "CumProd")
def running(draw: Draw, op_type: str) -> Case:
    dtype = draw(st.sampled_from([np.float32, np.int32, np.int64]))
    if draw(st.booleans()):
        x = integers(draw, shapes(draw), -3, 3, dtype)
    else:  # long enough for blocks; products must not overflow
        shape = list(shapes(draw, low=0, high=2))
        shape.insert(draw(st.integers(0, len(shape))), draw(st.sampled_from([65, 96, 131, 300])))
        x = integers(draw, shape, *((-3, 3) if op_type == "CumSum" else (-1, 1)), dtype)
        x = np.where(x == 0, 1, x).astype(dtype)
    axis = np.array(draw(st.integers(-x.ndim, x.ndim - 1)), np.int64)
    attributes: dict[str, Attribute] = {n: draw(st.integers(0, 1)) for n in ("exclusive", "reverse")}
    opset = 14 if op_type == "CumSum" else 26
    return case(op_type, [x, axis], attributes, opset=opset, constants=(1,), exact=True)


@generator("ReverseSequence")
def reverse_sequence(draw: Draw, op_type: str) -> Case:
    x = reals(draw, shapes(draw, low=2))
    time = draw(st.integers(0, 1))
    lengths = integers(draw, (x.shape[1 - time],), 1, x.shape[time], np.int64)
    attributes: dict[str, Attribute] = {"time_axis": time, "batch_axis": 1 - time}
    return case(op_type, [x, lengths], attributes, opset=10, exact=True)
