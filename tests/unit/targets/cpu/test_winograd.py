"""Winograd convolutions: exact matrices, derived error bounds, every kind of edge."""

# mypy: disable-error-code="arg-type, dict-item"

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from tests.support.kernels import group_of, operands_of, results

from tilewright.ir.dtype import DType
from tilewright.ir.fuse import NestGroup
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ir.interpret import run_graph
from tilewright.targets.cpu.isa import CacheSizes, Isa, host_isa, isa_by_name
from tilewright.targets.cpu.kernel import Declined, Kernel, Layout
from tilewright.targets.cpu.product.contraction import CONTRACTION
from tilewright.targets.cpu.product.winograd import WINOGRAD, WinogradProblem, match_winograd, winograd_gain
from tilewright.targets.cpu.product.winograd.generate import MAX_CHAIN_STEPS
from tilewright.targets.cpu.product.winograd.plan import Shape, WinogradSizes, plan_with
from tilewright.targets.cpu.product.winograd.transform import (
    PAIRS,
    Transform,
    integer_transform,
    winograd_transform,
)
from tilewright.targets.cpu.template import Context, lower_with
from tilewright.targets.llvm.codegen import compile_object
from tilewright.testing.kernel_runner import KernelRunner
from tilewright.tuning import Choice

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
    group = group_of(graph)
    (nest,) = group.nests
    layouts = {
        ("input", i): Layout.row_major(len(v.shape)) if v.is_constant else layout(v.shape)
        for i, v in enumerate(group.inputs)
    }
    layouts["output", 0] = layout(group.outputs[0].shape)
    constants = frozenset(("input", i) for i, v in enumerate(group.inputs) if v.is_constant)
    context = Context(isa, layouts, constants=constants)
    return lower_with(WINOGRAD, nest, context, Choice.of("winograd", tile=tile)), group, layouts


def run(graph: Graph, isa: Isa, tile: int, scale: float = 1.0) -> tuple[Any, Any]:
    """(The kernel's output, the output in float64)."""
    kernels, group, layouts = lower(graph, isa, tile)
    assert not isinstance(kernels, Declined), kernels
    rng = np.random.default_rng(1)
    feed = {v.name: (scale * rng.standard_normal(v.shape)).astype(np.float32) for v in graph.inputs}
    (got,) = results(kernels, group, feed, layouts, isa)
    return got, run_graph(graph, feed, dtype=DType.FLOAT64)[graph.outputs[0].name]


def exact_product(*matrices: Any) -> Any:
    result = np.array(matrices[0], object)
    for matrix in matrices[1:]:
        result = result @ np.array(matrix, object)
    return result


@pytest.mark.parametrize("tile", PAIRS)
@pytest.mark.parametrize("made", [winograd_transform, integer_transform])
def test_transforms_give_the_convolution_exactly(made: Callable[[int], Transform], tile: int) -> None:
    t = made(tile)
    rng = np.random.default_rng(0)
    data = [[Fraction(int(x), 7) for x in row] for row in rng.integers(-50, 50, (t.size, t.size))]
    taps = [[Fraction(int(x), 3) for x in row] for row in rng.integers(-50, 50, (3, 3))]
    b, g, a = (np.array(m, object) for m in (t.input, t.weight, t.output))
    products = exact_product(g, taps, g.T) * exact_product(b, data, b.T)
    direct = [
        [sum(data[i + u][j + v] * taps[u][v] for u in range(3) for v in range(3)) for j in range(tile)]
        for i in range(tile)
    ]
    assert exact_product(a, products, a.T).tolist() == [[t.divisor * x for x in row] for row in direct]


