"""A chain of changes of shape is one."""

from __future__ import annotations

from typing import ClassVar

from tilewright.ir.graph import Graph, Node, Value
from tilewright.passes.base import PassResult
from tilewright.passes.canonicalise import reshape_to
from tilewright.passes.edit import Editor
from tilewright.passes.patterns import made_by
from tilewright.passes.rules import Rule, apply_rules
from tilewright.records import dataclass

_SHAPERS = ("Reshape", "Squeeze", "Unsqueeze", "Flatten")


@dataclass(frozen=True, slots=True)
class MergeReshapes:
    """Reshape, Squeeze, Unsqueeze and Flatten of one another read the first operand of the chain."""

    name: ClassVar[str] = "merge-reshapes"

    def run(self, graph: Graph) -> PassResult:
        """Edit the graph in place."""
        return apply_rules(graph, [Rule(_SHAPERS, _match, _build)])


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
