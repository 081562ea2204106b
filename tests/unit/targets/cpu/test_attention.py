"""Attention in one kernel: any shape, layout and mask gives what the operators give."""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tests.support.graphs import feed_of
from tests.support.kernels import group_of, results
from tests.support.matrix_unit import can_emulate, emulated_matrix_unit, isa_with_matrix_unit
from tests.unit.targets.cpu.test_arrange import one_stage, partition_of

from tilewright.compiler import compile_graph
from tilewright.ir.dtype import DType
from tilewright.ir.fuse import NestGroup
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ir.interpret import run_graph
from tilewright.options import Accuracy, Options
from tilewright.program import Program
from tilewright.targets.cpu.attention import AttentionPlan, lower_attention
from tilewright.targets.cpu.attention.choose import plan_tiles
from tilewright.targets.cpu.attention.match import match_attention
from tilewright.targets.cpu.isa import Isa, host_isa, isa_by_name
from tilewright.targets.cpu.kernel import Declined, Kernel, Layout, OperandKey
from tilewright.targets.cpu.plans import parse_plan, plan_kernels
from tilewright.targets.cpu.product.plan import Dot
from tilewright.targets.cpu.target import CpuTarget
from tilewright.targets.cpu.template import Context
from tilewright.targets.llvm.attention import attention_run
from tilewright.targets.llvm.codegen import emit_assembly

F32 = DType.FLOAT32
BY_POSITION = (0, 2, 1, 3)  # heads side by side, as products of whole layers leave them


def attention(
    rows: int,
    columns: int,
    size: int,
    *,
    batch: int = 1,
    heads: int = 2,
    key_heads: int | None = None,
    channels: int | None = None,
    mask: Sequence[int] | None = None,
    mask_dtype: DType = F32,
    **attributes: int,
) -> Graph:
    """One attention of `heads` over inputs."""
    graph = Graph("attention")
    key_heads = key_heads or heads
    shapes = {
        "q": (batch, heads, rows, size),
        "k": (batch, key_heads, columns, size),
        "v": (batch, key_heads, columns, channels or size),
    }
    inputs = [graph.add_input(Value(name, F32, shape)) for name, shape in shapes.items()]
    if mask is not None:
        inputs.append(graph.add_input(Value("mask", mask_dtype, tuple(mask))))
    out = graph.value("y", F32, (batch, heads, rows, channels or size))
    graph.outputs = [graph.append(Node("Attention", inputs, [out], attributes, opset=23)).output]
    return graph


def lowered(graph: Graph, isa: Isa, orders: dict[str, tuple[int, ...]]) -> tuple[NestGroup, Any, Any]:
    group = group_of(graph)
    layouts: dict[OperandKey, Layout] = {}
    for position, value in enumerate(group.inputs):
        layouts["input", position] = Layout(orders.get(value.name, tuple(range(len(value.shape)))))
    layouts["output", 0] = Layout(orders.get("y", (0, 1, 2, 3)))
    layouts |= {o.key: Layout.row_major(len(o.shape)) for o in group.locals}
    run = attention_run(group.nests, 0)
    assert run is not None
    return group, layouts, lower_attention(run, Context(isa, layouts, next_local=len(group.locals)))


def check(graph: Graph, isa: Isa | None = None, **orders: tuple[int, ...]) -> Kernel:
    """The kernel of the graph's attention, the first of two; the results are those of the operator."""
    isa = isa or host_isa()
    group, layouts, kernels = lowered(graph, isa, orders)
    assert not isinstance(kernels, Declined), kernels
    again = plan_kernels(parse_plan(str(kernels[0].plan)), isa, len(group.locals))
    assert [k.symbol for k in again] == [k.symbol for k in kernels], kernels[0].plan
    found, expected = outputs_of(kernels, graph, group, layouts, isa)
    np.testing.assert_allclose(found, expected, rtol=0, atol=3e-6)
    return kernels[0]


