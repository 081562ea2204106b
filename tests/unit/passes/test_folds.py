"""Folding rounds once, and only happens where all numbers are known and nobody else reads the result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.support.graphs import GraphBuilder, feed_of

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Attribute, Graph, Node, Value
from tilewright.ir.interpret import run_graph
from tilewright.passes import PASSES, PassResult
from tilewright.passes.canonicalise import Canonicalise
from tilewright.passes.common_subexpressions import CommonSubexpressions
from tilewright.passes.fold_constants import FoldConstants


def random(b: GraphBuilder, *shape: int, seed: int = 0, dtype: type = np.float32) -> Value:
    return b.graph.constant(np.random.default_rng(seed).standard_normal(shape).astype(dtype))


def layer(b: GraphBuilder, kind: str, *, bias: bool = False) -> Value:
    x = b.input(2, 3) if kind in ("Gemm", "MatMul") else b.input(2, 3, 4, 4)
    extra = [random(b, 4, seed=5)] if bias else []
    match kind:
        case "Conv":
            return b.op("Conv", x, random(b, 4, 3, 1, 1), *extra, shape=(2, 4, 4, 4))
        case "ConvTranspose":
            return b.op("ConvTranspose", x, random(b, 3, 4, 1, 1), *extra, shape=(2, 4, 4, 4))
        case "Gemm":
            return b.op("Gemm", x, random(b, 4, 3), *extra, shape=(2, 4), transB=1)
        case _:
            return b.op("MatMul", x, random(b, 3, 4), shape=(2, 4))


def batch_norm(b: GraphBuilder, x: Value, **attributes: Any) -> Value:
    c = x.shape[1]
    variance = b.graph.constant(np.linspace(0.5, 2, c, dtype=np.float32))
    statistics = [*(random(b, c, seed=s) for s in (1, 2, 3)), variance]
    return b.op("BatchNormalization", x, *statistics, **attributes)


def run(name: str, graph: Graph) -> tuple[list[str], PassResult]:
    """Operators and result after a pass, which must not change what the graph computes."""
    feed = feed_of(graph)
    before = run_graph(graph, feed, dtype=DType.FLOAT64)
    result = PASSES.get(name).run(graph)
    after = run_graph(graph, feed, dtype=DType.FLOAT64)
    for key, array in before.items():
        np.testing.assert_allclose(after[key], array, rtol=1e-5, atol=1e-5)
    return [n.op_type for n in graph.nodes], result


class TestBatchNorm:
    @pytest.mark.parametrize("bias", [False, True])
    @pytest.mark.parametrize("kind", ["Conv", "ConvTranspose", "Gemm"])
    def test_it_goes_into_the_layer_before_it(self, kind: str, bias: bool) -> None:
        b = GraphBuilder()
        graph = b.finish(batch_norm(b, layer(b, kind, bias=bias)))
        assert run("fold-batch-norm", graph)[0] == [kind]

    def test_a_matmul_has_no_bias_but_takes_the_factor(self) -> None:
        b = GraphBuilder()
        graph = b.finish(batch_norm(b, layer(b, "MatMul")))
        assert run("fold-batch-norm", graph)[0] == ["MatMul", "Mul", "Add"]
        assert run("fold-scale-shift", graph)[0] == ["MatMul", "Add"]

    def test_statistics_that_are_computed_stay(self) -> None:
        b = GraphBuilder()
        x = b.input(1, 2, 3, 3)
        c = [b.constant(2) for _ in range(3)]
        y = b.op("BatchNormalization", x, *c, b.op("Abs", b.constant(2)))
        ops, result = run("fold-batch-norm", b.finish(y))
        assert ops == ["Abs", "BatchNormalization"]
        assert [str(r) for r in result.remarks] == [
            "batchnormalization: kept: its statistics are not constant"
        ]

    def test_weights_are_rounded_once(self) -> None:
        b = GraphBuilder()
        conv = layer(b, "Conv")
        weight = b.node(conv).require(1).data
        y = batch_norm(b, conv, epsilon=1e-3)
        scale, variance = (b.node(y).require(i).data for i in (1, 4))
        graph = b.finish(y)
        run("fold-batch-norm", graph)
        assert weight is not None
        factor = scale.astype(np.float64) / np.sqrt(variance.astype(np.float64) + 1e-3)  # type: ignore[union-attr]
        expected = (weight.astype(np.float64) * factor.reshape(-1, 1, 1, 1)).astype(np.float32)
        np.testing.assert_array_equal(graph.nodes[0].require(1).data, expected)


class TestLayers:
    @pytest.mark.parametrize("kind", ["Conv", "ConvTranspose", "Gemm", "MatMul"])
    @pytest.mark.parametrize("op_type", ["Mul", "Div"])
    def test_factors_go_into_the_weights(self, kind: str, op_type: str) -> None:
        b = GraphBuilder()
        y = layer(b, kind)
        factor = random(b, *((4, 1, 1) if len(y.shape) == 4 else (4,)), seed=9)
        assert run("fold-scale-shift", b.finish(b.op(op_type, y, factor)))[0] == [kind]

    def test_a_result_that_is_read_twice_stays(self) -> None:
        b = GraphBuilder()
        y = layer(b, "Conv")
        scaled = b.op("Mul", y, b.constant(4, 1, 1))
        ops, result = run("fold-scale-shift", b.finish(b.op("Add", scaled, y)))
        assert ops == ["Conv", "Mul", "Add"]
        assert str(result.remarks[0]) == "mul: kept: the result of conv is read elsewhere too"

    def test_weights_that_are_computed_stay(self) -> None:
        b = GraphBuilder()
        product = b.op("MatMul", b.input(2, 3), b.input(3, 2, name="w"), shape=(2, 2))
        ops, _ = run("fold-scale-shift", b.finish(b.op("Mul", product, b.constant(2))))
        assert ops == ["MatMul", "Mul"]

    def test_shared_weights_keep_the_other_readers_numbers(self) -> None:
        b = GraphBuilder()
        x, w = b.input(2, 3), random(b, 3, 3)
        one = b.op("MatMul", x, w, shape=(2, 3))
        two = b.op("Mul", b.op("MatMul", x, w, shape=(2, 3)), random(b, 3, seed=4))
        ops, _ = run("fold-scale-shift", b.finish(one, two))
        assert ops == ["MatMul", "MatMul"]

    def test_grouped_transposed_convolution_stays(self) -> None:
        b = GraphBuilder()
        x = b.input(1, 2, 3, 3)
        y = b.op("ConvTranspose", x, random(b, 2, 1, 1, 1), shape=(1, 2, 3, 3), group=2)
        assert run("fold-scale-shift", b.finish(b.op("Mul", y, b.constant(2, 1, 1))))[0] == [
            "ConvTranspose",
            "Mul",
        ]

    def test_a_matrix_bias_of_gemm_stays(self) -> None:
        b = GraphBuilder()
        y = b.op("Gemm", b.input(2, 3), random(b, 3, 2), random(b, 2, 2), shape=(2, 2))
        ops, result = run("fold-bias", b.finish(b.op("Add", y, b.constant(2))))
        assert ops == ["Gemm", "Add"]
        assert "is not one constant per channel" in str(result.remarks[0])

    def test_half_precision_weights_are_multiplied_in_float64(self) -> None:
        graph = Graph()
        x = graph.add_input(Value("x", DType.FLOAT16, (1, 64)))
        data = np.random.default_rng(0).standard_normal((64, 8)).astype(np.float16)
        factor = np.random.default_rng(1).standard_normal(8).astype(np.float16)
        h, y = graph.value("h", DType.FLOAT16, (1, 8)), graph.value("y", DType.FLOAT16, (1, 8))
        graph.append(Node("MatMul", [x, graph.constant(data)], [h]))
        graph.append(Node("Mul", [h, graph.constant(factor)], [y]))
        graph.outputs = [y]
        PASSES.get("fold-scale-shift").run(graph)
        expected = (data.astype(np.float64) * factor.astype(np.float64)).astype(np.float16)
        (node,) = graph.nodes
        np.testing.assert_array_equal(node.require(1).data, expected)


class TestConstants:
    def test_results_are_what_the_interpreter_gives_in_a_run(self) -> None:
        b = GraphBuilder()
        data = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)
        mean = b.op("ReduceSum", b.graph.constant(data), b.integers(1), shape=(3, 1))
        graph = b.finish(b.op("Add", b.input(3, 1), mean))
        expected = run_graph(graph, feed_of(graph), taps=[mean.name])[mean.name]
        FoldConstants().run(graph)
        np.testing.assert_array_equal(graph.nodes[0].require(1).data, expected)

    def test_random_numbers_are_not_folded(self) -> None:
        b = GraphBuilder()
        graph = b.finish(b.op("RandomNormal", shape=(2,)))
        result = FoldConstants().run(graph)
        assert [str(r) for r in result.remarks] == ["randomnormal: kept: its result is random"]
        assert result.num_changes == 0

    @pytest.mark.parametrize(("limit", "folded"), [(127, False), (128, True)])
    def test_the_limit_counts_bytes_of_the_result(self, limit: int, folded: bool) -> None:
        b = GraphBuilder()
        graph = b.finish(b.op("Expand", b.constant(1), b.integers(32), shape=(32,)))
        assert bool(FoldConstants(max_bytes=limit).run(graph).num_changes) is folded

    def test_what_cannot_be_computed_stays_for_the_target_to_explain(self) -> None:
        b = GraphBuilder()
        graph = b.finish(b.op("NoSuchOperator", b.constant(2)))
        result = FoldConstants().run(graph)
        assert result.num_changes == 0
        assert "cannot run" in str(result.remarks[0])


class TestCommonSubexpressions:
    def graph(self, first: Attribute, second: Attribute) -> Graph:
        b = GraphBuilder()
        x = b.input(2)
        return b.finish(b.op("Add", *(b.op("LeakyRelu", x, alpha=a) for a in (first, second))))

    @pytest.mark.parametrize(("second", "merged"), [(1.0, 1), (2.0, 0), (1, 0)])
    def test_attributes_must_agree_in_type_and_value(self, second: Attribute, merged: int) -> None:
        assert CommonSubexpressions().run(self.graph(1.0, second)).num_changes == merged

    @pytest.mark.parametrize(("position", "merged"), [(None, 1), (0, 0), (1234, 0), (9999, 0)])
    def test_large_constants_are_compared_in_full(self, position: int | None, merged: int) -> None:
        b = GraphBuilder()
        x = b.input(10_000)
        data = np.random.default_rng(0).standard_normal(10_000).astype(np.float32)
        other = data.copy()
        if position is not None:
            other[position] += 1
        sums = [b.op("Add", x, b.graph.constant(d)) for d in (data, other)]
        assert CommonSubexpressions().run(b.finish(b.op("Mul", *sums))).num_changes == merged

    def test_zeros_of_different_sign_are_different(self) -> None:
        b = GraphBuilder()
        x = b.input(2)
        quotients = [b.op("Div", x, b.constant(2, value=v)) for v in (0.0, -0.0)]
        assert CommonSubexpressions().run(b.finish(b.op("Mul", *quotients))).num_changes == 0


class TestReciprocals:
    @pytest.mark.parametrize(
        ("divisor", "exact_only", "op_type"),
        [
            (3.0, False, "Mul"),
            (3.0, True, "Div"),
            (4.0, True, "Mul"),
            (-0.5, True, "Mul"),
            (0.0, False, "Div"),
        ],
    )
    def test_division_by_a_constant(self, divisor: float, exact_only: bool, op_type: str) -> None:
        b = GraphBuilder()
        graph = b.finish(b.op("Div", b.input(3), b.constant(value=divisor)))
        Canonicalise(exact_reciprocals=exact_only).run(graph)
        assert [n.op_type for n in graph.nodes] == [op_type]

    def test_the_stated_error_holds(self) -> None:
        rng = np.random.default_rng(0)
        x = (rng.uniform(1, 2, 20_000)).astype(np.float32)
        c = (rng.uniform(1, 2, 20_000)).astype(np.float32)
        product = x * (1 / c.astype(np.float64)).astype(np.float32)
        exact = x.astype(np.float64) / c.astype(np.float64)
        units = np.abs(product - exact) / np.spacing(exact.astype(np.float32))
        assert 0.5 < units.max() <= 1.5

    def test_half_precision_divides(self) -> None:
        graph = Graph()
        x = graph.add_input(Value("x", DType.FLOAT16, (2,)))
        y = graph.value("y", DType.FLOAT16, (2,))
        graph.append(Node("Div", [x, graph.constant(np.full(2, 3, np.float16))], [y]))
        graph.outputs = [y]
        assert [str(r) for r in Canonicalise().run(graph).remarks] == [
            "y: kept: a reciprocal of its divisor would be rounded"
        ]
