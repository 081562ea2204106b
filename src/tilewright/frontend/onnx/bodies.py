"""Bodies: ONNX's own definitions of composed operators, and what control-flow bodies read from outside."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto, defs, helper

from tilewright.errors import ModelRejected, UnsupportedOp
from tilewright.frontend.onnx import native
from tilewright.frontend.onnx.protos import node_label, one_line
from tilewright.frontend.onnx.tensors import type_proto
from tilewright.ir.bodies import body_graphs, free_names, own_names, rename_free
from tilewright.ir.graph import Value


def function_body(
    node: NodeProto, schema: defs.OpSchema, opset: int, inputs: Sequence[Value | None]
) -> FunctionProto | None:
    """The operator's definition in terms of other operators, None if ONNX gives none for these types.

    References to the node's attributes are replaced by their values.
    """
    body = _defined_body(node, schema, opset, inputs)
    if body is None:
        return None
    given = {name: a.default_value for name, a in schema.attributes.items() if a.default_value.name}
    given.update({attribute.name: attribute for attribute in body.attribute_proto})
    given.update({attribute.name: attribute for attribute in node.attribute})
    for inner in body.node:
        _substitute(inner, given)
    return body


def _defined_body(
    node: NodeProto, schema: defs.OpSchema, opset: int, inputs: Sequence[Value | None]
) -> FunctionProto | None:
    if schema.has_context_dependent_function:
        versions = [v for v in schema.context_dependent_function_opset_versions if v <= opset]
        types = [
            b"" if v is None else type_proto(v.dtype, v.shape).SerializeToString(deterministic=True)
            for v in inputs
        ]
        if versions:
            operator = (schema.name.encode(), b"%d" % schema.since_version, b"%d" % max(versions))
            try:
                data = native.call(
                    "composed_body", *operator, node.SerializeToString(deterministic=True), *types
                )
            except native.NativeError as error:
                raise ModelRejected(
                    f"node {node_label(node)} does not fit its inputs: {one_line(error)}"
                ) from error
            if data:
                return FunctionProto.FromString(data[0])
    if schema.has_function:
        versions = [v for v in schema.function_opset_versions if v <= opset]
        if versions:
            return FunctionProto.FromString(schema.get_function_with_opset_version(max(versions)))
    return None


def _substitute(node: NodeProto, given: Mapping[str, AttributeProto]) -> None:
    kept: list[AttributeProto] = []
    for attribute in node.attribute:
        if attribute.ref_attr_name:
            if attribute.ref_attr_name not in given:
                continue  # An optional attribute that the outer node does not set either.
            value = AttributeProto()
            value.CopyFrom(given[attribute.ref_attr_name])
            value.name = attribute.name
            kept.append(value)
        else:
            kept.append(attribute)
    del node.attribute[:]
    node.attribute.extend(kept)
    for graph in body_graphs(node):
        for inner in graph.node:
            _substitute(inner, given)


def bind_captures(
    node: NodeProto, find: Callable[[str], Value | None]
) -> tuple[NodeProto, tuple[Value, ...]]:
    """The node with its bodies reading outer values by those values' own names, and the values read.

    Raises:
        UnsupportedOp: a body has a name of its own that equals such a name.
    """
    renames: dict[str, str] = {}
    captures: dict[Value, None] = {}
    for graph in body_graphs(node):
        for name in free_names(graph):
            value = find(name)
            if value is not None:
                renames[name] = value.name
                captures[value] = None
    return _reading(node, renames), tuple(captures)


def branch_of(node: NodeProto, condition: bool) -> GraphProto:
    """The branch that an `If` takes."""
    wanted = "then_branch" if condition else "else_branch"
    return next(attribute.g for attribute in node.attribute if attribute.name == wanted)


def inlined(branch: GraphProto, names: Mapping[str, str], results: Sequence[str]) -> list[NodeProto]:
    """The nodes of a branch as they stand outside of it, under new names, and copies that give its results.

    Raises:
        UnsupportedOp: as `bind_captures`, of a body among them.
    """
    nodes = [helper.make_node("Constant", [], [names[t.name]], value=t) for t in branch.initializer]
    for node in branch.node:
        renamed = NodeProto()
        renamed.CopyFrom(_reading(node, names))
        renamed.input[:] = [names.get(name, name) for name in node.input]
        renamed.output[:] = [names.get(name, name) for name in node.output]
        nodes.append(renamed)
    for value, result in zip(branch.output, results, strict=True):
        if result:
            nodes.append(helper.make_node("Identity", [names.get(value.name, value.name)], [result]))
    return nodes


def _reading(node: NodeProto, renames: Mapping[str, str]) -> NodeProto:
    """The node with its bodies reading outer values by other names."""
    if all(old == new for old, new in renames.items()) or not any(body_graphs(node)):
        return node
    renamed = NodeProto()
    renamed.CopyFrom(node)
    for graph in body_graphs(renamed):
        clash = sorted(own_names(graph).intersection(new for old, new in renames.items() if old != new))
        if clash:
            raise UnsupportedOp(
                f"node {node_label(node)}: the name {clash[0]!r} in its body is also that of an outer value; "
                "rename one of them."
            )
        rename_free(graph, renames)
    return renamed
