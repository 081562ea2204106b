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


@generator("InstanceNormalization")
def instance_normalization(draw: Draw, op_type: str) -> Case:
    shape = shapes(draw, 3, 4)
    inputs = [reals(draw, shape), reals(draw, (shape[1],)), reals(draw, (shape[1],))]
    return case(op_type, inputs, {"epsilon": 1e-2}, opset=13, rtol=1e-4)


@generator("GroupNormalization")
def group_normalization(draw: Draw, op_type: str) -> Case:
    opset = draw(st.sampled_from([18, 21]))
    groups, inside = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    shape = (2, groups * inside, *shapes(draw, 1, 2))
    length = groups if opset < 21 else groups * inside
    inputs = [reals(draw, shape), reals(draw, (length,)), reals(draw, (length,))]
    attributes = {"num_groups": groups, "epsilon": 1e-2}
    return case(op_type, inputs, attributes, opset=opset, rtol=1e-4, like=0)


@generator("RMSNormalization")
def rms_normalization(draw: Draw, op_type: str) -> Case:
    shape = shapes(draw, 1, 4)
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    inputs = [reals(draw, shape), reals(draw, shape[axis:])]
    return case(op_type, inputs, {"axis": axis, "epsilon": 1e-2}, opset=23, rtol=1e-4)


@generator("LpNormalization")
def lp_normalization(draw: Draw, op_type: str) -> Case:
    shape = shapes(draw)
    attributes = {"axis": draw(st.integers(-len(shape), len(shape) - 1)), "p": draw(st.integers(1, 2))}
    x = reals(draw, shape)
    return case(op_type, [x * 0 if draw(st.booleans()) else x], attributes, opset=22)


@generator("MeanVarianceNormalization")
def mean_variance_normalization(draw: Draw, op_type: str) -> Case:
    shape = (draw(st.integers(2, 3)), *(draw(st.integers(2, 4)) for _ in range(3)))
    axes = draw(st.sampled_from([(0, 2, 3), (2, 3), (1, 2, 3)]))
    return case(op_type, [reals(draw, shape)], {"axes": axes}, opset=13, rtol=1e-4)


@generator("LRN")
def local_response_normalization(draw: Draw, op_type: str) -> Case:
    shape = (draw(st.integers(1, 2)), draw(st.integers(1, 6)), *shapes(draw, 2, 2))
    attributes = {"size": draw(st.integers(1, 5)), "alpha": 0.5, "beta": 0.75, "bias": 1.5}
    return case(op_type, [reals(draw, shape)], attributes, opset=13)
