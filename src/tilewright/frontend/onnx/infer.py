"""Static types of one node's results, from static inputs and known small constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from onnx import NodeProto, TensorProto, TypeProto, defs, helper, numpy_helper, shape_inference

from tilewright.errors import ModelRejected, UnsupportedOp
from tilewright.frontend.onnx.inputs import Declaration, tensor_declaration
from tilewright.frontend.onnx.protos import ONNX_ERRORS, node_label, one_line
from tilewright.frontend.onnx.tensors import type_proto
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Value

# Shapes, axes, pads, repeats, scales: whatever decides a shape is smaller than this.
_SMALL_ELEMENTS = 4096


def find_schema(node: NodeProto, opset: int) -> defs.OpSchema:
    """The definition of a node's operator in an ai.onnx version.

    Raises:
        UnsupportedOp: there is none, or it is deprecated.
    """
    try:
        schema = defs.get_schema(node.op_type, opset, "")
    except defs.SchemaError:
        raise UnsupportedOp(
            f"node {node_label(node)}: ai.onnx opset {opset} has no operator {node.op_type}; "
            "check the operator's name and the opset."
        ) from None
    if schema.deprecated:
        raise UnsupportedOp(
            f"node {node_label(node)}: {node.op_type} is deprecated in opset {opset}; "
            "export the model with its successor."
        )
    return schema


def infer_types(
    node: NodeProto,
    schema: defs.OpSchema,
    opsets: Mapping[str, int],
    inputs: Sequence[Value | None],
    captures: Sequence[Value],
) -> dict[str, Declaration | None]:
    """Declared type of each named output, as far as ONNX's shape inference knows it.

    `captures` are outer values that the node's bodies read. Input names are replaced by the values' own.

    Raises:
        ModelRejected: the inputs do not fit the operator.
        UnsupportedOp: a result is not a dense tensor.
    """
    local = NodeProto()
    local.CopyFrom(node)
    local.ClearField("input")
    local.input.extend("" if v is None else v.name for v in inputs)
    types: dict[str, TypeProto] = {v.name: type_proto(v.dtype, v.shape) for v in captures}
    data: dict[str, TensorProto] = {}
    for value in inputs:
        if value is None:
            continue
        types[value.name] = type_proto(value.dtype, value.shape)
        if value.data is not None and value.num_elements <= _SMALL_ELEMENTS:
            data[value.name] = constant_proto(value.data, value.name)
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    try:
        found = shape_inference.infer_node_outputs(schema, local, types, data, opset_imports=imports)
    except ONNX_ERRORS as error:
        message = one_line(error).removeprefix("[ShapeInferenceError] ")
        raise ModelRejected(f"node {node_label(node)} does not fit its inputs: {message}") from error
    return {name: _declaration(node, name, found.get(name)) for name in node.output if name}


def constant_proto(data: np.ndarray[tuple[int, ...], np.dtype[np.generic]], name: str) -> TensorProto:
    """A small array as an ONNX tensor."""
    if data.dtype == object:
        return helper.make_tensor(name, DType.STRING.value, data.shape, [str(x) for x in data.ravel()])
    return numpy_helper.from_array(np.ascontiguousarray(data).reshape(data.shape), name)


def _declaration(node: NodeProto, name: str, found: TypeProto | None) -> Declaration | None:
    kind = None if found is None else found.WhichOneof("value")
    if found is None or kind is None:
        return None
    if kind != "tensor_type":
        raise UnsupportedOp(
            f"node {node_label(node)} produces a {kind.removesuffix('_type').replace('_', ' ')}, but only "
            "dense tensors are supported; export the model with tensors."
        )
    return tensor_declaration(found.tensor_type, f"{name!r}, a result of {node_label(node)},")
