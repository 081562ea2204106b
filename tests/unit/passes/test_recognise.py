"""Composed operators are recognised in every spelling, and not where the numbers or readers differ."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.property.pattern_graphs import PatternMaker
from tests.support.graphs import GraphBuilder, feed_of

from tilewright.frontend.onnx import load_onnx
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Value
from tilewright.ir.interpret import run_graph
from tilewright.passes import PASSES, run_passes
from tilewright.zoo.builder import Builder
from tilewright.zoo.swin import windowed_attention

# Each maker tosses a coin for every choice of spelling: enough seeds meet them all.
SEEDS = range(40)

SPELLINGS: list[tuple[str, Callable[[PatternMaker, Value], Value], list[str]]] = [
    ("recognise-gelu", PatternMaker.gelu, ["Gelu"]),
    ("recognise-gelu", PatternMaker.tanh_gelu, ["Gelu"]),
    ("recognise-layer-norm", PatternMaker.layer_norm, ["LayerNormalization"]),
    ("recognise-rms-norm", PatternMaker.rms_norm, ["RMSNormalization"]),
    ("recognise-silu", PatternMaker.silu, ["Swish"]),
    ("recognise-hard-swish", PatternMaker.hard_swish, ["HardSwish"]),
    ("recognise-mish", PatternMaker.mish, ["Mish"]),
    ("recognise-softmax", PatternMaker.softmax, ["Softmax"]),
    ("recognise-attention", PatternMaker.attention, ["Attention"]),
]


def pattern(make: Callable[[PatternMaker, Value], Value], seed: int, dtype: DType = DType.FLOAT32) -> Graph:
    maker = PatternMaker(seed, dtype)
    x = maker.graph.add_input(Value("x", dtype, (1, 2, 3, 4)))
    maker.graph.outputs = [make(maker, x)]
    return maker.graph


def operators(graph: Graph) -> list[str]:
    """What computes: attention's key is turned back by a Transpose that code generation reads through."""
    return [n.op_type for n in graph.nodes if n.op_type != "Transpose"]


@pytest.mark.parametrize(("name", "make", "expected"), SPELLINGS, ids=[m.__name__ for _, m, _ in SPELLINGS])
def test_every_spelling_is_recognised_as_it_stands(
    name: str, make: Callable[[PatternMaker, Value], Value], expected: list[str]
) -> None:
    for seed in SEEDS:
        graph = pattern(make, seed)
        PASSES.get(name).run(graph)
        assert operators(graph) == expected, f"seed {seed}"


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "make", "expected"), SPELLINGS, ids=[m.__name__ for _, m, _ in SPELLINGS])
def test_every_spelling_is_recognised_by_all_passes_together(
    name: str, make: Callable[[PatternMaker, Value], Value], expected: list[str]
) -> None:
    for seed in SEEDS:
        graph = pattern(make, seed)
        run_passes(graph)
        assert operators(graph) == expected, f"seed {seed}"


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16, DType.FLOAT64])
@pytest.mark.parametrize(("name", "make", "expected"), SPELLINGS, ids=[m.__name__ for _, m, _ in SPELLINGS])
def test_other_floating_types_are_recognised_too(
    name: str, make: Callable[[PatternMaker, Value], Value], expected: list[str], dtype: DType
) -> None:
    graph = pattern(make, 0, dtype)
    PASSES.get(name).run(graph)
    assert operators(graph) == expected
    assert graph.outputs[0].dtype is dtype


@pytest.mark.parametrize(
    ("root", "one", "half"),
    [(1.4142135, 1.0, 0.5), (1.4143, 1.0, 0.5), (1.4142135, 1.001, 0.5), (1.4142135, 1.0, 0.25)],
)
def test_gelu_needs_its_own_numbers(root: float, one: float, half: float) -> None:
    b = GraphBuilder()
    x = b.input(4)
    erf = b.op("Erf", b.op("Div", x, b.constant(value=root)))
    gated = b.op("Mul", x, b.op("Add", erf, b.constant(value=one)))
    graph = b.finish(b.op("Mul", gated, b.constant(value=half)))
    PASSES.get("recognise-gelu").run(graph)
    right = (root, one, half) == (1.4142135, 1.0, 0.5)
    assert ([n.op_type for n in graph.nodes] == ["Gelu"]) is right


def test_gelu_of_another_value_stays() -> None:
    b = GraphBuilder()
    x, z = b.input(4), b.input(4, name="z")
    erf = b.op("Erf", b.op("Mul", x, b.constant(value=0.70710678)))
    gated = b.op("Mul", z, b.op("Add", erf, b.constant(value=1.0)))
    graph = b.finish(b.op("Mul", gated, b.constant(value=0.5)))
    assert PASSES.get("recognise-gelu").run(graph).num_changes == 0


