"""Which operators of com.microsoft have a definition, and why others have none."""

from __future__ import annotations

from collections.abc import Mapping

from onnx import NodeProto

from tilewright.errors import UnsupportedOp
from tilewright.frontend.onnx.microsoft import DOMAIN
from tilewright.frontend.onnx.microsoft.attention import ATTENTION
from tilewright.frontend.onnx.microsoft.fused import FUSED
from tilewright.frontend.onnx.microsoft.grouped import GROUPED
from tilewright.frontend.onnx.microsoft.packed import PACKED
from tilewright.frontend.onnx.microsoft.positions import POSITIONS
from tilewright.frontend.onnx.microsoft.quantized import QUANTIZED
from tilewright.frontend.onnx.protos import node_label

_LAYOUT_DOMAIN = "com.microsoft.nchwc"
DEFINITIONS = {**FUSED, **ATTENTION, **GROUPED, **PACKED, **POSITIONS, **QUANTIZED}
NATIVE = ("DynamicQuantizeLSTM",)
"""Operators that need no definition: the registry has them."""
NAMES = sorted([*DEFINITIONS, *NATIVE])

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


def refuse(node: NodeProto) -> None:
    """Refuse a node of a domain that nothing defines, or of an operator that has a reason.

    Raises:
        UnsupportedOp: it is one.
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
