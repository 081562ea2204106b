"""Cases of linear quantisation. Scales are powers of two, so that every rounding is that of the standard."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from tests.property.strategies import Array, Case, Draw, case, generator, integers, reals, shapes

from tilewright.ir.graph import Attribute


def _parameters(draw: Draw, shape: tuple[int, ...], dtype: Any) -> tuple[list[Array], dict[str, Attribute]]:
    """Scale, perhaps a zero point, and the attributes that go with them."""
    attributes: dict[str, Attribute] = {}
    form = draw(st.sampled_from(["tensor", "axis", "block"]))
    spread: tuple[int, ...] = ()
    if form != "tensor":
        axis = draw(st.integers(0, len(shape) - 1))
        attributes["axis"] = axis - len(shape) if draw(st.booleans()) else axis
        spread = (shape[axis],)
        if form == "block":
            # Blocks divide the axis: ONNX Runtime and the standard differ about the last, shorter one.
            block = draw(st.sampled_from([b for b in range(1, shape[axis] + 1) if shape[axis] % b == 0]))
            attributes["block_size"] = block
            spread = tuple(e // block if a == axis else e for a, e in enumerate(shape))
    scale = np.asarray(np.exp2(integers(draw, spread, -3, 1)), np.float32)
    low = 0 if dtype in (np.uint8, np.uint16) else -9
    return [scale, integers(draw, spread, low, 9, dtype)], attributes


@generator("QuantizeLinear")
def quantize(draw: Draw, op_type: str) -> Case:
    shape = shapes(draw)
    dtype = draw(st.sampled_from([np.uint8, np.int8, np.uint16, np.int16]))
    parameters, attributes = _parameters(draw, shape, dtype)
    x = integers(draw, shape, -400, 400) / np.float32(16)
    if dtype is np.uint8 and draw(st.booleans()):
        parameters = parameters[:1]
    return case(op_type, [x, *parameters], attributes, opset=21, exact=True)


@generator("DequantizeLinear")
def dequantize(draw: Draw, op_type: str) -> Case:
    shape = shapes(draw)
    dtype = draw(st.sampled_from([np.uint8, np.int8, np.uint16, np.int16]))
    parameters, attributes = _parameters(draw, shape, dtype)
    x = integers(draw, shape, 0, 120, dtype)
    count = draw(st.integers(1, 2))
    return case(op_type, [x, *parameters[:count]], attributes, opset=21, exact=True)


@generator("DynamicQuantizeLinear")
def dynamic_quantize(draw: Draw, op_type: str) -> Case:
    x = reals(draw, shapes(draw), 3.0) if draw(st.integers(0, 4)) else np.zeros((2, 3), np.float32)
    return case(op_type, [x], opset=11, outputs=(True, True, True))
