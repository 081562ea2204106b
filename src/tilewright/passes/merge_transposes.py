"""A chain of transpositions is one, or none."""

from __future__ import annotations

from tilewright.ir.graph import Node, Value
from tilewright.passes.edit import Editor
from tilewright.passes.patterns import made_by
from tilewright.passes.rules import Rule, RulePass
from tilewright.records import dataclass


@dataclass(frozen=True, slots=True)
class _Composed:
    source: Value
    perm: tuple[int, ...]


def permutation(node: Node) -> tuple[int, ...]:
    """The axes of a Transpose's operand in the order of its result's."""
    rank = len(node.output.shape)
    return node.ints_attr("perm") or tuple(reversed(range(rank)))


def _match(editor: Editor, node: Node) -> _Composed | None:
    inner = made_by(node.require(0), "Transpose")
    if inner is None:
        return None
    first = permutation(inner)
    return _Composed(inner.require(0), tuple(first[a] for a in permutation(node)))


def _build(editor: Editor, node: Node, found: _Composed) -> str:
    if found.perm == tuple(range(len(found.perm))):
        text = f"removed: it undoes the one before, and is {found.source.name}"
        if editor.replace(node.output, found.source):
            return text
    editor.become(node, "Transpose", [found.source], {"perm": found.perm})
    return f"transposes {found.source.name} at once"


class MergeTransposes(RulePass):
    """A Transpose of a Transpose reads the first operand, by the permutation of both.

    One that feeds a product stays: generated code reads its operands by strides.
    """

    name = "merge-transposes"
    rules = (Rule(("Transpose",), _match, _build),)
