"""GroupQueryAttention: heads of queries share one of keys and values, which lie in a cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from tilewright.frontend.onnx.microsoft.definition import MAX_CONSTANT_ELEMENTS, Definition, Write
from tilewright.ir.dtype import DType

_HEADS_FIRST = (0, 2, 1, 3)


@dataclass(frozen=True, slots=True)
class _Tokens:
    """How many there are: `length` new ones behind `past` places of a cache, which then has `total` places.

    `before` names how many of each sequence come before the new ones, int64 `[batch, 1]`.
    """

    batch: int
    length: int
    past: int
    total: int
    before: str


def _group_query_attention(d: Definition) -> Sequence[str]:
    for position, name in {12: "k_scale", 13: "v_scale", 14: "q_norm_weight", 15: "k_norm_weight"}.items():
        d.refuse_inputs({position: name})
    d.support(d.whole("qk_output", 0) <= 0, "its attribute 'qk_output' is not supported")
    for name in ("k_quant_type", "v_quant_type"):
        d.support(d.text(name) in ("", "NONE"), f"its attribute {name!r} is not supported")
    d.support(d.whole("causal", 1) == 1, "its attribute 'causal' is not supported")
    d.support(not d.whole("sliding_window_cache", 0), "its attribute 'sliding_window_cache' is not supported")
    for name in ("q_norm_epsilon", "k_norm_epsilon", "qk_norm_epsilon"):
        d.real(name, 0.0)
    d.whole("kv_cache_bit_width", 0)
    count, shared = d.whole("num_heads", 0), d.whole("kv_num_heads", 0)
    d.require(shared >= 1 and count >= 1 and count % shared == 0, f"{shared} heads do not serve {count}")
    query, key, value, size = _operands(d, count, shared)
    tokens = _tokens(d, shared, size)
    query, key, value = (
        _by_head(d, tokens, name, heads, size)
        for name, heads in ((query, count), (key, shared), (value, shared))
    )
    is_interleaved = d.whole("rotary_interleaved", 0)
    if d.whole("do_rotary", 0):
        query, key = (_rotated(d, tokens, name, size, is_interleaved) for name in (query, key))
    keys, values = (
        _with_past(d, tokens, name, past, shared, size) for name, past in ((key, "x3"), (value, "x4"))
    )
    mask = _mask(d, tokens)
    attributes = {"scale": scale} if (scale := d.real("scale", 0.0)) else {}
    if cap := d.real("softcap", 0.0):
        attributes["softcap"] = cap
    shown = keys, values
    if d.has(11) or d.whole("smooth_softmax", 0) > 0:
        keys, values, mask = _with_sink(d, tokens, keys, values, mask, (count, shared, size))
    result = d("Attention", query, keys, values, mask, **attributes)
    turned = d("Transpose", result, perm=_HEADS_FIRST)
    shape = d.whole_numbers([tokens.batch, tokens.length, count * size])
    return [d("Reshape", turned, shape), *shown]


def _with_sink(
    d: Definition, tokens: _Tokens, keys: str, values: str, mask: str, heads: tuple[int, int, int]
) -> tuple[str, str, str]:
    """A key more, of zeros, whose score is its mask: what each head gives to no token."""
    count, shared, size = heads
    nothing = d("Expand", d.number(0, d.value(0).dtype), d.whole_numbers([tokens.batch, shared, 1, size]))
    keys, values = (d("Concat", name, nothing, axis=2) for name in (keys, values))
    dtype = d.value(0).dtype
    column = d.number(0, dtype)
    if d.has(11):
        d.require(d.shape(11, 1)[0] == count, f"input 11 is {list(d.shape(11))}, not {[count]}")
        column = d("Reshape", d("Cast", "x11", to=dtype.value), d.whole_numbers([1, count, 1, 1]))
    sink = d("Expand", column, d.whole_numbers([tokens.batch, count, tokens.length, 1]))
    wide = d("Expand", mask, d.whole_numbers([tokens.batch, count, tokens.length, tokens.total]))
    return keys, values, d("Concat", wide, sink, axis=3)


def _operands(d: Definition, count: int, shared: int) -> tuple[str, str, str, int]:
    """Queries, keys and values as `[batch, length, heads * size]`, and the size of a head."""
    columns = d.shape(0, 3)[2]
    if d.has(1):
        d.require(columns % count == 0, f"{count} heads do not divide {columns} channels")
        size = columns // count
        for position in (1, 2):
            found = d.shape(position, 3)[2]
            d.require(found == shared * size, f"input {position} has {found} channels, not {shared * size}")
        return "x0", "x1", "x2", size
    heads = count + 2 * shared
    d.require(columns % heads == 0, f"{heads} heads do not divide {columns} channels")
    size = columns // heads
    parts = d.whole_numbers([count * size, shared * size, shared * size])
    query, key, value = d.several("Split", "x0", parts, count=3, axis=2)
    return query, key, value, size


def _tokens(d: Definition, shared: int, size: int) -> _Tokens:
    batch, length, _ = d.shape(0, 3)
    past = 0
    if d.has(3):
        past = d.shape(3, 4)[2]
        for position in (3, 4):
            found, expected = d.shape(position, 4), (batch, shared, past, size)
            d.require(found == expected, f"input {position} is {list(found)}, not {list(expected)}")
    given, column = d.value(6).data, d.whole_numbers([batch, 1])
    ends = None if given is None else int(np.asarray(given).reshape(-1)[0])
    total = max(past, length if ends is None else ends)
    d.require(ends is None or ends >= length, f"{ends} tokens in all are fewer than {length} new ones")
    d.support(length * total <= MAX_CONSTANT_ELEMENTS, f"{total} keys are too many")
    d.value(5)  # which says nothing where all tokens are new
    first = d("Expand", d.whole_numbers([0]), column)
    if ends == length:  # the first tokens of each sequence
        return _Tokens(batch, length, past, total, first)
    last = d("Reshape", d("Cast", "x5", to=TensorProto.INT64), column)
    before = d("Add", last, d.whole_numbers([1 - length]))
    if ends is None:
        # Known when it runs: the cache has as many places as it is given. More are refused, as places of a
        # table that does not have them.
        places = d.constant(np.arange(total + 1, dtype=np.int64))
        number = d("Reshape", d("Gather", places, "x6"), d.whole_numbers([1, 1]))
        before = d("Where", d("Equal", number, d.whole_numbers([length])), first, before)
    return _Tokens(batch, length, past, total, before)


def _by_head(d: Definition, tokens: _Tokens, name: str, heads: int, size: int) -> str:
    shape = d.whole_numbers([tokens.batch, tokens.length, heads, size])
    return d("Transpose", d("Reshape", name, shape), perm=_HEADS_FIRST)


def _rotated(d: Definition, tokens: _Tokens, name: str, size: int, is_interleaved: int) -> str:
    """Queries or keys turned by their positions."""
    turned = 2 * d.shape(7, 2)[1]
    d.require(d.shape(8, 2) == d.shape(7, 2), "its tables of cosines and sines differ in shape")
    positions = "x9"
    if not d.has(9):
        steps = d.constant(np.arange(tokens.length, dtype=np.int64)[None])
        positions = d("Add", tokens.before, steps)
    attributes = {} if turned == size else {"rotary_embedding_dim": turned}
    return d("RotaryEmbedding", name, "x7", "x8", positions, interleaved=is_interleaved, **attributes)


def _with_past(d: Definition, tokens: _Tokens, new: str, past: str, shared: int, size: int) -> str:
    """Keys or values of all places: new ones behind those that come before them, in each sequence."""
    if not tokens.past and tokens.total == tokens.length:
        return new
    batch, length, total = tokens.batch, tokens.length, tokens.total
    places = d.constant(np.arange(total, dtype=np.int64)[None])
    number = d("Sub", places, tokens.before)  # of each place among the new tokens
    is_new = d(
        "And", d("GreaterOrEqual", number, d.whole_numbers([0])), d("Less", number, d.whole_numbers([length]))
    )
    column = d.whole_numbers([batch, 1, total, 1])
    if length > 1:
        bounded = d("Clip", number, d.number(0, DType.INT64), d.number(length - 1, DType.INT64))
        wanted = d.whole_numbers([batch, shared, total, size])
        new = d("GatherElements", new, d("Expand", d("Reshape", bounded, column), wanted), axis=2)
    dtype = d.value(0).dtype
    old = past if tokens.past else ""
    if tokens.past < total:
        shape = d.whole_numbers([batch, shared, total - tokens.past, size])
        empty = d("Expand", d.number(0, dtype), shape)
        old = d("Concat", old, empty, axis=2) if old else empty
    return d("Where", d("Reshape", is_new, column), new, old)


def _mask(d: Definition, tokens: _Tokens) -> str:
    """What is added to scores: a token sees itself and those before it, as many in all as a window has."""
    dtype, window = d.value(0).dtype, d.whole("local_window_size", -1)
    rows = d.constant(np.arange(tokens.length, dtype=np.int64)[None, :, None])
    column = d.whole_numbers([tokens.batch, 1, 1])
    own = d("Add", rows, d("Reshape", tokens.before, column))
    places = d.constant(np.arange(tokens.total, dtype=np.int64)[None, None])
    visible = d("LessOrEqual", places, own)
    if window > 0:
        first = d("Sub", own, d.whole_numbers([window - 1]))
        visible = d("And", visible, d("GreaterOrEqual", places, first))
    shape = d.whole_numbers([tokens.batch, 1, tokens.length, tokens.total])
    mask = d("Where", visible, d.number(0.0, dtype), d.number(-np.inf, dtype))
    mask = d("Reshape", mask, shape)
    if not d.has(10):
        return mask
    found = d.shape(10, 4)[3]
    d.support(found == tokens.total, f"its attention_bias of {found} keys beside {tokens.total} is not known")
    return d("Add", mask, "x10")


GROUPED: Mapping[str, Write] = {"GroupQueryAttention": _group_query_attention}