def outputs_of(
    kernels: Sequence[Kernel], graph: Graph, group: NestGroup, layouts: Any, isa: Isa
) -> tuple[Any, Any]:
    """What kernels give for random inputs, and the operator in float64."""
    rng = np.random.default_rng(0)
    feed: dict[str, Any] = {}
    for value in graph.inputs:
        if value.dtype is DType.BOOL:
            feed[value.name] = rng.random(value.shape) < 0.5
        else:
            feed[value.name] = rng.standard_normal(value.shape).astype(np.float32)
    (got,) = results(kernels, group, feed, layouts, isa)
    return got, run_graph(graph, feed, dtype=DType.FLOAT64)["y"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("rows", "columns", "size", "channels"),
    [
        (49, 49, 32, 32),
        (5, 16, 8, 24),
        (17, 33, 20, 5),
        (4, 2, 3, 70),
        (40, 270, 16, 16),
        (4, 400, 8, 9),
        (20, 18, 32, 5),
    ],
)
def test_any_shape(rows: int, columns: int, size: int, channels: int) -> None:
    kernel = check(attention(rows, columns, size, channels=channels))
    assert kernel.macs == 2 * rows * columns * (size + channels)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["host", "avx2"])
@pytest.mark.parametrize(
    ("rows", "columns", "size", "channels"),
    [(1, 513, 64, 64), (3, 37, 20, 70), (2, 5, 9, 3), (1, 16, 8, 200), (8, 4400, 32, 32)],
)
def test_few_queries_read_keys_in_place(name: str, rows: int, columns: int, size: int, channels: int) -> None:
    isa = host_isa() if name == "host" else isa_by_name(name)
    kernel = check(attention(rows, columns, size, channels=channels), isa)
    assert kernel.scratch_bytes < 2 * 4 * rows * (columns + channels) + 4096, "nothing is packed"
    check(attention(rows, columns, size, channels=channels), isa, q=BY_POSITION, k=BY_POSITION, y=BY_POSITION)


def quantised(rows: int, dtype: DType) -> Graph:
    """Attention whose results are quantised."""
    graph = attention(rows, 33, 16, channels=24)
    (result,) = graph.outputs
    scale = graph.constant(np.asarray(0.01, np.float32), "scale")
    zero = graph.constant(np.asarray(100, dtype.numpy), "zero")
    node = Node("QuantizeLinear", [result, scale, zero], [graph.value("b", dtype, result.shape)])
    graph.outputs = [graph.append(node).output]
    result.name, graph.outputs[0].name = "x", "y"
    return graph


@pytest.mark.parametrize("dtype", [DType.UINT8, DType.INT8])
def test_results_may_be_bytes(dtype: DType) -> None:
    graph, isa = quantised(20, dtype), host_isa()
    group, layouts, kernels = lowered(graph, isa, {"y": BY_POSITION})
    assert not isinstance(kernels, Declined), kernels
    again = plan_kernels(parse_plan(str(kernels[0].plan)), isa, len(group.locals))
    assert [k.symbol for k in again] == [k.symbol for k in kernels]
    rng = np.random.default_rng(0)
    feed = {v.name: rng.standard_normal(v.shape).astype(np.float32) for v in graph.inputs}
    (got,) = results(kernels, group, feed, layouts, isa)
    errors = np.abs(got.astype(int) - run_graph(graph, feed, dtype=DType.FLOAT64)["y"].astype(int))
    assert errors.max() <= 1
    assert np.count_nonzero(errors) < 0.01 * errors.size, "only what lies halfway may be rounded elsewhere"


def test_results_of_few_queries_are_no_bytes() -> None:
    _, _, kernels = lowered(quantised(2, DType.UINT8), host_isa(), {})
    assert isinstance(kernels, Declined)
    assert "results of uint8 for few queries" in kernels.reason


