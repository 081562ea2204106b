"""Cases of Fourier transforms, and of the windows and weights of spectra."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from tests.property.strategies import Array, Case, Draw, case, generator, reals

from tilewright.ir.graph import Attribute

# ONNX Runtime errs by up to 1e-3 where the length is no power of two.
_LENGTHS = (2, 4, 8, 16)


@generator("DFT")
def dft(draw: Draw, op_type: str) -> Case:
    length, inverse = draw(st.sampled_from(_LENGTHS)), draw(st.booleans())
    onesided = not inverse and draw(st.booleans())
    num_parts = 1 if onesided else draw(st.sampled_from([1, 2]))
    x = reals(draw, (draw(st.integers(1, 3)), draw(st.sampled_from([length, length + 3])), num_parts))
    attributes: dict[str, Attribute] = {"inverse": int(inverse), "onesided": int(onesided)}
    if draw(st.booleans()):
        inputs: list[Array | None] = [x, np.array(length), np.array(1)]
        return case(op_type, inputs, attributes, opset=20, constants=(1, 2), atol=1e-4)
    return case(
        op_type, [x, np.array(length)], {**attributes, "axis": 1}, opset=17, constants=(1,), atol=1e-4
    )


@generator("STFT")
def stft(draw: Draw, op_type: str) -> Case:
    length, step = draw(st.sampled_from(_LENGTHS)), draw(st.integers(1, 9))
    x = reals(draw, (draw(st.integers(1, 2)), length + draw(st.integers(0, 20)), 1))
    window = reals(draw, (length,)) if draw(st.booleans()) else None
    inputs: list[Array | None] = [x, np.array(step), window, np.array(length)]
    attributes: dict[str, Attribute] = {"onesided": draw(st.integers(0, 1))}
    return case(op_type, inputs, attributes, opset=17, constants=(1, 2, 3), atol=1e-4)


@generator("BlackmanWindow", "HammingWindow", "HannWindow")
def window(draw: Draw, op_type: str) -> Case:
    attributes: dict[str, Attribute] = {"periodic": draw(st.integers(0, 1))}
    return case(op_type, [np.array(draw(st.integers(2, 40)))], attributes, opset=17, by_data=True)


@generator("MelWeightMatrix")
def mel_weight_matrix(draw: Draw, op_type: str) -> Case:
    bands, length = draw(st.integers(1, 12)), draw(st.sampled_from([16, 64, 400]))
    low, high = draw(st.sampled_from([0.0, 60.0])), draw(st.sampled_from([2000.0, 3800.0]))
    inputs: list[Array] = [np.array(n) for n in (bands, length, 8000)]
    inputs += [np.array(f, np.float32) for f in (low, high)]
    return case(op_type, inputs, opset=17, by_data=True)
