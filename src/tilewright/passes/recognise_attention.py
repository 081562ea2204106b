"""Scaled dot-product attention, as exporters spell it out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import prod

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, Value
from tilewright.ir.ops.attention import MASKED_ATTENTION
from tilewright.ir.ops.registry import INTERNAL_DOMAIN
from tilewright.passes.edit import Editor
from tilewright.passes.merge_transposes import permutation
from tilewright.passes.patterns import Scaled, made_by, operand_orders, product_with_scalar, scalar
from tilewright.passes.rules import Kept, Rule, RulePass
from tilewright.records import dataclass

_SWAPPED = (0, 1, 3, 2)
# No score of a finite computation comes near this: its exponential beside any other is zero.
_NEVER = -1e30


# Elements of a mask that is repeated for each image of a batch: each window of an image may have its own.
_MAX_MASK_ELEMENTS = 1 << 22
# Masks and reshapes between a softmax and its scores.
_MAX_DEPTH = 8


@dataclass(frozen=True, slots=True)
class _Attention:
    query: Value
    turned_key: Value  # `[batch, heads, size, length]`
    key: Value  # what it is made of, without a scalar factor
    perm: tuple[int, ...]  # the key's axes in the order `[batch, heads, length, size]`
    value: Value
    masks: tuple[Value | _Split, ...]
    scale: float


@dataclass(frozen=True, slots=True)
class _Split:
    """A constant mask of scores whose first axis is split into these two."""

    mask: Value
    extents: tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Masked:
    """Scaled scores below the masks that are added to them, and every value in between."""

    scores: Value
    masks: tuple[Value | _Split, ...]
    between: tuple[Value, ...]


def _match(editor: Editor, node: Node) -> _Attention | Kept | None:
    softmax = made_by(node.require(0), "Softmax")
    if softmax is None or len(node.output.shape) != 4 or softmax.int_attr("axis", -1) not in (-1, 3):
        return None
    masked = _below_masks(editor, softmax.require(0))
    scale = product_with_scalar(editor, masked.scores)
    scores = made_by(masked.scores if scale is None else scale.value, "MatMul")
    if scores is None or masked.scores.shape != softmax.require(0).shape:
        return None
    query, turned = _without_factor(editor, scores.require(0)), _without_factor(editor, scores.require(1))
    source = _turned(turned.value)
    if scores.output.shape[1] == 0:
        return None
    if source is None:
        return Kept("its keys are not transposed in the graph")
    between = {softmax.output, softmax.require(0), masked.scores, scores.output, *masked.between}
    if any(editor.sole_user(v) is None for v in between if v is not node.output):
        return Kept("its scores are read elsewhere too")
    value = node.require(1)
    fits = len(query.value.shape) == len(turned.value.shape) == len(value.shape) == 4
    if not fits or not query.value.shape[:2] == turned.value.shape[:2] == value.shape[:2]:
        return Kept("its heads do not match one to one")
    key = Scaled(source[0], 1.0)
    if editor.sole_user(turned.value) is not None:
        key = _without_factor(editor, key.value)
    number = 1.0 if scale is None else scale.constant
    number *= query.constant * turned.constant * key.constant
    if number == 0.0 or not math.isfinite(number) or query.value.dtype is not value.dtype:
        return None
    return _Attention(query.value, turned.value, key.value, source[1], value, masked.masks, number)


def _turned(value: Value) -> tuple[Value, tuple[int, ...]] | None:
    """Keys behind `[batch, heads, size, length]`, and their axes in the order in which attention takes them.

    The last two axes may be swapped between reshapes that merge the first two and split them again.
    """
    transpose = made_by(value, "Transpose")
    if transpose is not None:
        return transpose.require(0), tuple(permutation(transpose)[a] for a in _SWAPPED)
    reshape = made_by(value, "Reshape")
    inner = None if reshape is None else made_by(reshape.require(0), "Transpose")
    merging = None if inner is None else made_by(inner.require(0), "Reshape")
    if inner is None or merging is None or permutation(inner) != (0, 2, 1) or len(value.shape) != 4:
        return None
    key, (batch, heads, size, length) = merging.require(0), value.shape
    fits = key.shape == (batch, heads, length, size) and inner.output.shape == (batch * heads, size, length)
    return (key, tuple(range(4))) if fits else None


def _without_factor(editor: Editor, value: Value) -> Scaled:
    """A value that only this attention reads without the scalar that it is multiplied by."""
    scaled = product_with_scalar(editor, value) if editor.sole_user(value) is not None else None
    return scaled or Scaled(value, 1.0)


def _below_masks(editor: Editor, value: Value) -> _Masked:
    """What a softmax takes without the masks, added last first; reshapes that split the first axis are
    looked through."""
    masks: list[Value | _Split] = []
    between: list[Value] = []
    shape = value.shape
    found = _Masked(value, (), ())  # at the last value of four axes
    while True:
        reshape = made_by(value, "Reshape")
        if reshape is not None and _splits(shape, reshape.require(0).shape):
            between.append(value)
            value = reshape.require(0)
        else:
            pair = _mask_and_scores(editor, value, shape)
            if pair is None:
                return found
            between.append(value)
            masks.append(pair[0])
            value = pair[1]
        if value.shape == shape:
            found = _Masked(value, tuple(masks), tuple(between))


def _splits(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether `other` is these four axes, the first of them perhaps as two."""
    return other == shape or (len(other) == 5 and other[2:] == shape[1:] and other[0] * other[1] == shape[0])


