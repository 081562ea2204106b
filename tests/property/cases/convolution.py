"""Cases of the convolution family."""

from __future__ import annotations

from hypothesis import strategies as st
from tests.property.strategies import Case, Draw, case, generator, integers

from tilewright.ir.graph import Attribute


def window_attributes(
    draw: Draw, rank: int, kernel: tuple[int, ...], *, dilated: bool = True
) -> dict[str, Attribute]:
    """Strides, dilations and padding of a sliding window, padding smaller than the kernel."""
    attributes: dict[str, Attribute] = {}
    if draw(st.booleans()):
        attributes["strides"] = tuple(draw(st.integers(1, 3)) for _ in range(rank))
    if dilated and draw(st.booleans()):
        attributes["dilations"] = tuple(draw(st.integers(1, 2)) for _ in range(rank))
    how = draw(st.sampled_from(["none", "pads", "SAME_UPPER", "SAME_LOWER", "VALID"]))
    if how == "pads":
        attributes["pads"] = tuple(draw(st.integers(0, k - 1)) for k in (*kernel, *kernel))
    elif how != "none":
        # ONNX Runtime pads a dilated SAME window by other amounts than the standard's formula.
        attributes.pop("dilations", None)
        attributes["auto_pad"] = how
    return attributes


@generator("Conv")
def conv(draw: Draw, op_type: str) -> Case:
    rank = draw(st.integers(1, 3))
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    per_group, multiplier = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    kernel = tuple(draw(st.integers(1, 3)) for _ in range(rank))
    spatial = tuple(draw(st.integers(5, 8 if rank < 3 else 6)) for _ in range(rank))
    x = integers(draw, (draw(st.integers(1, 2)), groups * per_group, *spatial))
    weight = integers(draw, (groups * multiplier, per_group, *kernel))
    inputs = [x, weight]
    if draw(st.booleans()):
        inputs.append(integers(draw, (groups * multiplier,)))
    attributes = window_attributes(draw, rank, kernel)
    attributes |= {"group": groups, "kernel_shape": kernel}
    return case(op_type, inputs, attributes, opset=draw(st.sampled_from([13, 22])), exact=True)
