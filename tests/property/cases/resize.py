"""Cases of resampling."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from tests.property.strategies import Array, Case, Draw, case, generator, integers, reals

from tilewright.ir.graph import Attribute


@generator("Resize")
def resize(draw: Draw, op_type: str) -> Case:
    mode = draw(st.sampled_from(["nearest", "linear", "cubic"]))
    rank = draw(st.sampled_from([2, 4]))
    spatial = (draw(st.integers(1, 7)), draw(st.integers(1, 7)))
    x = reals(draw, (*(2, 1)[: rank - 2], *spatial))
    coordinates = draw(
        st.sampled_from(
            ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "half_pixel_symmetric"]
        )
    )
    # ONNX Runtime says of one output element and of ties what the standard leaves open: sizes of at
    # least two, and factors of two, where every coordinate is exact.
    sizes = [draw(st.sampled_from([2 * e, 4 * e] + [e // 2] * (e % 4 == 0))) for e in spatial]
    attributes: dict[str, Attribute] = {"mode": mode, "coordinate_transformation_mode": coordinates}
    if mode == "nearest":
        attributes["nearest_mode"] = draw(
            st.sampled_from(["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
        )
    elif mode == "cubic":
        attributes["cubic_coeff_a"] = draw(st.sampled_from([-0.5, -0.75]))
        attributes["exclude_outside"] = draw(st.integers(0, 1))
    if mode != "nearest" and coordinates == "half_pixel" and draw(st.booleans()):
        attributes["antialias"] = 1
    inputs: list[Array | None]
    if draw(st.booleans()):
        scales = np.array([s / e for s, e in zip(sizes, spatial, strict=True)], np.float32)
        inputs = [x, None, np.concatenate([np.ones(rank - 2, np.float32), scales])]
    else:
        inputs = [x, None, None, np.array([*x.shape[: rank - 2], *sizes], np.int64)]
    return case(op_type, inputs, attributes, opset=19, constants=(2, 3), rtol=1e-4, atol=1e-4)


@generator("Upsample")
def upsample(draw: Draw, op_type: str) -> Case:
    x = integers(draw, (1, 2, draw(st.integers(1, 4)), draw(st.integers(1, 4))))
    scales = np.array([1, 1, draw(st.integers(1, 3)), draw(st.integers(1, 3))], np.float32)
    mode = draw(st.sampled_from(["nearest", "linear"]))
    return case(op_type, [x, scales], {"mode": mode}, opset=9, constants=(1,))
