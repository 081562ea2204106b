"""Operators of com.microsoft, which onnxruntime's optimiser writes, in terms of standard ones.

Each has a function here that writes its definition, for the static types of a node's inputs: no shape is
computed in the graph. The importer puts the definition in the node's place, as it does with those that ONNX
itself gives of composed operators; whether the nodes are fused again is for passes and planners to say.
"""

from __future__ import annotations

from collections.abc import Sequence

from onnx import FunctionProto, ModelProto, NodeProto, helper

from tilewright.errors import UnsupportedOp
from tilewright.frontend.onnx.microsoft.attention import ATTENTION
from tilewright.frontend.onnx.microsoft.definition import Definition
from tilewright.frontend.onnx.microsoft.fused import FUSED
from tilewright.frontend.onnx.microsoft.grouped import GROUPED
from tilewright.frontend.onnx.microsoft.quantized import QUANTIZED
from tilewright.frontend.onnx.protos import model_nodes, node_label
from tilewright.ir.graph import Value
from tilewright.suggestions import likely

DOMAIN = "com.microsoft"
_LAYOUT_DOMAIN = "com.microsoft.nchwc"
_DEFINITIONS = {**FUSED, **ATTENTION, **GROUPED, **QUANTIZED}

# onnxruntime writes these into ai.onnx, into models whose opset does not have them yet or which never has.
_LAYER_NORM_OPSET = 17
_MISPLACED = frozenset({"SimplifiedLayerNormalization"})


def definition_of(node: NodeProto, inputs: Sequence[Value | None]) -> FunctionProto:
    """What a node of another domain than ai.onnx is in terms of standard operators.

    Raises:
        UnsupportedOp: nobody knows, or not for these attributes.
        ModelRejected: the inputs do not fit the operator.
    """
    require_known(node)
    definition = Definition(node, inputs)
    return definition.function(_DEFINITIONS[node.op_type](definition))


def require_known(node: NodeProto) -> None:
    """Refuse a node of another domain than ai.onnx that has no definition, whatever its inputs are.

    Raises:
        UnsupportedOp: it has none.
    """
    if node.domain == _LAYOUT_DOMAIN:
        raise UnsupportedOp(
            f"node {node_label(node)} is of domain {node.domain!r}: onnxruntime laid out the model for one "
            "processor; save its optimised model at ORT_ENABLE_EXTENDED or below, or give the original."
        )
    if node.domain != DOMAIN:
        raise UnsupportedOp(
            f"node {node_label(node)} is of domain {node.domain!r}, but only ai.onnx and operators that "
            "onnxruntime's optimiser writes are supported; export the model with standard operators."
        )
    if node.op_type not in _DEFINITIONS:
        guess = likely(node.op_type, tuple(_DEFINITIONS))
        raise UnsupportedOp(
            f"node {node_label(node)}: {DOMAIN} {node.op_type} is not known"
            + (f"; {guess}? Else export" if guess else "; export")
            + " the model with standard operators."
        )


def place_operators(model: ModelProto) -> None:
    """Move operators that onnxruntime's optimiser writes into ai.onnx, which does not have them, to its own
    domain.
    """
    opset = next((e.version for e in model.opset_import if e.domain in ("", "ai.onnx")), 0)
    moved = _MISPLACED | ({"LayerNormalization"} if opset < _LAYER_NORM_OPSET else frozenset())
    found = [n for n in model_nodes(model) if n.op_type in moved and n.domain in ("", "ai.onnx")]
    for node in found:
        node.domain = DOMAIN
    if found and all(entry.domain != DOMAIN for entry in model.opset_import):
        model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
