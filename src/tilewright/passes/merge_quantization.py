"""Bytes stay bytes where values are only moved or chosen."""

from __future__ import annotations

import numpy as np

from tilewright.arrays import Array
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, Value
from tilewright.ir.interpret import run_node
from tilewright.passes.edit import Editor
from tilewright.passes.patterns import made_by
from tilewright.passes.recognise_quantized import dequantized
from tilewright.passes.rules import Kept, Rule, RulePass
from tilewright.records import dataclass

# Operators that move their first input's elements, or take the largest of some.
_FIRST = ("Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Slice", "Gather", "Expand", "MaxPool")
_ALL = ("Concat",)


def _match_constant(editor: Editor, node: Node) -> Array | None:
    if any(editor.data(v) is None for v in node.operands()) or node.require(1).dtype is not DType.FLOAT32:
        return None
    (result,) = run_node(node, [None if v is None else v.data for v in node.inputs])
    return result


def _build_constant(editor: Editor, node: Node, data: Array) -> str | None:
    stem = f"{node.require(0).name}_bytes"
    if not editor.replace(node.output, editor.constant(data, node.output.dtype, stem)):
        return None
    editor.discard([node])
    return "computed now"


@dataclass(frozen=True, slots=True)
class _Weights:
    data: Array
    dequantize: Node
    order: tuple[int, ...]


def _match_weights(editor: Editor, node: Node) -> _Weights | None:
    dequantize = made_by(node.input(0), "DequantizeLinear")
    if dequantize is None or dequantize.int_attr("block_size", 0):
        return None
    data = editor.data(dequantize.input(0))
    if data is None or data.ndim == 0:
        return None
    return _Weights(data, dequantize, node.ints_attr("perm") or tuple(reversed(range(data.ndim))))


def _build_weights(editor: Editor, node: Node, found: _Weights) -> str:
    source = found.dequantize
    turned = np.ascontiguousarray(found.data.transpose(found.order))
    data = editor.constant(turned, source.require(0).dtype, f"{source.require(0).name}_t")
    axis = found.order.index(source.int_attr("axis", 1) % found.data.ndim)
    inputs = [data, *source.inputs[1:]]
    editor.become(node, "DequantizeLinear", inputs, {**source.attributes, "axis": axis}, since=source.opset)
    return "transposed before it is dequantised"


def _match_same(editor: Editor, node: Node) -> Value | None:
    source = dequantized(editor, node.input(0))
    scale, zero = editor.data(node.input(1)), editor.data(node.input(2))
    if source is None or scale is None or (node.input(2) is not None and zero is None):
        return None
    if source.value.dtype is not node.output.dtype or source.value.dtype.size_bytes != 1:
        return None
    given = np.zeros((), source.zero.dtype) if zero is None else zero
    if source.scale.size != 1 or source.zero.size != 1 or scale.size != 1 or given.size != 1:
        return None
    same = source.scale.item() == scale.item() and source.zero.item() == given.item()
    # Below the smallest normal number the round trip loses digits, and an infinite scale everything.
    usual = np.finfo(np.float32).tiny <= scale.item() <= np.finfo(np.float32).max / 512
    return source.value if same and usual else None


def _build_same(editor: Editor, node: Node, source: Value) -> str | None:
    if not editor.replace(node.output, source):
        return None
    editor.discard([node])
    return "cancels the DequantizeLinear before it"


def _match_movement(editor: Editor, node: Node) -> Node | Kept | None:
    x = node.require(0)
    moved = made_by(x, *_FIRST, *_ALL)
    if moved is None:
        return None
    scale, zero = editor.data(node.input(1)), editor.data(node.input(2))
    if scale is None or scale.size != 1 or (node.input(2) is not None and (zero is None or zero.size != 1)):
        return None
    if scale.item() <= 0 or len(list(moved.results())) != 1 or node.output.dtype.size_bytes != 1:
        return None
    given = moved.inputs if moved.op_type in _ALL else moved.inputs[:1]
    if not all(made_by(v, "DequantizeLinear", *_FIRST, *_ALL) for v in given):
        return None
    if any(v is not None and v.dtype is not DType.FLOAT32 for v in given):
        return None
    if editor.sole_user(x) is None:
        return Kept("its float values are read elsewhere too")
    return moved


def _build_movement(editor: Editor, node: Node, moved: Node) -> str:
    count = len(moved.inputs) if moved.op_type in _ALL else 1
    parameters = list(node.inputs[1:])
    inputs: list[Value | None] = list(moved.inputs)
    for position in range(count):
        value = moved.require(position)
        inputs[position] = editor.insert(
            moved,
            "QuantizeLinear",
            [value, *parameters],
            (f"{value.name}_bytes", node.output.dtype, value.shape),
            dict(node.attributes),
            since=node.opset,
        )
    since = 12 if moved.op_type == "MaxPool" else moved.opset
    editor.become(node, moved.op_type, inputs, dict(moved.attributes), since=since)
    return f"quantised before {moved.op_type}"


class MergeQuantization(RulePass):
    """QuantizeLinear moves before operators that only move or compare values, and a DequantizeLinear of the
    same scale and zero point before it cancels it. Both are exact: quantising keeps order, and bytes survive
    the round trip. Weights that exporters quantise or transpose in the graph become constants of bytes here.
    """

    name = "merge-quantization"
    rules = (
        Rule(("QuantizeLinear",), _match_constant, _build_constant),
        Rule(("Transpose",), _match_weights, _build_weights),
        Rule(("QuantizeLinear",), _match_same, _build_same),
        Rule(("QuantizeLinear",), _match_movement, _build_movement),
    )
