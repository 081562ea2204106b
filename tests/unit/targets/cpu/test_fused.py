"""Fused kernels: any chain, any blocks and strips give what the operators give; where they are chosen."""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.kernels import group_of, operands_of, results

from tilewright import zoo
from tilewright.compiler import plan
from tilewright.embed import EmittingTarget
from tilewright.explain import explain_program
from tilewright.frontend.onnx import load_onnx
from tilewright.ir.contraction import contractions
from tilewright.ir.dtype import DType
from tilewright.ir.fuse import FusedNodes, NestGroup, fuse_nodes
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ir.interpret import run_graph
from tilewright.ir.rows import rows_of, with_row_loops
from tilewright.options import Options
from tilewright.partition import PartitionProblem, check_partition
from tilewright.partition.base import Reason, make_subgraph
from tilewright.partition.form import Blocking, Form
from tilewright.partition.layerwise import Layerwise
from tilewright.partition.merge_chains import Chain as MergedChain
from tilewright.partition.merge_chains import merge_chains
from tilewright.planning import Budget
from tilewright.target_ref import TargetRef
from tilewright.targets.cpu.forms import find_forms
from tilewright.targets.cpu.fused import lower_fused, prices
from tilewright.targets.cpu.fused.blocks import cut, passed_on
from tilewright.targets.cpu.fused.estimate import Estimate, Work
from tilewright.targets.cpu.fused.generate import MAX_VARIANTS
from tilewright.targets.cpu.fused.prices import GroupEstimates, choose_blocking
from tilewright.targets.cpu.isa import CacheSizes, Isa, host_isa, isa_by_name
from tilewright.targets.cpu.kernel import Declined, Kernel, Layout, OperandKey
from tilewright.targets.cpu.template import Context
from tilewright.testing.kernel_runner import KernelRunner

pytestmark = pytest.mark.sampled(10)

F32 = DType.FLOAT32


