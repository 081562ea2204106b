"""Scaled dot-product attention and rotary embedding.

Attention's dims are `b`, the head `h` (with grouped query heads `g` and `r`: key head, query head
within its group), query `i`, key `j`, and the contracted `d` or the value channel `e`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tilewright.arrays import Array
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Acc, Const, Expr, Iter, call, cast, select
from tilewright.ir.graph import Node
from tilewright.ir.nest import Access, Affine, Description, Dim, Index, Nest, Opaque, Operand, affine
from tilewright.ir.ops.build import (
    copy_nest,
    data_index,
    identity,
    input_operand,
    local,
    output_operand,
    read,
    require,
    require_broadcast,
    require_rank,
    require_result,
    require_shape,
)
from tilewright.ir.ops.reduction import softmax_nests
from tilewright.ir.ops.registry import INTERNAL_DOMAIN, operator
from tilewright.records import dataclass

# The operator of ours that takes queries, keys, values and any number of masks; `scale` as Attention has it.
MASKED_ATTENTION = "MaskedAttention"
# Values of qk_matmul_output_mode: what the fourth output shows.
_RAW, _CAPPED, _BIASED, _PROBABILITIES = range(4)
_QK_OUTPUT = 3
_LENGTHS = 6
# New keys and values among the inputs; how much further those of the past are, and what is put together of
# both is among the temporaries.
_KEYS, _VALUES = 1, 2
_PAST = 3
_WHOLE = 4


def _heads(x: Array, heads: int) -> Array:
    """`[B, S, heads*D]` as `[B, heads, S, D]`; 4-D tensors are so already."""
    if x.ndim == 4:
        return x
    return x.reshape(x.shape[0], x.shape[1], heads, -1).transpose(0, 2, 1, 3)


def _scale(node: Node, head_size: int) -> float:
    return node.float_attr("scale", 1 / math.sqrt(head_size)) or 1 / math.sqrt(head_size)


def _cap(node: Node) -> float:
    """What scores are kept below, 0 for no bound."""
    cap = node.float_attr("softcap", 0.0)
    return cap if cap > 0 else 0.0


def _optional(inputs: Sequence[Array | None], position: int) -> Array | None:
    return inputs[position] if len(inputs) > position else None


def _attention_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    given_q, given_k, given_v = (np.asarray(a) for a in inputs[:3])
    q = _heads(given_q, node.int_attr("q_num_heads", 0))
    k = _heads(given_k, node.int_attr("kv_num_heads", 0))
    v = _heads(given_v, node.int_attr("kv_num_heads", 0))
    past_key, past_value = _optional(inputs, 4), _optional(inputs, 5)
    if past_key is not None and past_value is not None:
        k, v = np.concatenate([past_key, k], 2), np.concatenate([past_value, v], 2)
    present = k, v
    repeats = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, repeats, 1), np.repeat(v, repeats, 1)
    raw = np.matmul(q, k.swapaxes(2, 3)) * np.asarray(_scale(node, q.shape[3]), q.dtype)
    cap = _cap(node)
    capped = np.tanh(raw / np.asarray(cap, q.dtype)) * np.asarray(cap, q.dtype) if cap else raw
    biased = _biased(node, inputs, capped, 0 if past_key is None else past_key.shape[2])
    probabilities = _probabilities(biased)
    result = np.matmul(probabilities, v)
    if given_q.ndim == 3:
        result = result.transpose(0, 2, 1, 3).reshape(q.shape[0], q.shape[2], -1)
    mode = node.int_attr("qk_matmul_output_mode", _RAW)
    return result, *present, (raw, capped, biased, probabilities)[mode]


def _probabilities(biased: Array) -> Array:
    """The softmax of scores; a query that may attend to no key gets zeros, not the 0/0 of its empty row."""
    top = biased.max(axis=-1, keepdims=True)
    powers = np.exp(biased - np.where(np.isneginf(top), 0, top).astype(biased.dtype))
    total = powers.sum(axis=-1, keepdims=True)
    quotient: Array = powers / np.where(total == 0, 1, total).astype(biased.dtype)
    return quotient


def _biased(node: Node, inputs: Sequence[Array | None], scores: Array, past: int) -> Array:
    """Scores plus the mask, minus infinity where causality, a window or padding forbids a key."""
    rows, columns = scores.shape[2:]
    mask, lengths = _optional(inputs, 3), _optional(inputs, 6)
    never = np.asarray(-np.inf, scores.dtype)
    if mask is not None:
        missing = columns - mask.shape[-1]
        if missing > 0:
            fill = False if mask.dtype == np.bool_ else -np.inf
            mask = np.pad(mask, [(0, 0)] * (mask.ndim - 1) + [(0, missing)], constant_values=fill)
        scores = np.where(mask, scores, never) if mask.dtype == np.bool_ else scores + mask
    offset = np.asarray(past).reshape(1, 1, 1, 1)
    if past == 0 and lengths is not None:
        offset = (lengths - rows).reshape(-1, 1, 1, 1)
    ahead = np.arange(columns) - (np.arange(rows)[:, None] + offset)
    left, right = node.int_attr("left_window_size", -1), node.int_attr("right_window_size", -1)
    allowed = np.ones_like(ahead, np.bool_)
    if node.int_attr("is_causal", 0):
        allowed &= ahead <= 0
    if left >= 0:
        allowed &= -ahead <= left
    if right >= 0:
        allowed &= ahead <= right
    if lengths is not None:
        allowed = allowed & (np.arange(columns) < lengths.reshape(-1, 1, 1, 1))
    return np.where(allowed, scores, never).astype(scores.dtype)


@dataclass(frozen=True, slots=True)
class _Layout:
    """Extents of one attention, and how its tensors are addressed per head."""

    batch: int
    groups: int
    repeats: int
    rows: int
    columns: int

    @property
    def query_heads(self) -> tuple[Dim, ...]:
        """The dims that together count query heads."""
        if self.repeats == 1:
            return (Dim("h", self.groups),)
        return Dim("g", self.groups), Dim("r", self.repeats)

    @property
    def scores(self) -> tuple[Dim, ...]:
        """The dims of the matrix of scores."""
        return Dim("b", self.batch), *self.query_heads, Dim("i", self.rows), Dim("j", self.columns)

    def tensor(self, operand: Operand, position: str, channel: str, *, shared: bool) -> Access:
        """Q, K, V or Y at a position and channel; `shared`: it has one head per group."""
        heads = self.query_heads[:1] if shared else self.query_heads
        extents = tuple(d.extent for d in heads)
        count = math.prod(extents)
        names = tuple(affine(d.name) for d in heads)
        if len(operand.shape) == 4:
            batch, _, length, size = operand.shape
            shape = (batch, *extents, length, size)
            index = (affine("b"), *names, affine(position), affine(channel))
        else:
            batch, length, hidden = operand.shape
            shape = (batch, length, *extents, hidden // count)
            index = (affine("b"), affine(position), *names, affine(channel))
        return Access(operand, index, view=None if shape == operand.shape else shape)

    def matrix(self, operand: Operand) -> Access:
        """A `[B, heads, queries, keys]` tensor."""
        shape = tuple(d.extent for d in self.scores)
        return Access(operand, identity(self.scores), view=None if shape == operand.shape else shape)

    def mask(self, operand: Operand) -> Access:
        """The mask, broadcast to the left; keys beyond its end are forbidden."""
        fill = None
        if operand.shape[-1] < self.columns:
            fill = False if operand.dtype is DType.BOOL else -math.inf
        parts: list[tuple[tuple[Index, ...], tuple[int, ...]]] = [
            ((affine("b"),), (self.batch,)),
            (tuple(affine(d.name) for d in self.query_heads), tuple(d.extent for d in self.query_heads)),
            ((affine("i"),), (self.rows,)),
        ]
        aligned = parts[len(parts) - (len(operand.shape) - 1) :]
        index: list[Index] = []
        shape: list[int] = []
        for (names, extents), extent in zip(aligned, operand.shape[:-1], strict=True):
            broadcast = extent == 1
            index += [affine()] if broadcast else names
            shape += [1] if broadcast else extents
        view = (*shape, operand.shape[-1])
        return Access(operand, (*index, affine("j")), fill, None if view == operand.shape else view)


def _layout(node: Node) -> _Layout:
    """The extents of an attention whose operands and results fit each other.

    Raises:
        ModelRejected: they do not.
    """
    q = require_rank(node, 0, 3, 4)
    k, v = (require_rank(node, i, len(q), len(q)) for i in (1, 2))
    batch = q[0]
    if len(q) == 4:
        query_heads, key_heads, rows, length, head_size, value_size = q[1], k[1], q[2], k[2], q[3], v[3]
        require_shape(node, 1, (batch, key_heads, length, head_size), "batch and head size of the queries")
        require_shape(node, 2, (batch, key_heads, length, value_size), "batch, heads and length of the keys")
    else:
        query_heads, key_heads = node.int_attr("q_num_heads", 0), node.int_attr("kv_num_heads", 0)
        require(node, min(query_heads, key_heads) >= 1, "it needs q_num_heads and kv_num_heads of at least 1")
        for extent, heads, name in ((q[2], query_heads, "q_num_heads"), (v[2], key_heads, "kv_num_heads")):
            require(node, extent % heads == 0, f"{name}={heads} does not divide {extent} channels")
        rows, length, head_size, value_size = q[1], k[1], q[2] // query_heads, v[2] // key_heads
        require_shape(node, 1, (batch, length, key_heads * head_size), "batch and head size of the queries")
        require_shape(node, 2, (batch, length, None), "batch and length of the keys")
    fits = key_heads >= 1 and query_heads % key_heads == 0
    require(node, fits, f"{query_heads} heads of queries are no multiple of {key_heads} heads of keys")
    past = node.input(4)
    columns = length if past is None else length + require_rank(node, 4, 4, 4)[2]
    earlier = columns - length
    require(node, (past is None) == (node.input(5) is None), "past keys and past values come together")
    require_shape(node, 4, (batch, key_heads, earlier, head_size), "heads of the keys")
    require_shape(node, 5, (batch, key_heads, earlier, value_size), "heads of the values")
    require_shape(node, _LENGTHS, (batch,), "one length for each sequence")
    if node.input(3) is not None:
        mask = require_rank(node, 3, 1, 4)
        require(node, mask[-1] <= columns, f"the mask {list(mask)} is for more than {columns} keys")
        require_broadcast(node, 3, (batch, query_heads, rows, mask[-1]))
    if len(q) == 4:
        require_result(node, (batch, query_heads, rows, value_size))
    else:
        require_result(node, (batch, rows, query_heads * value_size))
    require_result(node, (batch, key_heads, columns, head_size), 1)
    require_result(node, (batch, key_heads, columns, value_size), 2)
    require_result(node, (batch, query_heads, rows, columns), _QK_OUTPUT)
    return _Layout(batch, key_heads, query_heads // key_heads, rows, columns)


def _why_opaque(node: Node) -> str | None:
    if node.int_attr("softmax_precision", 0) == DType.FLOAT64.value:
        return "Attention with its softmax in float64"
    return None


@operator("Attention", reference=_attention_reference)
def attention(node: Node) -> Description:
    """Scores `scale * Q K^T` with softcap and masks, their softmax in four nests, times V.

    Copies before them put past and new keys and values together, where there is a past or they are results.
    """
    layout = _layout(node)
    reason = _why_opaque(node)
    if reason is not None:
        return Opaque(reason)
    q, out = input_operand(node, 0), output_operand(node)
    (k, grown_keys), (v, grown_values) = (_grown(node, layout, position) for position in (_KEYS, _VALUES))
    earlier = layout.columns - _length(node, _KEYS)
    compute = out.dtype.compute
    dims = layout.scores
    shape = tuple(d.extent for d in dims)
    shown = len(node.outputs) > _QK_OUTPUT and node.outputs[_QK_OUTPUT] is not None
    mode = node.int_attr("qk_matmul_output_mode", _RAW) if shown else None
    biased = layout.matrix(output_operand(node, _QK_OUTPUT) if mode == _BIASED else local(0, compute, shape))
    probabilities = layout.matrix(
        output_operand(node, _QK_OUTPUT) if mode == _PROBABILITIES else local(1, compute, shape)
    )
    query = layout.tensor(q, "i", "d", shared=False)
    key = layout.tensor(k, "j", "d", shared=True)
    head_size = query.shape[-1]
    loops = (*dims, Dim("d", head_size, "reduce"))
    product = cast(read(0, query), compute) * cast(read(1, key), compute)
    masks = [layout.mask(input_operand(node, 3))] if node.input(3) is not None else []
    if node.input(_LENGTHS) is not None:
        masks.append(Access(input_operand(node, _LENGTHS), (affine("b"),)))
    raw = Acc(compute) * _scale(node, head_size)
    if mode in (_RAW, _CAPPED):
        first = layout.matrix(output_operand(node, _QK_OUTPUT))
        visible = raw if mode == _RAW else _capped(node, raw)
        value = cast(read(0, first), compute)
        value = value if mode == _CAPPED else _capped(node, value)
        scores: tuple[Nest, ...] = (
            Nest(loops, (query, key), first, product, "sum", None, visible),
            Nest(dims, (first, *masks), biased, _allowed(node, value, masks, 1, earlier)),
        )
    else:
        finish = _allowed(node, _capped(node, raw), masks, 2, earlier)
        scores = (Nest(loops, (query, key, *masks), biased, product, "sum", None, finish),)
    weighted = _weighted(layout, biased, probabilities, v, out, may_be_empty=_forbids(node))
    return (*grown_keys, *grown_values, *scores, *weighted)


def _num_queries(node: Node) -> int:
    return _length(node, 0)


def _length(node: Node, position: int) -> int:
    """How many queries there are, or how many keys or values are new."""
    shape = node.require(position).shape
    return shape[2] if len(shape) == 4 else shape[1]


def _grown(node: Node, layout: _Layout, position: int) -> tuple[Operand, list[Nest]]:
    """Keys or values of all positions, by the input that has new ones, and the copies that make them."""
    new, past = input_operand(node, position), node.input(position + _PAST)
    shown = len(node.outputs) > position and node.outputs[position] is not None
    if past is None and not shown:
        return new, []
    size = new.shape[-1] if len(new.shape) == 4 else new.shape[-1] // layout.groups
    shape = (layout.batch, layout.groups, layout.columns, size)
    whole = output_operand(node, position) if shown else local(_WHOLE + position, new.dtype, shape)
    sources = [new] if past is None else [input_operand(node, position + _PAST), new]
    heads, first, copies = layout.query_heads[0], 0, list[Nest]()
    for source in sources:
        length = _length(node, position) if source is new else source.shape[2]
        dims = (Dim("b", layout.batch), heads, Dim("j", length), Dim("d", size))
        target = Access(whole, (affine("b"), affine(heads.name), affine("j", first), affine("d")))
        if length:
            copies.append(copy_nest(dims, layout.tensor(source, "j", "d", shared=True), target))
        first += length
    return whole, copies


def _weighted(
    layout: _Layout, biased: Access, probabilities: Access, v: Operand, out: Operand, *, may_be_empty: bool
) -> tuple[Nest, ...]:
    """The softmax of scores over keys, and the values in these weights."""
    compute, dims = out.dtype.compute, layout.scores
    over_keys = (*dims[:-1], Dim("j", layout.columns, "reduce"))
    softmax = softmax_nests(biased, probabilities, over_keys, 2, may_be_empty=may_be_empty)
    values = layout.tensor(v, "j", "e", shared=True)
    weighted = cast(read(0, probabilities), compute) * cast(read(1, values), compute)
    target = layout.tensor(out, "i", "e", shared=False)
    sums = (*dims[:-1], Dim("e", values.shape[-1]), Dim("j", layout.columns, "reduce"))
    return (*softmax, Nest(sums, (probabilities, values), target, weighted, "sum"))


def _masked_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    q, k, v, *masks = (np.asarray(a) for a in inputs)
    scores = np.matmul(q, k.swapaxes(2, 3)) * np.asarray(_scale(node, q.shape[3]), q.dtype)
    for mask in masks:
        scores = scores + mask
    return (np.matmul(_probabilities(scores), v),)


@operator(MASKED_ATTENTION, reference=_masked_reference, domain=INTERNAL_DOMAIN)
def masked_attention(node: Node) -> Description:
    """Attention of four axes with several masks, added to the scores one after the other."""
    (batch, heads, rows, size), key = require_rank(node, 0, 4, 4), require_rank(node, 1, 4, 4)
    layout = _Layout(batch, heads, 1, rows, key[2])
    require_shape(node, 1, (batch, heads, layout.columns, size), "batch, heads and head size of the queries")
    require_shape(node, 2, (batch, heads, layout.columns, None), "batch, heads and length of the keys")
    require_result(node, (batch, heads, rows, require_rank(node, 2, 4, 4)[3]))
    positions = range(3, len(node.inputs))
    for position in positions:
        mask = require_rank(node, position, 1, 4)
        require(node, mask[-1] == layout.columns, f"the mask {list(mask)} is not for {layout.columns} keys")
        require_broadcast(node, position, (batch, heads, rows, layout.columns))
    q, k, v, out = (*(input_operand(node, i) for i in range(3)), output_operand(node))
    compute = out.dtype.compute
    shape = tuple(d.extent for d in layout.scores)
    biased, probabilities = (layout.matrix(local(i, compute, shape)) for i in range(2))
    masks = [layout.mask(input_operand(node, position)) for position in positions]
    finish: Expr = Acc(compute) * _scale(node, size)
    for position, access in enumerate(masks, start=2):
        finish = finish + cast(read(position, access), compute)
    query = layout.tensor(q, "i", "d", shared=False)
    keys = layout.tensor(k, "j", "d", shared=True)
    product = cast(read(0, query), compute) * cast(read(1, keys), compute)
    loops = (*layout.scores, Dim("d", size, "reduce"))
    scores = Nest(loops, (query, keys, *masks), biased, product, "sum", None, finish)
    return (scores, *_weighted(layout, biased, probabilities, v, out, may_be_empty=bool(masks)))


def _capped(node: Node, scores: Expr) -> Expr:
    cap = _cap(node)
    return call("tanh", scores / cap) * cap if cap else scores


def _forbids(node: Node) -> bool:
    """Whether some key may be forbidden to some query."""
    windows = (node.int_attr("left_window_size", -1), node.int_attr("right_window_size", -1))
    is_masked = node.input(3) is not None or node.input(_LENGTHS) is not None
    return is_masked or bool(node.int_attr("is_causal", 0)) or max(windows) >= 0


def _allowed(node: Node, scores: Expr, masks: Sequence[Access], position: int, earlier: int) -> Expr:
    """Scores plus the mask, minus infinity where a key is forbidden.

    Mask and lengths of sequences, as far as there are any, are the reads from `position` on. `earlier` keys
    come before that of the first query.
    """
    compute = scores.result
    never = Const(-math.inf, compute)
    length: Expr | None = None
    for number, mask in enumerate(masks, start=position):
        value = read(number, mask)
        if node.input(_LENGTHS) is not None and number == position + len(masks) - 1:
            length = value
        elif value.result is DType.BOOL:
            scores = select(value, scores, never)
        else:
            scores = scores + cast(value, compute)
    ahead = Iter("j") - Iter("i")
    if earlier:
        ahead = ahead - earlier
    elif length is not None:
        # The last query is that of the last key.
        ahead = ahead - (length - _num_queries(node))
    if length is not None:
        scores = select(call("lt", Iter("j"), length), scores, never)
    if node.int_attr("is_causal", 0):
        scores = select(call("le", ahead, 0), scores, never)
    left, right = node.int_attr("left_window_size", -1), node.int_attr("right_window_size", -1)
    if left >= 0:
        scores = select(call("ge", ahead, -left), scores, never)
    if right >= 0:
        scores = select(call("le", ahead, right), scores, never)
    return scores


def _rotary_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    given, cos, sin = (np.asarray(a) for a in inputs[:3])
    positions = _optional(inputs, 3)
    x = _heads(given, node.int_attr("num_heads", 0))
    if positions is not None:
        cos, sin = cos[positions], sin[positions]
    cos, sin = cos[:, None], sin[:, None]
    size = node.int_attr("rotary_embedding_dim", 0) or x.shape[3]
    first, second = _halves(bool(node.int_attr("interleaved", 0)), size)
    result = x.copy()
    result[..., first] = cos * x[..., first] - sin * x[..., second]
    result[..., second] = sin * x[..., first] + cos * x[..., second]
    if given.ndim == 3:
        result = result.transpose(0, 2, 1, 3).reshape(given.shape)
    return (result,)


def _halves(interleaved: bool, size: int) -> tuple[slice, slice]:
    if interleaved:
        return slice(0, size, 2), slice(1, size, 2)
    return slice(0, size // 2), slice(size // 2, size)


@operator("RotaryEmbedding", reference=_rotary_reference)
def rotary_embedding(node: Node) -> Description:
    """Pairs of channels turned by an angle per position: one nest per half, one for what is not turned."""
    require_rank(node, 0, 3, 4)
    x, cos, sin, out = (*(input_operand(node, i) for i in range(3)), output_operand(node))
    four = len(x.shape) == 4
    heads = x.shape[1] if four else node.int_attr("num_heads", 0)
    require(node, four or (heads >= 1 and x.shape[2] % heads == 0), f"num_heads={heads} is no divisor")
    length = x.shape[2] if four else x.shape[1]
    head_size = x.shape[3] if four else x.shape[2] // heads
    size = node.int_attr("rotary_embedding_dim", 0) or head_size
    require(node, 0 <= size <= head_size, f"rotary_embedding_dim={size} of heads of {head_size} elements")
    require(node, size % 2 == 0, f"{size} elements of a head cannot be turned in pairs")
    rows = (None,) if node.input(3) is not None else (x.shape[0], length)
    for position in (1, 2):
        require_shape(node, position, (*rows, size // 2), "an angle for each pair and position")
    require_shape(node, 3, (x.shape[0], length), "a position for each element of each sequence")
    require_result(node, x.shape)
    view = None if four else (x.shape[0], length, heads, head_size)
    outer = (Dim("b", x.shape[0]), Dim("h", heads), Dim("s", length))
    dims = (*outer, Dim("k", size // 2))
    half, step = (1, 2) if node.int_attr("interleaved", 0) else (size // 2, 1)

    def at(operand: Operand, channel: Affine) -> Access:
        middle = (affine("h"), affine("s")) if four else (affine("s"), affine("h"))
        return Access(operand, (affine("b"), *middle, channel), view=view)

    first, second = affine(("k", step)), affine(("k", step), half)
    extra: list[Access] = []
    row: tuple[Index, ...] = (affine("b"), affine("s"))
    if node.input(3) is not None:
        extra.append(Access(input_operand(node, 3), row))
        row = (data_index(node, 3, 4, cos.shape[0]),)
    tables = tuple(Access(operand, (*row, affine("k"))) for operand in (cos, sin))
    reads = (at(x, first), at(x, second), *tables, *extra)
    a, b, cosine, sine = (cast(read(i, reads[i]), out.dtype.compute) for i in range(4))
    nests = [
        Nest(dims, reads, at(out, first), cosine * a - sine * b),
        Nest(dims, reads, at(out, second), sine * a + cosine * b),
    ]
    if size < head_size:
        rest = affine("k", size)
        nests.append(copy_nest((*outer, Dim("k", head_size - size)), at(x, rest), at(out, rest)))
    return tuple(nests)
