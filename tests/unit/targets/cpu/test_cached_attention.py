"""Attention of few queries over a cache that grows: one kernel reads it in place and puts it together."""

# mypy: disable-error-code="attr-defined"

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property.checks import EXAMPLES
from tests.support.graphs import feed_of
from tests.support.kernels import group_of, results

from tilewright.compiler import compile_graph
from tilewright.ir.dtype import DType
from tilewright.ir.fuse import NestGroup
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ir.interpret import run_graph
from tilewright.ir.nest import Operand
from tilewright.options import Options
from tilewright.targets.cpu.attention import lower_attention
from tilewright.targets.cpu.isa import Isa, host_isa, isa_by_name
from tilewright.targets.cpu.kernel import Declined, Kernel, Layout, OperandKey
from tilewright.targets.cpu.plans import parse_plan, plan_kernels
from tilewright.targets.cpu.template import Context, Kernels
from tilewright.targets.llvm.attention import attention_run

F32 = DType.FLOAT32
RESULTS = ("y", "present_key", "present_value")


def cached(
    rows: int,
    past: int,
    size: int,
    *,
    heads: int = 2,
    key_heads: int | None = None,
    channels: int | None = None,
    shown: tuple[bool, bool] = (True, True),
    mask: tuple[int, ...] | None = None,
    mask_dtype: DType = F32,
    **attributes: int,
) -> Graph:
    """One attention whose keys and values are a cache and what is new; `shown` says which it gives back."""
    graph = Graph("cached")
    shapes = {"k": (1, key_heads or heads, rows, size), "v": (1, key_heads or heads, rows, channels or size)}
    q = graph.add_input(Value("q", F32, (1, heads, rows, size)))
    k, v = (graph.add_input(Value(name, F32, shape)) for name, shape in shapes.items())
    pasts = [
        graph.add_input(Value(f"past_{name}", F32, (*shape[:2], past, shape[3])))
        for name, shape in shapes.items()
    ]
    added = None if mask is None else graph.add_input(Value("mask", mask_dtype, mask))
    whole = [(*shape[:2], past + rows, shape[3]) for shape in shapes.values()]
    out = graph.value("y", F32, (1, heads, rows, channels or size))
    presents = [
        graph.value(name, F32, shape) if asked else None
        for name, shape, asked in zip(RESULTS[1:], whole, shown, strict=True)
    ]
    node = Node("Attention", [q, k, v, added, *pasts], [out, *presents], attributes, opset=23)
    graph.append(node)
    graph.outputs = [out, *(value for value in presents if value is not None)]
    return graph


def lowered(
    graph: Graph, isa: Isa, *, exceeds_caches: bool = False
) -> tuple[NestGroup, Any, Kernels | Declined]:
    group = group_of(graph)
    keys = [
        *((("input", i), v) for i, v in enumerate(group.inputs)),
        *((("output", i), v) for i, v in enumerate(group.outputs)),
        *((o.key, o) for o in group.locals),
    ]
    layouts: dict[OperandKey, Layout] = {key: Layout.row_major(len(v.shape)) for key, v in keys}
    run = attention_run(group.nests, 0, grows=True)
    assert run is not None
    assert len(run) == len(group.nests)
    context = Context(isa, layouts, next_local=len(group.locals), run_bytes=exceeds_caches << 40)
    return group, layouts, lower_attention(run, context)


def check(graph: Graph, isa: Isa, *, exceeds_caches: bool = False, shift_bytes: int = 0) -> Kernel:
    """The kernel of the graph, the first of two; the results are those of the operator, copies are exact."""
    group, layouts, kernels = lowered(graph, isa, exceeds_caches=exceeds_caches)
    assert not isinstance(kernels, Declined), kernels
    again = plan_kernels(parse_plan(str(kernels[0].plan)), isa, len(group.locals))
    assert [k.symbol for k in again] == [k.symbol for k in kernels], kernels[0].plan
    rng = np.random.default_rng(0)
    feed: dict[str, Any] = {}
    for value in graph.inputs:
        drawn = rng.standard_normal(value.shape).astype(np.float32)
        feed[value.name] = drawn > -1 if value.dtype is DType.BOOL else drawn
    all_found = results(kernels, group, feed, layouts, isa, shift_bytes=shift_bytes)
    expected = run_graph(graph, feed, dtype=DType.FLOAT64)
    for value, found in zip(group.outputs, all_found, strict=True):
        wanted = expected[value.name]
        if value.name == "y":
            np.testing.assert_allclose(found, wanted, rtol=0, atol=3e-6)
        else:
            np.testing.assert_array_equal(found, wanted.astype(np.float32))
    return kernels[0]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["host", "avx2"])
@settings(EXAMPLES, max_examples=15)
@given(data=st.data())
def test_any_size(name: str, data: st.DataObject) -> None:
    isa = host_isa() if name == "host" else isa_by_name(name)
    rows, past = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 300))
    size, channels = data.draw(st.integers(2, 80)), data.draw(st.integers(2, 150))
    shown = data.draw(st.tuples(st.booleans(), st.booleans()))
    check(cached(rows, past, size, channels=channels, shown=shown), isa)


def test_what_nobody_asks_for_is_not_put_together() -> None:
    kernel = check(cached(1, 40, 16, shown=(False, False)), host_isa())
    kinds = [a.kind for a in kernel.args if isinstance(a, Operand)]
    assert set(kinds) == {"input", "output"}
    assert kinds.count("output") == 1


