"""Cases of operators whose results are as long as data say."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from tests.property.strategies import Array, Case, Draw, case, generator, integers, reals, shapes


@generator("NonZero")
def non_zero(draw: Draw, op_type: str) -> Case:
    data = integers(draw, shapes(draw), -1, 1, draw(st.sampled_from([np.float32, np.int64, np.bool_])))
    return case(op_type, [data], opset=13, exact=True, by_data=True)


@generator("NonMaxSuppression")
def non_max_suppression(draw: Draw, op_type: str) -> Case:
    batches, classes, num_boxes = (draw(st.integers(1, most)) for most in (2, 3, 12))
    is_center = draw(st.booleans())
    corners = reals(draw, (batches, num_boxes, 2))
    sides = np.abs(reals(draw, (batches, num_boxes, 2))) + np.float32(0.1)
    boxes = np.concatenate([corners, sides if is_center else corners + sides], axis=2)
    # Distinct scores: which of equal ones comes first is left open.
    scores = np.stack(
        [reals(draw, (classes, num_boxes)) + np.linspace(0, 0.1, num_boxes) for _ in range(batches)]
    )
    inputs: list[Array | None] = [boxes, scores.astype(np.float32)]
    inputs.append(np.array([draw(st.integers(0, num_boxes))], np.int64))
    inputs.append(np.array([draw(st.sampled_from([0.0, 0.25, 0.5, 0.9]))], np.float32))
    if draw(st.booleans()):
        inputs.append(np.array([draw(st.sampled_from([-1.0, 0.0, 0.5]))], np.float32))
    attributes = {"center_point_box": int(is_center)}
    return case(op_type, inputs, attributes, opset=11, exact=True, by_data=True)
