"""Which versions of the ONNX operator set are read."""

from __future__ import annotations

from onnx import defs

# The oldest opset whose operators are understood as they stand; older models are converted to it.
OLDEST_OPSET = 13


def newest_opset() -> int:
    """The newest ai.onnx opset the installed onnx package defines."""
    return int(defs.onnx_opset_version())
