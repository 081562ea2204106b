"""Operators that onnxruntime's tools write, of random shapes, give what onnxruntime computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.frontend.onnx.test_microsoft import Case, computed, expected, some_bytes

Array = np.ndarray[Any, Any]
Draw = Callable[[Any], Any]


class Numbers:
    """What a case is made of, by one seed."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def real(self, *shape: int, scale: float = 1.0) -> Array:
        return (self.rng.standard_normal(shape) * scale).astype(np.float32)

    def steps(self, *shape: int) -> Array:
        return self.rng.uniform(0.01, 0.05, shape).astype(np.float32)

    def bytes(self, *shape: int) -> Array:
        return self.rng.integers(0, 256, shape).astype(np.uint8)

    def maybe(self) -> bool:
        return bool(self.rng.integers(0, 2))

    def one_of(self, *choices: Any) -> Any:
        return choices[self.rng.integers(0, len(choices))]

    def between(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))


def weights_of_bits(n: Numbers) -> Case:
    bits, block = n.one_of(4, 8), n.one_of(16, 32)
    rows, columns = n.one_of(16, 32, 48, 70), n.between(1, 9)
    num_blocks = -(-rows // block)
    zeros = n.bytes(columns, -(-num_blocks * bits // 8))
    inputs: list[Array | None] = [
        n.real(*n.one_of((2,), (2, 3)), rows),
        n.bytes(columns, num_blocks, block * bits // 8),
        n.steps(columns, num_blocks),
        zeros if n.maybe() else None,
        np.sort(n.rng.integers(0, num_blocks, rows)).astype(np.int32) if bits == 4 and n.maybe() else None,
        n.real(columns) if n.maybe() else None,
    ]
    if inputs[4] is not None:
        # onnxruntime's kernel for groups leaves bias and zero points out.
        inputs[3] = inputs[5] = None
    while inputs[-1] is None:
        inputs.pop()
    attributes = {"K": rows, "N": columns, "bits": bits, "block_size": block}
    held = [i for i in range(1, len(inputs)) if inputs[i] is not None]
    return Case("MatMulNBits", inputs, attributes, constants=held)


def weights_of_a_table(n: Numbers) -> Case:
    rows, columns, block = n.one_of(16, 32, 48), n.between(1, 9), n.one_of(16, 32)
    count = rows * columns
    inputs = [n.real(2, rows), n.bytes(-(-count // 2)), n.steps(-(-count // block))]
    attributes = {"K": rows, "N": columns, "block_size": block, "quant_type": n.between(0, 1)}
    return Case("MatMulBnb4", inputs, attributes, constants=(1, 2))


def rows_of_blocks(n: Numbers) -> Case:
    block, bits = 16, n.one_of(4, 8)
    rows, width = n.between(1, 6), n.one_of(16, 32, 64)
    inputs: list[Array] = [
        n.bytes(rows, width * bits // 8),
        n.rng.integers(0, rows, n.one_of((3,), (2, 2))),
        n.steps(rows, width // block),
    ]
    if n.maybe():
        inputs.append(n.bytes(rows, -(-width // block * bits // 8)))
    attributes = {"bits": bits, "block_size": block, "gather_axis": 0, "quantize_axis": 1}
    return Case("GatherBlockQuantized", inputs, attributes)


def quantised_embedding(n: Numbers) -> Case:
    batch, length, size = n.between(1, 3), n.between(1, 4), n.one_of(4, 8)
    tables = [n.bytes(6, size), n.bytes(5, size), n.bytes(2, size), n.bytes(size), n.bytes(size)]
    with_segments = n.maybe()
    ids = n.rng.integers(0, 6, (batch, length)).astype(np.int32)
    segments = n.rng.integers(0, 2, (batch, length)).astype(np.int32) if with_segments else None
    mask = n.rng.integers(0, 2, (batch, length)).astype(np.int32) if n.maybe() else None
    scales = [np.float32(n.rng.uniform(0.01, 0.05)) for _ in tables]
    zeros = [np.uint8(n.between(100, 150)) for _ in tables]
    given_tables: list[Array | None] = [*tables]
    parameters: list[Any] = [*scales, *zeros]
    if not with_segments:
        given_tables[2] = parameters[2] = parameters[7] = None
    held = [None if p is None else np.asarray(p) for p in parameters]
    inputs = [ids, segments, *given_tables, mask, *held]
    constants = [i for i, a in enumerate(inputs) if a is not None and i >= 8]
    return Case("QEmbedLayerNormalization", inputs, {"epsilon": 1e-5}, (True, True), constants=constants)


def grouped_queries(n: Numbers) -> Case:
    batch, shared, repeats, size = n.between(1, 3), n.between(1, 2), n.between(1, 3), 16
    count = shared * repeats
    length, past = n.one_of((1, 0), (4, 0), (1, 5), (1, 8), (3, 6))
    batch = 1 if past and length > 1 else batch
    total = length + past if batch > 1 or n.maybe() else max(past, length)
    if past == 0 or length > 1:
        total = length + past
    parts = [n.real(batch, length, heads * size) for heads in (count, shared, shared)]
    # As data it says no more than that the cache has room.
    is_known = total > max(past, length) or n.maybe()
    packs = n.maybe()
    tokens = [np.concatenate(parts, axis=2), None, None] if packs else parts
    caches = [n.real(batch, shared, past, size) for _ in range(2)] if past else [None, None]
    lasts = np.full(batch, total - 1, np.int32)
    inputs: list[Array | None] = [*tokens, *caches, lasts, np.array(total, np.int32)]
    attributes: dict[str, Any] = {"num_heads": count, "kv_num_heads": shared}
    if n.maybe():
        attributes["do_rotary"], attributes["rotary_interleaved"] = 1, n.between(0, 1)
        inputs += [n.real(total + 1, size // 2), n.real(total + 1, size // 2)]
    if n.maybe():
        attributes["local_window_size"] = n.between(1, 6)
    if n.maybe():
        attributes["softcap"] = 1.5
    if n.maybe():
        attributes["scale"] = 0.3
    if n.between(0, 2) == 0:
        attributes["smooth_softmax"] = 1
    elif n.between(0, 2) == 0:
        inputs += [None] * (11 - len(inputs)) + [n.real(count)]
    return Case("GroupQueryAttention", inputs, attributes, (True, True, True), constants=(6,) * is_known)


def many_heads(n: Numbers) -> Case:
    batch, count, size, length = n.between(1, 3), n.between(1, 3), n.one_of(4, 8), n.between(1, 4)
    columns, past = n.between(1, 5), n.one_of(0, 0, 3)
    hidden = count * size
    columns = length if past else columns
    inputs: list[Array | None] = [n.real(batch, length, hidden), n.real(batch, columns, hidden)]
    inputs += [n.real(batch, columns, hidden), n.real(3 * hidden) if n.maybe() else None]
    total = columns + past
    kinds = [None, np.array([n.between(1, total) for _ in range(batch)], np.int32)] if not past else [None]
    inputs.append(n.one_of(*kinds))
    inputs.append(n.real(n.one_of(1, batch), n.one_of(1, count), length, total) if n.maybe() else None)
    inputs += [n.real(batch, count, past, size), n.real(batch, count, past, size)] if past else []
    while inputs[-1] is None:
        inputs.pop()
    attributes: dict[str, Any] = {"num_heads": count}
    if n.maybe():
        attributes["scale"] = 0.4
    if n.maybe() and columns == length:
        attributes["unidirectional"] = 1
    results = (True, True, True) if past else (True,)
    return Case("MultiHeadAttention", inputs, attributes, results)


def one_token(n: Numbers) -> Case:
    batch, count, size, past = n.between(1, 3), n.between(1, 3), n.one_of(4, 8), n.between(1, 5)
    hidden = count * size
    places = past + n.between(1, 3)
    tokens = [n.real(batch, 1, hidden) for _ in range(3)]
    caches = [n.real(batch, count, places, size) for _ in range(2)]
    inputs: list[Array | None] = [*tokens, None, None, *caches]
    # onnxruntime's kernel for processors has a cache that is shared, and no other.
    attributes: dict[str, Any] = {"num_heads": count, "past_present_share_buffer": 1}
    inputs.append(np.array([past], np.int32))
    return Case("DecoderMaskedMultiHeadAttention", inputs, attributes, (True, True, True))


def projected(n: Numbers) -> Case:
    batch, count, size, length = n.between(1, 3), n.between(1, 3), n.one_of(4, 8), n.between(1, 4)
    hidden, width = count * size, n.one_of(4, 8)
    past = n.one_of(0, 0, 3)
    inputs: list[Array | None] = [n.real(batch, length, width), n.real(width, 3 * hidden, scale=0.4)]
    inputs.append(n.real(3 * hidden))
    total = length + past
    masks = [None, n.rng.integers(0, 2, (batch, total)).astype(np.int32)]
    mask = n.one_of(*masks)
    if mask is not None:
        mask[:, 0] = 1
    inputs.append(mask)
    inputs.append(n.real(2, batch, count, past, size) if past else None)
    inputs.append(n.real(1, count, length, total) if not past and n.maybe() else None)
    while inputs[-1] is None:
        inputs.pop()
    attributes: dict[str, Any] = {"num_heads": count}
    if n.maybe():
        attributes["unidirectional"] = 1
    return Case("Attention", inputs, attributes, (True, True) if past else (True,))


def quantised_projected(n: Numbers) -> Case:
    batch, count, size, length = n.between(1, 2), n.between(1, 3), n.one_of(4, 8), n.between(1, 4)
    hidden, width = count * size, n.one_of(4, 8)
    is_signed, by_column = n.maybe(), n.maybe()
    dtype = np.int8 if is_signed else np.uint8
    each = (3 * hidden,) if by_column else ()
    inputs: list[Array | None] = [
        n.bytes(batch, length, width),
        some_bytes(width, 3 * hidden, dtype=dtype),
        n.real(3 * hidden),
        np.array(0.02, np.float32),
        np.asarray(n.rng.uniform(0.001, 0.01, each)).astype(np.float32),
        n.rng.integers(0, 2, (batch, length)).astype(np.int32) if n.maybe() else None,
        np.array(120, np.uint8),
        np.full(each, 0 if is_signed else 128, dtype),
    ]
    mask = inputs[5]
    if mask is not None:
        mask[:, 0] = 1
    attributes = {"num_heads": count, "unidirectional": n.between(0, 1)}
    return Case("QAttention", inputs, attributes, constants=(1, 2, 4, 7))


def two_of_bytes(op_type: str) -> Callable[[Numbers], Case]:
    def make(n: Numbers) -> Case:
        dtype = n.one_of(np.uint8, np.int8)
        shape = (n.between(1, 3), n.between(1, 4), n.between(1, 5))
        other = n.one_of(shape, (1, shape[1], 1), (shape[2],), ())

        def parameters(scale: float) -> list[Array]:
            return [np.array(scale, np.float32), np.array(n.between(0, 9), dtype)]

        a, b = some_bytes(*shape, dtype=dtype), some_bytes(*other, dtype=dtype)
        inputs = [a, *parameters(0.02), b, *parameters(0.03), *parameters(0.05)]
        return Case(op_type, inputs, steps=1, constants=(1, 2, 4, 5, 6, 7))

    return make


def integer_product(n: Numbers) -> Case:
    rows, terms, columns = n.between(1, 5), n.between(1, 40), n.between(1, 9)
    is_signed, by_column = n.maybe(), n.maybe()
    dtype = np.int8 if is_signed else np.uint8
    each = (columns,) if by_column else ()
    weights = [some_bytes(terms, columns, dtype=dtype), np.asarray(n.steps(*each))]
    zero = np.asarray(n.rng.integers(0, 100, each)).astype(dtype)
    bias = [n.real(columns)] if n.maybe() else []
    if n.maybe():
        inputs = [n.real(rows, terms), *weights, zero, *bias]
        return Case("DynamicQuantizeMatMul", inputs, constants=(1, 2, 3))
    left = [n.bytes(rows, terms), weights[0], np.array(0.02, np.float32), weights[1]]
    inputs = [*left, np.array(n.between(0, 255), np.uint8), zero, *bias]
    return Case("MatMulIntegerToFloat", inputs, constants=(1, 3, 5))


def rotated(n: Numbers) -> Case:
    batch, length, count, size = n.between(1, 3), n.between(1, 4), n.between(1, 3), n.one_of(4, 8)
    places = np.array([n.between(0, 3)]) if n.maybe() else n.rng.integers(0, 8, (batch, length))
    x = n.real(batch, length, count * size) if n.maybe() else n.real(batch, count, length, size)
    turned = size if n.maybe() else size // 2
    attributes: dict[str, int] = {"interleaved": n.between(0, 1)}
    if turned != size or n.maybe():
        attributes.update(num_heads=count, rotary_embedding_dim=turned)
    tables = [n.real(8, turned // 2), n.real(8, turned // 2)]
    return Case("RotaryEmbedding", [x, places, *tables], attributes)


MAKERS: Mapping[str, Callable[[Numbers], Case]] = {
    make.__name__: make
    for make in (
        weights_of_bits,
        weights_of_a_table,
        rows_of_blocks,
        quantised_embedding,
        grouped_queries,
        many_heads,
        one_token,
        projected,
        quantised_projected,
        integer_product,
        rotated,
    )
} | {op_type: two_of_bytes(op_type) for op_type in ("QLinearAdd", "QLinearMul")}


def assert_close(case: Case, found: Sequence[Array], wanted: Sequence[Array]) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        if case.steps:
            assert np.abs(one.astype(np.int64) - other).max(initial=0) <= case.steps
        else:
            limit = 2e-4 * max(1.0, float(np.abs(other).max(initial=0)))
            np.testing.assert_allclose(one, other, rtol=0, atol=limit)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", MAKERS)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 1 << 30))
def test_operators_compute_what_onnxruntime_computes(name: str, seed: int) -> None:
    case = MAKERS[name](Numbers(seed))
    model = case.model()
    assert_close(case, computed(model, case.feed), expected(model, case.feed))
