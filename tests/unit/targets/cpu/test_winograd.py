"""Winograd convolutions: exact matrices, derived error bounds, every kind of edge."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from tests.support.kernel_runner import KernelRunner

from tilewright.ir.dtype import DType
from tilewright.ir.fuse import NestGroup, fuse_nodes
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ir.interpret import run_graph
from tilewright.targets.cpu.isa import Isa, host_isa, isa_by_name
from tilewright.targets.cpu.kernel import Declined, Kernel, Layout
from tilewright.targets.cpu.winograd import lower_winograd
from tilewright.targets.cpu.winograd.transform import PAIRS, winograd_transform

F32 = DType.FLOAT32
EPSILON = 2.0**-24


def conv_graph(
    c: int,
    k: int,
    size: tuple[int, int],
    *,
    pads: tuple[int, int, int, int] = (1, 1, 1, 1),
    kernel: tuple[int, int] = (3, 3),
    stride: int = 1,
    dilation: int = 1,
    group: int = 1,
    batch: int = 1,
    bias: bool = True,
    then: str = "",
    weights: bool = True,
) -> Graph:
    g = Graph("conv")
    rng = np.random.default_rng(0)
    x = g.add_input(Value("x", F32, (batch, c, *size)))
    data = (rng.standard_normal((k, c // group, *kernel)) / np.sqrt(c * 9)).astype(np.float32)
    w = g.constant(data, "w") if weights else g.add_input(Value("w", F32, data.shape))
    inputs = [x, w]
    if bias:
        inputs.append(g.constant(rng.standard_normal(k).astype(np.float32), "b"))
    out = [
        (s + pads[i] + pads[i + 2] - dilation * (f - 1) - 1) // stride + 1
        for i, (s, f) in enumerate(zip(size, kernel, strict=True))
    ]
    attributes = {
        "pads": pads,
        "strides": (stride, stride),
        "dilations": (dilation, dilation),
        "group": group,
        "kernel_shape": kernel,
    }
    shape = (batch, k, *out)
    y = g.append(Node("Conv", inputs, [g.value("y", F32, shape)], attributes)).output
    if then == "add relu":
        r = g.add_input(Value("r", F32, shape))
        y = g.append(Node("Add", [y, r], [g.value("sum", F32, shape)])).output
        y = g.append(Node("Relu", [y], [g.value("relu", F32, shape)])).output
    if then == "silu":
        s = g.append(Node("Sigmoid", [y], [g.value("s", F32, shape)])).output
        y = g.append(Node("Mul", [y, s], [g.value("silu", F32, shape)])).output
    if then == "scale":
        r = g.add_input(Value("r", F32, (1, 1, 1, out[1])))
        y = g.append(Node("Mul", [y, r], [g.value("scaled", F32, shape)])).output
    g.outputs = [y]
    return g


def channels_last(shape: tuple[int, ...]) -> Layout:
    rank = len(shape)
    return Layout((0, *range(2, rank), 1)) if rank >= 3 else Layout.row_major(rank)


def lower(
    graph: Graph, isa: Isa, tile: int, layout: Callable[[tuple[int, ...]], Layout] = channels_last
) -> tuple[tuple[Kernel, ...] | Declined, NestGroup, dict[tuple[str, int], Layout]]:
    group = fuse_nodes(graph.nodes, graph.outputs)
    assert isinstance(group, NestGroup)
    (nest,) = group.nests
    layouts = {
        ("input", i): Layout.row_major(len(v.shape)) if v.is_constant else layout(v.shape)
        for i, v in enumerate(group.inputs)
    }
    layouts["output", 0] = layout(group.outputs[0].shape)
    constants = frozenset(("input", i) for i, v in enumerate(group.inputs) if v.is_constant)
    return lower_winograd(nest, layouts, isa, constants=constants, tile=tile), group, layouts


def run(graph: Graph, isa: Isa, tile: int, scale: float = 1.0) -> tuple[Any, Any]:
    """(The kernel's output, the output in float64)."""
    kernels, group, layouts = lower(graph, isa, tile)
    assert not isinstance(kernels, Declined), kernels
    rng = np.random.default_rng(1)
    feed = {v.name: (scale * rng.standard_normal(v.shape)).astype(np.float32) for v in graph.inputs}
    operands = {
        ("input", i): v.data if v.data is not None else feed[v.name] for i, v in enumerate(group.inputs)
    }
    operands["output", 0] = np.full(group.outputs[0].shape, np.nan, np.float32)
    runner = KernelRunner(kernels, operands, layouts, isa)
    runner()
    expected = run_graph(graph, feed, dtype=DType.FLOAT64)[graph.outputs[0].name]
    return runner.result(("output", 0)), expected


def exact_product(*matrices: Any) -> Any:
    result = np.array(matrices[0], object)
    for matrix in matrices[1:]:
        result = result @ np.array(matrix, object)
    return result


@pytest.mark.parametrize("tile", PAIRS)
def test_transforms_give_the_convolution_exactly(tile: int) -> None:
    t = winograd_transform(tile)
    rng = np.random.default_rng(0)
    data = [[Fraction(int(x), 7) for x in row] for row in rng.integers(-50, 50, (t.size, t.size))]
    taps = [[Fraction(int(x), 3) for x in row] for row in rng.integers(-50, 50, (3, 3))]
    b, g, a = (np.array(m, object) for m in (t.input, t.weight, t.output))
    products = exact_product(g, taps, g.T) * exact_product(b, data, b.T)
    direct = [
        [sum(data[i + u][j + v] * taps[u][v] for u in range(3) for v in range(3)) for j in range(tile)]
        for i in range(tile)
    ]
    assert exact_product(a, products, a.T).tolist() == direct


@pytest.mark.parametrize("tile", PAIRS)
def test_constants_of_the_transforms_are_exact_in_float(tile: int) -> None:
    t = winograd_transform(tile)
    for x in (x for m in (t.input, t.output) for row in m for x in row):
        assert Fraction(float(np.float32(float(x)))) == x


@pytest.fixture(params=["host", "avx512", "avx2"])
def isa(request: pytest.FixtureRequest) -> Isa:
    found = host_isa() if request.param == "host" else isa_by_name(request.param)
    if not found.runs_on_host:
        pytest.skip(f"this processor does not run {request.param}")
    return found


CONVOLUTIONS = {
    "even map": conv_graph(32, 48, (16, 24)),
    "clipped on both sides": conv_graph(16, 32, (13, 15), then="add relu"),
    "odd channels": conv_graph(19, 37, (9, 10), then="add relu"),
    "few output channels": conv_graph(24, 5, (8, 8)),
    "few input channels": conv_graph(3, 32, (12, 12)),
    "no padding, no bias": conv_graph(16, 16, (11, 14), pads=(0, 0, 0, 0), bias=False),
    "one side padded": conv_graph(16, 16, (10, 9), pads=(0, 1, 2, 0)),
    "wide padding": conv_graph(16, 16, (3, 4), pads=(4, 4, 4, 4)),
    "batch": conv_graph(16, 24, (7, 6), batch=3, then="add relu"),
    "long sums": conv_graph(400, 20, (6, 6)),
    "sums of several blocks": conv_graph(700, 16, (4, 4)),
    "activation by exp": conv_graph(16, 16, (10, 10), then="silu"),
    "factor per column": conv_graph(16, 20, (10, 7), then="scale"),
    "single tile": conv_graph(16, 16, (2, 2)),
}


@pytest.mark.parametrize("tile", PAIRS)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution_equals_float64(name: str, tile: int, isa: Isa) -> None:
    got, expected = run(CONVOLUTIONS[name], isa, tile)
    tolerance = {2: 3e-6, 4: 1.5e-5}[tile]
    assert np.abs(got - expected).max() <= tolerance * np.abs(expected).max()
