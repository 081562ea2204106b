"""`AttributeProto` to the graph's attribute values."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import AttributeProto, NodeProto

from tilewright.errors import ModelRejected, UnsupportedOp
from tilewright.frontend.onnx.protos import node_label
from tilewright.frontend.onnx.tensors import embedded_array
from tilewright.ir.graph import Attribute, SubgraphAttribute


def import_attributes(node: NodeProto) -> dict[str, Attribute | SubgraphAttribute]:
    """All attributes of a node, by name.

    Raises:
        UnsupportedOp: an attribute kind that no supported operator has.
    """
    return {attribute.name: _value(attribute, node) for attribute in node.attribute}


def _value(attribute: AttributeProto, node: NodeProto) -> Attribute | SubgraphAttribute:
    where = f"attribute {attribute.name!r} of {node_label(node)}"
    if attribute.ref_attr_name or attribute.type == AttributeProto.UNDEFINED:
        raise ModelRejected(f"{where} has no value; export the model again.")
    match attribute.type:
        case AttributeProto.INT:
            return int(attribute.i)
        case AttributeProto.FLOAT:
            return float(attribute.f)
        case AttributeProto.STRING:
            return _text(attribute.s)
        case AttributeProto.INTS:
            return tuple(int(i) for i in attribute.ints)
        case AttributeProto.FLOATS:
            return tuple(float(f) for f in attribute.floats)
        case AttributeProto.STRINGS:
            return tuple(s.decode("utf-8", "surrogateescape") for s in attribute.strings)
        case AttributeProto.TENSOR:
            return embedded_array(attribute.t)
        case AttributeProto.GRAPH:
            return SubgraphAttribute(attribute.g.SerializeToString(deterministic=True))
    kind = AttributeProto.AttributeType.Name(attribute.type).lower()
    raise UnsupportedOp(f"{where} is of kind {kind}, which is not supported; export the model with tensors.")


def _text(data: bytes) -> str | bytes:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data


def constant_of(node: NodeProto) -> np.ndarray[Any, Any]:
    """The value of a `Constant` node.

    Raises:
        ModelRejected: it has none.
        UnsupportedOp: it is sparse.
    """
    if len(node.attribute) != 1:
        raise ModelRejected(f"node {node_label(node)} needs exactly one value; export the model again.")
    (name, value), *_ = import_attributes(node).items()
    match name:
        case "value" if isinstance(value, np.ndarray):
            return value
        case "value_float" | "value_floats":
            return np.array(value, dtype=np.float32)
        case "value_int" | "value_ints":
            return np.array(value, dtype=np.int64)
        case "value_string" | "value_strings":
            return np.array(value, dtype=object)
    raise ModelRejected(f"node {node_label(node)} has no value in {name!r}; export the model again.")