def test_integer_transforms_of_bytes_fit_16_bits() -> None:
    t = integer_transform(4)
    assert all(x.denominator == 1 for m in (t.input, t.weight, t.output) for row in m for x in row)
    # Bytes less a zero point are at most 255.
    for matrix in (t.input, t.weight):
        lengths = [sum(abs(x) for x in row) for row in matrix]
        assert max(a * b for a in lengths for b in lengths) * 255 < 1 << 15


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
    "groups of a vector": conv_graph(64, 64, (13, 15), group=4, then="add relu", batch=2),
    "groups of several vectors": conv_graph(60, 192, (9, 10), group=3, then="silu"),
    "groups of few inputs": conv_graph(36, 64, (6, 7), group=4, then="scale"),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("tile", PAIRS)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution_equals_float64(name: str, tile: int, isa: Isa) -> None:
    got, expected = run(CONVOLUTIONS[name], isa, tile)
    tolerance = {2: 3e-6, 4: 1.5e-5}[tile]
    assert np.abs(got - expected).max() <= tolerance * np.abs(expected).max()


# Errors.

NUM_INPUT_OPERATIONS, NUM_OUTPUT_OPERATIONS = 3, 4  # on the longest path of one transform along one axis


def error_bound(transform: Transform, data: Any, weight: Any) -> Any:
    """What rounding can do to each output of a 3x3 convolution padded by one, in the probabilistic sense of
    Higham and Mary (2019): the square root of the operations on the longest path, times the unit roundoff,
    times the same computation with every coefficient and operand positive."""
    b, g, a = (np.abs(np.array(m, float)) for m in (transform.input, transform.weight, transform.output))
    tile, size = transform.tile, transform.size
    channels, height, width = data.shape[1:]
    rows, columns = -(-height // tile), -(-width // tile)
    padded = np.zeros((channels, rows * tile + 2, columns * tile + 2))
    padded[:, 1 : height + 1, 1 : width + 1] = np.abs(data[0])
    u = np.einsum("xi,kcij,yj->xykc", g, np.abs(weight), g)
    bound = np.zeros((weight.shape[0], rows * tile, columns * tile))
    for r in range(0, rows * tile, tile):
        for s in range(0, columns * tile, tile):
            v = np.einsum("xi,cij,yj->xyc", b, padded[:, r : r + size, s : s + size], b)
            made = np.einsum("xykc,xyc->kxy", u, v)
            bound[:, r : r + tile, s : s + tile] = np.einsum("px,kxy,qy->kpq", a, made, a)
    steps = MAX_CHAIN_STEPS[tile]
    transforms = 2 * (NUM_INPUT_OPERATIONS + NUM_OUTPUT_OPERATIONS)
    longest = transforms + 2 + min(channels, steps) + -(-channels // steps)
    return np.sqrt(longest) * EPSILON * bound[:, :height, :width]


ERROR_SHAPES = ((16, 24, 12), (64, 32, 14), (160, 16, 8))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shape", ERROR_SHAPES, ids=str)
@pytest.mark.parametrize("tile", PAIRS)
def test_rounding_stays_within_the_derived_bound(shape: tuple[int, int, int], tile: int, isa: Isa) -> None:
    c, k, side = shape
    graph = conv_graph(c, k, (side, side), bias=False)
    got, expected = run(graph, isa, tile)
    data = np.random.default_rng(1).standard_normal((1, c, side, side)).astype(np.float32)
    weight = graph.nodes[0].inputs[1]
    assert weight is not None
    bound = error_bound(winograd_transform(tile), data, weight.data)
    error = np.abs(got - expected)[0]
    assert (error <= bound).all()
    assert error.max() > 0.001 * bound.max()  # the bound says something


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("tile", "ratio"), [(2, 2.0), (4, 4.0)])
@pytest.mark.parametrize("shape", ERROR_SHAPES, ids=str)
def test_error_is_a_small_multiple_of_the_direct_kernels(
    shape: tuple[int, int, int], tile: int, ratio: float
) -> None:
    c, k, side = shape
    graph = conv_graph(c, k, (side, side), bias=False)
    isa = host_isa()
    got, expected = run(graph, isa, tile)
    _, group, layouts = lower(graph, isa, tile)
    context = Context(isa, layouts, constants=frozenset({("input", 1)}))
    kernels = lower_with(CONTRACTION, group.nests[0], context)
    assert not isinstance(kernels, Declined)
    feed = np.random.default_rng(1).standard_normal(group.inputs[0].shape).astype(np.float32)
    (direct,) = results(kernels, group, {group.inputs[0].name: feed}, layouts, isa)
    direct_error = np.abs(direct - expected).max()
    assert np.abs(got - expected).max() <= ratio * direct_error


def test_unusual_numbers_pass_through(isa: Isa) -> None:
    graph = conv_graph(16, 16, (9, 9))
    kernels, group, layouts = lower(graph, isa, 4)
    assert not isinstance(kernels, Declined)
    data = np.zeros((1, 16, 9, 9), np.float32)
    data[0, 3, 0, 0] = np.nan
    (result,) = results(kernels, group, {group.inputs[0].name: data}, layouts, isa)
    assert np.isnan(result[:, :, :2, :2]).all()
    assert not np.isnan(result[:, :, 4:, :]).any()  # no tile that does not read it


# Cuts, windows of other tensors, and what is declined.


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("channels", "group"), [((40, 100), 1), ((48, 336), 2)], ids=str)
@pytest.mark.parametrize("tile", PAIRS)
def test_bits_do_not_depend_on_the_cut(
    tile: int, channels: tuple[int, int], group: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = conv_graph(*channels, (13, 14), group=group, batch=2, then="add relu")
    results = []
    for num_blocks, panel_parts in ((1, 1), (2, 1), (5, 2), (3, 7)):

        def forced(
            problem: Any, tile: int, isa: Isa, cut: tuple[int, int] = (num_blocks, panel_parts)
        ) -> WinogradSizes:
            plan = plan_with(Shape.of(problem, tile), cut[0], cut[1], isa)
            assert plan.panels.num_panels >= cut[1]
            return plan

        monkeypatch.setattr("tilewright.targets.cpu.product.winograd.plan.choose_plan", forced)
        results.append(run(graph, NARROW, tile)[0])
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)


