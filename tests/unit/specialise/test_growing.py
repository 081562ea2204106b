"""Caches that grow: one code for every length, the same bits in any order of lengths."""

# mypy: disable-error-code="arg-type, attr-defined, misc"

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx.compose
import onnx.parser
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto
from tests.support.caches import WRITES, attention_step, buffer_step
from tests.support.exported_caches import KINDS, decoder_with_cache, is_installed

import tilewright as tw

Array = np.ndarray[Any, Any]
Feed = dict[str, Array]


def feed_of(model: ModelProto, past: int, seed: int = 0) -> Feed:
    rng = np.random.default_rng(seed + past)
    feed: Feed = {}
    for info in model.graph.input:
        dims = [d.dim_value or past for d in info.type.tensor_type.shape.dim]
        if info.type.tensor_type.elem_type == TensorProto.INT64:
            dims = [*dims[:-1], past + feed["x"].shape[2]] if info.name == "given" else dims
            feed[info.name] = np.ones(dims, np.int64)
            if info.name == "given":
                feed[info.name][..., : past // 3] = 0
        else:
            feed[info.name] = rng.standard_normal(dims).astype(np.float32)
    return feed


def compared(compiled: tw.CompiledModel, model: ModelProto, feed: Mapping[str, Array]) -> list[Array]:
    """Outputs, which are near those of onnxruntime."""
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found = compiled.run(None, dict(feed))
    for a, b in zip(found, session.run(None, dict(feed)), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)
    return found


def num_compiled(compiled: tw.CompiledModel) -> int:
    return sum(not entry.by_code_for for entry in compiled.specialisations.kept)


MODELS = {
    "plain": {},
    "window": {"window": 7},
    "mask": {"masked": True},
    "three new": {"new": 3},
    "window of three new": {"new": 3, "window": 5},
    "narrow": {"depth": 10, "heads": 3},
    "groups": {"shared": 2},
    "one head": {"heads": 1, "depth": 40},
    "wide": {"depth": 80, "heads": 2},
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", MODELS)
def test_one_code_serves_every_length(kind: str) -> None:
    model = attention_step(**MODELS[kind])
    compiled = tw.compile(model, threads=1)
    for past in (5, 2, 17, 64, 3, 333, 16, 1000):
        compared(compiled, model, feed_of(model, past))
    assert num_compiled(compiled) == 0
    assert {entry.by_code_for for entry in compiled.specialisations.kept} == {(4088,)}


def two_layers() -> ModelProto:
    """One that sees all of its past, and one with a window, of a mask that both are given."""
    parts = [
        onnx.compose.add_prefix(attention_step(masked=True, together=True, window=window), prefix)
        for window, prefix in ((None, "all_"), (7, "near_"))
    ]
    model: ModelProto = onnx.compose.merge_models(*parts, io_map=[("all_y", "near_x")])
    names = {"all_given": "given", "near_given": "given", "all_x": "x"}
    for value in model.graph.input:
        value.name = names.get(value.name, value.name)
    (*_, second) = (value for value in model.graph.input if value.name == "given")
    model.graph.input.remove(second)
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    return model


def test_a_window_that_hides_nothing_of_a_short_past_has_the_same_code() -> None:
    """Where both layers have the same mask then, and one where the past is long."""
    model = two_layers()
    compiled = tw.compile(model, threads=1)
    for past in (5, 2, 17, 64, 3, 333):
        compared(compiled, model, feed_of(model, past))
    assert num_compiled(compiled) == 0


def test_a_length_has_the_same_bits_whatever_ran_before() -> None:
    model = attention_step(window=9)
    lengths = (40, 3, 129, 16)
    orders = [lengths, lengths[::-1], (129, *lengths)]
    found: dict[int, set[bytes]] = {past: set() for past in lengths}
    for number, order in enumerate(orders):
        compiled = tw.compile(model, threads=1 + number % 2)
        for past in order:
            results = compiled.run(None, feed_of(model, past))
            found[past].add(b"".join(array.tobytes() for array in results))
    assert all(len(bits) == 1 for bits in found.values())


def test_lengths_up_to_the_end_of_a_table_of_positions() -> None:
    model = attention_step(longest=300)
    compiled = tw.compile(model, threads=1)
    for past in (7, 248, 120, 299):
        compared(compiled, model, feed_of(model, past))
    by_code = {e.shapes["past_k"][2]: e.by_code_for for e in compiled.specialisations.kept}
    assert by_code == {7: (248,), 299: ()}


def test_no_past_and_one_place_have_code_of_their_own() -> None:
    model = attention_step()
    compiled = tw.compile(model, threads=1)
    for past in (1, 30, 0, 31):
        compared(compiled, model, feed_of(model, past))
    assert num_compiled(compiled) == 2


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "extra",
    [
        "z = ReduceMean<axes=[2], keepdims=1>(past_k)",
        "z = Concat<axis=2>(past_k, k)",
        "rows = Transpose<perm=[0, 2, 1, 3]>(keys) z = MatMul(rows, weights)",
        "z = Relu(keys)",
    ],
)
def test_other_work_with_a_past_is_compiled_for_its_length(extra: str) -> None:
    model = attention_step()
    added = onnx.parser.parse_graph(f"g (float[1,4,2,16] past_k) => (float z) {{ {extra} }}")
    model.graph.node.extend(added.node)
    model.graph.output.append(onnx.helper.make_tensor_value_info("z", TensorProto.FLOAT, None))
    compiled = tw.compile(model, threads=1)
    for past in (4, 9):
        compared(compiled, model, feed_of(model, past))


def test_positions_may_repeat() -> None:
    model = attention_step()
    gather = next(node for node in model.graph.node if node.output[0] == "place")
    gather.input[1] = "row"
    added = onnx.parser.parse_graph("g (int64[n] places) => (int64[n] row) { row = Mod(places, two) }")
    model.graph.node.insert(list(model.graph.node).index(gather), added.node[0])
    compiled = tw.compile(model, threads=1)
    for past in (4, 5, 6):
        compared(compiled, model, feed_of(model, past))


def test_a_growing_cache_is_fed_what_was_given() -> None:
    model = attention_step()
    compiled = tw.compile(model, threads=1)
    feed = feed_of(model, 2)
    for _ in range(20):
        before = {name: array.copy() for name, array in feed.items()}
        y, keys, values = compared(compiled, model, feed)
        assert all(np.array_equal(feed[name], before[name]) for name in feed)
        feed = {**feed, "x": y, "past_k": keys, "past_v": values}
    assert num_compiled(compiled) == 0


def test_caches_may_lie_anywhere() -> None:
    model = attention_step()
    compiled = tw.compile(model, threads=1)
    feed = feed_of(model, 12)
    wanted = compiled.run(None, feed)
    feed["past_k"] = np.ascontiguousarray(feed["past_k"].transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
    feed["past_v"] = np.repeat(feed["past_v"], 2, 2)[:, :, ::2]
    assert all(np.array_equal(a, b) for a, b in zip(compiled.run(None, feed), wanted, strict=True))


def test_a_batch_may_be_empty_or_another() -> None:
    model = attention_step(heads=2)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    compiled = tw.compile(model, threads=1)
    one = attention_step(heads=2)
    for past, batch in ((5, 1), (6, 0), (7, 2), (8, 0), (9, 1)):
        feed = {name: np.repeat(array, batch, 0) for name, array in feed_of(one, past).items()}
        compared(compiled, model, feed)
    assert num_compiled(compiled) == 0


@pytest.mark.parametrize("names", ["pq", "??"])
def test_caches_of_two_lengths(names: str) -> None:
    layers = [
        f"""keys{i} = Concat<axis=2>(past_k{i}, k) values{i} = Concat<axis=2>(past_v{i}, k)
        turned{i} = Transpose<perm=[0, 1, 3, 2]>(keys{i}) score{i} = MatMul({x}, turned{i})
        chance{i} = Softmax<axis=-1>(score{i}) y{i} = MatMul(chance{i}, values{i})"""
        for i, x in enumerate(("x", "y0"))
    ]
    one = "float[1,2,1,16]"
    pasts = ", ".join(f"float[1,2,{d},16] past_{kv}{i}" for i, d in enumerate(names) for kv in "kv")
    grown = ", ".join(f"float[1,2,g{kv}{i},16] {kv}{i}" for i in (0, 1) for kv in ("keys", "values"))
    text = f"step ({one} x, {one} k, {pasts}) => ({one} y1, {grown}) {{ {' '.join(layers)} }}"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    compiled = tw.compile(model, threads=1)
    rng = np.random.default_rng(0)
    for lengths in ((5, 9), (6, 10), (5, 5), (9, 5), (6, 6)):
        extents = {"x": 1, "k": 1, **{f"past_{kv}{i}": n for i, n in enumerate(lengths) for kv in "kv"}}
        shapes = {name: (1, 2, extent, 16) for name, extent in extents.items()}
        feed = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
        compared(compiled, model, feed)


class OtherArray:
    """An array of another library, which says its shape and type as numpy does."""

    def __init__(self, array: Array) -> None:
        self._array, self.shape, self.dtype = array, array.shape, array.dtype

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self._array


def test_caches_may_be_arrays_of_other_libraries() -> None:
    model = attention_step()
    compiled = tw.compile(model, threads=1)
    for past in (12, 12, 13):
        feed = feed_of(model, past)
        wanted = compiled.run(None, feed)
        found = compiled.run(None, {name: OtherArray(array) for name, array in feed.items()})
        assert all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True))


