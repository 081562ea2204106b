"""Sequences of different lengths without the places behind their ends: tokens lie one after another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.frontend.onnx.microsoft.definition import MAX_CONSTANT_ELEMENTS, Definition, Write
from tilewright.ir.dtype import DType


def _restore_padding(d: Definition) -> Sequence[str]:
    num_tokens, columns = d.shape(0, 2)
    return [_spread(d, "x0", 1, num_tokens, columns)]


def _packed_attention(d: Definition) -> Sequence[str]:
    num_tokens, _ = d.shape(0, 2)
    count, columns = d.whole("num_heads", 0), d.shape(1, 2)[1]
    sizes = d.wholes("qkv_hidden_sizes") or [columns // 3] * 3
    d.require(len(sizes) == 3 and sum(sizes) == columns, f"{columns} channels are not those of q, k and v")
    product = d("Add", d("MatMul", "x0", "x1"), "x2") if d.has(2) else d("MatMul", "x0", "x1")
    parts = d.several("Split", product, d.whole_numbers(sizes), count=3, axis=1)
    return [_attended(d, parts, sizes, count, num_tokens, first=3)]


def _packed_multi_head_attention(d: Definition) -> Sequence[str]:
    count, shape = d.whole("num_heads", 0), d.shape(0, 2, 4)
    num_tokens = shape[0]
    if len(shape) == 4:
        _, heads, three, size = shape
        d.require((heads, three) == (count, 3), f"input 0 is {list(shape)}, not three parts of {count} heads")
        sizes = [heads * size] * 3
        flat = d.whole_numbers([num_tokens, heads * size])
        parts = [
            d("Reshape", part, flat) for part in d.several("Split", "x0", count=3, axis=2, num_outputs=3)
        ]
    else:
        sizes, parts = [d.shape(i, 2)[1] for i in range(3)], ["x0", "x1", "x2"]
    if d.has(3):
        biases = d.several("Split", "x3", d.whole_numbers(sizes), count=3, axis=0)
        parts = [d("Add", part, bias) for part, bias in zip(parts, biases, strict=True)]
    d.real("mask_filter_value", 0.0)  # keys behind an end are no keys
    return [_attended(d, parts, sizes, count, num_tokens, first=4)]


def _attended(
    d: Definition, parts: Sequence[str], sizes: Sequence[int], count: int, num_tokens: int, *, first: int
) -> str:
    """Attention within each sequence, by the places of tokens and ends of sequences that inputs say."""
    fits = count >= 1 and all(size >= 1 and size % count == 0 for size in sizes)
    d.require(fits, f"{count} heads do not divide {sizes} channels")
    batch, length = d.shape(first, 2)
    d.support(length <= MAX_CONSTANT_ELEMENTS, f"{length} keys are too many")
    query, key, value = (
        _spread(d, part, first, num_tokens, size) for part, size in zip(parts, sizes, strict=True)
    )
    axes = d.whole_numbers([0])
    ends, starts = (
        d("Slice", f"x{first + 1}", d.whole_numbers([low]), d.whole_numbers([high]), axes)
        for low, high in ((1, batch + 1), (0, batch))
    )
    visible = _within(d, d("Sub", ends, starts), batch, length)
    dtype = d.value(0).dtype
    added = d("Where", visible, d.number(0.0, dtype), d.number(-np.inf, dtype))
    mask = d("Reshape", added, d.whole_numbers([batch, 1, 1, length]))
    if d.has(first + 2):
        mask = d("Add", mask, f"x{first + 2}")
    attributes: dict[str, float | int] = {"q_num_heads": count, "kv_num_heads": count}
    if scale := d.real("scale", 0.0):
        attributes["scale"] = scale
    result = d("Attention", query, key, value, mask, **attributes)
    flat = d("Reshape", result, d.whole_numbers([batch * length, sizes[2]]))
    return d("Gather", flat, _places(d, first, num_tokens), axis=0)


def _places(d: Definition, position: int, num_tokens: int) -> str:
    """Places of tokens among all of a batch."""
    batch, length = d.shape(position, 2)
    d.require(num_tokens <= batch * length, f"{num_tokens} tokens are more than {batch} x {length} places")
    flat = d("Reshape", f"x{position}", d.whole_numbers([batch * length]))
    return d("Slice", flat, d.whole_numbers([0]), d.whole_numbers([num_tokens]), d.whole_numbers([0]))


def _spread(d: Definition, name: str, position: int, num_tokens: int, columns: int) -> str:
    """Tokens at their places in sequences of one length, zeros between."""
    batch, length = d.shape(position, 2)
    where = d("Cast", _places(d, position, num_tokens), to=DType.INT64.value)
    index = d("Reshape", where, d.whole_numbers([num_tokens, 1]))
    nothing = d("Expand", d.number(0, d.value(0).dtype), d.whole_numbers([batch * length, columns]))
    return d("Reshape", d("ScatterND", nothing, index, name), d.whole_numbers([batch, length, columns]))


def _within(d: Definition, counts: str, batch: int, length: int) -> str:
    """Which places hold tokens, by how many each sequence has."""
    steps = d.constant(np.arange(length, dtype=np.int32)[None])
    return d("Less", steps, d("Reshape", counts, d.whole_numbers([batch, 1])))


PACKED: Mapping[str, Write] = {
    "PackedAttention": _packed_attention,
    "PackedMultiHeadAttention": _packed_multi_head_attention,
    "RestorePadding": _restore_padding,
}
