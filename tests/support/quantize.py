"""Float networks in tilewright's static form, calibrated on one feed that ONNX Runtime runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

from tilewright.quantization import METHODS, Choices, Ranges, measured_values, prepared, quantized, widened

Array = np.ndarray[Any, Any]


def quantize(
    model: onnx.ModelProto,
    feeds: dict[str, Array],
    *,
    per_channel: bool = True,
    activation: type = np.uint8,
) -> onnx.ModelProto:
    """The network with its layers, and what passes their bytes on, quantised."""
    model = prepared(model)
    names = measured_values(model)
    made = [name for name in names if name not in feeds]
    session = onnxruntime.InferenceSession(
        widened(model, made).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    ranges = Ranges("minmax")
    ranges.add({name: feeds[name] for name in names if name in feeds})
    ranges.add(dict(zip(made, session.run(made, feeds), strict=True)))
    layers = {layer.number for layer in METHODS["static"].layers(model)}
    result = quantized(model, "static", layers, ranges.bounds(), Choices(per_channel))
    if activation is np.int8:
        _make_signed(result)
    return result


def _make_signed(model: onnx.ModelProto) -> None:
    """Activations as signed bytes, in place: every unsigned zero point moves by half of the range."""
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.UINT8:
            zero = numpy_helper.to_array(tensor).astype(np.int16) - 128
            tensor.CopyFrom(numpy_helper.from_array(zero.astype(np.int8), tensor.name))