@pytest.mark.sampled(1)
@pytest.mark.parametrize("shift_bytes", [0, 4])
@pytest.mark.parametrize("name", ["host", "avx2"])
def test_what_no_cache_keeps_bypasses_them_where_it_is_aligned(name: str, shift_bytes: int) -> None:
    isa = host_isa() if name == "host" else isa_by_name(name)
    for size, channels in ((32, 64), (20, 36), (9, 32)):
        graph = cached(2, 37, size, channels=channels)
        kernel = check(graph, isa, exceeds_caches=True, shift_bytes=shift_bytes)
        may_bypass = size % 4 == 0 and isa.triple.startswith("x86_64")
        assert ("nontemporal" in kernel.text) == may_bypass
    assert "nontemporal" not in check(cached(2, 37, 32), isa, shift_bytes=shift_bytes).text


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shape", [(1, 2, 3, 33), (3, 33), (33,)])
@pytest.mark.parametrize("dtype", [F32, DType.BOOL])
def test_masks_go_along_all_keys(shape: tuple[int, ...], dtype: DType) -> None:
    check(cached(3, 30, 24, mask=shape, mask_dtype=dtype), host_isa())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["host", "avx2"])
@pytest.mark.parametrize(
    ("rows", "past", "heads", "key_heads"),
    [(1, 1200, 1, 1), (3, 911, 2, 2), (2, 1999, 3, 3), (1, 1023, 6, 2)],
)
def test_few_heads_are_cut_into_spans_of_keys(
    name: str, rows: int, past: int, heads: int, key_heads: int
) -> None:
    isa = host_isa() if name == "host" else isa_by_name(name)
    sizes: dict[str, Any] = {"heads": heads, "key_heads": key_heads, "channels": 72}
    kernel = check(cached(rows, past, 64, mask=(rows, past + rows), **sizes), isa, exceeds_caches=rows > 1)
    assert kernel.num_chunks > key_heads


def test_a_span_without_any_key_that_may_be_seen_adds_nothing() -> None:
    graph = cached(2, 1200, 64, heads=1, left_window_size=9, right_window_size=0)
    assert check(graph, host_isa()).num_chunks > 1


def test_new_queries_do_not_see_later_ones() -> None:
    check(cached(3, 30, 24, is_causal=1), host_isa())


def test_queries_of_one_group_share_keys() -> None:
    check(cached(1, 50, 24, heads=6, key_heads=2), host_isa())


def test_bits_depend_on_no_thread() -> None:
    graph = cached(2, 1200, 64, heads=3)
    feed = feed_of(graph)
    results = []
    for threads in (1, 2, 3):
        executable = compile_graph(graph, Options(no_cache=True, threads=threads)).code.load(threads)
        try:
            results.append(executable.run(feed)["y"])
        finally:
            executable.close()
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])


def layer(rows: int, repeats: int) -> Graph:
    """Projections, a cache, and attention as exporters write it: two heads of keys, some of queries each."""
    graph = Graph("layer")
    x = graph.add_input(Value("x", F32, (1, rows, 32)))
    pasts = [graph.add_input(Value(name, F32, (1, 2, 40, 16))) for name in ("past_key", "past_value")]
    heads, length = 2 * repeats, 40 + rows

    def op(name: str, shape: tuple[int, ...], *inputs: Value, **attributes: Any) -> Value:
        out = graph.value(name.lower(), F32, shape)
        return graph.append(Node(name, inputs, [out], attributes, opset=17)).output

    def shaped(shape: tuple[int, ...]) -> Value:
        return graph.constant(np.array(shape), "shape")

    def projected(count: int) -> Value:
        weights = np.random.default_rng(count).standard_normal((32, 16 * count)).astype(np.float32)
        product = op("MatMul", (1, rows, 16 * count), x, graph.constant(weights, "w"))
        apart = op("Reshape", (1, rows, count, 16), product, shaped((1, rows, count, 16)))
        return op("Transpose", (1, count, rows, 16), apart, perm=(0, 2, 1, 3))

    def for_each_query(whole: Value) -> Value:
        if repeats == 1:
            return whole
        copies = (1, 2, repeats, length, 16)
        apart = op("Reshape", (1, 2, 1, length, 16), whole, shaped((1, 2, 1, length, 16)))
        repeated = op("Expand", copies, apart, shaped(copies))
        return op("Reshape", (1, heads, length, 16), repeated, shaped((1, heads, length, 16)))

    query, *new = projected(heads), projected(2), projected(2)
    key, value = (
        op("Concat", (1, 2, length, 16), past, added, axis=2) for past, added in zip(pasts, new, strict=True)
    )
    turned = op("Transpose", (1, heads, 16, length), for_each_query(key), perm=(0, 1, 3, 2))
    scores = op("MatMul", (1, heads, rows, length), query, turned)
    soft = op("Softmax", (1, heads, rows, length), scores)
    y = op("MatMul", (1, heads, rows, 16), soft, for_each_query(value))
    graph.outputs = [y, key, value]
    return graph


@pytest.mark.parametrize(("rows", "repeats"), [(1, 1), (3, 1), (1, 3)])
def test_a_layer_moves_nothing_but_what_is_new(rows: int, repeats: int) -> None:
    """Heads of new positions lie side by side: the cache stays as callers have it all the same."""
    graph = layer(rows, repeats)
    feed = feed_of(graph)
    expected = run_graph(graph, feed, dtype=DType.FLOAT64)
    compiled = compile_graph(graph, Options(no_cache=True, threads=2))
    kernels = [k for step in compiled.code.steps for k in step.kernels]
    assert [k.template for k in kernels].count("attention") == 1
    assert "reorder" not in {k.template for k in kernels}
    executable = compiled.code.load(2)
    try:
        results = executable.run(feed)
    finally:
        executable.close()
    for name, wanted in expected.items():
        np.testing.assert_allclose(results[name], wanted, rtol=0, atol=2e-5)
