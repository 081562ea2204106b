"""Float models in quantised form: which layers can be, in which ranges, and the model that says so in ONNX.

Nothing is run here: `tilewright.api.quantization` measures the ranges of values, and the error of the result.
"""

from __future__ import annotations

from tilewright.quantization.layers import QuantizableLayer, prepared, quantizable_layers
from tilewright.quantization.methods import METHODS, Choices, Method, quantized
from tilewright.quantization.ranges import RANGE_RULES, Ranges, measured_values, widened

__all__ = [
    "METHODS",
    "RANGE_RULES",
    "Choices",
    "Method",
    "QuantizableLayer",
    "Ranges",
    "measured_values",
    "prepared",
    "quantizable_layers",
    "quantized",
    "widened",
]
