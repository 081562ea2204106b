"""Operators of domains other than ai.onnx: which are known, and what they are in terms of standard ones.

Few models have such nodes: the definitions of a domain load with the first one.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from onnx import FunctionProto, NodeProto

from tilewright.frontend.onnx import ml
from tilewright.ir.graph import Value


def definition_of(node: NodeProto, inputs: Sequence[Value | None]) -> FunctionProto:
    """What a node is in terms of standard operators and of our own.

    Raises:
        UnsupportedOp: it is not known, or not with these attributes.
        ModelRejected: the inputs do not fit the operator.
    """
    found: FunctionProto = _catalog(node).definition_of(node, inputs)
    return found


def require_known(node: NodeProto) -> None:
    """Refuse a node that has no definition, whatever its inputs are.

    Raises:
        UnsupportedOp: it has none.
    """
    _catalog(node).require_known(node)


def _catalog(node: NodeProto) -> Any:
    package = "ml" if node.domain == ml.DOMAIN else "microsoft"
    return import_module(f"tilewright.frontend.onnx.{package}.catalog")
