"""Attention over heads, with the projections, masks and caches that its operators take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.frontend.onnx.microsoft.definition import MAX_CONSTANT_ELEMENTS, Definition, Write
from tilewright.ir.dtype import DType

_HEADS_FIRST = (0, 2, 1, 3)


@dataclass(frozen=True, slots=True)
class _Side:
    """Queries, keys or values: `[batch, length, heads * size]`, or `[batch, heads, length, size]`."""

    name: str
    length: int
    size: int
    is_by_head: bool = False


@dataclass(frozen=True, slots=True)
class _Past:
    """Keys and values of earlier tokens, `[batch, heads, length, size]`."""

    key: str
    value: str
    length: int


@dataclass(frozen=True, slots=True)
class _Heads:
    """What attention is computed of."""

    batch: int
    count: int
    query: _Side
    key: _Side
    value: _Side
    past: _Past | None
    mask: str = ""  # the name of what is added to scores, empty for nothing

    @property
    def columns(self) -> int:
        """Keys that there are, earlier ones included."""
        return self.key.length + (0 if self.past is None else self.past.length)


def _attention(d: Definition) -> Sequence[str]:
    d.shape(1, 2)
    return _projected(d, "x0", "x1", mask=3, past=4, score_bias=5, past_length=6)


def _quantized_attention(d: Definition) -> Sequence[str]:
    d.shape(1, 2)
    x = d("DequantizeLinear", "x0", "x3", *filter(None, [d.name(6)]))
    weights = d("DequantizeLinear", "x1", "x4", *filter(None, [d.name(7)]), axis=1)
    return _projected(d, x, weights, mask=5, past=8)


def _projected(
    d: Definition,
    x: str,
    weights: str,
    *,
    mask: int,
    past: int,
    score_bias: int | None = None,
    past_length: int | None = None,
) -> Sequence[str]:
    """Attention of one input that a product turns into queries, keys and values."""
    batch, length, _ = d.shape(0, 3)
    columns, count = d.value(1).shape[1], d.whole("num_heads", 0)
    if past_length is not None:
        d.refuse_inputs({past_length: "past_sequence_length"})
    for name in ("do_rotary", "past_present_share_buffer"):
        d.support(not d.whole(name, 0), f"its attribute {name!r} is not supported")
    d.whole("rotary_embedding_dim", 0)
    sizes = d.wholes("qkv_hidden_sizes") or [columns // 3] * 3
    d.require(len(sizes) == 3 and sum(sizes) == columns, f"{columns} channels are not those of q, k and v")
    d.require(
        count >= 1 and all(s >= 1 and s % count == 0 for s in sizes), f"{count} heads do not divide them"
    )
    product = d("MatMul", x, weights)
    if d.has(2):
        product = d("Add", product, "x2")
    names = d.several("Split", product, d.whole_numbers(sizes), count=3, axis=2)
    query, key, value = (_Side(name, length, size // count) for name, size in zip(names, sizes, strict=True))
    heads = _Heads(batch, count, query, key, value, _stacked_past(d, past))
    heads = _masked(d, heads, mask, score_bias)
    result, *both = _attended(d, heads, with_present=d.wants(1))
    present = ""
    if d.wants(1):
        axis = d.whole_numbers([0])
        present = d("Concat", *(d("Unsqueeze", name, axis) for name in both), axis=0)
    return [result, present]


def _stacked_past(d: Definition, position: int) -> _Past | None:
    """Earlier keys and values as one tensor, `[2, batch, heads, length, size]`."""
    if not d.has(position):
        return None
    shape = d.shape(position, 5)
    d.require(shape[0] == 2, f"input {position} is {list(shape)}, not keys and values")
    axis = d.whole_numbers([0])
    key, value = (
        d("Squeeze", part, axis) for part in d.several("Split", f"x{position}", count=2, num_outputs=2)
    )
    return _Past(key, value, shape[3])


def _multi_head_attention(d: Definition) -> Sequence[str]:
    d.refuse_inputs({8: "past_sequence_length", 9: "cache_indirection"})
    d.support(not d.wants(3), "its result qk is not made")
    count = d.whole("num_heads", 0)
    d.require(count >= 1, "it needs num_heads of at least 1")
    batch = d.shape(0, 3, 5)[0]
    past = None
    if d.has(6) or d.has(7):
        past = _Past("x6", "x7", d.shape(6, 4)[2])
        d.shape(7, 4)
    heads = _masked(d, _Heads(batch, count, *_sides(d, count), past), 4, 5)
    return _attended(d, heads, with_present=d.wants(1) or d.wants(2))


def _decoder_attention(d: Definition) -> Sequence[str]:
    """One token after others: its keys and values go behind those of the past, or to its place there."""
    d.refuse_inputs({9: "cache_indirection"})
    d.support(not d.whole("output_qk", 0) and not d.wants(3), "its result qk is not made")
    d.has(8)  # how many beams there are, which nothing asks without a cache that is shared by beams
    count, (batch, length, _) = d.whole("num_heads", 0), d.shape(0, 3)
    d.require(count >= 1, "it needs num_heads of at least 1")
    d.require(length == 1, f"{length} tokens are more than one")
    query, key, value = _sides(d, count, bias=10)
    if not d.whole("past_present_share_buffer", 0):
        past = _Past("x5", "x6", d.shape(5, 4)[2]) if d.has(5) else None
        heads = _masked(d, _Heads(batch, count, query, key, value, past), 3, 4)
        return _attended(d, heads, with_present=d.wants(1) or d.wants(2))
    d.refuse_inputs({3: "mask_index beside a cache that is shared"})
    places, (_, _, room, _) = d.shape(5, 4)[2], d.shape(6, 4)
    d.require(places == room, f"its caches have {places} and {room} places")
    d.support(places <= MAX_CONSTANT_ELEMENTS, f"{places} keys are too many")
    d.value(7)
    own = d("Reshape", d("Cast", "x7", to=DType.INT64.value), d.whole_numbers([1, 1, 1, 1]))
    column = d.constant(np.arange(places, dtype=np.int64).reshape(1, 1, places, 1))
    heads = _Heads(batch, count, query, key, value, None)
    here = d("Equal", column, own)
    keys, values = (
        d("Where", here, _by_head(d, heads, side), past) for side, past in ((key, "x5"), (value, "x6"))
    )
    row = d("Reshape", column, d.whole_numbers([1, 1, 1, places]))
    zero, never = d.number(0.0, _dtype(d)), d.number(-np.inf, _dtype(d))
    mask = d("Where", d("LessOrEqual", row, own), zero, never)
    mask = d("Add", mask, "x4") if d.has(4) else mask
    sides = (
        _Side(keys, places, key.size, is_by_head=True),
        _Side(values, places, value.size, is_by_head=True),
    )
    d.real("mask_filter_value", 0.0)
    return _attended(d, _Heads(batch, count, query, *sides, None, mask), with_present=True)


def _sides(d: Definition, count: int, bias: int = 3) -> tuple[_Side, _Side, _Side]:
    """Queries, keys and values as they are given: separately, or packed into one tensor or two."""
    if len(d.shape(0)) == 5:
        query, key, value = _unpacked(d, 0, count, 3)
        return query, key, value
    query = _side(d, 0, "x0", count)
    if d.has(1) and len(d.shape(1)) == 5:
        d.support(not d.has(bias), "its bias beside packed keys and values is not supported")
        key, value = _unpacked(d, 1, count, 2)
        return query, key, value
    key, value = (_side(d, position, f"x{position}", count) for position in (1, 2))
    if not d.has(bias):
        return query, key, value
    d.support(not (key.is_by_head or value.is_by_head), "its bias beside keys by heads is not supported")
    sizes = [count * side.size for side in (query, key, value)]
    biases = d.several("Split", f"x{bias}", d.whole_numbers(sizes), count=3, axis=0)
    query, key, value = (
        _Side(d("Add", side.name, bias), side.length, side.size)
        for side, bias in zip((query, key, value), biases, strict=True)
    )
    return query, key, value


def _side(d: Definition, position: int, name: str, count: int) -> _Side:
    shape = d.shape(position, 3, 4)
    if len(shape) == 4:
        return _Side(name, shape[2], shape[3], is_by_head=True)
    d.require(shape[2] % count == 0, f"{count} heads do not divide {shape[2]} channels")
    return _Side(name, shape[1], shape[2] // count)


def _unpacked(d: Definition, position: int, count: int, parts: int) -> list[_Side]:
    """The parts of `[batch, length, heads, parts, size]`."""
    batch, length, heads, found, size = d.shape(position, 5)
    d.require(
        (heads, found) == (count, parts), f"input {position} does not hold {parts} parts of {count} heads"
    )
    d.support(not d.has(3), "its bias beside packed operands is not supported")
    shape = d.whole_numbers([batch, length, heads * size])
    split = d.several("Split", f"x{position}", count=parts, axis=3, num_outputs=parts)
    return [_Side(d("Reshape", part, shape), length, size) for part in split]


def _masked(d: Definition, heads: _Heads, mask: int, score_bias: int | None) -> _Heads:
    """The same heads with what is added to their scores."""
    terms = [_padding_mask(d, heads, mask)] if d.has(mask) else []
    d.real("mask_filter_value", 0.0)
    if score_bias is not None and d.has(score_bias):
        terms.append(f"x{score_bias}")
    if heads.past is not None and d.whole("unidirectional", 0):
        rows, columns = heads.query.length, heads.columns
        d.support(max(rows, columns) <= MAX_CONSTANT_ELEMENTS, f"{columns} keys are too many")
        own = d.constant(np.arange(rows)[:, None] + heads.past.length)
        later = d("Greater", d.constant(np.arange(columns)[None]), own)
        terms.append(d("Where", later, d.number(-np.inf, _dtype(d)), d.number(0.0, _dtype(d))))
    if not terms:
        return heads
    total = terms[0]
    for term in terms[1:]:
        total = d("Add", total, term)
    return _Heads(heads.batch, heads.count, heads.query, heads.key, heads.value, heads.past, total)


def _dtype(d: Definition) -> DType:
    """The type of scores: bytes are dequantised to float32."""
    dtype = d.value(0).dtype
    return dtype if dtype.is_float else DType.FLOAT32


def _padding_mask(d: Definition, heads: _Heads, position: int) -> str:
    """What is added to scores of keys that a mask of integers hides, `[batch, 1, 1 or queries, keys]`."""
    shape, name = d.shape(position, 1, 2, 3), f"x{position}"
    batch, columns = heads.batch, heads.columns
    if len(shape) == 1:
        d.support(shape in ((batch,), (2 * batch,)), f"its mask of shape {list(shape)} is not supported")
        visible = _within_ends(d, name, batch, columns, has_starts=shape == (2 * batch,))
        wanted = [batch, 1, 1, columns]
    else:
        visible = d("Greater", name, d.number(0, d.value(position).dtype))
        wanted = [batch, 1, *([1] if len(shape) == 2 else [heads.query.length]), columns]
    hidden = d.real("mask_filter_value", -10000.0)
    added = d("Where", visible, d.number(0.0, _dtype(d)), d.number(hidden, _dtype(d)))
    return d("Reshape", added, d.whole_numbers(wanted))


def _within_ends(d: Definition, name: str, batch: int, columns: int, *, has_starts: bool) -> str:
    """Which keys lie before the end of their sequence and, where starts follow the ends, not before those."""
    d.support(columns <= MAX_CONSTANT_ELEMENTS, f"{columns} keys are too many")
    place = d.constant(np.arange(columns, dtype=np.int32)[None])
    column = d.whole_numbers([batch, 1])
    ends, starts = name, ""
    if has_starts:
        ends, starts = d.several("Split", name, count=2, num_outputs=2)
    visible = d("Less", place, d("Reshape", ends, column))
    if not starts:
        return visible
    return d("And", visible, d("GreaterOrEqual", place, d("Reshape", starts, column)))


def _attended(d: Definition, heads: _Heads, *, with_present: bool) -> list[str]:
    """The result of attention, `[batch, length, channels]`, and all keys and values by head."""
    sides = [heads.query, heads.key, heads.value]
    is_by_head = with_present or heads.past is not None or any(side.is_by_head for side in sides)
    names = [_by_head(d, heads, side) if is_by_head else side.name for side in sides]
    if heads.past is not None:
        names[1] = d("Concat", heads.past.key, names[1], axis=2)
        names[2] = d("Concat", heads.past.value, names[2], axis=2)
    attributes: dict[str, float | int] = {}
    if scale := d.real("scale", 0.0):
        attributes["scale"] = scale
    if d.whole("unidirectional", 0) and heads.past is None:
        attributes["is_causal"] = 1
    if not is_by_head:
        attributes.update(q_num_heads=heads.count, kv_num_heads=heads.count)
    result = d("Attention", *names, *filter(None, [heads.mask]), **attributes)
    if is_by_head:
        channels = heads.count * heads.value.size
        turned = d("Transpose", result, perm=_HEADS_FIRST)
        result = d("Reshape", turned, d.whole_numbers([heads.batch, heads.query.length, channels]))
    return [result, names[1], names[2]]


def _by_head(d: Definition, heads: _Heads, side: _Side) -> str:
    if side.is_by_head:
        return side.name
    shape = d.whole_numbers([heads.batch, side.length, heads.count, side.size])
    return d("Transpose", d("Reshape", side.name, shape), perm=_HEADS_FIRST)


def _rotary_embedding(d: Definition) -> Sequence[str]:
    shape, table = d.shape(0, 3, 4), d.shape(2, 2)
    d.support(not d.whole("is_packed_batching", 0), "sequences packed into one batch are not supported")
    turned, heads = d.whole("rotary_embedding_dim", 0), d.whole("num_heads", 0)
    batch, length = shape[0], shape[1] if len(shape) == 3 else shape[2]
    if len(shape) == 3 and not heads:
        d.require(not turned and table[1] > 0, "rotary_embedding_dim needs num_heads")
        heads = shape[2] // (2 * table[1])
    positions = "x1"
    if len(d.shape(1, 1, 2)) == 1:
        d.support(length <= MAX_CONSTANT_ELEMENTS, f"{length} tokens are too many")
        steps = d.constant(np.arange(length, dtype=np.int64))
        positions = d("Expand", d("Add", steps, "x1"), d.whole_numbers([batch, length]))
    attributes = {"rotary_embedding_dim": turned} | ({"num_heads": heads} if len(shape) == 3 else {})
    interleaved = d.whole("interleaved", 0)
    result = d("RotaryEmbedding", "x0", "x2", "x3", positions, interleaved=interleaved, **attributes)
    scale = d.real("scale", 1.0)
    d.support(scale == 1.0, f"its scale {scale:g} is not supported")
    return [result]


ATTENTION: Mapping[str, Write] = {
    "Attention": _attention,
    "DecoderMaskedMultiHeadAttention": _decoder_attention,
    "MultiHeadAttention": _multi_head_attention,
    "QAttention": _quantized_attention,
    "RotaryEmbedding": _rotary_embedding,
}