# Sixteen registers make narrow panels: many of them, on any machine that runs AVX2.
NARROW = isa_by_name("avx2")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("tile", PAIRS)
def test_windows_of_larger_tensors(tile: int, isa: Isa) -> None:
    graph = conv_graph(19, 21, (9, 10), then="add relu")
    parents = {("input", 0): 33, ("output", 0): 40, ("input", 3): 50}
    group = group_of(graph)
    steps = {c: (90 * c, 1, 10 * c, c) for c in parents.values()}
    layouts = {("input", 1): Layout.row_major(4), ("input", 2): Layout.row_major(1)}
    layouts |= {key: Layout((0, 2, 3, 1), steps[c]) for key, c in parents.items()}
    context = Context(isa, layouts, constants=frozenset({("input", 1), ("input", 2)}))
    kernels = lower_with(WINOGRAD, group.nests[0], context, Choice.of("winograd", tile=tile))
    assert not isinstance(kernels, Declined)
    rng = np.random.default_rng(1)
    operands: dict[tuple[str, int], Any] = {
        ("input", i): v.data if v.data is not None else np.full((1, parents["input", i], 9, 10), np.nan, "f")
        for i, v in enumerate(group.inputs)
    }
    feed = {v.name: rng.standard_normal(v.shape).astype(np.float32) for v in graph.inputs}
    for i, v in enumerate(group.inputs):
        if v.data is None:
            operands["input", i][:, : v.shape[1]] = feed[v.name]
    operands["output", 0] = np.full((1, 40, 9, 10), -7, np.float32)
    dense = {key: Layout(layout.order) for key, layout in layouts.items()}
    runner = KernelRunner(kernels, operands, dense, isa)
    runner()
    result = runner.result(("output", 0))
    expected = run_graph(graph, feed, dtype=DType.FLOAT64)[graph.outputs[0].name]
    np.testing.assert_allclose(result[:, :21], expected, rtol=0, atol=2e-5)
    assert (result[:, 21:] == -7).all()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("tile", PAIRS)
