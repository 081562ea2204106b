"""Cases of the convolution family."""

from __future__ import annotations

from hypothesis import strategies as st
from tests.property.strategies import Case, Draw, case, generator, integers, reals

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


@generator("ConvTranspose")
def conv_transpose(draw: Draw, op_type: str) -> Case:
    rank = draw(st.integers(1, 2))
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    per_group, multiplier = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    kernel = tuple(draw(st.integers(1, 4)) for _ in range(rank))
    spatial = tuple(draw(st.integers(2, 5)) for _ in range(rank))
    strides = tuple(draw(st.integers(1, 3)) for _ in range(rank))
    attributes: dict[str, Attribute] = {"group": groups, "kernel_shape": kernel, "strides": strides}
    attributes["dilations"] = tuple(draw(st.integers(1, 2)) for _ in range(rank))
    how = draw(st.sampled_from(["none", "pads", "pads", "SAME_UPPER", "SAME_LOWER", "output_shape"]))
    if how == "pads":
        attributes["pads"] = tuple(draw(st.integers(0, (k - 1) // 2)) for k in (*kernel, *kernel))
        attributes["output_padding"] = tuple(draw(st.integers(0, s - 1)) for s in strides)
    elif how == "output_shape":
        attributes["output_shape"] = tuple(
            (extent - 1) * s + draw(st.integers(1, k))
            for extent, s, k in zip(spatial, strides, kernel, strict=True)
        )
    elif how != "none" and not any(e % s for e, s in zip(spatial, strides, strict=True)):
        # Shape inference and ONNX Runtime disagree on SAME where the stride does not divide the extent.
        attributes["auto_pad"] = how
    x = integers(draw, (draw(st.integers(1, 2)), groups * per_group, *spatial))
    inputs = [x, integers(draw, (groups * per_group, multiplier, *kernel))]
    if draw(st.booleans()):
        inputs.append(integers(draw, (groups * multiplier,)))
    return case(op_type, inputs, attributes, opset=22, exact=True)


@generator("DeformConv")
def deform_conv(draw: Draw, op_type: str) -> Case:
    x, weight = reals(draw, (1, 2, 5, 5)), reals(draw, (3, 2, 2, 2))
    offset = reals(draw, (1, 8, 4, 4), 0.5)
    return case(op_type, [x, weight, offset], {"kernel_shape": (2, 2)}, opset=19)
