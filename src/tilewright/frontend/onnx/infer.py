"""Static types of one node's results, from static inputs and known small constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from onnx import NodeProto, TensorProto, TypeProto, defs, helper, numpy_helper

from tilewright.errors import ModelRejected, UnsupportedOp
from tilewright.frontend.onnx import native
from tilewright.frontend.onnx.inputs import Declaration, tensor_declaration
from tilewright.frontend.onnx.limits import MAX_SHAPE_ELEMENTS
from tilewright.frontend.onnx.protos import node_label, one_line
from tilewright.frontend.onnx.tensors import type_proto
from tilewright.ir.bodies import body_graphs
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Value


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
    # Omitted inputs at the end count for an operator that takes at least so many, as a Loop does.
    inputs = [*inputs, *[None] * (schema.min_input - len(inputs))]
    local, names = _localised(node, inputs, captures)
    types = {v.name: type_proto(v.dtype, v.shape) for v in captures}
    data: dict[str, TensorProto] = {}
    for name, value in zip(names, inputs, strict=True):
        if value is None:
            continue
        types[name] = type_proto(value.dtype, value.shape)
        if value.data is not None and value.num_elements <= MAX_SHAPE_ELEMENTS:
            data[name] = constant_proto(value.data, name)
    pairs = [
        *((name.encode(), kind.SerializeToString()) for name, kind in types.items()),
        *((name.encode(), tensor.SerializeToString()) for name, tensor in data.items()),
        *((domain.encode(), b"%d" % version) for domain, version in opsets.items()),
    ]
    counts = b"%d %d %d" % (len(types), len(data), len(opsets))
    texts = [text for pair in pairs for text in pair]
    operator = (schema.name.encode(), b"%d" % schema.since_version)
    try:
        found = native.call("infer_outputs", *operator, local.SerializeToString(), counts, *texts)
    except native.NativeError as error:
        message = one_line(error).removeprefix("[ShapeInferenceError] ")
        raise ModelRejected(f"node {node_label(node)} does not fit its inputs: {message}") from error
    kinds = {
        name.decode(): TypeProto.FromString(kind) for name, kind in zip(found[::2], found[1::2], strict=True)
    }
    return {
        name: _declaration(node, name, kinds.get(inside))
        for name, inside in zip(node.output, local.output, strict=True)
        if name
    }


def _localised(
    node: NodeProto, inputs: Sequence[Value | None], captures: Sequence[Value]
) -> tuple[NodeProto, list[str]]:
    """The node with names that say nothing, so that equal nodes are equal requests; and those of its inputs.

    Names that a body reads stay as they are.
    """
    has_bodies = any(True for _ in body_graphs(node))
    taken = {v.name: v.name for v in captures}
    names: list[str] = []
    for value in inputs:
        if value is None:
            names.append("")
        else:
            names.append(taken.setdefault(value.name, value.name if has_bodies else f"i{len(taken)}"))
    outputs = (
        list(node.output) if has_bodies else [f"o{i}" if name else "" for i, name in enumerate(node.output)]
    )
    local = NodeProto(op_type=node.op_type, domain=node.domain, input=names, output=outputs)
    local.attribute.extend(node.attribute)
    return local, names


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
