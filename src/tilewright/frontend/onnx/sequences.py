"""Sequences inside a model: the nodes between tensors and tensors become one that runs on the host.

Values of a graph are tensors. Nodes that give or take sequences, and those between them, are put in a branch
of an `If` whose condition is true: a body may hold values of any type, and what enters and leaves it are
tensors. It stays whole, for its branch `holds_sequences`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, helper, numpy_helper

from tilewright.frontend.onnx.scope import unused
from tilewright.ir.bodies import body_graphs, free_names, own_names

_MAKERS = frozenset(
    {
        *("SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert", "SequenceMap"),
        "SplitToSequence",
    }
)


def holds_sequences(graph: GraphProto) -> bool:
    """Whether a body, or one inside it, makes a sequence."""
    return any(node.op_type in _MAKERS or any(map(holds_sequences, body_graphs(node))) for node in graph.node)


def group_sequences(model: ModelProto) -> None:
    """Put the sequences that a model has between its tensors into nodes, one for each set that is linked."""
    graph = model.graph
    if not holds_sequences(graph):
        return
    sequences = _sequence_names(graph, frozenset())
    if sequences.intersection(v.name for v in graph.output):
        return
    while sequences:
        _group(graph, sequences)
        left = _sequence_names(graph, frozenset())
        if len(left) >= len(sequences):
            return
        sequences = left


def _group(graph: GraphProto, sequences: Collection[str]) -> None:
    """Put the first sequence, and those that nodes have in common with it, into one node."""
    nodes = list(graph.node)
    touching = _together(nodes, sequences)
    behind = _reached(nodes, touching)
    before = _reached([*reversed(nodes)], [*reversed(touching)], backwards=True)[::-1]
    group = [t or (after and ahead) for t, after, ahead in zip(touching, behind, before, strict=True)]
    inside = [node for node, taken in zip(nodes, group, strict=True) if taken]
    first = [node for node, t, after in zip(nodes, group, behind, strict=True) if not t and not after]
    last = [node for node, t, after in zip(nodes, group, behind, strict=True) if not t and after]
    asked = {name for node in last for name in _reads(node)} | {v.name for v in graph.output}
    results = [name for node in inside for name in node.output if name in asked]
    del graph.node[:]
    if not results:  # nothing reads what is made of them
        graph.node.extend([*first, *last])
        return
    names = dict.fromkeys([*own_names(graph), *(n for node in inside for n in node.output)], 1)
    condition = unused("sequences/condition", names)
    label = unused("sequences", dict.fromkeys((node.name for node in nodes), 1))
    outputs = [helper.make_empty_tensor_value_info(name) for name in results]
    body = helper.make_graph(inside, label, [], outputs)
    node = helper.make_node("If", [condition], results, label, then_branch=body, else_branch=body)
    graph.initializer.append(numpy_helper.from_array(np.array(True), condition))
    graph.node.extend([*first, node, *last])


def _together(nodes: list[NodeProto], sequences: Collection[str]) -> list[bool]:
    """Of each node whether it touches the first sequence, or one that is linked with it by such a node."""
    touched = [{n for n in (*node.output, *_reads(node)) if n in sequences} for node in nodes]
    linked = set(next(names for names in touched if names))
    while any(names & linked and not names <= linked for names in touched):
        for names in touched:
            if names & linked:
                linked |= names
    return [bool(names & linked) for names in touched]


def _sequence_names(graph: GraphProto, given: Collection[str]) -> set[str]:
    """Names of values of a graph that are sequences, those that it is given included."""
    found = set(given)
    for node in graph.node:
        outputs = list(node.output)
        if node.op_type in _MAKERS:
            found.update(outputs[:1] if node.op_type != "SequenceMap" else outputs)
        elif node.op_type == "Identity":
            found.update(outputs if node.input[0] in found else ())
        elif node.op_type == "Loop":
            states = zip(outputs, node.input[2:], strict=False)
            found.update(name for name, state in states if state in found)
        elif node.op_type == "If":
            for body in body_graphs(node):
                inner = _sequence_names(body, found)
                pairs = zip(outputs, body.output, strict=False)
                found.update(name for name, value in pairs if value.name in inner)
    return found - {""}


def _reads(node: NodeProto) -> Iterator[str]:
    yield from node.input
    for body in body_graphs(node):
        yield from free_names(body)


def _reached(nodes: list[NodeProto], marked: list[bool], *, backwards: bool = False) -> list[bool]:
    """Of each node whether a marked one comes before it on a path; for reversed nodes, after it."""
    names: set[str] = set()
    reached = []
    for node, is_marked in zip(nodes, marked, strict=True):
        sources, results = set(_reads(node)) - {""}, set(node.output) - {""}
        if backwards:
            sources, results = results, sources
        is_reached = not names.isdisjoint(sources)
        if is_marked or is_reached:
            names |= results
        reached.append(is_reached)
    return reached
