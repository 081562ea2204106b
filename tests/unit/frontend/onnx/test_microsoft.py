"""Operators that onnxruntime's optimiser writes give what onnxruntime computes."""

# mypy: disable-error-code="arg-type, call-arg"

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from tilewright.errors import InputError, ModelRejected, UnsupportedOp
from tilewright.frontend.onnx import load_onnx
from tilewright.frontend.onnx.microsoft.catalog import NAMES, REFUSED
from tilewright.ir.interpret import run_graph
from tilewright.ir.verify import verify
from tilewright.text.suggestions import misspelt

Array = np.ndarray[Any, Any]
_RNG = np.random.default_rng(0)


def real(*shape: int) -> Array:
    return _RNG.standard_normal(shape).astype(np.float32)


def some_bytes(*shape: int, dtype: type = np.uint8) -> Array:
    low = 0 if dtype is np.uint8 else -128
    return _RNG.integers(low, low + 256, shape).astype(dtype)


def scale(value: float) -> Array:
    return np.array(value, np.float32)


def zero(value: int, dtype: type = np.uint8) -> Array:
    return np.array(value, dtype)


def whole(*values: int) -> Array:
    return np.array(values, np.int32)


@dataclass
class Case:
    """A node: its inputs (a dash leaves one out), attributes, and how many results it has."""

    op_type: str
    inputs: Sequence[Array | None]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    results: Sequence[bool] = (True,)
    domain: str = "com.microsoft"
    opset: int = 17
    steps: float = 0.0  # of a byte that results may differ by
    constants: Sequence[int] = ()  # inputs that the model holds

    def __str__(self) -> str:
        return "-".join([self.op_type, *map(str, self.attributes)])

    def model(self) -> onnx.ModelProto:
        names = ["" if array is None else f"i{n}" for n, array in enumerate(self.inputs)]
        outputs = [f"o{n}" if wanted else "" for n, wanted in enumerate(self.results)]
        node = helper.make_node(self.op_type, names, outputs, "fused", domain=self.domain, **self.attributes)
        declared = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, (name, a) in enumerate(zip(names, self.inputs, strict=True))
            if a is not None and n not in self.constants
        ]
        held = [numpy_helper.from_array(self.inputs[n], names[n]) for n in self.constants]
        results = [onnx.ValueInfoProto(name=name) for name in outputs if name]
        graph = helper.make_graph([node], "g", declared, results, held)
        domains = sorted({"com.microsoft", self.domain} - {""})
        opsets = [helper.make_opsetid("", self.opset), *(helper.make_opsetid(d, 1) for d in domains)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9)

    @property
    def feed(self) -> dict[str, Array]:
        return {
            f"i{n}": array
            for n, array in enumerate(self.inputs)
            if array is not None and n not in self.constants
        }


def computed(model: onnx.ModelProto, feed: Mapping[str, Array]) -> list[Array]:
    graph = load_onnx(model)
    assert verify(graph) == ()
    assert {node.domain for node in graph.nodes} == {""}
    found = run_graph(graph, feed)
    return [found[value.name] for value in graph.outputs]


def expected(model: onnx.ModelProto, feed: Mapping[str, Array]) -> list[Array]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return list(session.run(None, dict(feed)))


WEIGHTS = (real(8, 24), real(24))
TOKENS = (whole(1, 2, 0, 4, 3, 2).reshape(2, 3), whole(0, 0, 1, 1, 1, 0).reshape(2, 3))
TABLES = (real(6, 8), real(5, 8), real(2, 8), real(8), real(8))
MASK = whole(1, 1, 0, 1, 0, 0).reshape(2, 3)
PAST = real(2, 2, 2, 2, 4)
ANGLES = (real(7, 2), real(7, 2))
TURNS = (real(12, 8), real(12, 8))