def test_heads_are_read_and_written_where_they_lie() -> None:
    check(attention(18, 20, 24, heads=3), q=BY_POSITION, k=BY_POSITION, v=BY_POSITION, y=BY_POSITION)
    check(attention(18, 20, 24, heads=3), k=(0, 1, 3, 2))
    check(attention(18, 20, 24, heads=3), k=(2, 3, 0, 1))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shape", [(1, 1, 9, 21), (2, 1, 1, 21), (9, 21), (21,)])
@pytest.mark.parametrize("dtype", [F32, DType.BOOL])
def test_masks_are_broadcast(shape: tuple[int, ...], dtype: DType) -> None:
    check(attention(9, 21, 8, batch=2, heads=3, mask=shape, mask_dtype=dtype))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("columns", [17, 18, 33])
@pytest.mark.parametrize("dtype", [F32, DType.BOOL])
def test_few_keys_behind_whole_vectors(columns: int, dtype: DType) -> None:
    for shape in ((2, 3, 19, columns), (columns,)):
        check(attention(19, columns, 16, batch=2, heads=3, mask=shape, mask_dtype=dtype))
    check(attention(19, columns, 32, is_causal=1), q=BY_POSITION, k=BY_POSITION)


def test_keys_that_no_query_may_see() -> None:
    check(attention(9, 9, 8, is_causal=1))
    check(attention(13, 9, 8, mask=(13, 9), mask_dtype=DType.BOOL, is_causal=1))


def test_grouped_queries_share_keys() -> None:
    check(attention(9, 21, 8, heads=6, key_heads=2))


@pytest.mark.parametrize("name", ["avx512", "avx2", "neon"])
def test_code_of_other_processors_calls_nothing(name: str) -> None:
    isa = isa_by_name(name)
    *_, (kernel,) = lowered(attention(49, 49, 32, mask=(1, 2, 49, 49)), isa, {})
    instructions = [line.split() for line in emit_assembly(kernel.text, isa).splitlines()]
    assert not [words for words in instructions if words and words[0] in ("bl", "call", "callq")]


def test_narrower_vectors() -> None:
    check(attention(19, 30, 12), isa_by_name("avx2"))


@pytest.mark.parametrize("scaled", ["q", "k", "v"])
def test_what_another_kernel_of_its_subgraph_makes(scaled: str) -> None:
    """It lies in memory that outlives that kernel."""
    graph = Graph("scaled")
    inputs = [graph.add_input(Value(name, F32, (1, 2, 20, 16))) for name in "qkv"]
    factor = graph.constant(np.linspace(0.5, 2.0, 16, dtype=np.float32), "w")
    place = "qkv".index(scaled)
    product = Node("Mul", [inputs[place], factor], [graph.value("m", F32, (1, 2, 20, 16))])
    inputs[place] = graph.append(product).output
    out = graph.value("y", F32, (1, 2, 20, 16))
    graph.outputs = [graph.append(Node("Attention", inputs, [out], opset=23)).output]
    schedule = one_stage(partition_of(graph, 2), (0,))
    program = Program(graph, schedule.partition, schedule, Options(no_cache=True, threads=2))
    code = CpuTarget().generate(program)
    assert [k.template for step in code.steps for k in step.kernels] == ["loop-nest", "attention"]
    feed = feed_of(graph)
    executable = code.load(2)
    try:
        result = executable.run(feed)["y"]
    finally:
        executable.close()
    np.testing.assert_allclose(result, run_graph(graph, feed, dtype=DType.FLOAT64)["y"], rtol=0, atol=3e-6)


def test_bits_depend_on_no_cut() -> None:
    """One head is cut into parts, many are not: each row's bits are the same."""
    isa = host_isa()
    graph = attention(96, 40, 16, heads=1)
    group, layouts, (divided,) = lowered(graph, isa, {})
    run = attention_run(group.nests, 0)
    assert run is not None
    kernels = lower_attention(run, Context(isa, layouts, divides=False))
    assert not isinstance(kernels, Declined)
    (whole,) = kernels
    assert divided.num_chunks > whole.num_chunks == 1
    rng = np.random.default_rng(0)
    feed = {v.name: rng.standard_normal(v.shape).astype(np.float32) for v in group.inputs}
    np.testing.assert_array_equal(*(results([k], group, feed, layouts, isa)[0] for k in (divided, whole)))


