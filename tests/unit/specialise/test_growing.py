"""Caches that grow: one code for every length, the same bits in any order of lengths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, numpy_helper
from tests.support.exported_caches import KINDS, decoder_with_cache, is_installed

import tilewright as tw

Array = np.ndarray[Any, Any]
Feed = dict[str, Array]


def attention_step(
    *,
    heads: int = 4,
    shared: int = 1,
    depth: int = 16,
    new: int = 1,
    window: int | None = None,
    masked: bool = False,
    longest: int = 5000,
) -> ModelProto:
    """A step of one layer, whose positions and masks follow from the shape of its past.

    `shared` heads of queries read one of keys; the table of positions has `longest` rows.
    """
    rng = np.random.default_rng(heads * 100 + depth)
    lines = [
        "shape = Shape(past_k) past = Gather(shape, two) total = Add(past, new)",
        "places = Range(past, total, one) place = Gather(table, places) placed = Add(x, place)",
        "q = MatMul(placed, weights) keys = Concat<axis=2>(past_k, k) values = Concat<axis=2>(past_v, v)",
    ]
    whole = "keys", "values"
    if shared > 1:
        whole = "all_keys", "all_values"
        lines.append(
            """length = Unsqueeze(total, first) extents = Concat<axis=0>(before, length, behind)
            key_groups = Unsqueeze(keys, columns) key_copies = Expand(key_groups, extents)
            all_keys = Reshape(key_copies, joined) value_groups = Unsqueeze(values, columns)
            value_copies = Expand(value_groups, extents) all_values = Reshape(value_copies, joined)"""
        )
    lines.append(
        f"""turned = Transpose<perm=[0, 1, 3, 2]>({whole[0]}) score = MatMul(q, turned)
        scaled = Div(score, root) all = Range(zero, total, one) at = Unsqueeze(places, side)
        seen = LessOrEqual(all, at)"""
    )
    if window is not None:
        lines.append("begin = Sub(at, window) near = Greater(all, begin) both = And(seen, near)")
    lines.append(
        f"mask = Where({'seen' if window is None else 'both'}, always, never) hidden = Add(scaled, mask)"
    )
    if masked:
        lines.append(
            """number = Cast<to=1>(given) absent = Sub(whole, number) distant = Mul(absent, away)
            shown = Add(hidden, distant)"""
        )
    lines.append(
        f"chance = Softmax<axis=-1>({'shown' if masked else 'hidden'}) y = MatMul(chance, {whole[1]})"
    )
    cache = f"float[1,{heads},past,{depth}]"
    fresh = f"float[1,{heads},{new},{depth}]"
    queries = f"float[1,{heads * shared},{new},{depth}]"
    given = ", int64[1,1,1,whole] given" if masked else ""
    grown = f"float[1,{heads},grown,{depth}]"
    text = f"""step ({queries} x, {fresh} k, {fresh} v, {cache} past_k, {cache} past_v{given})
        => ({queries} y, {grown} keys, {grown} values) {{ {" ".join(lines)} }}"""
    constants = {
        "two": np.array(2),
        "new": np.array(new),
        "one": np.array(1),
        "zero": np.array(0),
        "first": np.array([0]),
        "columns": np.array([2]),
        "side": np.array([1]),
        "before": np.array([1, heads, shared]),
        "behind": np.array([depth]),
        "joined": np.array([1, heads * shared, -1, depth]),
        "root": np.array(np.sqrt(depth), np.float32),
        "never": np.array(-np.inf, np.float32),
        "always": np.array(0, np.float32),
        "window": np.array(window or 0),
        "whole": np.array(1, np.float32),
        "away": np.array(-1e9, np.float32),
        "table": rng.standard_normal((longest, depth)).astype(np.float32),
        "weights": rng.standard_normal((depth, depth)).astype(np.float32) / np.float32(depth),
    }
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    used = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(
        numpy_helper.from_array(data, name) for name, data in constants.items() if name in used
    )
    return model


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


@pytest.mark.parametrize("kind", MODELS)
def test_one_code_serves_every_length(kind: str) -> None:
    model = attention_step(**MODELS[kind])
    compiled = tw.compile(model, threads=1)
    for past in (5, 2, 17, 64, 3, 333, 16, 1000):
        compared(compiled, model, feed_of(model, past))
    assert num_compiled(compiled) == 0
    assert {entry.by_code_for for entry in compiled.specialisations.kept} == {(4088,)}


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
    assert by_code == {7: (248,), 248: (248,), 120: (248,), 299: ()}


def test_no_past_and_one_place_have_code_of_their_own() -> None:
    model = attention_step()
    compiled = tw.compile(model, threads=1)
    for past in (1, 30, 0, 31):
        compared(compiled, model, feed_of(model, past))
    assert num_compiled(compiled) == 2


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


@pytest.mark.skipif(not is_installed(), reason="torch, onnxscript and transformers are not installed")
@pytest.mark.parametrize("kind", KINDS)
def test_decoders_of_transformers_compile_once(kind: str) -> None:
    model = decoder_with_cache(kind)
    compiled = tw.compile(model, threads=1)
    for past in (4, 2, 15, 16, 17, 40, 300):
        compared(compiled, model, feed_of(model, past))
    assert num_compiled(compiled) == 0