def grouped(
    length: int,
    past: int,
    total: int,
    lasts: Sequence[int],
    *,
    is_packed: bool = False,
    turns: Sequence[Array] = (),
    **attributes: float,
) -> Case:
    """Four heads of queries, two of keys, 16 channels each; `past` places of a cache, `lasts` in use."""
    batch = len(lasts)
    parts = [real(batch, length, 64), real(batch, length, 32), real(batch, length, 32)]
    caches = [real(batch, 2, past, 16), real(batch, 2, past, 16)] if past else [None, None]
    tokens = [np.concatenate(parts, axis=2), None, None] if is_packed else parts
    inputs = [*tokens, *caches, whole(*lasts), np.array(total, np.int32), *turns]
    return Case(
        "GroupQueryAttention",
        inputs,
        {"num_heads": 4, "kv_num_heads": 2, **attributes},
        results=(True, True, True),
        constants=(6,),
    )


A, B = (some_bytes(2, 3, 4), scale(0.02), zero(120)), (some_bytes(2, 1, 4), scale(0.03), zero(131))
Y = (scale(0.05), zero(90))
PICTURE = (some_bytes(1, 3, 6, 5), scale(0.02), zero(100))

CASES = [
    Case("FusedMatMul", [real(2, 3, 4), real(2, 5, 4)], {"alpha": 0.5, "transB": 1}),
    Case("FusedMatMul", [real(3, 2, 4), real(2, 4, 5)], {"transBatchA": 1}),
    Case("FusedMatMul", [real(4, 2, 3), real(2, 4, 5)], {"transBatchA": 1, "transA": 1}),
    Case("Gelu", [real(2, 3)]),
    Case("BiasGelu", [real(2, 3), real(3)]),
    Case("FastGelu", [real(2, 3)]),
    Case("FastGelu", [real(2, 3), real(3)]),
    Case("QuickGelu", [real(2, 3)], {"alpha": 1.5}),
    Case(
        "FusedConv",
        [real(1, 2, 5, 5), real(3, 2, 3, 3), real(3), real(1, 3, 5, 5)],
        {"activation": "Relu", "pads": [1, 1, 1, 1]},
    ),
    Case(
        "FusedConv",
        [real(1, 2, 5, 5), real(3, 2, 3, 3)],
        {"activation": "LeakyRelu", "activation_params": [0.2], "strides": [2, 2]},
    ),
    Case(
        "FusedConv",
        [real(1, 2, 5, 5), real(3, 2, 3, 3), real(3)],
        {"activation": "Clip", "activation_params": [0.0, 0.5]},
    ),
    Case(
        "FusedGemm",
        [real(2, 3), real(4, 3), real(4)],
        {"activation": "LeakyRelu", "activation_alpha": 0.3, "transB": 1},
    ),
    Case(
        "SkipLayerNormalization",
        [real(2, 3, 8), real(2, 3, 8), real(8), real(8), real(8)],
        {"epsilon": 1e-5},
        (True, False, False, True),
    ),
    Case("SkipLayerNormalization", [real(2, 3, 8), real(2, 3, 8), real(8)]),
    Case(
        "SkipSimplifiedLayerNormalization",
        [real(2, 3, 8), real(2, 3, 8), real(8)],
        {"epsilon": 1e-6},
        (True, False, False, True),
    ),
    Case("SimplifiedLayerNormalization", [real(2, 3, 8), real(8)], {"axis": -1}, domain=""),
    Case("LayerNormalization", [real(2, 3, 8), real(8), real(8)], {"axis": -1}, domain="", opset=13),
    Case("EmbedLayerNormalization", [*TOKENS, *TABLES, MASK], {}, (True, True, True)),
    Case("EmbedLayerNormalization", [TOKENS[0], None, *TABLES[:2], None, *TABLES[3:]], {}, (True, True)),
    Case("Attention", [real(2, 3, 8), *WEIGHTS], {"num_heads": 2}),
    Case("Attention", [real(2, 3, 8), *WEIGHTS, MASK], {"num_heads": 2, "unidirectional": 1}),
    Case("Attention", [real(2, 3, 8), *WEIGHTS, whole(2, 3)], {"num_heads": 2, "scale": 0.3}),
    Case("Attention", [real(2, 3, 8), *WEIGHTS, whole(2, 3, 0, 1)], {"num_heads": 2}),
    Case(
        "Attention",
        [real(2, 3, 8), real(8, 20), real(20)],
        {"num_heads": 2, "qkv_hidden_sizes": [8, 8, 4]},
    ),
    Case(
        "Attention",
        [real(2, 3, 8), *WEIGHTS, None, PAST],
        {"num_heads": 2, "unidirectional": 1},
        (True, True),
    ),
    Case("MultiHeadAttention", [real(2, 3, 8), real(2, 5, 8), real(2, 5, 8)], {"num_heads": 2}),
    Case(
        "MultiHeadAttention",
        [real(2, 3, 8), real(2, 3, 8), real(2, 3, 8), real(24), MASK, real(1, 2, 3, 3)],
        {"num_heads": 2},
    ),
    Case(
        "MultiHeadAttention",
        [*(real(2, 3, 8) for _ in range(3)), None, None, None, PAST[0], PAST[1]],
        {"num_heads": 2},
        (True, True, True),
    ),
    Case("RotaryEmbedding", [real(2, 3, 8), np.array([2], np.int64), *ANGLES]),
    Case(
        "RotaryEmbedding",
        [real(2, 2, 3, 4), np.arange(6).reshape(2, 3), *ANGLES],
        {"interleaved": 1},
    ),
    Case("QLinearAdd", [*A, *B, *Y], steps=1),
    Case("QLinearMul", [*A, *B, *Y], steps=1),
    Case("QLinearSigmoid", [*A, scale(1 / 256), zero(0)], steps=1),
    Case("QLinearLeakyRelu", [*A, *Y], {"alpha": 0.2}, steps=1),
    Case("QLinearSoftmax", [*A, scale(1 / 256), zero(0)], {"axis": -1, "opset": 13}, steps=1),
    Case("QLinearAveragePool", [*PICTURE, *Y], {"kernel_shape": [2, 2], "strides": [2, 2]}, steps=1),
    Case("QLinearGlobalAveragePool", [*PICTURE, *Y], {"channels_last": 0}, steps=1),
    Case("QLinearGlobalAveragePool", [*PICTURE, *Y], {"channels_last": 1}, steps=1),
    Case("QLinearConcat", [*Y, *A, *B], {"axis": 1}, steps=1),
    Case(
        "QGemm",
        [
            *(some_bytes(2, 4), scale(0.02), zero(120)),
            *(some_bytes(4, 3), scale(0.1), zero(99)),
            *(whole(7, -800, 99), scale(0.2), zero(80)),
        ],
        steps=1,
    ),
    Case("NhwcMaxPool", [some_bytes(1, 4, 4, 3)], {"kernel_shape": [2, 2]}),
    Case("MatMulIntegerToFloat", [some_bytes(2, 4), some_bytes(4, 3), scale(0.1), real(3) ** 2, zero(9)]),
    Case("DynamicQuantizeMatMul", [real(2, 4), some_bytes(4, 3), scale(0.1), zero(100), real(3)]),
    Case(
        "MatMulNBits",
        [real(2, 40), some_bytes(6, 3, 8), real(18)],
        {"K": 40, "N": 6, "bits": 4, "block_size": 16},
    ),
    Case(
        "MatMulNBits",
        [real(2, 40), some_bytes(6, 3, 8), real(18), some_bytes(12)],
        {"K": 40, "N": 6, "bits": 4, "block_size": 16, "accuracy_level": 1},
    ),
    Case("DequantizeLinear", [some_bytes(2, 3), scale(0.1), zero(5)]),
    Case("QuantizeLinear", [real(2, 3), scale(0.1), zero(5)], steps=1),
    Case(
        "QAttention",
        [
            *(some_bytes(2, 3, 8), some_bytes(8, 24), real(24)),
            *(scale(0.01), scale(0.01), MASK, zero(130), zero(128)),
        ],
        {"num_heads": 2},
    ),
    # The first tokens, then some more behind as many as the cache has.
    grouped(5, 0, 5, [4, 4]),
    grouped(5, 0, 5, [4, 4], is_packed=True, scale=0.3),
    grouped(1, 4, 5, [4, 4]),
    grouped(3, 4, 7, [6]),
    grouped(1, 5, 6, [5, 5], local_window_size=2),
    grouped(5, 0, 5, [4, 4], do_rotary=1, turns=TURNS),
    grouped(1, 4, 5, [4, 4], do_rotary=1, rotary_interleaved=1, turns=TURNS),
]


