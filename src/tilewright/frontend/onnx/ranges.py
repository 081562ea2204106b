"""What a node's attributes may say, where later code relies on it: asked before anything else is of the node.

Each rule is one that the operator's definition states. For attributes, its breach makes onnx's inference
crash or loop for ever: found by trying every operator at its extremes; what was not found yet ends in the
worker process of `native.py`. For bodies of control flow, the import takes it for granted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from onnx import AttributeProto, GraphProto, NodeProto

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


def _loss_reduction(node: NodeProto, inputs: Inputs) -> None:
    """onnx's definitions of losses by other operators take what they do not know for another reduction."""
    said = next((a.s.decode("utf-8", "replace") for a in node.attribute if a.name == "reduction"), "mean")
    if said not in ("none", "sum", "mean"):
        raise ModelRejected(
            f"node {node_label(node)}: attribute 'reduction' is {said[:60]!r}, expected none, sum or mean; "
            "export the model again."
        )


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


def _if(node: NodeProto, inputs: Inputs) -> None:
    _require_one_element(node, inputs, 0)
    for name in ("then_branch", "else_branch"):
        _require_results(node, name, _body(node, name), len(node.output))


def _loop(node: NodeProto, inputs: Inputs) -> None:
    num_states = max(len(inputs) - 2, 0)
    for position in (0, 1):
        if position < len(inputs) and inputs[position] is not None:
            _require_one_element(node, inputs, position)
    body = _body(node, "body")
    _require_count(node, "inputs of its body", len(body.input), 2 + num_states)
    _require_results(node, "body", body, 1 + max(num_states, len(node.output)))


def _scan(node: NodeProto, inputs: Inputs) -> None:
    body = _body(node, "body")
    _check_int(node, "num_scan_inputs", 0, 1, len(inputs))
    num_scanned = next(a.i for a in node.attribute if a.name == "num_scan_inputs")
    num_states = len(inputs) - num_scanned
    _require_count(node, "inputs of its body", len(body.input), len(inputs))
    _require_results(node, "body", body, max(num_states, len(node.output)))
    num_stacked = len(body.output) - num_states
    for name, count in (
        *(("scan_input_axes", num_scanned), ("scan_input_directions", num_scanned)),
        *(("scan_output_axes", num_stacked), ("scan_output_directions", num_stacked)),
    ):
        listed = [list(a.ints) for a in node.attribute if a.name == name]
        if listed:
            _require_count(node, f"numbers in attribute {name!r}", len(listed[0]), count)
    axes = next((list(a.ints) for a in node.attribute if a.name == "scan_input_axes"), [0] * num_scanned)
    lengths = set()
    for axis, value in zip(axes, inputs[num_states:], strict=True):
        rank = 0 if value is None else len(value.shape)
        if value is None or not -rank <= axis < rank:
            raise _out_of_range(node, "scan_input_axes", axis, -rank, rank - 1)
        lengths.add(value.shape[axis])
    if len(lengths) > 1:
        raise ModelRejected(
            f"node {node_label(node)} scans inputs of {sorted(lengths)} steps, which must be the same; "
            "export the model again."
        )


def _body(node: NodeProto, name: str) -> GraphProto:
    for attribute in node.attribute:
        if attribute.name == name:
            return attribute.g
    raise ModelRejected(f"node {node_label(node)} has no attribute {name!r}; export the model again.")


def _require_one_element(node: NodeProto, inputs: Inputs, position: int) -> None:
    value = inputs[position] if position < len(inputs) else None
    if value is None or value.num_elements != 1:
        shape = "missing" if value is None else list(value.shape)
        raise ModelRejected(
            f"node {node_label(node)}: input {position} is {shape}, expected one element; "
            "export the model again."
        )


def _require_results(node: NodeProto, name: str, body: GraphProto, least: int) -> None:
    if len(body.output) < least:
        raise ModelRejected(
            f"node {node_label(node)}: attribute {name!r} gives {len(body.output)} results, but {least} "
            "are needed; export the model again."
        )


def _require_count(node: NodeProto, what: str, count: int, expected: int) -> None:
    if count != expected:
        raise ModelRejected(
            f"node {node_label(node)}: {count} {what}, expected {expected}; export the model again."
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
    "If": _if,
    "Loop": _loop,
    "Scan": _scan,
    "GatherND": _gather_nd,
    "LayerNormalization": _layer_normalization,
    "NegativeLogLikelihoodLoss": _loss_reduction,
    "RMSNormalization": _layer_normalization,
    "SoftmaxCrossEntropyLoss": _loss_reduction,
    "Split": _split,
}
