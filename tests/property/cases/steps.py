"""Cases of all steps of recurrent layers."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from tests.property.strategies import Array, Case, Draw, generator, integers, reals

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Attribute, Node, Value
from tilewright.ir.ops.cells import ACTIVATIONS
from tilewright.ir.ops.registry import INTERNAL_DOMAIN
from tilewright.ir.ops.steps import GATES

_DEFAULTS = {"RNNSteps": ("tanh",), "GRUSteps": ("sigmoid", "tanh"), "LSTMSteps": ("sigmoid", "tanh", "tanh")}


@generator("RNNSteps", "GRUSteps", "LSTMSteps", domain=INTERNAL_DOMAIN)
def steps(draw: Draw, op_type: str) -> Case:
    rows, batch = GATES[op_type], draw(st.sampled_from([1, 2, 3, 7, 9, 21]))
    size, length = draw(st.sampled_from([1, 3, 16, 37, 130])), draw(st.sampled_from([1, 2, 5]))
    directions = draw(st.integers(1, 2))
    names = _DEFAULTS[op_type] * directions
    if draw(st.booleans()):
        names = tuple(draw(st.sampled_from(sorted(ACTIVATIONS))) for _ in names)
    attributes: dict[str, Attribute] = {
        "activations": names,
        "activation_alpha": (0.375,) * len(names),
        "activation_beta": (0.5,) * len(names),
        "reverse": tuple(draw(st.integers(0, 1)) for _ in range(directions)),
    }
    if draw(st.booleans()):
        attributes["clip"] = 0.75

    tolerance = 1e-4

    def maybe(array: Array) -> Array | None:
        return array if draw(st.booleans()) else None

    state = (directions, batch, size)
    inputs: list[Array | None] = [
        reals(draw, (length, batch, directions * rows * size)),
        reals(draw, (directions, rows * size, size), 0.3 / size**0.5),
        maybe(reals(draw, state)),
        maybe(reals(draw, (length, batch)) > 0),
    ]
    if op_type == "GRUSteps":
        attributes["linear_before_reset"] = linear = draw(st.integers(0, 1))
        inputs.append(reals(draw, (directions, size)) if linear and draw(st.booleans()) else None)
    if op_type == "LSTMSteps":
        attributes["input_forget"] = draw(st.integers(0, 1))
        inputs += [maybe(reals(draw, state)), maybe(reals(draw, (directions, 3 * size)))]
        if draw(st.booleans()):
            # A state that is rounded to another byte is off by a step of its range.
            attributes["activations"], tolerance = _DEFAULTS[op_type] * directions, 1e-2
            inputs[1] = integers(draw, (directions, rows * size, size), -128, 127, np.int8)
            inputs.append(
                ((1 + abs(reals(draw, (directions, rows * size)))) / 400 / size**0.5).astype(np.float32)
            )
            inputs.append(maybe(integers(draw, (directions, rows * size), -9, 9, np.int8)))
    # The weights are constants, as in every network.
    values = [
        None
        if array is None
        else Value(f"x{i}", DType.from_numpy(array.dtype), array.shape, array if i in (1, 6, 7) else None)
        for i, array in enumerate(inputs)
    ]
    outputs = [Value("y0", DType.FLOAT32, (length, batch, directions, size))]
    if op_type == "LSTMSteps":
        outputs.append(Value("y1", DType.FLOAT32, state))
    node = Node(op_type, values, outputs, attributes, opset=1, domain=INTERNAL_DOMAIN)
    return Case(node, tuple(inputs), exact=False, rtol=1e-4, atol=tolerance, runtime=False)
