"""Cases of linear quantisation. Scales are powers of two, so that every rounding is that of the standard."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from tests.property.strategies import Array, Case, Draw, case, generator, integers, reals, shapes

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Attribute, Node, Value
from tilewright.ir.ops.registry import INTERNAL_DOMAIN


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


@generator("BlockFloats", domain=INTERNAL_DOMAIN)
def block_floats(draw: Draw, op_type: str) -> Case:
    bits, columns, blocks = draw(st.sampled_from([4, 8])), draw(st.integers(1, 4)), draw(st.integers(1, 3))
    steps = draw(st.sampled_from([16, 32]))
    scales = np.asarray(np.exp2(integers(draw, (columns, blocks), -3, 1)), np.float32)
    inputs = [scales, integers(draw, (columns, blocks, steps * bits // 8), 0, 255, np.uint8)]
    if draw(st.booleans()):
        inputs.append(integers(draw, (columns, -(-blocks * bits // 8)), 0, 255, np.uint8))
    values = [Value(f"x{i}", DType.from_numpy(array.dtype), array.shape) for i, array in enumerate(inputs)]
    output = Value("y0", DType.FLOAT32, (blocks * steps, columns))
    node = Node(op_type, values, [output], {"bits": bits}, opset=1, domain=INTERNAL_DOMAIN)
    return Case(node, tuple(inputs), exact=True, rtol=0.0, atol=0.0, runtime=False)
