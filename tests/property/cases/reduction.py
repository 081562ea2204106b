"""Cases of reductions, arg-reductions and softmax."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from tests.property.strategies import Array, Case, Draw, case, generator, integers, reals, shapes

from tilewright.ir.graph import Attribute

_EXACT = ("ReduceSum", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceSumSquare")


@generator(
    "ReduceSum",
    "ReduceMean",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceSumSquare",
)
def reduce(draw: Draw, op_type: str) -> Case:
    shape = shapes(draw)
    rank = len(shape)
    opset = draw(st.sampled_from([13, 18, 20]))
    dtype = draw(st.sampled_from([np.float32, np.float32, np.int32]))
    if op_type in ("ReduceLogSum", "ReduceLogSumExp"):
        x = (
            abs(reals(draw, shape)) + np.float32(0.5)
            if dtype is np.float32
            else integers(draw, shape, 1, 3, dtype)
        )
    elif op_type in _EXACT or dtype is np.int32:
        x = integers(draw, shape, -3, 3, dtype)
    else:
        x = reals(draw, shape)
    attributes: dict[str, Attribute] = {"keepdims": draw(st.integers(0, 1))}
    axes = tuple(
        a - rank if draw(st.booleans()) else a
        for a in draw(st.lists(st.integers(0, rank - 1), max_size=rank, unique=True))
    )
    inputs: list[Array | None] = [x]
    if opset >= (13 if op_type == "ReduceSum" else 18):
        attributes["noop_with_empty_axes"] = draw(st.integers(0, 1))
        if draw(st.booleans()) or axes:
            inputs.append(np.array(axes, np.int64))
    elif axes:
        attributes["axes"] = axes
    exact = op_type in _EXACT
    # ONNX Runtime sums exponentials that it has rounded to integers.
    runtime = op_type != "ReduceLogSumExp" or dtype is np.float32
    return case(
        op_type,
        inputs,
        attributes,
        opset=opset,
        constants=(1,),
        exact=exact,
        rtol=1e-4,
        runtime=runtime,
    )


@generator("ArgMax", "ArgMin")
def arg_extreme(draw: Draw, op_type: str) -> Case:
    shape = shapes(draw)
    attributes: dict[str, Attribute] = {
        "axis": draw(st.integers(-len(shape), len(shape) - 1)),
        "keepdims": draw(st.integers(0, 1)),
        "select_last_index": draw(st.integers(0, 1)),
    }
    dtype = draw(st.sampled_from([np.float32, np.int32]))
    return case(op_type, [integers(draw, shape, -2, 2, dtype)], attributes, opset=13, exact=True)


@generator("Softmax", "LogSoftmax", "Hardmax")
def softmax(draw: Draw, op_type: str) -> Case:
    shape = shapes(draw)
    x = reals(draw, shape, 4.0) if op_type != "Hardmax" else integers(draw, shape, -2, 2)
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    return case(op_type, [x], {"axis": axis}, opset=13, exact=op_type == "Hardmax")
