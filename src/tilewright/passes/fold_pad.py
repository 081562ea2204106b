"""Explicit padding goes into the window operator that reads it."""

from __future__ import annotations

import math

from tilewright.ir.graph import Attribute, Node, SubgraphAttribute, Value
from tilewright.passes.edit import Editor
from tilewright.passes.patterns import made_by, scalar
from tilewright.passes.rules import Kept, Rule, RulePass
from tilewright.records import dataclass

# What each operator reads where its own padding is.
_FILL = {"Conv": 0.0, "AveragePool": 0.0, "MaxPool": -math.inf}


@dataclass(frozen=True, slots=True)
class _Padding:
    source: Value
    attributes: dict[str, Attribute | SubgraphAttribute]


def _match(editor: Editor, node: Node) -> _Padding | Kept | None:
    pad = made_by(node.require(0), "Pad")
    if pad is None:
        return None
    if pad.str_attr("mode", "constant") != "constant":
        return Kept("its padding is not constant")
    fill = 0.0 if pad.input(2) is None else scalar(editor, pad.input(2))
    widths = _widths(editor, pad)
    if fill != _FILL[node.op_type] or widths is None:
        return Kept(f"{node.op_type} does not pad with that")
    begin, end = widths
    if any(begin[:2]) or any(end[:2]) or min((*begin, *end)) < 0:
        return Kept("the padding is not around spatial axes only")
    if node.str_attr("auto_pad", "NOTSET") not in ("NOTSET", "VALID") or node.int_attr("ceil_mode", 0):
        return Kept("its own padding depends on the extents")
    rank = len(begin) - 2
    own = (0,) * (2 * rank)
    if node.str_attr("auto_pad", "NOTSET") == "NOTSET":
        own = node.ints_attr("pads", own) or own
    attributes = {k: v for k, v in node.attributes.items() if k != "auto_pad"}
    attributes["pads"] = tuple(a + b for a, b in zip(own, (*begin[2:], *end[2:]), strict=True))
    if node.op_type == "AveragePool":
        if any(own) and not node.int_attr("count_include_pad", 0):
            return Kept("it counts its own padding otherwise than what the Pad adds")
        attributes["count_include_pad"] = 1
    return _Padding(pad.require(0), attributes)


def _widths(editor: Editor, pad: Node) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """What a Pad adds before and after each axis."""
    given, axes = editor.data(pad.input(1)), editor.data(pad.input(3))
    if given is None or (pad.input(3) is not None and axes is None):
        return None
    rank = len(pad.output.shape)
    chosen = range(rank) if axes is None else [int(a) % rank for a in axes.ravel()]
    flat = [int(p) for p in given.ravel()]
    begin, end = [0] * rank, [0] * rank
    for position, axis in enumerate(chosen):
        begin[axis], end[axis] = flat[position], flat[position + len(flat) // 2]
    return tuple(begin), tuple(end)


def _build(editor: Editor, node: Node, found: _Padding) -> str:
    editor.become(node, node.op_type, [found.source, *node.inputs[1:]], found.attributes)
    return "took over the padding before it"


class FoldPad(RulePass):
    """A Pad of spatial axes with what Conv, AveragePool or MaxPool pads with goes into its own pads."""

    name = "fold-pad"
    rules = (Rule(tuple(_FILL), _match, _build),)