class Chain:
    """A graph of convolutions and pools one after the other, each reading the one before."""

    def __init__(self, channels: int, size: tuple[int, int], *, batch: int = 1) -> None:
        self.graph = Graph("chain")
        self.rng = np.random.default_rng(0)
        self.value = self.graph.add_input(Value("x", F32, (batch, channels, *size)))

    def _weights(self, *shape: int) -> np.ndarray[Any, Any]:
        return (self.rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)

    def conv(
        self, k: int, kernel: int = 1, *, stride: int = 1, depthwise: bool = False, add: bool = False
    ) -> Chain:
        """A convolution with a clip behind; with `add`, an input is added to its result."""
        g, (n, c, h, w) = self.graph, self.value.shape
        k, group = (c, c) if depthwise else (k, 1)
        weights = g.constant(self._weights(k, c // group, kernel, kernel), f"w{len(g.nodes)}")
        bias = g.constant(self._weights(k, 1)[:, 0], f"b{len(g.nodes)}")
        pad = kernel // 2
        size = [(s + 2 * pad - kernel) // stride + 1 for s in (h, w)]
        attributes = {
            "pads": (pad,) * 4,
            "strides": (stride,) * 2,
            "dilations": (1, 1),
            "kernel_shape": (kernel,) * 2,
            "group": group,
        }
        out = g.value(f"v{len(g.nodes)}", F32, (n, k, *size))
        self.value = g.append(Node("Conv", [self.value, weights, bias], [out], attributes)).output
        if add:
            other = g.add_input(Value(f"r{len(g.nodes)}", F32, out.shape))
            out = g.value(f"v{len(g.nodes)}", F32, out.shape)
            self.value = g.append(Node("Add", [self.value, other], [out])).output
        out = g.value(f"v{len(g.nodes)}", F32, out.shape)
        self.value = g.append(Node("Relu", [self.value], [out])).output
        return self

    def pool(self) -> Chain:
        """A 3x3 maximum over every second position."""
        g, (n, c, h, w) = self.graph, self.value.shape
        attributes = {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}
        out = g.value(f"v{len(g.nodes)}", F32, (n, c, (h - 1) // 2 + 1, (w - 1) // 2 + 1))
        self.value = g.append(Node("MaxPool", [self.value], [out], attributes)).output
        return self

    def group(self) -> NestGroup:
        """All of it as one group."""
        self.graph.outputs = [self.value]
        return group_of(self.graph)


def layouts_of(group: NestGroup) -> dict[OperandKey, Layout]:
    def layout(shape: tuple[int, ...]) -> Layout:
        return Layout((0, 2, 3, 1)) if len(shape) == 4 else Layout.row_major(len(shape))

    layouts: dict[OperandKey, Layout] = {}
    for i, v in enumerate(group.inputs):
        layouts["input", i] = Layout.row_major(len(v.shape)) if v.is_constant else layout(v.shape)
    layouts |= {o.key: layout(o.shape) for o in group.locals}
    return {**layouts, ("output", 0): layout(group.outputs[0].shape)}


def run(
    graph: Graph, group: NestGroup, layouts: dict[OperandKey, Layout], kernel: Kernel, isa: Isa
) -> tuple[Any, Any]:
    """(The kernel's result, the result in float64)."""
    feed, expected = fed(graph)
    return results([kernel], group, feed, layouts, isa)[0], expected


def fed(graph: Graph) -> tuple[dict[str, Any], Any]:
    """(Inputs by name, the result in float64)."""
    rng = np.random.default_rng(1)
    feed = {v.name: rng.standard_normal(v.shape).astype(np.float32) for v in graph.inputs}
    return feed, run_graph(graph, feed, dtype=DType.FLOAT64)[graph.outputs[0].name]


def check(chain: Chain, blocking: Blocking, isa: Isa | None = None, *, accuracy: Any = "default") -> Kernel:
    isa = isa or host_isa()
    group = chain.group()
    layouts = layouts_of(group)
    kernel = lower_fused(group, blocking, Context(isa, layouts, accuracy))
    assert not isinstance(kernel, Declined), kernel
    got, expected = run(chain.graph, group, layouts, kernel, isa)
    scale = np.abs(expected).max()
    np.testing.assert_allclose(got, expected, rtol=0, atol=2e-5 * scale)
    return kernel


def test_products_of_blocks_are_by_winograd_where_that_gains() -> None:
    chain = Chain(48, (24, 20)).conv(48, 3).conv(48, 3)
    group = chain.group()
    layouts, constants = (
        layouts_of(group),
        {("input", i) for i, v in enumerate(group.inputs) if v.is_constant},
    )
    context = Context(host_isa(), layouts, constants=frozenset(constants), next_local=len(group.locals))
    kernel = lower_fused(group, Blocking((1, 48, 12, 20)), context)
    assert not isinstance(kernel, Declined), kernel
    assert len(kernel.parts) == 4
    assert all(part.template.startswith("winograd") for part in kernel.parts)
    got, expected = run(chain.graph, group, layouts, kernel, host_isa())
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def inverted(stride: int = 1, *, add: bool = False, size: tuple[int, int] = (20, 18)) -> Chain:
    """A block of MobileNet-v2: pointwise, depthwise, pointwise."""
    return Chain(16, size).conv(96).conv(0, 3, depthwise=True, stride=stride).conv(24, add=add)


def depthwise_last(size: tuple[int, int] = (20, 18)) -> Chain:
    return Chain(16, size).conv(96).conv(0, 3, depthwise=True)


CASES = {
    "lines": (lambda: inverted(), Blocking((1, 24, 4, 18))),
    "lines that divide unevenly": (lambda: inverted(), Blocking((1, 24, 3, 18))),
    "one line": (lambda: inverted(), Blocking((1, 24, 1, 18))),
    "stride": (lambda: inverted(2), Blocking((1, 24, 3, 9))),
    "an addend": (lambda: inverted(add=True), Blocking((1, 24, 5, 18))),
    "parts of lines": (lambda: inverted(), Blocking((1, 24, 5, 6))),
    "a strip of lines": (lambda: inverted(), Blocking((1, 24, 4, 18), 5)),
    "strips": (lambda: inverted(), Blocking((1, 24, 2, 18), 3)),
    "strips of single lines": (lambda: inverted(2), Blocking((1, 24, 1, 9), 4)),
    "strips with an addend": (lambda: inverted(add=True), Blocking((1, 24, 3, 18), 2)),
    "two windows": (lambda: Chain(24, (17, 15)).conv(32, 3).conv(40, 3), Blocking((1, 40, 4, 15))),
    "two windows in strips": (
        lambda: Chain(24, (17, 15)).conv(32, 3).conv(40, 3),
        Blocking((1, 40, 3, 15), 3),
    ),
    "three windows in strips": (
        lambda: Chain(16, (24, 10)).conv(16, 3).conv(16, 5).conv(16, 3),
        Blocking((1, 16, 2, 10), 12),
    ),
    "a pool": (lambda: Chain(3, (32, 30)).conv(32, 3).pool(), Blocking((1, 32, 4, 15))),
    "a pool in strips": (lambda: Chain(16, (32, 30)).conv(32, 3).pool(), Blocking((1, 32, 2, 15), 4)),
    "panels": (lambda: depthwise_last(), Blocking((1, 8, 20, 18))),
    "panels that divide unevenly": (lambda: depthwise_last(), Blocking((1, 40, 20, 18))),
    "panels of parts of lines": (lambda: depthwise_last(), Blocking((1, 16, 7, 18))),
    "panels of strips": (lambda: depthwise_last(), Blocking((1, 16, 5, 18), 2)),
    "panels of several depthwise layers": (
        lambda: depthwise_last().conv(0, 5, depthwise=True, stride=2),
        Blocking((1, 16, 10, 9)),
    ),
    "lines of several depthwise layers in strips": (
        lambda: depthwise_last().conv(0, 3, depthwise=True),
        Blocking((1, 96, 4, 18), 3),
    ),
    "the whole": (lambda: inverted(), Blocking((1, 24, 20, 18))),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CASES)
def test_blocks_give_what_the_operators_give(name: str) -> None:
    make, blocking = CASES[name]
    kernel = check(make(), blocking)
    assert kernel.num_chunks == blocking.num_strips(make().value.shape)
    assert len(kernel.parts) >= 2


@pytest.mark.sampled(1)
@pytest.mark.parametrize("isa", ["avx512", "avx2"])
@pytest.mark.parametrize("accuracy", ["strict", "default"])
def test_other_instruction_sets_and_accuracies(isa: str, accuracy: str) -> None:
    check(inverted(), Blocking((1, 24, 4, 18), 2), isa_by_name(isa), accuracy=accuracy)


def test_panels_share_code_and_compute_nothing_twice() -> None:
    """Each finds its part of the weights, of which the kernel is given all."""
    for size in (8, 16, 24):
        kernel = check(depthwise_last(), Blocking((1, size, 20, 18)))
        assert kernel.macs == 20 * 18 * 96 * (16 + 9)
        assert len(kernel.parts) == 2


def test_images_of_a_batch_are_blocks() -> None:
    chain = Chain(16, (8, 9), batch=3).conv(48).conv(0, 3, depthwise=True).conv(16)
    check(chain, Blocking((1, 16, 3, 9)))
    chain = Chain(16, (8, 9), batch=3).conv(48).conv(0, 3, depthwise=True).conv(16)
    kernel = check(chain, Blocking((1, 16, 2, 9), 4))
    assert kernel.num_chunks == 3


@pytest.mark.parametrize(
    "blocking", [Blocking((1, 24, 4, 18)), Blocking((2, 24, 20, 18)), Blocking((1, 24, 20, 18), 3)], ids=str
)
def test_blocks_of_rows_that_a_run_does_not_have_are_not_made(blocking: Blocking) -> None:
    chain = Chain(16, (20, 18), batch=5).conv(48).conv(0, 3, depthwise=True).conv(24)
    group = chain.group()
    chain.graph.row_axes = {"x": 0}
    axes = rows_of(chain.graph)
    assert axes is not None
    layouts = layouts_of(group)
    kernel = lower_fused(with_row_loops(group, axes), blocking, Context(host_isa(), layouts))
    assert isinstance(kernel, Kernel), kernel
    feed, expected = fed(chain.graph)
    runner = KernelRunner([kernel], operands_of(group, feed), layouts, host_isa())
    for num_rows in (1, 3, 5):
        runner.stored["output", 0][...] = np.nan
        runner(num_rows)
        result = runner.result(("output", 0))
        scale = np.abs(expected).max()
        np.testing.assert_allclose(result[:num_rows], expected[:num_rows], rtol=0, atol=2e-5 * scale)
        num_made = -(-num_rows // blocking.block[0]) * blocking.block[0]
        assert np.all(np.isnan(result[num_made:]))


@settings(max_examples=12, deadline=None)
@given(
    size=st.tuples(st.integers(5, 20), st.integers(4, 12)),
    layers=st.lists(
        st.tuples(st.sampled_from([1, 3, 5]), st.integers(1, 2), st.booleans(), st.integers(4, 40)),
        min_size=2,
        max_size=3,
    ),
    lines=st.integers(1, 6),
    strip=st.integers(1, 5),
)
def test_any_chain_in_any_blocks(size: Any, layers: Any, lines: int, strip: int) -> None:
    chain = Chain(12, size)
    for kernel, stride, depthwise, channels in layers:
        chain.conv(channels, kernel, stride=stride, depthwise=depthwise)
    _, k, h, w = chain.value.shape
    blocking = Blocking((1, k, min(lines, h), w), strip)
    group = chain.group()
    if cut(group, layouts_of(group), blocking, MAX_VARIANTS) is not None and passed_on(
        contractions(group.nests)
    ):
        check(chain, blocking)


def estimates(isa: Isa) -> GroupEstimates:
    return GroupEstimates(isa, FusedNodes())


def attention(heads: int, length: int, depth: int, dtype: DType = F32) -> Graph:
    g = Graph("attention")
    q, k, v = (g.add_input(Value(n, dtype, (1, heads, length, depth))) for n in "qkv")
    g.outputs = [g.append(Node("Attention", [q, k, v], [g.value("y", dtype, q.shape)])).output]
    return g


@pytest.mark.sampled(2)
@pytest.mark.parametrize("block", [(1, 1, 40, 16), (1, 2, 40, 16), (1, 1, 8, 16), (1, 1, 12, 16)])
def test_attention_head_by_head_and_row_by_row(block: tuple[int, ...]) -> None:
    graph = attention(4, 40, 16)
    group = group_of(graph)
    layouts = {("input", i): Layout.row_major(4) for i in range(3)}
    layouts |= {o.key: Layout.row_major(4) for o in group.locals}
    layouts["output", 0] = Layout.row_major(4)
    kernel = lower_fused(group, Blocking(block), Context(host_isa(), layouts))
    assert not isinstance(kernel, Declined), kernel
    got, expected = run(graph, group, layouts, kernel, host_isa())
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)


def test_scores_are_no_reason_for_blocks() -> None:
    """One kernel keeps them in its cache; of other types it makes none, so that blocks save them again."""
    isa = isa_by_name("avx512")
    for dtype, is_one in ((F32, True), (DType.FLOAT64, False)):
        graph = attention(12, 256, 64, dtype)
        group = group_of(graph)
        scores = group.nests[0].write.operand.key
        work = Work(group, isa)
        assert (work.saved == 0) is is_one
        assert (choose_blocking(group, isa) is None) is is_one
        assert scores in passed_on(contractions(group.nests))


def test_an_operand_that_only_later_blocks_read_is_read_where_they_are() -> None:
    graph = Graph("joined")
    parts = [graph.add_input(Value(name, F32, (1, 16, 7, 6))) for name in "ab"]
    out = graph.value("y", F32, (1, 32, 7, 6))
    graph.outputs = [graph.append(Node("Concat", parts, [out], {"axis": 1})).output]
    group = group_of(graph)
    layouts = layouts_of(group)
    kernel = lower_fused(group, Blocking((1, 16, 2, 6)), Context(host_isa(), layouts))
    assert not isinstance(kernel, Declined), kernel
    got, expected = run(graph, group, layouts, kernel, host_isa())
    np.testing.assert_array_equal(got, expected)


def test_lines_that_stay_are_not_made_again() -> None:
    """In a strip every line of the expanded tensor is made once; blocks on their own repeat their halos."""
    group = inverted().group()
    once = 20 * 18 * 96 * (16 + 9 + 24)
    macs = {}
    for strip in (1, 10):
        context = Context(host_isa(), layouts_of(group))
        kernel = lower_fused(group, Blocking((1, 24, 2, 18), strip), context)
        assert not isinstance(kernel, Declined)
        macs[strip] = kernel.macs
    # Of 20 lines in blocks of two, each but the first and the last makes two lines of its neighbours.
    halos = 18 * 96 * 18 * 16
    assert macs[1] - macs[10] == halos
    assert macs[10] == once


def test_what_it_declines() -> None:
    chain = inverted()
    group = chain.group()
    made = lower_fused(group, Blocking((1, 4, 20, 18)), Context(host_isa(), layouts_of(group)))
    if isinstance(made, Kernel):  # panels of output channels are legal, if more code
        got, expected = run(chain.graph, group, layouts_of(group), made, host_isa())
        np.testing.assert_allclose(got, expected, atol=2e-5 * np.abs(expected).max())
    graph = Graph("two results")
    x = graph.add_input(Value("x", F32, (1, 4, 8, 8)))
    a = graph.append(Node("Relu", [x], [graph.value("a", F32, x.shape)])).output
    b = graph.append(Node("Neg", [x], [graph.value("b", F32, x.shape)])).output
    graph.outputs = [a, b]
    two = fuse_nodes(graph.nodes, graph.outputs)
    assert isinstance(two, NestGroup)
    refused = lower_fused(two, Blocking((1, 4, 2, 8)), Context(host_isa(), layouts_of(two)))
    assert isinstance(refused, Declined)
    assert "make each result once" in refused.reason


@pytest.mark.parametrize(("kernel", "is_made"), [(1, True), (3, False)])
def test_what_lies_between_may_be_a_result_where_blocks_make_it_once(kernel: int, is_made: bool) -> None:
    chain = Chain(16, (20, 18)).conv(24)
    inside = chain.value
    chain.conv(16, kernel)
    chain.graph.outputs = [inside, chain.value]
    group = group_of(chain.graph)
    layouts = {**layouts_of(group), ("output", 1): Layout((0, 2, 3, 1))}
    made = lower_fused(group, Blocking((1, 16, 5, 18)), Context(host_isa(), layouts))
    assert isinstance(made, Kernel) == is_made
    assert (
        any(
            e.blocking.block == (1, 16, 5, 18)
            for e in Work(group, host_isa()).estimates(only_promising=False)
        )
        == is_made
    )
    if not isinstance(made, Kernel):
        return
    rng = np.random.default_rng(1)
    feed = {v.name: rng.standard_normal(v.shape).astype(np.float32) for v in chain.graph.inputs}
    both = results([made], group, feed, layouts, host_isa())
    for got, (name, expected) in zip(both, run_graph(chain.graph, feed).items(), strict=True):
        np.testing.assert_allclose(got, expected, atol=2e-5 * np.abs(expected).max(), err_msg=name)


def test_small_tensors_stay_apart_and_large_ones_are_fused() -> None:
    isa = isa_by_name("avx512")
    small = Chain(16, (14, 14)).conv(96).conv(0, 3, depthwise=True).conv(24).group()
    assert choose_blocking(small, isa) is None
    large = Chain(16, (112, 112)).conv(96).conv(0, 3, depthwise=True, stride=2).conv(24).group()
    found = choose_blocking(large, isa)
    assert found is not None
    assert found.gain > 0
    assert Work(large, isa).saved == found.saved > found.paid


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["mobilenet_v2", "densenet121", "minilm_l6", "ios_squeezenet"])
def test_merged_chains_are_a_valid_partition_that_says_what_was_done(name: str) -> None:
    graph = plan(load_onnx(zoo.build(name)), Options(target=TargetRef.parse("null"))).program.graph
    problem = PartitionProblem(graph)
    plain = Layerwise().solve(problem, Budget())
    chains = find_forms(plain, estimates(host_isa()))
    merged = merge_chains(problem, plain, chains)
    assert check_partition(problem, merged) == ()
    assert [s.form for s in merged.subgraphs if s.form is not None] == [c.form for c in chains]
    for chain in chains:
        nodes = [n for i in chain.subgraph_ids for n in plain.subgraphs[i].nodes]
        assert list(merged.subgraph_of(nodes[0]).nodes) == nodes
    for before, after in zip(plain.decisions, merged.decisions, strict=True):
        joined = merged.subgraph_of(after.producer) is merged.subgraph_of(after.consumer)
        was_cut = not before.reason.is_fused
        assert after.reason is (Reason.BLOCKWISE if joined and was_cut else before.reason)


def test_chains_need_no_neighbours_in_the_order_of_a_partition() -> None:
    """What runs between the subgraphs of a chain does not keep them apart, what else reads does."""
    chain = Chain(16, (112, 112)).conv(96)
    other = chain.graph.add_input(Value("other", F32, (4, 4)))
    side = chain.graph.append(Node("Exp", [other], [chain.graph.value("side", F32, (4, 4))])).output
    chain.conv(0, 3, depthwise=True, stride=2).conv(24)
    chain.graph.outputs = [chain.value, side]
    problem = PartitionProblem(chain.graph)
    partition = Layerwise().solve(problem, Budget())
    (found,) = find_forms(partition, estimates(isa_by_name("avx512")))
    between = set(range(found.subgraph_ids[0], found.subgraph_ids[-1])) - set(found.subgraph_ids)
    assert [partition.subgraphs[i].nodes[0].op_type for i in between] == ["Exp"]
    assert check_partition(problem, merge_chains(problem, partition, [found])) == ()
    inside = partition.subgraphs[found.subgraph_ids[0]].outputs[0]
    chain.graph.outputs = [chain.value, side, inside]
    again = Layerwise().solve(problem, Budget())
    kept_apart = again.subgraph_of(inside.producer or chain.graph.nodes[0]).id
    assert all(
        kept_apart not in c.subgraph_ids[:-1] for c in find_forms(again, estimates(isa_by_name("avx512")))
    )


def test_only_subgraphs_that_follow_one_another_are_merged() -> None:
    chain = Chain(16, (8, 8)).conv(16).conv(16).conv(16)
    chain.graph.outputs = [chain.value]
    problem = PartitionProblem(chain.graph)
    partition = Layerwise().solve(problem, Budget())
    form = Form.whole(4, Blocking((1, 16, 4, 8)), 0.5)
    with pytest.raises(ValueError, match="do not follow one another"):
        merge_chains(problem, partition, [MergedChain((0, 2), form)])


@pytest.mark.parametrize(("l2_bytes", "num_forms"), [(1 << 25, 0), (1 << 20, 1)])
def test_forms_of_exported_code_suit_the_processor_that_it_is_for(l2_bytes: int, num_forms: int) -> None:
    chain = Chain(16, (64, 64)).conv(96).conv(0, 3, depthwise=True, stride=2).conv(24)
    chain.graph.outputs = [chain.value]
    isa = replace(isa_by_name("neon"), caches=CacheSizes(l2_bytes=l2_bytes))
    program = plan(chain.graph, Options(), target=EmittingTarget(record=isa)).program
    assert sum(s.form is not None for s in program.partition.subgraphs) == num_forms


@pytest.mark.parametrize(("l2_bytes", "gains"), [(1 << 25, False), (1 << 20, True)])
def test_the_cost_model_knows_what_blocks_save(l2_bytes: int, gains: bool) -> None:
    """Where they do, subgraphs are joined for it; what one kernel computes costs what that kernel does."""
    chain = Chain(16, (64, 64)).conv(96).conv(0, 3, depthwise=True, stride=2).conv(24)
    chain.graph.outputs = [chain.value]
    isa = replace(isa_by_name("neon"), caches=CacheSizes(l2_bytes=l2_bytes))
    planned = plan(chain.graph, Options(partition="ago{threshold=cost}"), target=EmittingTarget(record=isa))
    costs = planned.backend.partition_problem.cost
    whole = make_subgraph(0, planned.program.graph.nodes, planned.program.graph)
    assert (costs.fused(whole).time_ns < costs.kernel(whole).time_ns) == gains
    subgraphs = planned.program.partition.subgraphs
    assert (len(subgraphs) < 3) == gains
    assert any(s.form is not None and s.form.is_blockwise for s in subgraphs) == gains
    for subgraph in subgraphs:
        assert costs.fused(subgraph) == costs.kernel(subgraph)


def test_edges_within_a_chain_are_explained_with_what_the_chain_saves() -> None:
    chain = Chain(16, (112, 112)).conv(96).conv(0, 3, depthwise=True, stride=2).conv(24)
    chain.graph.outputs = [chain.value]
    program = plan(chain.graph, Options(), target=EmittingTarget(record=isa_by_name("avx512"))).program
    (form,) = [s.form for s in program.partition.subgraphs if s.form is not None]
    (kernel,) = [k for k in form.kernels if k.blocking is not None]
    share = kernel.saved_share
    edges = {e.consumer: e for e in explain_program(program, (), (), None).edges if e.code == "blockwise"}
    starts = {program.graph.nodes[i].name for i in (2, 4)}
    assert starts & {program.graph.nodes[i].name for i in kernel.nodes} == set(edges) != set()
    for edge in edges.values():
        assert edge.is_fused
        assert edge.text.endswith(f"estimated to save {share:.0%} of the time of separate kernels")


def test_equal_chains_are_estimated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = Chain(24, (224, 224)).pool()
    for _ in range(4):
        chain.conv(96).conv(0, 3, depthwise=True).conv(24)
        chain.graph.outputs.append(chain.value)  # so that no chain goes on
    groups: list[str] = []
    estimate = prices.choose_blocking

    def noted(group: NestGroup, isa: Isa, trust: prices.Trust, last: frozenset[Value]) -> Estimate | None:
        groups.append("\n".join(map(str, group.nests)))
        return estimate(group, isa, trust, last)

    monkeypatch.setattr(prices, "choose_blocking", noted)
    partition = Layerwise().solve(PartitionProblem(chain.graph), Budget())
    found = find_forms(partition, estimates(isa_by_name("avx512")))
    assert len(found) == 4
    assert len({c.form for c in found[1:]}) == 1, "the first may begin with the pool"
    assert len(groups) == len(set(groups))