def test_the_estimate_grows_with_the_work_and_stays_above_the_products() -> None:
    isa = isa_by_name("avx512")
    before = 0.0
    for heads, length in ((2, 33), (2, 49), (4, 49), (4, 64), (12, 128), (12, 200)):
        *_, (kernel,) = lowered(attention(length, length, 32, heads=heads), isa, {})
        assert kernel.estimate_cycles is not None
        assert kernel.estimate_cycles > max(before, kernel.macs / (2 * isa.lanes()))
        before = kernel.estimate_cycles


def test_scores_that_others_read_are_no_run() -> None:
    graph = attention(9, 9, 8)
    group = group_of(graph)
    assert attention_run(group.nests, 0) is not None
    assert attention_run(group.nests[:-1], 0) is None
    assert attention_run((*group.nests, group.nests[1]), 0) is None


def weighted(equation: str, values: tuple[int, ...], shape: tuple[int, ...]) -> Graph:
    """Products and a softmax as attention has them, whose weights and values meet as an equation says."""
    graph = Graph("weighted")
    q, k = (graph.add_input(Value(name, F32, (2, 3, 9, 8))) for name in "qk")
    v = graph.add_input(Value("v", F32, values))
    square = (2, 3, 9, 9)

    def op(name: str, shape: tuple[int, ...], *inputs: Value, **attributes: str) -> Value:
        out = graph.value(name.lower(), F32, shape)
        return graph.append(Node(name, inputs, [out], attributes, opset=17)).output

    scores = op("Einsum", square, q, k, equation="bhqd,bhkd->bhqk")
    graph.outputs = [op("Einsum", shape, op("Softmax", square, scores), v, equation=equation)]
    return graph


@pytest.mark.parametrize(
    ("equation", "values", "shape"),
    [
        ("bhqk,bhkd->bqd", (2, 3, 9, 8), (2, 9, 8)),
        ("bhqk,bhkd->bhd", (2, 3, 9, 8), (2, 3, 8)),
        ("bhqk,bhqkd->bhkd", (2, 3, 9, 9, 8), (2, 3, 9, 8)),
    ],
)
def test_weights_summed_over_more_than_keys_are_no_attention(
    equation: str, values: tuple[int, ...], shape: tuple[int, ...]
) -> None:
    graph = weighted(equation, values, shape)
    *_, made = lowered(graph, host_isa(), {"y": tuple(range(len(shape)))})
    assert isinstance(made, Declined)
    feed = feed_of(graph)
    executable = compile_graph(graph, Options(no_cache=True, threads=1)).code.load(1)
    try:
        (result,) = executable.run(feed).values()
    finally:
        executable.close()
    (expected,) = run_graph(graph, feed, dtype=DType.FLOAT64).values()
    np.testing.assert_allclose(result, expected, rtol=0, atol=3e-6)


@pytest.mark.parametrize(
    ("graph", "orders", "reason"),
    [
        (attention(2, 64, 16), {"k": (0, 1, 3, 2)}, "packed for 2 queries alone"),
        (attention(2, 64, 300), {}, "packed for 2 queries alone"),
        (attention(64, 1 << 16, 16), {}, "leave the second cache"),
        (attention(16, 16, 16), {"v": (0, 1, 3, 2)}, "not contiguous"),
        (attention(16, 16, 1, channels=8), {}, "more than one loop"),
        (attention(16, 16, 400), {}, "cut into blocks"),
        (attention(16, 16, 8, mask=(16, 12)), {}, "padded"),
        (attention(0, 16, 8), {}, "no iterations"),
        (attention(16, 16, 8, batch=0), {}, "no iterations"),
    ],
)
def test_what_is_declined_says_why(graph: Graph, orders: dict[str, tuple[int, ...]], reason: str) -> None:
    *_, made = lowered(graph, isa_by_name("avx512"), orders)
    assert isinstance(made, Declined)
    assert reason in made.reason


