"""A graph at a larger extent, with masks, gives what the graph at the smaller one gives; or it is refused."""

# mypy: disable-error-code="attr-defined"

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper
from onnx.parser import parse_model
from tests.support.open_models import OPEN_MODELS

import tilewright as tw
from tilewright.ir.graph import Graph
from tilewright.ir.interpret import run_graph
from tilewright.ir.verify import require_valid
from tilewright.specialise.divided import real_places
from tilewright.specialise.masked import masked_graph, padding

HEADER = '<ir_version: 8, opset_import: ["": 17]> '
SMALL, LARGE = 5, 8


def graphs(text: str, arrays: dict[str, Any]) -> tuple[Graph, Graph]:
    """The model at both extents of its dimension S."""
    proto = parse_model(HEADER + text)
    proto.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), n) for n, a in arrays.items())
    loaded = tw.load(proto)
    return loaded.at({"x": (2, SMALL, 4)}).graph, loaded.at({"x": (2, LARGE, 4)}).graph


X, Y = "float[N,S,4] x", "float[N,S,4] y"
WEIGHT = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)
SERVED: dict[str, tuple[str, dict[str, Any]]] = {
    "attention": (
        f"""g ({X}) => ({Y}) {{
            k = Transpose<perm=[0,2,1]>(x) p = MatMul(x, k) q = Softmax<axis=-1>(p) y = MatMul(q, x)
        }}""",
        {},
    ),
    "dense": (f"g ({X}) => ({Y}) {{ h = MatMul(x, w) y = Relu(h) }}", {"w": WEIGHT}),
    "softmax over the axis": (f"g ({X}) => ({Y}) {{ y = Softmax<axis=1>(x) }}", {}),
    "largest": (f"g ({X}) => (float[N,4] y) {{ y = ReduceMax<axes=[1],keepdims=0>(x) }}", {}),
    "sum": (f"g ({X}) => (float[N,4] y) {{ y = ReduceSum<keepdims=0>(x, a) }}", {"a": np.array([1])}),
    "the first place": (f"g ({X}) => (float[N,4] y) {{ y = Gather<axis=1>(x, z) }}", {"z": np.array(0)}),
    "the last place": (f"g ({X}) => (float[N,4] y) {{ y = Gather<axis=1>(x, z) }}", {"z": np.array(-1)}),
    "a place added at the end, and attention to all": (
        f"""g ({X}) => (float[N,1,4] y, float[N,T,4] keys) {{
            one = Slice(x, begin, end, axis) q = MatMul(one, w) keys = Concat<axis=1>(x, q)
            k = Transpose<perm=[0,2,1]>(keys) p = MatMul(q, k) a = Softmax<axis=-1>(p) y = MatMul(a, keys)
        }}""",
        {"begin": np.array([-1]), "end": np.array([1000]), "axis": np.array([1]), "w": WEIGHT},
    ),
    "numbered places": (
        f"""g ({X}) => ({Y}) {{
            s = Shape(x) n = Gather(s, o) i = Range(z, n, o) f = Cast<to=1>(i) u = Unsqueeze(f, o1)
            y = Add(x, u)
        }}""",
        {"z": np.array(0), "o": np.array(1), "o1": np.array([1])},
    ),
}
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "mean": (f"g ({X}) => (float[N,4] y) {{ y = ReduceMean<axes=[1],keepdims=0>(x) }}", {}),
    "scaled by how many there are": (
        f"g ({X}) => ({Y}) {{ s = Shape(x) n = Gather(s, o) f = Cast<to=1>(n) y = Mul(x, f) }}",
        {"o": np.array(1)},
    ),
    "sums so far": (f"g ({X}) => ({Y}) {{ y = CumSum(x, o) }}", {"o": np.array(1)}),
    "windows that end outside": (
        f"""g ({X}) => ({Y}) {{
            t = Transpose<perm=[0,2,1]>(x) c = Conv<pads=[1,1]>(t, w) y = Transpose<perm=[0,2,1]>(c)
        }}""",
        {"w": np.ones((4, 4, 3), np.float32)},
    ),
    "both ends joined": (f"g ({X}) => (float[N,T,4] y) {{ y = Concat<axis=1>(x, x) }}", {}),
    "reversed": (
        f"g ({X}) => ({Y}) {{ y = Slice(x, a, b, c, a) }}",
        {"a": np.array([-1]), "b": np.array([-1000]), "c": np.array([1])},
    ),
    "a logarithm after the sum": (
        f"g ({X}) => (float[1,1,1] y) {{ y = ReduceLogSumExp(x) }}",
        {},
    ),
}


