"""Attention whose keys and values are repeated for groups of query heads."""

from __future__ import annotations

from tilewright.ir.graph import Node, Value
from tilewright.passes.edit import Editor
from tilewright.passes.patterns import made_by
from tilewright.passes.rules import Rule, RulePass


def _match(editor: Editor, node: Node) -> tuple[Value, Value] | None:
    if any(node.input(i) is not None for i in (4, 5)) or len(node.outputs) > 1:
        return None
    key, value = _shared(node.require(1)), _shared(node.require(2))
    if key is None or value is None or key.shape[1] != value.shape[1]:
        return None
    return key, value


def _shared(repeated: Value) -> Value | None:
    """The heads `[batch, groups, length, size]` of which each is there several times in a row."""
    merging = made_by(repeated, "Reshape")
    expand = None if merging is None else made_by(merging.require(0), "Expand")
    apart = None if expand is None else made_by(expand.require(0), "Reshape", "Unsqueeze")
    if expand is None or apart is None or len(apart.require(0).shape) != 4:
        return None
    source, copies = apart.require(0), expand.output.shape
    batch, groups, length, size = source.shape
    if apart.output.shape != (batch, groups, 1, length, size) or len(copies) != 5:
        return None
    if copies != (batch, groups, copies[2], length, size):
        return None
    return source if repeated.shape == (batch, groups * copies[2], length, size) else None


def _build(editor: Editor, node: Node, found: tuple[Value, Value]) -> str:
    query, _, _, *others = node.inputs
    editor.become(node, "Attention", [query, *found, *others], node.attributes, since=23)
    return f"reads {found[0].shape[1]} heads of keys where they lie"


class RecogniseGroups(RulePass):
    """Attention reads heads that query heads share as they are, instead of a copy for each query head.

    Exporters write the copies as an Expand between two reshapes.
    """

    name = "recognise-groups"
    rules = (Rule(("Attention",), _match, _build),)
