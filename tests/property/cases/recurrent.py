"""Cases of recurrent layers."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from tests.property.strategies import Array, Case, Draw, case, generator, integers, reals

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Attribute, Node, Value
from tilewright.ir.ops.recurrent import QUANTIZED_LSTM
from tilewright.ir.ops.registry import MICROSOFT_DOMAIN

_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


@generator("RNN", "GRU", "LSTM")
def recurrent(draw: Draw, op_type: str) -> Case:
    gates = _GATES[op_type]
    length, batch = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    width, size = draw(st.integers(1, 4)), draw(st.sampled_from([1, 2, 3, 4, 19, 40]))
    direction = draw(st.sampled_from(["forward", "reverse", "bidirectional"]))
    directions = 2 if direction == "bidirectional" else 1
    attributes: dict[str, Attribute] = {"direction": direction, "hidden_size": size}
    inputs: list[Array | None] = [
        reals(draw, (length, batch, width)),
        reals(draw, (directions, gates * size, width), 0.5),
        reals(draw, (directions, gates * size, size), 0.5 / size**0.5),
    ]

    def maybe(array: Array) -> Array | None:
        return array if draw(st.booleans()) else None

    inputs.append(maybe(reals(draw, (directions, 2 * gates * size), 0.5)))
    inputs.append(maybe(integers(draw, (batch,), 1, length, np.int32)))
    inputs.append(maybe(reals(draw, (directions, batch, size))))
    if op_type == "LSTM":
        inputs.append(maybe(reals(draw, (directions, batch, size))))
        inputs.append(maybe(reals(draw, (directions, 3 * size), 0.5)))
    if op_type == "GRU":
        attributes["linear_before_reset"] = draw(st.integers(0, 1))
    if draw(st.booleans()):
        attributes["clip"] = 0.5
    if draw(st.integers(0, 3)) == 0:
        chosen = {
            "RNN": ("LeakyRelu",),
            "GRU": ("HardSigmoid", "Tanh"),
            "LSTM": ("HardSigmoid", "Softsign", "Relu"),
        }
        attributes["activations"] = chosen[op_type] * directions
        alpha = {"RNN": (0.25,), "GRU": (0.3,), "LSTM": (0.3,)}[op_type]
        attributes["activation_alpha"] = alpha * directions
        if op_type != "RNN":
            attributes["activation_beta"] = (0.6,) * directions
    outputs = (True, True, True) if op_type == "LSTM" else (True, True)
    return case(op_type, inputs, attributes, opset=14, outputs=outputs, rtol=1e-4)


@generator(QUANTIZED_LSTM, domain=MICROSOFT_DOMAIN)
def quantized(draw: Draw, op_type: str) -> Case:
    length, batch = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    width, size = draw(st.integers(1, 9)), draw(st.sampled_from([1, 2, 3, 4, 19, 40]))
    direction = draw(st.sampled_from(["forward", "reverse", "bidirectional"]))
    directions = 2 if direction == "bidirectional" else 1
    is_signed, is_by_row = draw(st.booleans()), draw(st.booleans())
    dtype, low, high = (np.int8, -128, 127) if is_signed else (np.uint8, 0, 255)
    each = (directions, 4 * size) if is_by_row else (directions,)
    # onnxruntime takes one zero point for all rows, and none but 0 where rows of signed bytes have their own.
    zero = 0 if is_signed and is_by_row else draw(st.sampled_from([0, 3] if is_signed else [0, 128, 131]))

    def maybe(array: Array) -> Array | None:
        return array if draw(st.booleans()) else None

    def scale(terms: int) -> Array:
        return ((1 + abs(reals(draw, each))) / 400 / terms**0.5).astype(np.float32)

    state = (directions, batch, size)
    inputs: list[Array | None] = [
        reals(draw, (length, batch, width)),
        integers(draw, (directions, width, 4 * size), low, high, dtype),
        integers(draw, (directions, size, 4 * size), low, high, dtype),
        maybe(reals(draw, (directions, 8 * size), 0.5)),
        maybe(integers(draw, (batch,), 1, length, np.int32)),
        *(maybe(reals(draw, shape)) for shape in (state, state, (directions, 3 * size))),
        *(scale(width), np.full(each, zero, dtype), scale(size), np.full(each, zero, dtype)),
    ]
    attributes: dict[str, Attribute] = {"direction": direction, "hidden_size": size}
    if draw(st.booleans()):
        attributes["clip"] = 0.5
    values = [
        None
        if array is None
        else Value(
            f"x{i}", DType.from_numpy(array.dtype), array.shape, array if i in (1, 2) or i > 7 else None
        )
        for i, array in enumerate(inputs)
    ]
    shapes = ((length, directions, batch, size), state, state)
    outputs = [Value(f"y{i}", DType.FLOAT32, shape) for i, shape in enumerate(shapes)]
    node = Node(op_type, values, outputs, attributes, opset=1, domain=MICROSOFT_DOMAIN)
    # A state that is rounded to another byte is off by a step of its range.
    return Case(node, tuple(inputs), exact=False, rtol=1e-4, atol=1e-2, runtime=True)