@pytest.mark.parametrize("sizes", [{"batch": 0}, {"rows": 0}, {"columns": 0}])
def test_attention_of_nothing_is_compiled(sizes: dict[str, int]) -> None:
    extents = {"rows": 1, "columns": 8, "size": 16, **sizes}
    graph = attention(extents.pop("rows"), extents.pop("columns"), extents.pop("size"), **extents)
    feed = feed_of(graph)
    executable = compile_graph(graph, Options(no_cache=True, threads=1)).code.load(1)
    try:
        (result,) = executable.run(feed).values()
    finally:
        executable.close()
    assert result.shape == graph.outputs[0].shape
    assert not np.any(result)


ERRORS: dict[Dot, float] = {
    "1 bfloat16 product": 2e-2,
    "3 bfloat16 products": 4e-5,
    "6 bfloat16 products": 2e-6,
}
"""Errors of results about one, by the products of bfloat16 pieces."""
TILED: list[tuple[Dot, Graph, dict[str, tuple[int, ...]]]] = [
    ("1 bfloat16 product", attention(49, 49, 32), {}),
    ("3 bfloat16 products", attention(5, 16, 8, channels=24), {}),
    ("6 bfloat16 products", attention(17, 33, 20, channels=5), {}),
    ("3 bfloat16 products", attention(40, 270, 16, channels=70), {}),
    ("3 bfloat16 products", attention(20, 37, 32, mask=(1, 1, 20, 37)), {}),
    ("1 bfloat16 product", attention(20, 37, 32, mask=(20, 37), mask_dtype=DType.BOOL, is_causal=1), {}),
    ("3 bfloat16 products", attention(40, 50, 32, heads=4, key_heads=2), dict.fromkeys("qkvy", BY_POSITION)),
    ("3 bfloat16 products", attention(4, 20, 48), {"k": (0, 1, 3, 2)}),
]


@pytest.mark.sampled(2)
@pytest.mark.skipif(not can_emulate(), reason="this processor rounds no vectors to bfloat16")
@pytest.mark.parametrize(("dot", "graph", "orders"), TILED)
def test_products_on_the_matrix_unit(dot: Dot, graph: Graph, orders: dict[str, tuple[int, ...]]) -> None:
    group, layouts, _ = lowered(graph, host_isa(), orders)
    run = attention_run(group.nests, 0)
    assert run is not None
    problem = match_attention(run, layouts)
    assert not isinstance(problem, Declined)
    with emulated_matrix_unit():
        isa = isa_with_matrix_unit()
        plan = plan_tiles(problem, dot, isa, divides=True)
        assert not isinstance(plan, Declined)
        kernels = plan_kernels(parse_plan(str(plan)), isa)
        found, expected = outputs_of(kernels, graph, group, layouts, isa)
    np.testing.assert_allclose(found, expected, rtol=0, atol=ERRORS[dot])


def test_the_matrix_unit_multiplies_where_the_accuracy_and_the_estimate_allow_it() -> None:
    isa = isa_with_matrix_unit()

    def dot_of(graph: Graph, accuracy: Accuracy) -> str:
        group, layouts, _ = lowered(graph, host_isa(), {})
        kernels = lower_attention(group.nests, Context(isa, layouts, accuracy=accuracy))
        assert not isinstance(kernels, Declined)
        plan = kernels[-1].plan
        assert isinstance(plan, AttentionPlan)
        return plan.scores.dot

    long, short = attention(128, 128, 64, heads=8), attention(20, 20, 32)
    assert dot_of(long, "strict") == dot_of(long, "default") == "fma"
    assert dot_of(long, "relaxed") == "3 bfloat16 products"
    assert dot_of(long, "fast") == "1 bfloat16 product"
    assert dot_of(short, "relaxed") == "fma"
