"""Nodes whose result is their first operand, element for element."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilewright.ir.graph import Node, Value
from tilewright.passes.edit import Editor
from tilewright.passes.patterns import operand_orders, scalar
from tilewright.passes.rules import Kept, Rule, RulePass


def _match(editor: Editor, node: Node) -> Value | Kept | None:
    if not node.inputs or len(list(node.results())) != 1:
        return None
    source = _IS_IDENTITY[node.op_type](editor, node)
    if source is None or source.shape != node.output.shape or source.dtype is not node.output.dtype:
        return None
    if editor.is_output(node.output) and (editor.is_output(source) or source.producer is None):
        return Kept("an output of its own needs it")
    return source


def _build(editor: Editor, node: Node, source: Value) -> str | None:
    text = f"removed: it is {source.name}"
    return text if editor.replace(node.output, source) else None


def _always(editor: Editor, node: Node) -> Value | None:
    return node.input(0)


def _dropout(editor: Editor, node: Node) -> Value | None:
    mode = node.input(2)
    training = mode is not None and scalar(editor, mode) != 0.0
    return None if training else node.input(0)


def _transpose(editor: Editor, node: Node) -> Value | None:
    x = node.require(0)
    perm = node.ints_attr("perm", tuple(reversed(range(len(x.shape))))) or ()
    # Moving axes of extent 1 moves nothing as long as the others keep their order.
    order = [a for a in perm if x.shape[a] != 1]
    return x if order == sorted(order) else None


def _neutral(number: float) -> Callable[[Editor, Node], Value | None]:
    def commutative(editor: Editor, node: Node) -> Value | None:
        return next((x for x, c in operand_orders(node) if scalar(editor, c) == number), None)

    return commutative


def _neutral_second(number: float) -> Callable[[Editor, Node], Value | None]:
    def second(editor: Editor, node: Node) -> Value | None:
        return node.input(0) if scalar(editor, node.input(1)) == number else None

    return second


def _pad(editor: Editor, node: Node) -> Value | None:
    pads = editor.data(node.input(1))
    if pads is None:
        return None
    return node.input(0) if not np.any(pads) else None


def _single(editor: Editor, node: Node) -> Value | None:
    return node.input(0) if len(node.inputs) == 1 else None


def _slice(editor: Editor, node: Node) -> Value | None:
    steps = editor.data(node.input(4))
    if node.input(4) is not None and (steps is None or np.any(steps != 1)):
        return None
    # With steps of 1, a result as large as the operand is the operand.
    return node.input(0)


_IS_IDENTITY: dict[str, Callable[[Editor, Node], Value | None]] = {
    "Identity": _always,
    "Dropout": _dropout,
    "Cast": _always,
    "CastLike": _always,
    "Transpose": _transpose,
    "Reshape": _always,
    "Squeeze": _always,
    "Unsqueeze": _always,
    "Flatten": _always,
    "Expand": _always,
    "Add": _neutral(0.0),
    "Sub": _neutral_second(0.0),
    "Mul": _neutral(1.0),
    "Div": _neutral_second(1.0),
    "Pow": _neutral_second(1.0),
    "Pad": _pad,
    "Concat": _single,
    "Sum": _single,
    "Max": _single,
    "Min": _single,
    "Mean": _single,
    "Slice": _slice,
}


class EliminateIdentity(RulePass):
    """Readers of such a node read its operand instead.

    Adding 0 to -0 gives 0, where the operand keeps its sign; nothing else changes a bit.
    """

    name = "eliminate-identity"
    rules = (Rule(tuple(_IS_IDENTITY), _match, _build),)
