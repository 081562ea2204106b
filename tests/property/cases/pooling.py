"""Cases of the pooling family."""

# mypy: disable-error-code="assignment, misc"

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from tests.property.cases.convolution import window_attributes
from tests.property.strategies import Case, Draw, case, generator, integers, reals


@generator("MaxPool", "AveragePool", "LpPool")
def pool(draw: Draw, op_type: str) -> Case:
    rank = draw(st.integers(1, 3))
    kernel = tuple(draw(st.integers(1, 3)) for _ in range(rank))
    spatial = tuple(draw(st.integers(5, 8 if rank < 3 else 6)) for _ in range(rank))
    attributes = window_attributes(draw, rank, kernel) | {"kernel_shape": kernel}
    if "auto_pad" not in attributes:
        attributes["ceil_mode"] = draw(st.integers(0, 1))
    outputs = (True,)
    if op_type == "AveragePool":
        attributes["count_include_pad"] = draw(st.integers(0, 1))
    elif op_type == "LpPool":
        attributes["p"] = draw(st.integers(1, 3))
    else:
        outputs = (True, draw(st.booleans()))
    kind = np.float32
    if op_type == "MaxPool" and not outputs[1]:
        kind = draw(st.sampled_from([np.float32, np.int8, np.uint8]))
    x = integers(draw, (draw(st.integers(1, 2)), draw(st.integers(1, 3)), *spatial), 0, 100, kind)
    exact = op_type == "MaxPool"
    return case(op_type, [x], attributes, opset=22, outputs=outputs, exact=exact)


@generator("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(draw: Draw, op_type: str) -> Case:
    spatial = tuple(draw(st.integers(1, 6)) for _ in range(draw(st.integers(1, 3))))
    attributes = {"p": draw(st.integers(1, 3))} if op_type == "GlobalLpPool" else {}
    return case(op_type, [reals(draw, (2, 3, *spatial))], attributes, opset=13)
