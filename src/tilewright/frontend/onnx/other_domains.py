"""Operators of domains other than ai.onnx: which are known, and what they are in terms of standard ones.

Few models have such nodes: the definitions of a domain load with the first one.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from onnx import FunctionProto, NodeProto

from tilewright.errors import ModelRejected, UnsupportedOp
from tilewright.frontend.onnx import ml
from tilewright.frontend.onnx.protos import node_label, one_line
from tilewright.ir.graph import Value
from tilewright.text.suggestions import misspelt


def definition_of(node: NodeProto, inputs: Sequence[Value | None]) -> FunctionProto:
    """What a node is in terms of standard operators and of our own.

    Raises:
        UnsupportedOp: it is not known, or not with these attributes.
        ModelRejected: the inputs do not fit the operator.
    """
    from tilewright.frontend.onnx.microsoft.definition import Definition

    require_known(node)
    definition = Definition(node, inputs)
    try:
        return definition.function(_catalog(node).DEFINITIONS[node.op_type](definition))
    except (ArithmeticError, LookupError, ValueError) as error:
        # Lists that do not fit each other, where a definition did not say so itself.
        raise ModelRejected(
            f"node {node_label(node)} does not take its attributes ({one_line(error)}); export the model "
            "again."
        ) from error


def require_known(node: NodeProto) -> None:
    """Refuse a node that has no definition, whatever its inputs are.

    Raises:
        UnsupportedOp: it has none.
    """
    catalog = _catalog(node)
    catalog.refuse(node)
    if node.op_type not in catalog.NAMES:
        guess = misspelt(node.op_type, catalog.NAMES)
        raise UnsupportedOp(
            f"node {node_label(node)}: {node.domain} {node.op_type} is not known"
            + (f"; did you mean {guess}? Else export" if guess else "; export")
            + " the model with standard operators."
        )


def _catalog(node: NodeProto) -> Any:
    """A module with the domain's `DEFINITIONS`, all `NAMES` that load, and what else it has to `refuse`."""
    package = "ml" if node.domain == ml.DOMAIN else "microsoft"
    return import_module(f"tilewright.frontend.onnx.{package}.catalog")
