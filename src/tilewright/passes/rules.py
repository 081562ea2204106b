"""Rewrites: a function that matches, a function that builds, and the work list that applies them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from tilewright.errors import InternalError
from tilewright.ir.graph import Graph, Node
from tilewright.passes.base import PassResult, Remark
from tilewright.passes.edit import Editor, is_in_graph
from tilewright.progress import checkpoint
from tilewright.records import dataclass

M = TypeVar("M")

# A pass that edits more often than this per node feeds on its own results.
_MAX_CHANGES_PER_NODE = 20


@dataclass(frozen=True, slots=True)
class Kept:
    """A match that comes to nothing, and why: worth a remark."""

    reason: str


@dataclass(frozen=True, slots=True)
class Rule(Generic[M]):
    """One rewrite of nodes of the given operators.

    `match` says what it found around a node, why that must stay, or None; it edits nothing. `build` edits,
    and returns what it did, or None where the graph would not take the edit.
    """

    op_types: tuple[str, ...]
    match: Callable[[Editor, Node], M | Kept | None]
    build: Callable[[Editor, Node, M], str | None]
    domain: str = ""


@dataclass(frozen=True, slots=True)
class RulePass:
    """A pass without options that applies its rules."""

    name: ClassVar[str]
    rules: ClassVar[Sequence[Rule[Any]]]

    def run(self, graph: Graph) -> PassResult:
        """Edit the graph in place."""
        return apply_rules(graph, self.rules)


def apply_rules(graph: Graph, rules: Sequence[Rule[Any]]) -> PassResult:
    """Apply rules until none matches; the first rule that matches a node wins. Linear in edits and nodes.

    Raises:
        InternalError: the rules do not come to an end.
    """
    editor = Editor(graph)
    by_type: dict[str, list[Rule[Any]]] = {}
    for rule in rules:
        for op_type in rule.op_types:
            by_type.setdefault(op_type, []).append(rule)
    pending = deque(node for node in graph.nodes if node.op_type in by_type)
    waiting = set(pending)
    limit = _MAX_CHANGES_PER_NODE * (len(graph.nodes) + 1)
    changes = 0
    done: list[Remark] = []
    kept: dict[str, str] = {}
    while pending:
        checkpoint()
        node = pending.popleft()
        waiting.discard(node)
        if not is_in_graph(node):
            continue
        name = node.name
        for rule in by_type.get(node.op_type, ()):
            if rule.domain != node.domain:
                continue
            found = rule.match(editor, node)
            if isinstance(found, Kept):
                kept[name] = found.reason
                continue
            text = None if found is None else rule.build(editor, node, found)
            if text is None:
                continue
            changes += 1
            if changes > limit:
                raise InternalError(
                    f"rewrites of {node!r} do not come to an end ({text}); please report this."
                )
            done.append(Remark(name, text))
            kept.pop(name, None)
            for other in (node, *editor.take_touched()):
                if other.op_type in by_type and other not in waiting:
                    waiting.add(other)
                    pending.append(other)
            break
    remarks = (*done, *(Remark(name, f"kept: {reason}") for name, reason in kept.items()))
    return PassResult(changes, remarks)
