"""Cases of integer products and requantisation."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from tests.property.cases.convolution import window_attributes
from tests.property.strategies import Array, Case, Draw, case, generator, integers


def _zero(draw: Draw, dtype: type, shape: tuple[int, ...] = ()) -> Array:
    return integers(draw, shape, 0 if dtype is np.uint8 else -3, 3, dtype)


def _scale(draw: Draw, shape: tuple[int, ...] = ()) -> Array:
    # Powers of two: every quotient of scales is exact, and halves that must round to even occur.
    return np.asarray(np.exp2(integers(draw, shape, -3, 0)), np.float32)


@generator("ConvInteger", "QLinearConv")
def convolution(draw: Draw, op_type: str) -> Case:
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    per_group, multiplier = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    kernel = (draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    spatial = (draw(st.integers(5, 8)), draw(st.integers(5, 8)))
    x_type = np.uint8
    w_type = draw(st.sampled_from([np.uint8, np.int8]))
    filters = groups * multiplier
    x = integers(draw, (draw(st.integers(1, 2)), groups * per_group, *spatial), 0, 255, x_type)
    weight = integers(draw, (filters, per_group, *kernel), 0 if w_type is np.uint8 else -128, 127, w_type)
    attributes = window_attributes(draw, 2, kernel) | {"group": groups, "kernel_shape": kernel}
    if op_type == "ConvInteger":
        inputs = [x, weight, _zero(draw, x_type), _zero(draw, w_type)][: draw(st.sampled_from([2, 3, 4]))]
        constants = draw(st.sampled_from([(), (2, 3)]))
        return case(op_type, inputs, attributes, opset=10, constants=constants, exact=True)
    per_channel = (filters,) if draw(st.booleans()) else ()
    # ONNX Runtime asks for one weight zero point in signed weights per channel: zero.
    w_zero = np.zeros(per_channel, w_type) if per_channel else _zero(draw, w_type)
    y_scale = np.asarray(np.float32(2.0 ** draw(st.integers(2, 8))))
    inputs = [
        x,
        _scale(draw),
        _zero(draw, x_type),
        weight,
        _scale(draw, per_channel),
        w_zero,
        y_scale,
        _zero(draw, x_type),
    ]
    if draw(st.booleans()):
        inputs.append(integers(draw, (filters,), -100, 100, np.int32))
    return case(op_type, inputs, attributes, opset=10, constants=tuple(range(1, len(inputs))), exact=True)


@generator("MatMulInteger", "QLinearMatMul")
def product(draw: Draw, op_type: str) -> Case:
    batch = draw(st.sampled_from([(), (2,), (2, 3)]))
    m, k, n = (draw(st.integers(1, 6)) for _ in range(3))
    b_type = draw(st.sampled_from([np.uint8, np.int8]))
    a = integers(draw, (*batch, m, k), 0, 255, np.uint8)
    b = integers(draw, (*batch, k, n) if draw(st.booleans()) else (k, n), 0, 127, b_type)
    columns = (n,) if draw(st.booleans()) and b.ndim == 2 else ()
    if op_type == "MatMulInteger":
        inputs = [a, b, _zero(draw, np.uint8), _zero(draw, b_type, columns)][
            : draw(st.sampled_from([2, 3, 4]))
        ]
        return case(op_type, inputs, opset=10, exact=True)
    y_scale = np.asarray(np.float32(2.0 ** draw(st.integers(2, 8))))
    inputs = [
        a,
        _scale(draw),
        _zero(draw, np.uint8),
        b,
        _scale(draw, columns),
        _zero(draw, b_type, columns),
        y_scale,
        _zero(draw, np.uint8),
    ]
    return case(op_type, inputs, opset=21, exact=True)


@generator("QLinearAdd", domain="com.microsoft")
def byte_sum(draw: Draw, op_type: str) -> Case:
    dtype = draw(st.sampled_from([np.uint8, np.int8]))
    low, high = (0, 255) if dtype is np.uint8 else (-128, 127)
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
    inputs: list[Array] = []
    for _ in range(2):
        inputs += [integers(draw, shape, low, high, dtype), _scale(draw), _zero(draw, dtype)]
    # ONNX Runtime rounds halves after adding the zero point: the same where that is even.
    inputs += [_scale(draw), np.asarray(_zero(draw, dtype) // 2 * 2, dtype)]
    constants = draw(st.sampled_from([(), (1, 2, 4, 5, 6, 7)]))
    return case(op_type, inputs, opset=1, domain="com.microsoft", constants=constants, exact=True, like=0)