def _mask_and_scores(
    editor: Editor, value: Value, shape: tuple[int, ...]
) -> tuple[Value | _Split, Value] | None:
    """The mask that is added to scores or selects from them, and the scores; `shape` is theirs unsplit."""
    total = made_by(value, "Add", "Where")
    if total is None:
        return None
    if total.op_type == "Where":
        visible, scores, lowest = (total.require(i) for i in range(3))
        pairs = [(scores, visible)] if _only_hides(editor, visible, lowest) else []
    else:
        pairs = list(operand_orders(total))
    for scores, mask in pairs:
        if scores.shape != value.shape or not _leads_to_scores(editor, scores, shape):
            continue
        if not 2 <= len(mask.shape) <= len(value.shape) or mask.shape[-1] != shape[-1]:
            continue
        if value.shape == shape:
            return mask, scores
        repeated = value.shape[0] * prod(mask.shape)
        if editor.data(mask) is not None and repeated <= _MAX_MASK_ELEMENTS:
            return _Split(mask, (value.shape[0], value.shape[1])), scores
    return None


def _leads_to_scores(editor: Editor, value: Value, shape: tuple[int, ...], depth: int = 0) -> bool:
    """Whether a value comes from a product, perhaps scaled, through masks and reshapes; a mask does not."""
    scaled = product_with_scalar(editor, value)
    if made_by(value if scaled is None else scaled.value, "MatMul") is not None:
        return True
    node = made_by(value, "Reshape", "Add", "Where")
    if node is None or depth == _MAX_DEPTH:
        return False
    if node.op_type == "Reshape":
        before = [v for v in [node.require(0)] if _splits(shape, v.shape)]
    else:
        operands = [node.require(1)] if node.op_type == "Where" else [node.require(0), node.require(1)]
        before = [v for v in operands if v.shape == value.shape]
    return any(_leads_to_scores(editor, v, shape, depth + 1) for v in before)


def _only_hides(editor: Editor, visible: Value, lowest: Value) -> bool:
    """Whether what is not visible has a weight of zero, and every query sees a key."""
    seen, number = editor.data(visible), scalar(editor, lowest)
    if seen is None or number is None or seen.ndim < 2:
        return False
    return number <= _NEVER and bool(seen.any(axis=-1).all())


def _build(editor: Editor, node: Node, found: _Attention) -> str:
    key = source = found.key
    if found.perm != tuple(range(4)):
        shape = tuple(source.shape[a] for a in found.perm)
        result = (f"{found.turned_key.name}_straight", source.dtype, shape)
        key = editor.insert(node, "Transpose", [source], result, {"perm": found.perm})
    masks = _added_up(editor, node, [_unsplit(editor, mask) for mask in found.masks])
    inputs, scale = [found.query, key, found.value, *masks], {"scale": found.scale}
    if len(masks) > 1:
        editor.become(node, MASKED_ATTENTION, inputs, scale, domain=INTERNAL_DOMAIN)
    else:
        editor.become(node, "Attention", inputs, scale, since=23)
    return f"recognised as Attention with scale {found.scale:g}"


def _unsplit(editor: Editor, mask: Value | _Split) -> Value:
    """A mask of scores of four axes."""
    if isinstance(mask, Value):
        return mask
    data = editor.data(mask.mask)
    assert data is not None
    data = data.reshape((1,) * (5 - data.ndim) + data.shape)
    outer = mask.extents if data.shape[:2] != (1, 1) else (1, 1)
    repeated = np.broadcast_to(data, (*outer, *data.shape[2:]))
    return editor.constant(repeated.reshape(prod(outer), *data.shape[2:]), mask.mask.dtype, mask.mask.name)


def _added_up(editor: Editor, node: Node, masks: Sequence[Value]) -> list[Value]:
    """The masks, in the order in which they are added; constants whose sum is no larger are one."""
    if len(masks) < 2:
        return list(masks)
    dtype = node.output.dtype
    first, *others = [_added(editor, mask, dtype) for mask in reversed(masks)]
    result = [first]
    for mask in others:
        data = editor.data(result[-1]), editor.data(mask)
        shape = np.broadcast_shapes(result[-1].shape, mask.shape)
        is_small = prod(shape) <= prod(result[-1].shape) + prod(mask.shape)
        if data[0] is not None and data[1] is not None and is_small:
            result[-1] = editor.constant(data[0] + data[1], dtype, f"{node.name}_mask")
        else:
            result.append(mask)
    return result


def _added(editor: Editor, mask: Value, dtype: DType) -> Value:
    """A mask as what is added: minus infinity where a constant one says that a key is not visible."""
    data = editor.data(mask)
    if mask.dtype is not DType.BOOL or data is None:
        return mask
    return editor.constant(np.where(data, 0.0, -math.inf), dtype, mask.name)


class RecogniseAttention(RulePass):
    """`softmax(q k^T * scale + mask) v` on `[batch, heads, length, size]` becomes one Attention.

    A scalar that queries or keys are multiplied by becomes part of the scale. Masks may be added one after
    the other, also to scores whose first axis is split: windows of an image, which have masks of their own.
    With several that stay it is a MaskedAttention of ours. A constant Where that puts the lowest number in
    place of forbidden scores is a mask too, if it leaves every query a key: their exponentials are zero
    either way. A row whose scores are all minus infinity gives zeros, where the separate operators give NaN.
    """

    name = "recognise-attention"
    rules = (Rule(("MatMul",), _match, _build),)
