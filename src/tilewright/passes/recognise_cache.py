"""Attention whose keys and values are a cache and what is new, put together."""

from __future__ import annotations

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, Value
from tilewright.passes.edit import Editor
from tilewright.passes.patterns import made_by
from tilewright.passes.rules import Kept, Rule, RulePass
from tilewright.records import dataclass

_MAX_QUERIES = 8
"""Queries that read a cache once where it lies; products of more are apart from copies."""
_SIDES = ("left", "right")


@dataclass(frozen=True, slots=True)
class _Grown:
    """A past, what is new, and both."""

    past: Value
    new: Value
    whole: Value


def _match(editor: Editor, node: Node) -> tuple[_Grown, _Grown] | Kept | None:
    if any(node.input(i) is not None for i in (4, 5, 6)) or len(node.outputs) > 1:
        return None
    key, value = (_grown(node, node.require(position)) for position in (1, 2))
    if key is None or value is None:
        return None
    query, out = node.require(0), node.output
    if any(out in user.captures for user in out.users):
        return Kept("a control-flow body reads its result by name")
    if isinstance(key, Kept):
        return key
    if isinstance(value, Kept):
        return value
    if key.new.shape[2] != value.new.shape[2] or query.dtype is not DType.FLOAT32:
        return None
    if query.shape[2] > _MAX_QUERIES:
        return Kept(f"{query.shape[2]} queries read keys again and again")
    if node.int_attr("is_causal", 0) or max(node.int_attr(f"{s}_window_size", -1) for s in _SIDES) >= 0:
        return Kept("its queries count from the first key")
    return key, value


def _grown(node: Node, whole: Value) -> _Grown | Kept | None:
    concat = made_by(whole, "Concat")
    if concat is None or len(whole.shape) != 4 or len(concat.inputs) != 2:
        return None
    if concat.int_attr("axis", 0) not in (2, -2):
        return None
    if whole.users != (node,):
        return Kept("others read its cache too")
    past, new = concat.require(0), concat.require(1)
    return _Grown(past, new, whole)


def _build(editor: Editor, node: Node, found: tuple[_Grown, _Grown]) -> str:
    graph, (key, value) = editor.graph, found
    presents = [graph.value(f"{g.whole.name}_grown", g.whole.dtype, g.whole.shape) for g in found]
    out = graph.value(f"{node.output.name}_grown", node.output.dtype, node.output.shape)
    inputs = [node.require(0), key.new, value.new, node.input(3), key.past, value.past]
    shown = [v if editor.is_output(g.whole) else None for v, g in zip(presents, found, strict=True)]
    grown = Node("Attention", inputs, [out, *shown], node.attributes, opset=node.opset, name=node.name)
    graph.insert_before(node, grown)
    for old, new in ((node.output, out), *((g.whole, v) for g, v in zip(found, shown, strict=True))):
        if new is not None:
            editor.replace(old, new)
    return "its cache grows on the way"


class RecogniseCache(RulePass):
    """Attention over two Concat of a past and new positions becomes one with past keys and values.

    What it puts together are results of its own, for callers that keep them. Only for few queries: a kernel
    reads their cache once, and copies on the way.
    """

    name = "recognise-cache"
    rules = (Rule(("Attention",), _match, _build),)
