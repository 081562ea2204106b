"""Cases of the normalisation family."""

from __future__ import annotations

from hypothesis import strategies as st
from tests.property.strategies import Array, Case, Draw, case, generator, reals, shapes


@generator("BatchNormalization")
def batch_normalization(draw: Draw, op_type: str) -> Case:
    shape = shapes(draw, 2)
    x = reals(draw, shape)
    scale, bias, mean = (reals(draw, (shape[1],)) for _ in range(3))
    var = abs(reals(draw, (shape[1],))) + 0.5
    return case(op_type, [x, scale, bias, mean, var.astype("f")], {"epsilon": 1e-3}, opset=15)


@generator("LayerNormalization")
def layer_normalization(draw: Draw, op_type: str) -> Case:
    shape = shapes(draw, 1, 4)
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    inputs: list[Array | None] = [reals(draw, shape), reals(draw, shape[axis:])]
    if draw(st.booleans()):
        inputs.append(reals(draw, shape[axis:]))
    outputs = (True, draw(st.booleans()), draw(st.booleans()))
    # Few equal elements make a deviation near zero, whose inverse magnifies rounding.
    return case(op_type, inputs, {"axis": axis, "epsilon": 1e-2}, opset=17, outputs=outputs, rtol=1e-4)
