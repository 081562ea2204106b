"""Scaled dot-product attention, as exporters spell it out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.ir.graph import Graph, Node, Value
from tilewright.passes.base import PassResult
from tilewright.passes.edit import Editor
from tilewright.passes.merge_transposes import permutation
from tilewright.passes.patterns import made_by, operand_orders, product_with_scalar, scalar
from tilewright.passes.rules import Kept, Rule, apply_rules

_SWAPPED = (0, 1, 3, 2)
# No score of a finite computation comes near this: its exponential beside any other is zero.
_NEVER = -1e30


@dataclass(frozen=True, slots=True)
class RecogniseAttention:
    """`softmax(q k^T * scale + mask) v` on `[batch, heads, length, size]` becomes one Attention.

    A constant Where that puts the lowest number in place of forbidden scores is a mask too, if it leaves
    every query a key: their exponentials are zero either way. A row whose scores are all minus infinity
    gives zeros, where the separate operators give NaN.
    """

    name: ClassVar[str] = "recognise-attention"

    def run(self, graph: Graph) -> PassResult:
        """Edit the graph in place."""
        return apply_rules(graph, [Rule(("MatMul",), _match, _build)])


@dataclass(frozen=True, slots=True)
class _Attention:
    query: Value
    turned_key: Node  # the Transpose whose last two axes are `[size, length]`
    value: Value
    mask: Value | None
    scale: float


def _match(editor: Editor, node: Node) -> _Attention | Kept | None:
    softmax = made_by(node.require(0), "Softmax")
    if softmax is None or len(node.output.shape) != 4 or softmax.int_attr("axis", -1) not in (-1, 3):
        return None
    mask, scaled = _mask_and_scores(editor, softmax.require(0))
    scale = product_with_scalar(editor, scaled)
    scores = made_by(scaled if scale is None else scale.value, "MatMul")
    if scores is None:
        return None
    query, turned = scores.require(0), scores.require(1)
    transpose = made_by(turned, "Transpose")
    if transpose is None:
        return Kept("its keys are not transposed in the graph")
    between = {v for v in (softmax.output, softmax.require(0), scaled, scores.output) if v is not node.output}
    if any(editor.sole_user(v) is None for v in between):
        return Kept("its scores are read elsewhere too")
    value = node.require(1)
    fits = len(query.shape) == len(turned.shape) == len(value.shape) == 4
    if not fits or not query.shape[:2] == turned.shape[:2] == value.shape[:2]:
        return Kept("its heads do not match one to one")
    number = 1.0 if scale is None else scale.constant
    if number == 0.0 or query.dtype is not value.dtype:
        return None
    return _Attention(query, transpose, value, mask, number)


def _mask_and_scores(editor: Editor, value: Value) -> tuple[Value | None, Value]:
    """The mask that is added to scaled scores or selects from them, and those, or no mask."""
    total = made_by(value, "Add", "Where")
    if total is None:
        return None, value
    if total.op_type == "Where":
        visible, scores, lowest = (total.require(i) for i in range(3))
        pairs = [(scores, visible)] if _only_hides(editor, visible, lowest) else []
    else:
        pairs = list(operand_orders(total))
    for scores, mask in pairs:
        scaled = product_with_scalar(editor, scores)
        product = made_by(scores if scaled is None else scaled.value, "MatMul")
        fits = 2 <= len(mask.shape) <= 4 and mask.shape[-1] == value.shape[-1]
        if product is not None and fits and scores.shape == value.shape:
            return mask, scores
    return None, value


def _only_hides(editor: Editor, visible: Value, lowest: Value) -> bool:
    """Whether what is not visible has a weight of zero, and every query sees a key."""
    seen, number = editor.data(visible), scalar(editor, lowest)
    if seen is None or number is None or seen.ndim < 2:
        return False
    return number <= _NEVER and bool(seen.any(axis=-1).all())


def _build(editor: Editor, node: Node, found: _Attention) -> str:
    turned = found.turned_key
    source = turned.require(0)
    perm = tuple(permutation(turned)[a] for a in _SWAPPED)
    key = source
    if perm != tuple(range(4)):
        shape = tuple(source.shape[a] for a in perm)
        result = (f"{turned.output.name}_straight", source.dtype, shape)
        key = editor.insert(node, "Transpose", [source], result, {"perm": perm})
    inputs = [found.query, key, found.value, *([] if found.mask is None else [found.mask])]
    editor.become(node, "Attention", inputs, {"scale": found.scale}, since=23)
    return f"recognised as Attention with scale {found.scale:g}"
