"""Constants known at import: shapes of static tensors, and the arithmetic that exporters do on them.

Only what shapes are computed with is folded here, and only in small sizes; folding weights is the
`fold-constants` pass's work.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tilewright.arrays import Array
from tilewright.errors import InputError, ModelRejected, UnsupportedOp
from tilewright.frontend.onnx.limits import MAX_FOLDED_ELEMENTS
from tilewright.ir.graph import Node
from tilewright.ir.interpret import run_node
from tilewright.ir.ops.registry import describe

# Operators of shape arithmetic: work linear (or nearly) in the size of their operands, deterministic.
_SHAPE_ARITHMETIC = (
    "Abs Add And Cast CastLike Ceil Clip Compress Concat ConstantOfShape CumSum Div Equal Expand Flatten "
    "Floor Gather GatherElements GatherND Greater GreaterOrEqual Identity Less LessOrEqual Max Min Mod Mul "
    "Neg NonZero Not Or Pad Pow Range ReduceMax ReduceMin ReduceProd ReduceSum Reshape Round ScatterElements "
    "ScatterND Shape Sign Size Slice Split Sqrt Squeeze Sub Tile Transpose Trilu Unique Unsqueeze Where"
)
_FOLDABLE = frozenset(_SHAPE_ARITHMETIC.split(" "))
_DATA_DEPENDENT = frozenset({"NonZero", "Compress", "Unique"})


def fold(node: Node, shapes: Sequence[tuple[int, ...] | None]) -> tuple[Array | None, ...] | None:
    """Values of a node's outputs if they are known now, else None.

    `shapes` are those of the outputs, None where inference does not know them.

    Raises:
        ModelRejected: the constants are no valid inputs, such as an index outside its axis.
    """
    if node.domain or node.op_type not in _FOLDABLE:
        return None
    if node.op_type in ("Shape", "Size"):
        return (_shape_of(node),)
    if not all(v.is_constant for v in node.operands()):
        return None
    largest = max((v.num_elements for v in node.operands()), default=0)
    for shape in shapes:
        if shape is None and node.op_type not in _DATA_DEPENDENT:
            return None
        largest = max(largest, math.prod(shape) if shape is not None else 0)
    if largest > MAX_FOLDED_ELEMENTS:
        return None
    if None not in shapes:
        describe(node)  # numpy broadcasts where the operator does not
    try:
        results = run_node(node, [None if v is None else v.data for v in node.inputs])
    except (UnsupportedOp, InputError) as error:
        if error.__cause__ is None:
            raise
        raise ModelRejected(f"on its constant inputs, {error}") from error.__cause__
    for shape, array in zip(shapes, results, strict=False):
        if shape is not None and array is not None and array.shape != shape:
            raise ModelRejected(
                f"{node.op_type} {node.name!r} gives {list(array.shape)} on its constant inputs, "
                f"but {list(shape)} is declared; export the model again."
            )
    return results


def _shape_of(node: Node) -> Array:
    shape = node.require(0).shape
    if node.op_type == "Size":
        return np.array(math.prod(shape), dtype=np.int64)
    start, end = node.int_attr("start", 0), node.int_attr("end", len(shape))
    return np.array(shape[_clamped(start, len(shape)) : _clamped(end, len(shape))], dtype=np.int64)


def _clamped(index: int, rank: int) -> int:
    return min(max(index + rank if index < 0 else index, 0), rank)
