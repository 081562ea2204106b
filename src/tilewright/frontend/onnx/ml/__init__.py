"""Operators of ai.onnx.ml, which exporters of classical models write, in terms of standard ones.

Each has a function here that writes its definition, as those of com.microsoft have; trees become one node of
our own (`ir.ops.trees`). Texts never reach them: `texts` has put numbers in their place.
"""

from __future__ import annotations

DOMAIN = "ai.onnx.ml"