def layer_norm(first: int, second: int) -> Graph:
    b = GraphBuilder()
    x = b.input(2, 4, 4)
    shapes = {1: (2, 1, 4), 2: (2, 4, 1)}
    d = b.op("Sub", x, b.op("ReduceMean", x, b.integers(first), shape=shapes[first]))
    v = b.op("ReduceMean", b.op("Mul", d, d), b.integers(second), shape=shapes[second])
    deviation = b.op("Sqrt", b.op("Add", v, b.constant(value=1e-5)))
    return b.finish(b.op("Div", d, deviation))


@pytest.mark.parametrize(("first", "second", "changes"), [(2, 2, 1), (1, 1, 0), (1, 2, 0), (2, 1, 0)])
def test_layer_norm_is_over_the_last_axes_twice(first: int, second: int, changes: int) -> None:
    assert PASSES.get("recognise-layer-norm").run(layer_norm(first, second)).num_changes == changes


@pytest.mark.parametrize("tail", ["output", "another shape", "data"])
def test_layer_norm_takes_only_a_constant_scale_of_its_own(tail: str) -> None:
    graph = layer_norm(2, 2)
    b = GraphBuilder()
    b.graph = graph
    normal = graph.outputs[0]
    match tail:
        case "output":
            graph.outputs.append(b.op("Mul", normal, b.constant(4)))
        case "another shape":
            graph.outputs = [b.op("Mul", normal, b.constant(4, 4))]
        case _:
            graph.outputs = [b.op("Mul", normal, b.input(4, name="z"))]
    PASSES.get("recognise-layer-norm").run(graph)
    assert [n.op_type for n in graph.nodes] == ["LayerNormalization", "Mul"]
    scale = graph.nodes[0].require(1).data
    np.testing.assert_array_equal(scale, np.ones(4, np.float32))


def test_attention_with_a_mask_that_lacks_keys_stays() -> None:
    b = GraphBuilder()
    q, k, v = (b.input(1, 2, 3, 4, name=n) for n in "qkv")
    turned = b.op("Transpose", k, shape=(1, 2, 4, 3), perm=(0, 1, 3, 2))
    scores = b.op("MatMul", q, turned, shape=(1, 2, 3, 3))
    masked = b.op("Add", scores, b.constant(1, 1, 3, 1))
    soft = b.op("Softmax", masked, axis=-1)
    graph = b.finish(b.op("MatMul", soft, v, shape=(1, 2, 3, 4)))
    assert PASSES.get("recognise-attention").run(graph).num_changes == 0


def test_attention_without_heads_stays() -> None:
    b = GraphBuilder()
    q, k, v = (b.input(2, 0, 3, 4, name=n) for n in "qkv")
    turned = b.op("Transpose", k, shape=(2, 0, 4, 3), perm=(0, 1, 3, 2))
    soft = b.op("Softmax", b.op("MatMul", q, turned, shape=(2, 0, 3, 3)), axis=-1)
    graph = b.finish(b.op("MatMul", soft, v, shape=(2, 0, 3, 4)))
    assert PASSES.get("recognise-attention").run(graph).num_changes == 0


def test_attention_whose_probabilities_are_shown_stays() -> None:
    b = GraphBuilder()
    q, k, v = (b.input(1, 2, 3, 4, name=n) for n in "qkv")
    turned = b.op("Transpose", k, shape=(1, 2, 4, 3), perm=(0, 1, 3, 2))
    soft = b.op("Softmax", b.op("MatMul", q, turned, shape=(1, 2, 3, 3)), axis=-1)
    graph = b.finish(b.op("MatMul", soft, v, shape=(1, 2, 3, 4)), soft)
    result = PASSES.get("recognise-attention").run(graph)
    assert [str(r) for r in result.remarks] == ["matmul_1: kept: its scores are read elsewhere too"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("batch", "shift"), [(1, 0), (2, 0), (1, 3), (2, 3)])
def test_attention_in_windows_has_its_masks(batch: int, shift: int) -> None:
    """Positions have a bias; what a shift brings into one window is kept apart by a mask of the window."""
    b = Builder("windows", seed=0)
    x = b.input("x", (batch, 14, 14, 16))
    b.output(windowed_attention(b, x, heads=2, shift=shift), "y")
    graph = load_onnx(b.finish())
    feed = feed_of(graph)
    (expected,) = run_graph(graph, feed, dtype=DType.FLOAT64).values()
    run_passes(graph)
    (attention,) = (node for node in graph.nodes if node.op_type.endswith("Attention"))
    masks = [value.shape for value in list(attention.operands())[3:]]
    assert masks == [(1, 2, 49, 49), *([(4 * batch, 1, 49, 49)] if shift else [])]
    assert "Mul" not in {node.op_type for node in graph.nodes}
    (result,) = run_graph(graph, feed, dtype=DType.FLOAT64).values()
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-6)


