"""Which operators of com.microsoft have a definition, and what a node of them is by it.

Few models have such nodes: the definitions load with the first one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onnx import FunctionProto, NodeProto

from tilewright.errors import UnsupportedOp
from tilewright.frontend.onnx.microsoft import DOMAIN
from tilewright.frontend.onnx.microsoft.attention import ATTENTION
from tilewright.frontend.onnx.microsoft.definition import Definition
from tilewright.frontend.onnx.microsoft.fused import FUSED
from tilewright.frontend.onnx.microsoft.grouped import GROUPED
from tilewright.frontend.onnx.microsoft.packed import PACKED
from tilewright.frontend.onnx.microsoft.positions import POSITIONS
from tilewright.frontend.onnx.microsoft.quantized import QUANTIZED
from tilewright.frontend.onnx.protos import node_label
from tilewright.ir.graph import Value
from tilewright.text.suggestions import misspelt

_LAYOUT_DOMAIN = "com.microsoft.nchwc"
_DEFINITIONS = {**FUSED, **ATTENTION, **GROUPED, **PACKED, **POSITIONS, **QUANTIZED}
NATIVE = ("DynamicQuantizeLSTM",)
"""Operators that need no definition: the registry has them."""

_GENERATES = "it generates sequences by a loop of its own; run the decoder that it holds, a token at a time"
_ON_ONE_DEVICE = "its operands are laid out for one kernel of a GPU; give the model as it was before"
REFUSED: Mapping[str, str] = {
    "BeamSearch": _GENERATES,
    "DecoderMaskedSelfAttention": _ON_ONE_DEVICE,
    "GreedySearch": _GENERATES,
    "LongformerAttention": "it attends within a window and to tokens that data choose; export full attention",
    "MoE": "data choose its experts; export the model with standard operators",
    "PagedAttention": "its cache is blocks of memory of a server; use GroupQueryAttention",
    "QMoE": "data choose its experts; export the model with standard operators",
    "QOrderedAttention": _ON_ONE_DEVICE,
    "QOrderedGelu": _ON_ONE_DEVICE,
    "QOrderedLayerNormalization": _ON_ONE_DEVICE,
    "QOrderedMatMul": _ON_ONE_DEVICE,
    "RemovePadding": "data say how many rows it leaves; give the model as it was before the packing mode",
    "Sampling": _GENERATES,
    "SparseAttention": "data say which blocks it attends to; export full attention",
    "WhisperBeamSearch": _GENERATES,
}
"""Operators that onnxruntime's tools write and that have no definition, and what to do instead."""


def supported_names() -> list[str]:
    """Operators of com.microsoft that have a definition, or need none."""
    return sorted([*_DEFINITIONS, *NATIVE])


def definition_of(node: NodeProto, inputs: Sequence[Value | None]) -> FunctionProto:
    """What a node of another domain than ai.onnx is in terms of standard operators.

    Raises:
        UnsupportedOp: the operator is not known, or not with these attributes.
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
    if node.op_type in REFUSED:
        raise UnsupportedOp(
            f"node {node_label(node)}: {DOMAIN} {node.op_type} is not supported: {REFUSED[node.op_type]}."
        )
    if node.op_type not in _DEFINITIONS and node.op_type not in NATIVE:
        guess = misspelt(node.op_type, supported_names())
        raise UnsupportedOp(
            f"node {node_label(node)}: {DOMAIN} {node.op_type} is not known"
            + (f"; did you mean {guess}? Else export" if guess else "; export")
            + " the model with standard operators."
        )