@pytest.mark.skipif(not is_installed(), reason="torch, onnxscript and transformers are not installed")
@pytest.mark.parametrize("kind", KINDS)
def test_decoders_of_transformers_compile_once(kind: str) -> None:
    model = decoder_with_cache(kind)
    compiled = tw.compile(model, threads=1)
    for past in (4, 2, 15, 16, 17, 40, 300):
        compared(compiled, model, feed_of(model, past))
    assert num_compiled(compiled) == 0


def test_prepared_lengths_keep_their_own_code() -> None:
    model = attention_step()
    compiled = tw.compile(model, threads=1, shapes="past_k:1x4x30|40x16")
    feed = feed_of(model, 40)
    first = compiled.run(None, feed)
    compared(compiled, model, feed_of(model, 17))
    assert all(np.array_equal(a, b) for a, b in zip(compiled.run(None, feed), first, strict=True))


@pytest.mark.parametrize("write", WRITES)
def test_a_buffer_written_by_position_is_compiled_once(write: str) -> None:
    model = buffer_step(write, heads=2, places=24, depth=8)
    compiled = tw.compile(model, threads=1)
    feed = feed_of(model, 0)
    for place in range(5):
        feed["place"] = np.array([place])
        _, feed["past_k"], feed["past_v"] = compared(compiled, model, feed)


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(
    st.integers(1, 3),
    st.sampled_from((8, 12, 20, 33)),
    st.integers(1, 4),
    st.one_of(st.none(), st.integers(1, 40)),
    st.booleans(),
    st.lists(st.integers(2, 200), min_size=2, max_size=4),
)
def test_any_sequence_of_lengths_is_right(
    heads: int, depth: int, new: int, window: int | None, masked: bool, lengths: list[int]
) -> None:
    model = attention_step(heads=heads, depth=depth, new=new, window=window, masked=masked, longest=260)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    bits: dict[int, bytes] = {}
    for order in (lengths, lengths[::-1]):
        compiled = tw.compile(model, threads=1)
        for past in order:
            feed = feed_of(model, past)
            found = compiled.run(None, dict(feed))
            for a, b in zip(found, session.run(None, dict(feed)), strict=True):
                np.testing.assert_allclose(a, b, rtol=5e-5, atol=5e-5)
            together = b"".join(array.tobytes() for array in found)
            assert bits.setdefault(past, together) == together
        # A mask that is fed beside one of positions is a second: such attention reads no cache in place.
        assert masked or num_compiled(compiled) == 0