def test_the_result_may_lie_over_an_operand_of_the_epilogue(tile: int, isa: Isa) -> None:
    graph = conv_graph(16, 40, (13, 9), then="add relu")
    expected, _ = run(graph, isa, tile)
    kernels, group, layouts = lower(graph, isa, tile)
    assert not isinstance(kernels, Declined)
    rng = np.random.default_rng(1)
    feed = {v.name: rng.standard_normal(v.shape).astype(np.float32) for v in graph.inputs}
    operands = operands_of(group, feed)
    residual = ("input", [v.name for v in group.inputs].index("r"))
    operands["output", 0] = operands[residual]
    runner = KernelRunner(kernels, operands, layouts, isa)
    shared = runner.stored["output", 0].ctypes.data
    ((_, pointers, _, _),) = runner._calls
    (place,) = np.flatnonzero(pointers == runner.stored[residual].ctypes.data)
    pointers[place] = shared
    runner()
    np.testing.assert_array_equal(runner.result(("output", 0)), expected)


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        (conv_graph(16, 16, (8, 8), kernel=(5, 5)), "not a window of 3x3"),
        (conv_graph(16, 16, (8, 8), kernel=(1, 1), pads=(0, 0, 0, 0)), "not a window of 3x3"),
        (conv_graph(16, 16, (8, 8), stride=2), "stride or a dilation"),
        (conv_graph(16, 16, (8, 8), dilation=2), "stride or a dilation"),
        (conv_graph(16, 24, (8, 8), group=2), "groups of 12 channels, which are no whole vectors"),
        (conv_graph(16, 16, (8, 8), group=16), "selects elements of both factors"),
        (conv_graph(16, 16, (8, 8), weights=False), "computed"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_other_work_is_declined_with_a_reason(graph: Graph, reason: str) -> None:
    found, _, _ = lower(graph, host_isa(), 4)
    assert isinstance(found, Declined)
    assert reason in found.reason


def test_channels_first_inputs_and_unknown_tiles_are_declined() -> None:
    graph = conv_graph(16, 16, (8, 8))

    def planar_input(shape: tuple[int, ...], seen: list[int] = []) -> Layout:  # noqa: B006 - counts the calls
        seen.append(0)
        return Layout.row_major(len(shape)) if len(seen) == 1 else channels_last(shape)

    found, _, _ = lower(graph, host_isa(), 4, planar_input)
    assert isinstance(found, Declined)
    assert "not contiguous" in found.reason
    found, _, _ = lower(graph, host_isa(), 3)
    assert isinstance(found, Declined)
    assert "expected winograd tile=2 or winograd tile=4" in found.reason


# Estimates, and other instruction sets.


def gain(graph: Graph, tile: int) -> float:
    group = group_of(graph)
    layouts = {("input", i): Layout.row_major(len(v.shape)) for i, v in enumerate(group.inputs)}
    layouts["input", 0] = layouts["output", 0] = Layout((0, 2, 3, 1))
    problem = match_winograd(group.nests[0], layouts)
    assert isinstance(problem, WinogradProblem)
    isa = replace(isa_by_name("avx512"), caches=CacheSizes(l1_bytes=48 << 10, l2_bytes=2 << 20))
    isa = replace(isa, fmas_per_cycle=2.0)
    weights = frozenset(("input", i) for i, v in enumerate(group.inputs) if v.is_constant)
    return winograd_gain(problem, tile, Context(isa, layouts, constants=weights))


def test_gain_counts_products_transforms_and_weights() -> None:
    large = conv_graph(64, 64, (56, 56))
    assert 1.3 < gain(large, 2) < 9 * 4 / 16
    assert gain(large, 2) < gain(large, 4) < 9 * 16 / 36
    assert gain(conv_graph(4, 4, (56, 56)), 4) < gain(large, 4)  # transforms outweigh few channels
    small = conv_graph(512, 512, (7, 7))
    assert gain(small, 4) < 1  # four times the weights for four tiles
    assert gain(small, 4) < gain(small, 2)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("tile", PAIRS)
def test_kernels_compile_for_arm(tile: int) -> None:
    isa = isa_by_name("neon")
    kernels, _, _ = lower(conv_graph(19, 37, (9, 10), then="add relu"), isa, tile)
    assert not isinstance(kernels, Declined)
    assert compile_object(kernels[0].text, isa).startswith(b"\x7fELF")
