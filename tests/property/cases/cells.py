"""Cases of the cells that recurrent layers become."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from tests.property.strategies import Array, Case, Draw, generator, integers, reals

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Attribute, Node, Value
from tilewright.ir.ops.cells import ACTIVATIONS
from tilewright.ir.ops.registry import INTERNAL_DOMAIN

_GATES = {"RNNCell": 1, "GRUCell": 3, "LSTMCell": 4}
_DEFAULTS = {"RNNCell": ("tanh",), "GRUCell": ("sigmoid", "tanh"), "LSTMCell": ("sigmoid", "tanh", "tanh")}


@generator("RNNCell", "GRUCell", "LSTMCell", domain=INTERNAL_DOMAIN)
def cell(draw: Draw, op_type: str) -> Case:
    gates, batch = _GATES[op_type], draw(st.sampled_from([1, 2, 3, 9]))
    size = draw(st.sampled_from([1, 3, 16, 37]))
    names = _DEFAULTS[op_type]
    if draw(st.booleans()):
        names = tuple(draw(st.sampled_from(sorted(ACTIVATIONS))) for _ in names)
    attributes: dict[str, Attribute] = {
        "activations": names,
        "activation_alpha": (0.375,) * len(names),
        "activation_beta": (0.5,) * len(names),
    }
    if draw(st.booleans()):
        attributes["clip"] = 0.75

    def maybe(array: Array) -> Array | None:
        return array if draw(st.booleans()) else None

    inputs: list[Array | None] = [
        reals(draw, (batch, gates * size)),
        reals(draw, (gates * size, size), 0.3),
        maybe(reals(draw, (batch, size))),
        maybe(reals(draw, (1, batch)) > 0),
    ]
    if op_type == "GRUCell":
        attributes["linear_before_reset"] = linear = draw(st.integers(0, 1))
        inputs.append(reals(draw, (size,)) if linear and draw(st.booleans()) else None)
    if op_type == "LSTMCell":
        attributes["input_forget"] = draw(st.integers(0, 1))
        inputs += [maybe(reals(draw, (batch, size))), maybe(reals(draw, (3 * size,)))]
        if draw(st.booleans()):
            inputs[1] = integers(draw, (gates * size, size), -128, 127, np.int8)
            inputs.append((reals(draw, (gates * size,)) ** 2 / 300).astype(np.float32))
            inputs.append(maybe(integers(draw, (gates * size,), -128, 127, np.int8)))
    # The weights are constants, as in every network.
    values = [
        None
        if array is None
        else Value(f"x{i}", DType.from_numpy(array.dtype), array.shape, array if i in (1, 6, 7) else None)
        for i, array in enumerate(inputs)
    ]
    outputs = [Value(f"y{i}", DType.FLOAT32, (batch, size)) for i in range(2 if op_type == "LSTMCell" else 1)]
    node = Node(op_type, values, outputs, attributes, opset=1, domain=INTERNAL_DOMAIN)
    return Case(node, tuple(inputs), exact=False, rtol=1e-4, atol=1e-4, runtime=False)