def test_factors_of_queries_and_keys_become_the_scale() -> None:
    b = GraphBuilder()
    q, k, v = (b.input(1, 2, 3, 4, name=n) for n in "qkv")
    root = b.constant(value=0.5)
    turned = b.op("Transpose", b.op("Mul", k, root), shape=(1, 2, 4, 3), perm=(0, 1, 3, 2))
    soft = b.op("Softmax", b.op("MatMul", b.op("Mul", q, root), turned, shape=(1, 2, 3, 3)), axis=-1)
    graph = b.finish(b.op("MatMul", soft, v, shape=(1, 2, 3, 4)))
    PASSES.get("recognise-attention").run(graph)
    assert [n.op_type for n in graph.nodes] == ["Attention"]
    assert graph.nodes[0].float_attr("scale", 0.0) == 0.25


def test_a_factor_that_others_read_stays() -> None:
    b = GraphBuilder()
    q, k, v = (b.input(1, 2, 3, 4, name=n) for n in "qkv")
    scaled = b.op("Mul", q, b.constant(value=0.5))
    turned = b.op("Transpose", k, shape=(1, 2, 4, 3), perm=(0, 1, 3, 2))
    soft = b.op("Softmax", b.op("MatMul", scaled, turned, shape=(1, 2, 3, 3)), axis=-1)
    graph = b.finish(b.op("MatMul", soft, v, shape=(1, 2, 3, 4)), scaled)
    PASSES.get("recognise-attention").run(graph)
    assert [n.op_type for n in graph.nodes] == ["Mul", "Attention"]
    assert graph.nodes[1].float_attr("scale", 0.0) == 1.0


@pytest.mark.parametrize("scores_first", [True, False])
def test_a_mask_that_is_a_sum_itself_is_one_mask(scores_first: bool) -> None:
    b = GraphBuilder()
    q, k, v = (b.input(1, 2, 3, 4, name=n) for n in "qkv")
    mask = b.op("Add", b.input(1, 2, 3, 3, name="m"), b.input(1, 2, 3, 3, name="n"))
    turned = b.op("Transpose", k, shape=(1, 2, 4, 3), perm=(0, 1, 3, 2))
    scores = b.op("MatMul", q, turned, shape=(1, 2, 3, 3))
    masked = b.op("Add", *((scores, mask) if scores_first else (mask, scores)))
    graph = b.finish(b.op("MatMul", b.op("Softmax", masked, axis=-1), v, shape=(1, 2, 3, 4)))
    PASSES.get("recognise-attention").run(graph)
    assert [n.op_type for n in graph.nodes] == ["Add", "Attention"]
    assert graph.nodes[1].require(3) is mask


@pytest.mark.parametrize("merged", [(2, 3, 4), (1, 6, 4)])
def test_keys_that_are_turned_between_reshapes(merged: tuple[int, ...]) -> None:
    """As newer exporters write it; another merging of axes is another matrix."""
    b = GraphBuilder()
    q, k, v = (b.input(1, 2, 3, 4, name=n) for n in "qkv")
    root = b.constant(value=0.5)
    matrices = b.op("Reshape", k, b.integers(*merged), shape=merged)
    shape = (merged[0], merged[2], merged[1])
    swapped = b.op("Transpose", matrices, shape=shape, perm=(0, 2, 1))
    turned = b.op("Reshape", swapped, b.integers(1, 2, 4, 3), shape=(1, 2, 4, 3))
    scores = b.op("MatMul", b.op("Mul", q, root), b.op("Mul", turned, root), shape=(1, 2, 3, 3))
    graph = b.finish(b.op("MatMul", b.op("Softmax", scores, axis=-1), v, shape=(1, 2, 3, 4)))
    feed = feed_of(graph)
    (expected,) = run_graph(graph, feed, dtype=DType.FLOAT64).values()
    PASSES.get("recognise-attention").run(graph)
    is_attention = merged == (2, 3, 4)
    assert ([n.op_type for n in graph.nodes] == ["Attention"]) is is_attention
    if is_attention:
        assert graph.nodes[0].float_attr("scale", 0.0) == 0.25
    (result,) = run_graph(graph, feed, dtype=DType.FLOAT64).values()
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-12)