@pytest.mark.parametrize("name", SERVED)
def test_masked_graphs_serve_smaller_extents(name: str) -> None:
    small, large = graphs(*SERVED[name])
    found = padding(small, large, {"x": frozenset({1})}, (SMALL, LARGE))
    assert found is not None
    masked = masked_graph(large, found.masks)
    require_valid(masked, after="masking")
    x = np.random.default_rng(0).standard_normal((2, SMALL, 4)).astype(np.float32)
    num_padded = LARGE - SMALL
    garbage = np.full((2, num_padded, 4), 1e30, np.float32)
    feed = {"x": np.concatenate([garbage, x] if found.is_at_end else [x, garbage], 1)}
    for mask in masked.inputs[1:]:
        feed[mask.name] = np.zeros(mask.shape, np.bool_)
        feed[mask.name][real_places(mask.shape[0], num_padded, is_at_end=found.is_at_end)] = True
    results = run_graph(masked, feed)
    for output, wanted in run_graph(small, {"x": x}).items():
        assert found.outputs[output] == wanted.shape
        pairs = zip(results[output].shape, wanted.shape, strict=True)
        real = tuple(real_places(r, r - w, is_at_end=found.is_at_end) for r, w in pairs)
        np.testing.assert_allclose(results[output][real], wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", REFUSED)
def test_what_padding_could_change_is_refused(name: str) -> None:
    small, large = graphs(*REFUSED[name])
    assert padding(small, large, {"x": frozenset({1})}, (SMALL, LARGE)) is None


def test_a_cache_grows_without_compilations() -> None:
    model = next(m for m in OPEN_MODELS if m.name == "decoder")
    caches = dict.fromkeys(("past_k", "past_v"), (1, 4, "4|8", 16))
    one = {"ids": (1, 1), "places": (1, 1)}
    frozen = tw.compile(model.build(), shapes={**one, **caches}, frozen_shapes=True, target="interpreter")
    exact = tw.compile(model.build(), target="interpreter")
    rng = np.random.default_rng(0)
    past = {name: rng.standard_normal((1, 4, 2, 16)).astype(np.float32) for name in caches}
    for place in range(2, 8):
        feed = {"ids": np.array([[7 * place]]), "places": np.array([[place]]), **past}
        logits, keys, values = frozen.run(None, feed)
        for result, wanted in zip((logits, keys, values), exact.run(None, feed), strict=True):
            np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-5)
        past = {"past_k": keys, "past_v": values}
        extents = () if place in (4, 8) else (4,) if place < 4 else (8,)
        assert frozen.specialisations.kept[-1].by_code_for == extents


def test_lengths_between_prepared_ones_run_by_the_code_for_longer_ones() -> None:
    model = next(m for m in OPEN_MODELS if m.name == "encoder")
    asked = {"ids": (2, "8|16"), "mask": (2, "8|16")}
    frozen = tw.compile(model.build(), shapes=asked, frozen_shapes=True, target="interpreter")
    exact = tw.compile(model.build(), target="interpreter")
    num_made = frozen.specialisations.num_made
    for length, extent in ((5, 8), (9, 16), (15, 16)):
        feed = {"ids": np.arange(2 * length).reshape(2, length), "mask": np.ones((2, length), np.int64)}
        feed["mask"][1, 3:] = 0
        for result, wanted in zip(frozen.run(None, feed), exact.run(None, feed), strict=True):
            assert result.shape == wanted.shape
            np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-5)
        assert frozen.specialisations.kept[-1].by_code_for == (extent,)
    assert frozen.specialisations.num_made == num_made + 3
