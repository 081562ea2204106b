"""What each operator means: one file per family, one registration per operator.

An `Operator` has a `reference` (numpy semantics on whole tensors, in whatever float type the arrays
have) and `nests` (its loop nests, or `Opaque` with a reason). `describe(node)` is what everything else
calls; a second table of operator facts anywhere is a bug.
"""

from __future__ import annotations

from tilewright.ir.ops.registry import Operator, describe, find_operator, operator, operators, result_shapes

__all__ = ["Operator", "describe", "find_operator", "operator", "operators", "result_shapes"]
