"""A chain of changes of shape is one."""

from __future__ import annotations

from tilewright.ir.graph import Node, Value
from tilewright.passes.canonicalise import reshape_to
from tilewright.passes.edit import Editor
from tilewright.passes.patterns import made_by
from tilewright.passes.rules import Rule, RulePass

_SHAPERS = ("Reshape", "Squeeze", "Unsqueeze", "Flatten")


def _match(editor: Editor, node: Node) -> Value | None:
    inner = made_by(node.require(0), *_SHAPERS)
    return None if inner is None else inner.require(0)


def _build(editor: Editor, node: Node, source: Value) -> str:
    if source.shape == node.output.shape:
        text = f"removed: its shape is that of {source.name}"
        if editor.replace(node.output, source):
            return text
    reshape_to(editor, node, source, node.output.shape)
    return f"reshapes {source.name} at once"


class MergeReshapes(RulePass):
    """Reshape, Squeeze, Unsqueeze and Flatten of one another read the first operand of the chain."""

    name = "merge-reshapes"
    rules = (Rule(_SHAPERS, _match, _build),)
