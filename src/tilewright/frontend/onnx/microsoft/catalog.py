"""Which operators of com.microsoft have a definition, and what a node of them is by it.

Few models have such nodes: the definitions load with the first one.
"""

from __future__ import annotations

from collections.abc import Sequence

from onnx import FunctionProto, NodeProto

from tilewright.errors import UnsupportedOp
from tilewright.frontend.onnx.microsoft import DOMAIN
from tilewright.frontend.onnx.microsoft.attention import ATTENTION
from tilewright.frontend.onnx.microsoft.definition import Definition
from tilewright.frontend.onnx.microsoft.fused import FUSED
from tilewright.frontend.onnx.microsoft.grouped import GROUPED
from tilewright.frontend.onnx.microsoft.quantized import QUANTIZED
from tilewright.frontend.onnx.protos import node_label
from tilewright.ir.graph import Value
from tilewright.suggestions import likely

_LAYOUT_DOMAIN = "com.microsoft.nchwc"
_DEFINITIONS = {**FUSED, **ATTENTION, **GROUPED, **QUANTIZED}


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
            f"node {node_label(node)} is of domain {node.domain!r}, but only ai.onnx, ai.onnx.ml and "
            "operators that onnxruntime's optimiser writes are supported; export the model with standard "
            "operators."
        )
    if node.op_type not in _DEFINITIONS:
        guess = likely(node.op_type, tuple(_DEFINITIONS))
        raise UnsupportedOp(
            f"node {node_label(node)}: {DOMAIN} {node.op_type} is not known"
            + (f"; {guess}? Else export" if guess else "; export")
            + " the model with standard operators."
        )
