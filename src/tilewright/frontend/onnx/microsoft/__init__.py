"""Operators of com.microsoft, which onnxruntime's optimiser writes, in terms of standard ones.

Each has a function here that writes its definition, for the static types of a node's inputs: no shape is
computed in the graph. The importer puts the definition in the node's place, as it does with those that ONNX
itself gives of composed operators (`catalog`); whether the nodes are fused again is for passes and planners
to say.
"""

from __future__ import annotations

from onnx import ModelProto, helper

from tilewright.frontend.onnx.protos import model_nodes
from tilewright.ir.ops.registry import MICROSOFT_DOMAIN

DOMAIN = MICROSOFT_DOMAIN

# onnxruntime writes these into ai.onnx, into models whose opset does not have them yet or which never has.
_LAYER_NORM_OPSET = 17
_MISPLACED = frozenset({"SimplifiedLayerNormalization"})


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
