"""What a node's attributes may say, where onnx relies on it without a check: asked before its C++ is.

Each rule is one that the operator's definition states and whose breach makes onnx's shape inference crash or
loop for ever (found by trying every operator at its extremes). Breaches that nobody found yet end in the
worker process of `native.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from onnx import AttributeProto, NodeProto

from tilewright.errors import ModelRejected
from tilewright.frontend.onnx.limits import MAX_RANK
from tilewright.frontend.onnx.protos import node_label
from tilewright.ir.graph import Value

Inputs = Sequence[Value | None]

# Attributes that number axes, in any operator.
_AXES = frozenset(
    {
        *("axis", "axes", "batch_axis", "time_axis", "batch_dims", "perm"),
        *("scan_input_axes", "scan_output_axes"),
    }
)
_TERM = re.compile(r"[A-Za-z]*(\.\.\.)?[A-Za-z]*")


def check_ranges(node: NodeProto, inputs: Inputs) -> None:
    """Refuse attributes outside their range.

    Raises:
        ModelRejected: one is; says which, and its range.
    """
    for attribute in node.attribute:
        if attribute.name not in _AXES:
            continue
        for axis in (attribute.i,) if attribute.type == AttributeProto.INT else attribute.ints:
            if not -MAX_RANK <= axis <= MAX_RANK:
                raise _out_of_range(node, attribute.name, axis, -MAX_RANK, MAX_RANK)
    rule = _RULES.get(node.op_type)
    if rule is not None:
        rule(node, inputs)


def _gather_nd(node: NodeProto, inputs: Inputs) -> None:
    ranks = [len(v.shape) for v in inputs[:2] if v is not None]
    _check_int(node, "batch_dims", 0, 0, min(ranks, default=1) - 1)


def _layer_normalization(node: NodeProto, inputs: Inputs) -> None:
    rank = len(inputs[0].shape) if inputs and inputs[0] is not None else 1
    _check_int(node, "axis", -1, -rank, rank - 1)


def _split(node: NodeProto, inputs: Inputs) -> None:
    """From opset 18 on a node says into how many parts, unless it says into which."""
    if any(a.name == "num_outputs" for a in node.attribute):
        _check_int(node, "num_outputs", 0, len(node.output), len(node.output))


def _einsum(node: NodeProto, inputs: Inputs) -> None:
    equation = next((a.s.decode("utf-8", "replace") for a in node.attribute if a.name == "equation"), "")
    terms, _, result = equation.replace(" ", "").partition("->")
    if not all(_TERM.fullmatch(term) for term in (*terms.split(","), result)):
        raise ModelRejected(
            f"node {node_label(node)}: attribute 'equation' is {equation[:60]!r}, expected letters, commas, "
            "'...' and one '->'; export the model again."
        )


def _check_int(node: NodeProto, name: str, default: int, low: int, high: int) -> None:
    value = next((a.i for a in node.attribute if a.name == name), default)
    if not low <= value <= high:
        raise _out_of_range(node, name, value, low, high)


def _out_of_range(node: NodeProto, name: str, value: int, low: int, high: int) -> ModelRejected:
    expected = f"{low} to {high}" if low < high else str(low) if low == high else "no such attribute"
    return ModelRejected(
        f"node {node_label(node)}: attribute {name!r} is {value}, expected {expected}; "
        "export the model again."
    )


_RULES: dict[str, Callable[[NodeProto, Inputs], None]] = {
    "Einsum": _einsum,
    "GatherND": _gather_nd,
    "LayerNormalization": _layer_normalization,
    "RMSNormalization": _layer_normalization,
    "Split": _split,
}