@pytest.mark.sampled(14)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_definition_gives_what_onnxruntime_computes(case: Case) -> None:
    model = case.model()
    for found, wanted in zip(computed(model, case.feed), expected(model, case.feed), strict=True):
        assert found.dtype == wanted.dtype
        np.testing.assert_allclose(
            found.astype(np.float64), wanted.astype(np.float64), rtol=2e-5, atol=max(2e-5, case.steps)
        )


def test_operators_that_only_run_elsewhere_are_sums_and_products_too() -> None:
    x, bias, skip = real(2, 3, 4), real(4), real(2, 3, 4)
    (total,) = computed(Case("BiasAdd", [x, bias, skip]).model(), {"i0": x, "i1": bias, "i2": skip})
    np.testing.assert_allclose(total, x + bias + skip, rtol=1e-6)
    case = Case("BiasSoftmax", [x, real(2, 1, 4)], {"axis": 2, "is_inner_broadcast": 1})
    (found,) = computed(case.model(), case.feed)
    powers = np.exp(x + case.inputs[1])  # type: ignore[operator]  # it is an array
    np.testing.assert_allclose(found, powers / powers.sum(-1, keepdims=True), rtol=1e-5)
    weights = real(4, 5)
    (found,) = computed(Case("GemmFastGelu", [x, weights]).model(), {"i0": x, "i1": weights})
    (wanted,) = computed(Case("FastGelu", [x @ weights]).model(), {"i0": x @ weights})
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def group_norm(x: Array, scale: Array, bias: Array, groups: int) -> Array:
    samples, height, width, channels = x.shape
    parts = x.reshape(samples, height * width, groups, channels // groups)
    mean, variance = parts.mean((1, 3), keepdims=True), parts.var((1, 3), keepdims=True)
    result: Array = ((parts - mean) / np.sqrt(variance + 1e-5)).reshape(x.shape) * scale + bias
    return result


def test_what_is_normalised_in_groups_has_its_channels_last() -> None:
    x, scale, bias, skip = real(2, 3, 4, 6), real(6), real(6), real(2, 6)
    case = Case("GroupNorm", [x, scale, bias], {"groups": 3, "activation": 0})
    (found,) = computed(case.model(), case.feed)
    np.testing.assert_allclose(found, group_norm(x, scale, bias, 3), rtol=1e-4, atol=1e-5)
    case = Case(
        "SkipGroupNorm", [x, scale, bias, skip, bias], {"groups": 2, "activation": 1}, results=(True, True)
    )
    found, total = computed(case.model(), case.feed)
    np.testing.assert_allclose(total, x + skip[:, None, None] + bias, rtol=1e-6)
    normal = group_norm(total, scale, bias, 2)
    np.testing.assert_allclose(found, normal / (1 + np.exp(-normal)), rtol=1e-4, atol=1e-5)


def test_a_convolution_with_channels_last_is_one_with_channels_first() -> None:
    x, weights = real(1, 5, 6, 4), real(3, 3, 3, 4)
    case = Case("NhwcConv", [x, weights], {"pads": [1, 1, 1, 1]})
    (found,) = computed(case.model(), case.feed)
    first = Case("FusedConv", [x.transpose(0, 3, 1, 2), weights.transpose(0, 3, 1, 2)], case.attributes)
    (wanted,) = computed(first.model(), first.feed)
    np.testing.assert_allclose(found, wanted.transpose(0, 2, 3, 1), rtol=1e-5, atol=1e-6)


def test_the_gate_of_a_split_gelu_is_the_second_half() -> None:
    x, bias = real(2, 3, 8), real(8)
    case = Case("BiasSplitGelu", [x, bias])
    (found,) = computed(case.model(), case.feed)
    value, gate = np.split(x + bias, 2, axis=-1)
    (gelu,) = computed(Case("Gelu", [gate]).model(), {"i0": gate})
    np.testing.assert_allclose(found, value * gelu, rtol=1e-5, atol=1e-6)


def test_packed_queries_keys_and_values_are_what_they_are_unpacked() -> None:
    parts = [real(2, 3, 8) for _ in range(3)]
    apart = Case("MultiHeadAttention", parts, {"num_heads": 2})
    (wanted,) = computed(apart.model(), apart.feed)
    by_head = np.stack([part.reshape(2, 3, 2, 4) for part in parts], axis=3)
    packed = Case("MultiHeadAttention", [by_head], {"num_heads": 2})
    half = Case("MultiHeadAttention", [parts[0], by_head[:, :, :, 1:]], {"num_heads": 2})
    for case in (packed, half):
        np.testing.assert_allclose(computed(case.model(), case.feed)[0], wanted, rtol=1e-6)


def test_what_a_definition_does_not_know_is_refused_in_a_line() -> None:
    model = Case("Gelu", [real(2, 3)], {"newer": 1}).model()
    with pytest.raises(UnsupportedOp, match="node Gelu 'fused': its attribute 'newer' is not known"):
        load_onnx(model)
    model = Case("Attention", [real(2, 3, 8), *WEIGHTS], {"num_heads": 2, "do_rotary": 1}).model()
    with pytest.raises(UnsupportedOp, match="'do_rotary' is not supported"):
        load_onnx(model)
    with pytest.raises(UnsupportedOp, match=r"com\.microsoft Gellu is not known; did you mean Gelu"):
        load_onnx(Case("Gellu", [real(2, 3)]).model())
    with pytest.raises(UnsupportedOp, match=r"'com\.microsoft\.nchwc'.*ORT_ENABLE_EXTENDED"):
        load_onnx(Case("ReorderInput", [real(1, 8, 2, 2)], domain="com.microsoft.nchwc").model())


@pytest.mark.parametrize(
    "case",
    [
        grouped(1, 9, 6, [5, 3]),
        grouped(1, 9, 6, [5, 3], local_window_size=3),
        grouped(1, 9, 6, [5, 3], do_rotary=1, turns=TURNS, is_packed=True),
    ],
    ids=str,
)
def test_sequences_of_different_lengths_share_a_cache_with_free_places(case: Case) -> None:
    """Places behind a sequence's last token are nobody's: we keep what they held."""
    model = case.model()
    (found, *ours), (wanted, *theirs) = computed(model, case.feed), expected(model, case.feed)
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)
    for present, other in zip(ours, theirs, strict=True):
        for sequence, last in enumerate((5, 3)):
            used = np.s_[sequence, :, : last + 1]
            np.testing.assert_allclose(present[used], other[used], rtol=2e-5, atol=2e-5)


