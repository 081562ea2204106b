"""Bodies of control-flow operators, as ONNX messages: the names they read from outside."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping

from onnx import AttributeProto, GraphProto, NodeProto, defs


def body_graphs(node: NodeProto) -> Iterator[GraphProto]:
    """Graphs held by a node's attributes."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == AttributeProto.GRAPHS:
            yield from attribute.graphs


def own_names(graph: GraphProto) -> set[str]:
    """Names a graph defines itself: inputs, initializers, results (bodies inside it not included)."""
    names = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    names.update(tensor.values.name for tensor in graph.sparse_initializer)
    names.update(name for node in graph.node for name in node.output if name)
    return names


def free_names(graph: GraphProto) -> dict[str, None]:
    """Names a body reads from outside, in order of first use (a dict as an ordered set)."""
    inner = own_names(graph)
    free: dict[str, None] = {}
    for node in graph.node:
        free.update(dict.fromkeys(node.input))
        for body in body_graphs(node):
            free.update(free_names(body))
    free.update(dict.fromkeys(value.name for value in graph.output))
    return {name: None for name in free if name and name not in inner}


def rename_free(graph: GraphProto, renames: Mapping[str, str]) -> None:
    """Rename, in place, what a body reads from outside."""
    inner = own_names(graph)
    outer = {old: new for old, new in renames.items() if old not in inner and old != new}
    if not outer:
        return
    for node in graph.node:
        for index, name in enumerate(node.input):
            node.input[index] = outer.get(name, name)
        for body in body_graphs(node):
            rename_free(body, outer)
    for value in graph.output:
        value.name = outer.get(value.name, value.name)


def other_domains(graph: GraphProto) -> dict[str, int]:
    """Domains besides ai.onnx of a body's nodes, each at its newest version: what is imported of such
    domains, and how, does not depend on it."""
    found: dict[str, int] = {}
    for node in graph.node:
        if node.domain not in ("", "ai.onnx"):
            versions = [schema.since_version for schema in _schemas(node.domain)]
            found[node.domain] = max(versions, default=1)
        for body in body_graphs(node):
            found.update(other_domains(body))
    return found


@functools.cache
def _schemas(domain: str) -> tuple[defs.OpSchema, ...]:
    return tuple(schema for schema in defs.get_all_schemas() if schema.domain == domain)
