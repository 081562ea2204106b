"""Products of which the kernel makes one factor: depthwise convolutions, activations before them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from benchmarks.cuda import ACCURACIES, feed_of, graph_of
from onnx import helper
from tests.support.cuda import EMULATED, compiled, error, needs_fibers, templates

from tilewright.compiler import compile_graph
from tilewright.frontend.onnx import load_onnx
from tilewright.ir.fuse import FusedNodes, NestGroup
from tilewright.ir.nest_interpreter import run_nests
from tilewright.options import Options
from tilewright.target_ref import TargetRef
from tilewright.targets.cuda.lower import made_chains
from tilewright.targets.cuda.products.match import with_activation

NOTE = "makes a factor as it goes"


def separable(
    channels: int, columns: int, size: int, *, window: int = 3, stride: int = 1, activation: str = ""
) -> onnx.ModelProto:
    """An activation, if there is one, a depthwise convolution and a pointwise one with its activation."""
    draw = np.random.default_rng(channels)
    weights = {
        "depthwise": draw.standard_normal((channels, 1, window, window)) / window,
        "bias": draw.standard_normal(channels),
        "pointwise": draw.standard_normal((columns, channels, 1, 1)) / channels**0.5,
    }
    nodes = [helper.make_node(activation, ["x"], ["a"], "activation")] if activation else []
    first = "a" if activation else "x"
    nodes += [
        helper.make_node(
            "Conv",
            [first, "depthwise", "bias"],
            ["d"],
            "depthwise",
            group=channels,
            pads=[window // 2] * 4,
            strides=[stride] * 2,
        ),
        helper.make_node("Conv", ["d", "pointwise"], ["p"], "pointwise"),
        helper.make_node("Relu", ["p"], ["y"], "relu"),
    ]
    arrays = {name: array.astype(np.float32) for name, array in weights.items()}
    return graph_of(nodes, {"x": (1, channels, size, size)}, arrays)


CASES: dict[str, tuple[dict[str, Any], str]] = {
    "one tile has all columns": ({"channels": 24, "columns": 32, "size": 7}, "default"),
    "strided, wide": ({"channels": 40, "columns": 200, "size": 9, "window": 5, "stride": 2}, "fast"),
    "part of a tile": ({"channels": 20, "columns": 100, "size": 6}, "relaxed"),
}


@pytest.mark.sampled(1)
@needs_fibers
@pytest.mark.parametrize("case", CASES)
def test_a_depthwise_convolution_is_made_within_the_pointwise_one(case: str) -> None:
    shape, accuracy = CASES[case]
    model = separable(**shape)
    found = compiled(model, partition="ago", accuracy=accuracy)
    assert templates(found) == ["product"]
    assert NOTE in found.steps[0].kernels[0].notes
    assert error(model, feed_of(model), found.run(None, feed_of(model))) <= ACCURACIES[accuracy]
    assert "RACES" not in str(found.explain())


def test_a_factor_is_made_once_or_not_at_all() -> None:
    model = separable(24, 300, 7)  # more columns than any tile has
    code = compile_graph(load_onnx(model), Options(target=TargetRef.parse(EMULATED), partition="ago")).code
    assert len([kernel for step in code.steps for kernel in step.kernels]) == 2


def group_of(model: onnx.ModelProto) -> NestGroup:
    graph = load_onnx(model)
    group = FusedNodes()(tuple(graph.nodes), tuple(graph.outputs))
    assert isinstance(group, NestGroup)
    return group


@pytest.mark.parametrize(("activation", "joins"), [("Relu", True), ("Tanh", True), ("Exp", False)])
def test_an_activation_joins_what_reads_it_where_padding_stays_zero(activation: str, joins: bool) -> None:
    group = group_of(separable(4, 8, 5, activation=activation))
    nests = [nest for nest in group.nests if nest.num_iterations]
    both = with_activation(nests[0], nests[1])
    assert (both is not None) == joins
    if both is None:
        return
    places = [place for _, place in made_chains(nests, 0)]
    assert places == [2, 1]
    x = np.random.default_rng(0).standard_normal((1, 4, 5, 5)).astype(np.float32)
    arrays = [x if value.data is None else value.data for value in group.inputs]
    outputs = [(value.dtype, value.shape) for value in group.outputs]
    (right,), (got,) = (run_nests(chain, arrays, outputs) for chain in (nests, [both, *nests[2:]]))
    assert right is not None
    assert got is not None
    np.testing.assert_allclose(got, right, rtol=1e-6)
