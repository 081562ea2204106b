"""Cases of recurrent layers."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from tests.property.strategies import Array, Case, Draw, case, generator, integers, reals

from tilewright.ir.graph import Attribute

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
