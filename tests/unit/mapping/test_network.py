"""What of a graph is mapped: the loops and operands that the field would write down by hand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.graphs import GraphBuilder

from tilewright.errors import UsageError
from tilewright.hardware.presets import load_preset
from tilewright.ir import derive
from tilewright.ir.graph import Graph
from tilewright.loops.problem import Problem, convolution
from tilewright.mapping.network import layers_of, stream


def problems(graph: Graph) -> list[Problem]:
    return [layer.problem for layer in layers_of(graph) if layer.problem is not None]


def same_work(found: Problem, expected: Problem) -> bool:
    """Equal but for dims of a single iteration and the order of dims, axes and terms."""

    def facts(problem: Problem) -> tuple[object, ...]:
        real = {dim: extent for dim, extent in problem.dims if extent > 1}
        operands = {}
        for operand in problem.operands:
            axes = (tuple(sorted(term for term in axis if term[0] in real)) for axis in operand.axes)
            operands[operand.name] = sorted(axis for axis in axes if axis)
        return real, operands

    return facts(found) == facts(expected)


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[Graph, Problem]:
    groups, per_group, out_per_group = (draw(st.integers(1, 3)) for _ in range(3))
    window = (draw(st.integers(1, 3)), draw(st.integers(2, 3)))
    stride, dilation = ((draw(st.integers(1, 2)), draw(st.integers(1, 2))) for _ in range(2))
    out = (draw(st.integers(2, 4)), draw(st.integers(2, 4)))
    size = [(p - 1) * s + (r - 1) * d + 1 for p, s, r, d in zip(out, stride, window, dilation, strict=True)]
    build = GraphBuilder()
    channels, batch = groups * per_group, draw(st.integers(1, 2))
    y = build.op(
        "Conv",
        build.input(batch, channels, *size),
        build.constant(groups * out_per_group, per_group, *window),
        shape=(batch, groups * out_per_group, *out),
        group=groups,
        strides=stride,
        dilations=dilation,
    )
    dims = {"R": window[0], "S": window[1], "P": out[0], "Q": out[1], "C": per_group, "K": out_per_group}
    dims |= {"N": batch, "G": groups}
    return build.finish(y), convolution(dims, stride=stride, dilation=dilation)


@given(drawn=convolutions())
@settings(max_examples=60, deadline=None)
def test_a_convolution_is_what_the_field_writes(drawn: tuple[Graph, Problem]) -> None:
    graph, expected = drawn
    (found,) = problems(graph)
    assert same_work(found, expected)


def test_a_product_knows_weights_by_being_constant() -> None:
    build = GraphBuilder()
    x = build.input(2, 5, 8)
    y = build.op("MatMul", x, build.constant(8, 3), shape=(2, 5, 3))
    z = build.op("MatMul", build.constant(4, 5), y, shape=(2, 4, 3))
    right, left = problems(build.finish(z))
    for problem, words in ((right, {"Weights": 24, "Inputs": 80, "Outputs": 30}), (left, {"Weights": 20})):
        for operand in problem.operands:
            if operand.name in words:
                assert problem.num_words(operand) == words[operand.name]
    assert right.num_macs == 2 * 5 * 8 * 3


def test_of_two_activations_the_right_one_is_kept_like_weights() -> None:
    build = GraphBuilder()
    y = build.op("MatMul", build.input(4, 8), build.input(8, 3), shape=(4, 3))
    (problem,) = problems(build.finish(y))
    assert {o.name: problem.num_words(o) for o in problem.operands} == {
        "Weights": 24,
        "Inputs": 32,
        "Outputs": 12,
    }


def residual_net() -> Graph:
    build = GraphBuilder()
    x = build.input(1, 8, 6, 6)
    y = build.op("Relu", build.conv(x, 8, name="first"))
    z = build.op("Add", build.conv(y, 8, name="second"), x)
    flat = build.op("Reshape", z, build.integers(1, -1), shape=(1, 288))
    return build.finish(build.op("Gemm", flat, build.constant(288, 4), shape=(1, 4)))


def test_every_nest_that_computes_is_mapped_or_streamed() -> None:
    graph = residual_net()
    layers = layers_of(graph)
    assert [(layer.op_type, layer.problem is not None) for layer in layers] == [
        ("Conv", True),
        ("Relu", False),
        ("Conv", True),
        ("Add", False),
        ("Gemm", True),
    ]
    assert sum(p.num_macs for p in problems(graph)) == sum(derive.macs(node) for node in graph.nodes)


def test_a_stream_moves_every_element_once() -> None:
    machine = load_preset("simba-cosa-repo")
    relu, add = (stream(x.nest, machine) for x in layers_of(residual_net()) if x.problem is None)
    elements = 8 * 6 * 6
    assert relu.cycles == -(-elements // 10)
    assert add.cycles == -(-2 * elements // 10)
    assert relu.energy_pj == pytest.approx(2 * elements / 64 * 6400)
    assert add.energy_pj == pytest.approx(3 * elements / 64 * 6400)


def test_one_node_by_its_name() -> None:
    graph = residual_net()
    names = [layer.node for layer in layers_of(graph) if layer.op_type == "Conv"]
    (layer,) = layers_of(graph, names[1])
    assert layer.node == names[1]
    with pytest.raises(UsageError, match=f"node 'seconds'.*{names[0]}"):
        layers_of(graph, "seconds")
    relu = next(layer.node for layer in layers_of(graph) if layer.op_type == "Relu")
    with pytest.raises(UsageError, match="nothing to map"):
        layers_of(graph, relu)


def transposed(window: int, pads: int, side: int) -> Graph:
    build = GraphBuilder()
    x, weights = build.input(1, 4, 5, 5), build.constant(4, 6, window, window)
    y = build.op("ConvTranspose", x, weights, shape=(1, 6, side, side), strides=(2, 2), pads=(pads,) * 4)
    return build.finish(y)


def test_phases_of_a_transposed_convolution_that_read_the_same_inputs_are_one_problem() -> None:
    (problem,) = problems(transposed(2, 0, 10))
    weights, inputs, outputs = problem.operands
    assert problem.num_macs == 4 * 6 * 2 * 2 * 5 * 5
    assert [problem.num_words(o) for o in (weights, inputs, outputs)] == [4 * 6 * 4, 4 * 25, 6 * 100]
    (phase,) = set(weights.dims()) & set(outputs.dims()) - {"K"}
    assert phase not in inputs.dims()


def test_a_phase_of_a_transposed_convolution_has_only_what_it_writes() -> None:
    phases = problems(transposed(3, 1, 9))
    assert len(phases) == 4  # their windows differ
    assert sum(phase.num_words(phase.output) for phase in phases) == 6 * 81
