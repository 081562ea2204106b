"""Steps of decoders with caches, of one layer: a past that grows, and buffers written by position."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
from onnx import ModelProto, numpy_helper

Array = np.ndarray[Any, Any]

WRITES = {
    "ScatterND": """kt = Transpose<perm=[2, 0, 1, 3]>(past_k) vt = Transpose<perm=[2, 0, 1, 3]>(past_v)
        kn = Transpose<perm=[2, 0, 1, 3]>(k) vn = Transpose<perm=[2, 0, 1, 3]>(v) at = Unsqueeze(place, side)
        kw = ScatterND(kt, at, kn) vw = ScatterND(vt, at, vn)
        keys = Transpose<perm=[1, 2, 0, 3]>(kw) values = Transpose<perm=[1, 2, 0, 3]>(vw)""",
    "Where": """is_here = Equal(all, place) here = Unsqueeze(is_here, side)
        keys = Where(here, k, past_k) values = Where(here, v, past_v)""",
    "ScatterElements": """single = Reshape(place, singles) index = Expand(single, fresh)
        keys = ScatterElements<axis=2>(past_k, index, k)
        values = ScatterElements<axis=2>(past_v, index, v)""",
}
"""How a key and a value are written at a position, by the operator."""


def attention_step(
    *,
    heads: int = 4,
    shared: int = 1,
    depth: int = 16,
    new: int = 1,
    window: int | None = None,
    masked: bool = False,
    together: bool = False,
    longest: int = 5000,
) -> ModelProto:
    """A step of one layer, whose positions and masks follow from the shape of its past.

    `shared` heads of queries read one of keys; the table of positions has `longest` rows. A mask that is
    given is added by itself, or `together` with the others one mask.
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
    seen = "seen" if window is None else "both"
    if masked and together:
        lines.append(f"is_given = Cast<to=9>(given) every = And({seen}, is_given)")
        seen = "every"
    lines.append(f"mask = Where({seen}, always, never) hidden = Add(scaled, mask)")
    masked = masked and not together
    given = ", int64[1,1,1,whole] given" if masked or together else ""
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
    return _model(text, constants)


def buffer_step(write: str, *, heads: int, places: int, depth: int) -> ModelProto:
    """A step whose keys and values are written at a position of buffers of full length."""
    lines = f"""{WRITES[write]} turned = Transpose<perm=[0, 1, 3, 2]>(keys) score = MatMul(x, turned)
        scaled = Div(score, root) seen = LessOrEqual(all, place) mask = Where(seen, always, never)
        hidden = Add(scaled, mask) chance = Softmax<axis=-1>(hidden) y = MatMul(chance, values)"""
    cache, one = f"float[1,{heads},{places},{depth}]", f"float[1,{heads},1,{depth}]"
    constants = {
        "side": np.array([1]),
        "all": np.arange(places),
        "root": np.array(np.sqrt(depth), np.float32),
        "always": np.array(0, np.float32),
        "never": np.array(-np.inf, np.float32),
        "singles": np.array([1, 1, 1, 1]),
        "fresh": np.array([1, heads, 1, depth]),
    }
    return _model(
        f"""step ({one} x, {one} k, {one} v, int64[1] place, {cache} past_k, {cache} past_v)
        => ({one} y, {cache} keys, {cache} values) {{ {lines} }}""",
        constants,
    )


def _model(text: str, constants: dict[str, Array]) -> ModelProto:
    """A model of this graph, with those constants that it reads."""
    model: ModelProto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    used = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(
        numpy_helper.from_array(data, name) for name, data in constants.items() if name in used
    )
    return model