def test_a_cache_with_room_for_all_needs_no_known_length() -> None:
    case = grouped(1, 6, 5, [4, 4])
    case.constants = ()
    found, wanted = computed(case.model(), case.feed)[0], expected(case.model(), case.feed)[0]
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)
    full = dataclasses.replace(case, inputs=[*case.inputs[:6], np.array(7, np.int32)])
    with pytest.raises(InputError, match="index 7 lies outside axis 0, which has 7 elements"):
        computed(full.model(), full.feed)
    with pytest.raises(ModelRejected, match="3 heads do not serve 4"):
        load_onnx(dataclasses.replace(case, attributes={"num_heads": 4, "kv_num_heads": 3}).model())
    with pytest.raises(UnsupportedOp, match="'qk_output' is not supported"):
        load_onnx(dataclasses.replace(case, attributes={**case.attributes, "qk_output": 1}).model())


def test_each_row_of_weights_has_the_zero_point_of_its_group() -> None:
    """Which onnxruntime's kernel reads, and leaves out."""
    weights, zeros, scales = some_bytes(3, 2, 8), some_bytes(3, 1), abs(real(3, 2))
    groups = np.array([0, 1] * 16, np.int32)
    case = Case(
        "MatMulNBits",
        [real(2, 32), weights, scales, zeros, groups],
        {"K": 32, "N": 3, "bits": 4, "block_size": 16},
        constants=(1, 2, 3, 4),
    )
    whole = np.stack([weights & 15, weights >> 4], axis=-1).reshape(3, 32).astype(np.float32)
    each = np.stack([zeros & 15, zeros >> 4], axis=-1).reshape(3, 2).astype(np.float32)
    wanted = case.feed["i0"] @ ((whole - each[:, groups]) * scales[:, groups]).T
    np.testing.assert_allclose(computed(case.model(), case.feed)[0], wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("block_size", [1 << 31, (1 << 63) - 1])
def test_blocks_larger_than_their_axis_need_no_memory(block_size: int) -> None:
    table, places = np.arange(64, dtype=np.uint8).reshape(4, 16), np.array([2, 0])
    scales = np.array([[0.5], [1], [2], [4]], np.float32)
    attributes = {"bits": 8, "block_size": block_size}
    case = Case("GatherBlockQuantized", [table, places, scales], attributes, constants=(0, 2))
    (found,) = computed(case.model(), case.feed)
    np.testing.assert_array_equal(found, ((table - 128.0) * scales)[places])


def test_operators_that_no_definition_can_have_say_what_to_do_instead() -> None:
    with pytest.raises(UnsupportedOp, match="BeamSearch is not supported: it generates sequences"):
        load_onnx(Case("BeamSearch", [whole(1, 2).reshape(1, 2)]).model())
    for name in REFUSED:
        with pytest.raises(UnsupportedOp, match=f"com.microsoft {name} is not supported: "):
            load_onnx(Case(name, [real(2, 3)]).model())


@pytest.mark.parametrize("name", ["QLinearMatMul", "Gemm", "FusedGelu", "MatMulNBitsQkv", "LayerNorm"])
def test_what_merely_sounds_alike_is_not_suggested(name: str) -> None:
    with pytest.raises(UnsupportedOp) as raised:
        load_onnx(Case(name, [real(2, 3)]).model())
    assert "did you mean" not in str(raised.value)


def test_every_suggestion_is_supported() -> None:
    for name in NAMES:
        for slip in (name.lower(), f"{name}s", name[:-1], f"{name[:-2]}{name[-1]}{name[-2]}"):
            guess = misspelt(slip, NAMES)
            assert guess in NAMES


def packed_tokens(counts: Sequence[int], length: int, columns: int) -> tuple[Array, Array, Array]:
    """Tokens, their places before those of none, and where sequences begin and end."""
    is_token = (np.arange(length)[None] < np.array(counts)[:, None]).reshape(-1)
    places = np.arange(len(is_token), dtype=np.int32)
    offset = np.concatenate([places[is_token], places[~is_token]]).reshape(len(counts), length)
    ends = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return real(int(ends[-1]), columns), offset, ends


def attended(query: Array, key: Array, value: Array, count: int) -> Array:
    """Attention of one sequence, `[tokens, channels]`."""
    heads = [a.reshape(len(a), count, -1).transpose(1, 0, 2) for a in (query, key, value)]
    scores = heads[0] @ heads[1].transpose(0, 2, 1) / np.sqrt(heads[0].shape[2])
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    result = (powers / powers.sum(-1, keepdims=True)) @ heads[2]
    return np.asarray(result.transpose(1, 0, 2).reshape(len(query), -1))


def test_packed_sequences_attend_each_to_itself() -> None:
    counts = (3, 1, 2)
    query, offset, ends = packed_tokens(counts, 4, 8)
    key, value, bias = real(6, 8), real(6, 8), real(24)
    case = Case("PackedMultiHeadAttention", [query, key, value, bias, offset, ends], {"num_heads": 2})
    parts = [a + b for a, b in zip((query, key, value), np.split(bias, 3), strict=True)]
    bounds = list(pairwise(ends))
    wanted = np.concatenate([attended(*(p[low:high] for p in parts), 2) for low, high in bounds])
    np.testing.assert_allclose(computed(case.model(), case.feed)[0], wanted, rtol=1e-4, atol=1e-5)
    by_head = np.stack([p.reshape(6, 2, 4) for p in parts], axis=2)
    case = Case("PackedMultiHeadAttention", [by_head, None, None, None, offset, ends], {"num_heads": 2})
    np.testing.assert_allclose(computed(case.model(), case.feed)[0], wanted, rtol=1e-4, atol=1e-5)
    case = Case("PackedAttention", [query, *WEIGHTS, offset, ends], {"num_heads": 2})
    parts = np.split(query @ WEIGHTS[0] + WEIGHTS[1], 3, axis=1)
    wanted = np.concatenate([attended(*(p[low:high] for p in parts), 2) for low, high in bounds])
    np.testing.assert_allclose(computed(case.model(), case.feed)[0], wanted, rtol=1e-4, atol=1e-5)


def test_padding_comes_back_between_tokens() -> None:
    tokens, offset, _ = packed_tokens((2, 0, 3), 4, 5)
    wanted = np.zeros((12, 5), np.float32)
    wanted[offset.reshape(-1)[:5]] = tokens
    case = Case("RestorePadding", [tokens, offset])
    np.testing.assert_array_equal(computed(case.model(), case.feed)[0], wanted.reshape(3, 4, 5))


def test_distances_of_tokens_share_buckets() -> None:
    torch = pytest.importorskip("torch")
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    apart = torch.arange(40)[None] - torch.arange(40)[:, None]
    for both in (True, False):
        table = real(8, 2)
        bucket = t5.T5Attention._relative_position_bucket(apart, both, num_buckets=8, max_distance=20)
        case = Case(
            "RelativePositionBias",
            [table, np.array([40]), np.array([40])],
            {"max_distance": 20, "is_bidirectional": int(both)},
            constants=(1, 2),
        )
        wanted = table[bucket.numpy()].transpose(2, 0, 1)[None]
        np.testing.assert_array_equal(computed(case.model(), case.feed)[0], wanted)


def test_a_gate_scales_what_positions_add() -> None:
    query, bias, rel, gates, offset, eco = (
        real(2, 3, 8),
        real(8),
        real(1, 2, 3, 3),
        real(4, 8),
        real(8),
        real(1, 2, 1, 1),
    )
    case = Case("GatedRelativePositionBias", [query, bias, rel, gates, offset, eco], {"num_heads": 2})
    heads = (query + bias).reshape(2, 3, 2, 4).transpose(0, 2, 1, 3)
    both = 1 / (1 + np.exp(-(heads @ gates + offset).reshape(2, 2, 3, 2, 4).sum(-1)))
    wanted = (both[..., :1] * (both[..., 1:] * eco - 1) + 2) * rel
    np.testing.assert_allclose(computed(case.model(), case.feed)[0], wanted, rtol=1e-5, atol=1e-5)


def test_a_mean_of_bytes_is_one_of_numbers() -> None:
    x = some_bytes(2, 3, 4)
    case = Case(
        "QLinearReduceMean", [x, scale(0.02), zero(120), scale(0.01), zero(90)], {"axes": [2], "keepdims": 0}
    )
    mean = ((x.astype(np.float64) - 120) * 0.02).mean(2)
    wanted = np.clip(np.rint(mean / 0.01) + 90, 0, 255)
    assert np.abs(computed(case.model(), case.feed)[0] - wanted).max() <= 1


def test_operands_that_do_not_fit_are_refused_in_a_line() -> None:
    with pytest.raises(ModelRejected, match="5 heads do not divide"):
        load_onnx(Case("Attention", [real(2, 3, 8), *WEIGHTS], {"num_heads": 5}).model())
    with pytest.raises(ModelRejected, match="its attribute 'num_heads' is of another type"):
        load_onnx(Case("Attention", [real(2, 3, 8), *WEIGHTS], {"num_heads": 2.5}).model())
    with pytest.raises(ModelRejected, match=r"input 0 is .* not of rank 3"):
        load_onnx(Case("Attention", [real(3, 8), *WEIGHTS], {"num_heads": 2}).model())
    with pytest.raises(ModelRejected, match="needs input 1"):
        load_onnx(Case("FusedMatMul", [real(2, 3)]).model())


NETWORK = """<ir_version: 8, opset_import: ["": 17]> g (float[1,3,8] x) => (float[1,3,8] y)
    <float root = {1.4142135}, float one = {1.0}, float half = {0.5}> {
    p = MatMul(x, w) q = Add(p, b) r = Div(q, root) e = Erf(r) f = Add(e, one) m = Mul(q, f) y = Mul(m, half)
}"""


def test_a_network_as_onnxruntime_optimises_it_is_the_same_network(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(NETWORK)
    weights = {"w": real(8, 8), "b": real(8)}
    model.graph.initializer.extend(numpy_helper.from_array(data, name) for name, data in weights.items())
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    optimised = onnx.load(tmp_path / "optimised.onnx")
    assert "com.microsoft" in [node.domain for node in optimised.graph.node]
    feed = {"x": real(1, 3, 8)}
    found, wanted = computed(optimised, feed)[0], session.run(None, feed)[0]
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
