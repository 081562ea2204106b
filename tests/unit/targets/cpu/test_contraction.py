"""Contractions against float64, over the shapes that decide which code is emitted."""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.support.kernels import group_of

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ir.interpret import run_graph
from tilewright.targets.cpu.arrangements import compact
from tilewright.targets.cpu.isa import CacheSizes, Isa, host_isa, isa_by_name
from tilewright.targets.cpu.kernel import Declined, Kernel, Layout
from tilewright.targets.cpu.product.contraction import CONTRACTION, generate, sums
from tilewright.targets.cpu.product.tiling import Rows, choose_tile, rank_tiles
from tilewright.targets.cpu.template import Context, lower_with
from tilewright.testing.kernel_runner import KernelRunner

F32 = DType.FLOAT32


def channels_last(rank: int) -> Layout:
    return Layout((0, *range(2, rank), 1)) if rank >= 3 else Layout.row_major(rank)


def conv_graph(
    c: int,
    k: int,
    size: tuple[int, int],
    kernel: tuple[int, int],
    *,
    stride: int = 1,
    pads: Sequence[int] = (0, 0, 0, 0),
    dilation: int = 1,
    group: int = 1,
    batch: int = 1,
    relu: bool = False,
    residual: bool = False,
) -> Graph:
    g = Graph("conv")
    rng = np.random.default_rng(0)
    x = g.add_input(Value("x", F32, (batch, c, *size)))
    w = g.constant(rng.standard_normal((k, c // group, *kernel)).astype(np.float32), "w")
    b = g.constant(rng.standard_normal(k).astype(np.float32), "b")
    out = [
        (s + pads[i] + pads[i + 2] - dilation * (f - 1) - 1) // stride + 1
        for i, (s, f) in enumerate(zip(size, kernel, strict=True))
    ]
    attributes = {
        "pads": tuple(pads),
        "strides": (stride, stride),
        "dilations": (dilation, dilation),
        "group": group,
        "kernel_shape": kernel,
    }
    shape = (batch, k, *out)
    y = g.append(Node("Conv", [x, w, b], [g.value("y", F32, shape)], attributes)).output
    if residual:
        r = g.add_input(Value("r", F32, shape))
        y = g.append(Node("Add", [y, r], [g.value("sum", F32, shape)])).output
    if relu:
        y = g.append(Node("Relu", [y], [g.value("relu", F32, shape)])).output
    g.outputs = [y]
    return g


def lowered(
    graph: Graph, isa: Isa, layout: Any, *, may_round: bool = False
) -> tuple[tuple[Kernel, ...], dict[str, Any], dict[Any, Any], dict[Any, Layout]]:
    """The kernels, with what they are fed: inputs by name, operands and layouts by key."""
    group = group_of(graph)
    assert len(group.nests) == 1
    rng = np.random.default_rng(1)
    feed = {v.name: rng.standard_normal(v.shape).astype(np.float32) for v in graph.inputs}
    layouts = {}
    operands = {}
    constants = set()
    for i, value in enumerate(group.inputs):
        key = ("input", i)
        layouts[key] = Layout.row_major(len(value.shape)) if value.is_constant else layout(len(value.shape))
        operands[key] = value.data if value.data is not None else feed[value.name]
        if value.is_constant:
            constants.add(key)
    out = group.outputs[0]
    layouts["output", 0] = layout(len(out.shape))
    operands["output", 0] = np.full(out.shape, np.nan, np.float32)
    context = Context(isa, layouts, "relaxed" if may_round else "default", frozenset(constants))
    kernels = lower_with(CONTRACTION, group.nests[0], context)
    assert not isinstance(kernels, Declined), kernels
    assert ("B of 24 bits" in kernels[-1].notes) == may_round
    return kernels, feed, operands, layouts


def build(
    graph: Graph, isa: Isa, layout: Any = channels_last, *, may_round: bool = False
) -> tuple[KernelRunner, dict[str, Any]]:
    kernels, feed, operands, layouts = lowered(graph, isa, layout, may_round=may_round)
    return KernelRunner(kernels, operands, layouts, isa), feed


def check(graph: Graph, isa: Isa, layout: Any = channels_last, *, scale: float = 0.0) -> None:
    """Errors are relative to `scale`, or to the largest result."""
    runner, feed = build(graph, isa, layout)
    runner()
    expected = run_graph(graph, feed, dtype=DType.FLOAT64)[graph.outputs[0].name]
    got = runner.result(("output", 0))
    assert np.abs(got - expected).max() <= 2e-6 * (scale or np.abs(expected).max())


ISAS = ["host", "avx512", "avx2"]


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> Isa:
    found = host_isa() if request.param == "host" else isa_by_name(request.param)
    if not found.runs_on_host:
        pytest.skip(f"this processor does not run {request.param}")
    return found


CONVOLUTIONS = {
    "pointwise": conv_graph(64, 96, (14, 14), (1, 1)),
    "pointwise, odd channels": conv_graph(19, 37, (9, 7), (1, 1), relu=True),
    "pointwise with residual": conv_graph(32, 24, (14, 14), (1, 1), relu=True, residual=True),
    "pointwise stride 2": conv_graph(32, 48, (15, 15), (1, 1), stride=2),
    "3x3 padded": conv_graph(16, 48, (28, 28), (3, 3), pads=(1, 1, 1, 1), relu=True),
    "3x3 on a small map": conv_graph(32, 40, (7, 7), (3, 3), pads=(1, 1, 1, 1)),
    "3x3 where every row is an edge": conv_graph(8, 16, (2, 2), (3, 3), pads=(1, 1, 1, 1)),
    "3x3 stride 2": conv_graph(16, 32, (28, 28), (3, 3), stride=2, pads=(1, 1, 1, 1)),
    "3x3 stride 2, odd, asymmetric": conv_graph(16, 32, (15, 13), (3, 3), stride=2, pads=(0, 1, 1, 0)),
    "3x3 dilated": conv_graph(8, 32, (12, 17), (3, 3), dilation=2, pads=(2, 2, 2, 2)),
    "5x3": conv_graph(8, 20, (11, 10), (5, 3), pads=(2, 1, 2, 1)),
    "padding wider than the kernel reaches": conv_graph(8, 16, (3, 3), (3, 3), pads=(3, 3, 3, 3)),
    "grouped": conv_graph(32, 64, (9, 9), (3, 3), group=4, pads=(1, 1, 1, 1)),
    "groups of four channels": conv_graph(32, 32, (9, 9), (3, 3), group=8, pads=(1, 1, 1, 1)),
    "groups whose last vector is half empty": conv_graph(
        48, 48, (9, 7), (3, 3), group=2, pads=(1, 1, 1, 1), relu=True, residual=True
    ),
    "batch of three": conv_graph(16, 32, (8, 8), (3, 3), batch=3, pads=(1, 1, 1, 1)),
    "7x7 stride 2": conv_graph(3, 64, (32, 32), (7, 7), stride=2, pads=(3, 3, 3, 3), relu=True),
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution_equals_float64(name: str, isa: Isa) -> None:
    check(CONVOLUTIONS[name], isa)


def test_the_ranking_of_tiles_is_a_function_whose_arguments_are_checked() -> None:
    """Type checkers take any arguments for those of what `functools.lru_cache` makes."""
    assert inspect.isfunction(rank_tiles)
    ranked = rank_tiles(host_isa(), "float", Rows(56), 64, 32)
    assert ranked is rank_tiles(host_isa(), "float", Rows(56), 64, 32), "it is remembered"


def test_stem_reads_channels_first_input(isa: Isa) -> None:
    graph = conv_graph(3, 64, (32, 32), (7, 7), stride=2, pads=(3, 3, 3, 3), relu=True)

    def layout(rank: int, seen: list[int] = []) -> Layout:  # noqa: B006 - first call is the input
        seen.append(rank)
        return Layout.row_major(rank) if len(seen) == 1 else channels_last(rank)

    check(graph, isa, layout)


def matmul_graph(
    a: tuple[int, ...], b: tuple[int, ...], *, constant: bool = True, bias: bool = False
) -> Graph:
    g = Graph("matmul")
    x = g.add_input(Value("x", F32, a))
    data = np.random.default_rng(3).standard_normal(b).astype(np.float32)
    w = g.constant(data, "w") if constant else g.add_input(Value("w", F32, b))
    shape = (*np.broadcast_shapes(a[:-2], b[:-2]), a[-2], b[-1])
    y = g.append(Node("MatMul", [x, w], [g.value("y", F32, shape)])).output
    if bias:
        c = g.constant(np.arange(b[-1], dtype=np.float32), "c")
        y = g.append(Node("Add", [y, c], [g.value("z", F32, shape)])).output
    g.outputs = [y]
    return g


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    "graph",
    [
        matmul_graph((128, 64), (64, 96), bias=True),
        matmul_graph((1, 100), (100, 1000)),
        matmul_graph((5, 7), (7, 3)),
        matmul_graph((2, 3, 17, 33), (33, 21), bias=True),
        matmul_graph((4, 19, 8), (4, 8, 50), constant=False),
        matmul_graph((4, 19, 8), (4, 8, 50), constant=True),
        matmul_graph((1, 197, 48), (48, 144)),
    ],
    ids=lambda g: " @ ".join(str(v.shape) for v in g.nodes[0].inputs),
)
def test_matrix_product_equals_float64(graph: Graph, isa: Isa) -> None:
    check(graph, isa, Layout.row_major)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("num_steps", [40, 1100])
@pytest.mark.parametrize("num_columns", [12, 24, 40])
def test_rows_that_share_a_half_empty_vector_take_fewer_products_and_have_the_bits_of_rows_apart(
    num_columns: int, num_steps: int, isa: Isa, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sums.Sums, "_unroll", lambda *given: 1)  # the count below is of one step
    graph = matmul_graph((11, num_steps), (num_steps, num_columns), bias=True)
    check(graph, isa, Layout.row_major, scale=num_steps**0.5)
    kernel = lowered(graph, isa, Layout.row_major)[0][-1]
    shared, _ = build(graph, isa, Layout.row_major)
    monkeypatch.setattr(sums, "LEAST_SHARED_LANES", 64)
    kernel_apart = lowered(graph, isa, Layout.row_major)[0][-1]
    apart, _ = build(graph, isa, Layout.row_major)
    # Twelve columns fill a vector of 16 lanes by more than half.
    is_shared = num_columns % isa.lanes("float") in range(1, isa.lanes("float") // 2 + 1)
    assert (kernel.text.count("@llvm.fma") < kernel_apart.text.count("@llvm.fma")) == is_shared
    shared()
    apart()
    np.testing.assert_array_equal(shared.result(("output", 0)), apart.result(("output", 0)))


def followed_by(function: str, graph: Graph) -> Graph:
    """A product whose result goes through a function of one argument."""
    shape = graph.outputs[0].shape
    graph.outputs = [graph.append(Node(function, graph.outputs, [graph.value("f", F32, shape)])).output]
    return graph


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("num_terms", "graph"),
    [
        (40, followed_by("Sigmoid", matmul_graph((19, 40), (40, 50), bias=True))),
        (100, followed_by("Sigmoid", matmul_graph((1, 100), (100, 1000)))),
        (500, followed_by("Tanh", matmul_graph((13, 500), (500, 70)))),
        (8, followed_by("Erf", matmul_graph((2, 19, 8), (2, 8, 50), constant=False))),
        (72, followed_by("Sigmoid", conv_graph(8, 40, (9, 17), (3, 3), pads=(1, 1, 1, 1), residual=True))),
        (36, followed_by("Sigmoid", conv_graph(128, 128, (7, 9), (3, 3), pads=(1, 1, 1, 1), group=32))),
    ],
    ids=["tails", "one row", "long sums", "batch", "edges and a residual", "small groups"],
)
def test_long_functions_of_sums_give_the_bits_that_they_give_in_registers(
    num_terms: int, graph: Graph, isa: Isa, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = Layout.row_major if len(graph.inputs[0].shape) < 4 else channels_last
    check(graph, isa, layout, scale=num_terms**0.5)  # the function passes on the error of the sums
    in_memory, _ = build(graph, isa, layout)
    text = lowered(graph, isa, layout)[0][-1].text
    monkeypatch.setattr(generate, "finishes_in_memory", lambda problem: False)
    in_registers, _ = build(graph, isa, layout)
    assert text != lowered(graph, isa, layout)[0][-1].text
    in_memory()
    in_registers()
    np.testing.assert_array_equal(in_memory.result(("output", 0)), in_registers.result(("output", 0)))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("num_terms", "graph"),
    [
        (1300, matmul_graph((60, 1300), (1300, 200), bias=True)),
        (2048, matmul_graph((3, 25, 2048), (2048, 70))),
        (1300, conv_graph(1300, 150, (7, 7), (1, 1), relu=True, residual=True)),
        (1024, followed_by("Sigmoid", matmul_graph((33, 1024), (1024, 330)))),
    ],
    ids=["tails", "outer rows", "pointwise with residual", "long function"],
)
def test_long_sums_in_blocks_that_the_second_cache_holds_have_the_bits_of_whole_ones(
    num_terms: int, graph: Graph, isa: Isa, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = replace(isa, caches=CacheSizes(l1_bytes=48 * 1024, l2_bytes=256 * 1024))
    layout = Layout.row_major if len(graph.inputs[0].shape) < 4 else channels_last
    check(graph, small, layout, scale=num_terms**0.5)
    assert any("steps at a time" in note for note in lowered(graph, small, layout)[0][-1].notes)
    in_blocks, _ = build(graph, small, layout)
    monkeypatch.setattr(generate, "step_blocks", lambda *given: None)
    whole, _ = build(graph, small, layout)
    in_blocks()
    whole()
    np.testing.assert_array_equal(in_blocks.result(("output", 0)), whole.result(("output", 0)))


@pytest.mark.parametrize(
    ("rows", "steps", "columns", "is_fetched"),
    [(196, 384, 1152, True), (768, 196, 384, True), (196, 384, 32, False), (3136, 64, 256, False)],
    ids=["panels of 48 KiB", "of 24 KiB", "one panel", "panels of 8 KiB"],
)
def test_the_next_panel_of_weights_is_fetched_while_one_is_multiplied(
    rows: int, steps: int, columns: int, is_fetched: bool
) -> None:
    graph = matmul_graph((rows, steps), (steps, columns))
    kernels, *_ = lowered(graph, isa_by_name("avx512"), Layout.row_major)
    assert ("@llvm.prefetch" in kernels[-1].text) == is_fetched


def test_depthwise_is_declined_with_a_reason() -> None:
    graph = conv_graph(16, 16, (8, 8), (3, 3), group=16)
    with pytest.raises(AssertionError, match="selects elements of both factors"):
        build(graph, host_isa())


def test_chunks_do_not_depend_on_threads_and_cover_all_outputs(isa: Isa) -> None:
    runner, _ = build(conv_graph(64, 200, (28, 28), (3, 3), pads=(1, 1, 1, 1)), isa)
    runner()
    assert not np.isnan(runner.result(("output", 0))).any()


@pytest.mark.sampled(6)
@pytest.mark.parametrize("kernel", [(1, 1), (3, 3), (2, 3)])
@pytest.mark.parametrize(("channels", "group"), [(128, 32), (64, 32), (48, 12), (32, 16), (80, 20), (20, 5)])
def test_small_groups_side_by_side(channels: int, group: int, kernel: tuple[int, int], isa: Isa) -> None:
    """Square groups of 2 and 4 channels, whose number fills whole vectors or does not."""
    pads = [k // 2 for k in kernel] * 2
    graph = conv_graph(
        channels, channels, (7, 9), kernel, pads=pads, group=group, batch=2, relu=True, residual=True
    )
    check(graph, isa)


def test_small_groups_fill_the_vectors() -> None:
    """The tile says so: a group of four channels alone would have four lanes."""
    graph = conv_graph(128, 128, (7, 9), (3, 3), pads=(1, 1, 1, 1), group=32)
    group = group_of(graph)
    layouts = {("input", 0): channels_last(4), ("output", 0): channels_last(4)}
    layouts |= {("input", i): Layout.row_major(len(v.shape)) for i, v in enumerate(group.inputs) if i}
    constants = frozenset({("input", 1), ("input", 2)})
    isa = isa_by_name("avx512")
    kernels = lower_with(CONTRACTION, group.nests[0], Context(isa, layouts, constants=constants))
    assert not isinstance(kernels, Declined)
    assert int(kernels[0].notes[0].split("x")[1]) % isa.lanes() == 0


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "graph",
    [
        conv_graph(96, 200, (2, 2), (1, 1), relu=True),
        conv_graph(40, 61, (2, 2), (3, 3), pads=(1, 1, 1, 1), residual=True),
        matmul_graph((1, 1000), (1000, 97)),
        matmul_graph((3, 600), (600, 70)),
    ],
    ids=["pointwise", "window", "one row", "long sums"],
)
def test_weights_of_24_bits_err_by_2_to_the_minus_17_of_them(graph: Graph, isa: Isa) -> None:
    runner, feed = build(graph, isa, may_round=True)
    runner()
    name = graph.outputs[0].name
    expected = run_graph(graph, feed, dtype=DType.FLOAT64)[name]
    got = runner.result(("output", 0))
    # The most that rounding can change: every product by 2^-17 of it. Here sums of magnitudes bound it.
    magnitudes = {key: np.abs(value) for key, value in feed.items()}
    node = graph.nodes[0]
    weights = next(v for v in node.inputs if v is not None and v.data is not None)
    assert weights.data is not None
    of_magnitudes = Graph("magnitudes")
    values = [of_magnitudes.add_input(Value("x", F32, node.inputs[0].shape))]  # type: ignore[union-attr]
    values.append(of_magnitudes.constant(np.abs(weights.data), "w"))
    y = of_magnitudes.append(
        Node(node.op_type, values, [of_magnitudes.value("y", F32, node.output.shape)], dict(node.attributes))
    ).output
    of_magnitudes.outputs = [y]
    x = magnitudes[node.inputs[0].name]  # type: ignore[union-attr]
    bound = run_graph(of_magnitudes, {"x": x}, dtype=DType.FLOAT64)["y"]
    assert (np.abs(got - expected) <= (2.0**-17 + 2.0**-20) * bound + 1e-5).all()


def test_rounded_weights_keep_what_24_bits_hold() -> None:
    values = np.array([1.0, -3.5, 2.0**-126, 0.0, -0.0, np.inf, -np.inf, np.nan, 1 + 2.0**-16], np.float32)
    stored = compact(values).reshape(-1, 3)
    back = np.pad(stored, ((0, 0), (1, 0))).reshape(-1).view("<f4")
    np.testing.assert_array_equal(back[:8], values[:8])
    assert back[8] == 1.0, "halves go to even"


def test_rows_that_share_a_set_of_the_first_cache_take_a_tile_that_its_ways_hold() -> None:
    """A line of each row is read at every step: with 8 ways 13 lines a page apart would all be missed."""
    isa = replace(isa_by_name("avx512"), caches=CacheSizes(l1_bytes=32 * 1024, l2_bytes=1 << 20))
    for steps, columns in ((1024, 256), (2048, 512), (3072, 768)):
        apart = choose_tile(isa, "float", Rows(196, 4 * steps + 64), columns, steps)
        aliased = choose_tile(isa, "float", Rows(196, 4 * steps), columns, steps)
        assert apart.max_rows > isa.caches.l1_ways > aliased.max_rows
        assert aliased.max_rows * aliased.panels.num_vectors >= 20  # sums enough to hide the FMAs' latency
