"""Cases of sampling at places that are data."""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from tests.property.strategies import Case, Draw, case, generator, reals

from tilewright.ir.graph import Attribute


@generator("GridSample")
def grid_sample(draw: Draw, op_type: str) -> Case:
    rank = draw(st.sampled_from([2, 2, 2, 3]))
    mode = draw(st.sampled_from(["linear", "nearest"] + ["cubic"] * (rank == 2)))
    batch, channels = draw(st.integers(1, 2)), draw(st.sampled_from([1, 2, 3, 17]))
    extents = tuple(draw(st.integers(2, 5)) for _ in range(rank))
    outs = tuple(draw(st.integers(1, 5)) for _ in range(rank))
    # Far from halves, where a rounding could go either way; some places lie outside.
    places = reals(draw, (batch, *outs, rank), 0.8)
    attributes: dict[str, Attribute] = {
        "mode": mode,
        "padding_mode": draw(st.sampled_from(["zeros", "border", "reflection"])),
        "align_corners": draw(st.integers(0, 1)),
    }
    x = reals(draw, (batch, channels, *extents))
    return case(op_type, [x, places], attributes, opset=20, rtol=1e-3, atol=1e-3)


@generator("RoiAlign")
def roi_align(draw: Draw, op_type: str) -> Case:
    batch, boxes = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    channels = draw(st.sampled_from([1, 2, 19]))
    height, width = draw(st.integers(3, 9)), draw(st.integers(3, 9))
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    corners = rng.uniform(-2, 10, (boxes, 2, 2)).astype(np.float32)
    rois = np.sort(corners, axis=1).reshape(boxes, 4) + np.array([0, 0, 0.25, 0.5], np.float32)
    attributes: dict[str, Attribute] = {
        "output_height": draw(st.integers(1, 3)),
        "output_width": draw(st.integers(1, 3)),
        "sampling_ratio": draw(st.integers(0, 3)),
        "spatial_scale": draw(st.sampled_from([1.0, 0.5])),
        "mode": draw(st.sampled_from(["avg", "max"])),
        "coordinate_transformation_mode": draw(st.sampled_from(["half_pixel", "output_half_pixel"])),
    }
    inputs = [reals(draw, (batch, channels, height, width)), rois, rng.integers(0, batch, boxes)]
    return case(op_type, inputs, attributes, opset=16, rtol=1e-3, atol=1e-3)
