"""Which cut of subgraphs into kernels is chosen, whatever their structure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from tests.unit.targets.cpu.test_fused import Chain

from tilewright import zoo
from tilewright.compiler import plan
from tilewright.frontend.onnx import load_onnx
from tilewright.hardware.rates import PROFILE
from tilewright.ir.fuse import FusedNodes
from tilewright.ir.graph import Graph, Node, Value
from tilewright.options import Options
from tilewright.partition import PARTITIONERS, Partition, PartitionProblem, check_partition
from tilewright.partition.ago import Ago
from tilewright.partition.base import Reason, build_partition
from tilewright.partition.layerwise import Layerwise, layerwise_clusters
from tilewright.planning import Budget, Infeasible, Provenance
from tilewright.target_ref import TargetRef
from tilewright.targets.cpu.forms import choose_forms
from tilewright.targets.cpu.forms.choose import Elements, join_layers
from tilewright.targets.cpu.fused.gain_bound import may_gain
from tilewright.targets.cpu.fused.prices import GroupEstimates
from tilewright.targets.cpu.isa import CacheSizes, Isa, isa_by_name

# One machine, whatever this host is: from which sizes on blocks pay is not what is tested.
AVX512 = replace(isa_by_name("avx512"), caches=CacheSizes(l3_bytes=32 << 20), rates=PROFILE)


def prices(isa: Isa = AVX512) -> GroupEstimates:
    return GroupEstimates(isa, FusedNodes())


def as_one(graph: Graph) -> Partition:
    """All nodes in one subgraph."""
    problem = PartitionProblem(graph)
    return build_partition(problem, [graph.nodes], lambda *edge: Reason.CLUSTER, Provenance("test"))


def fused_operators(partition: Partition) -> list[list[str]]:
    """The operators of each kernel that computes several block by block, without what is element-wise."""
    kernels = [(s, k) for s in partition.subgraphs for k in s.kernels if k.blocking is not None]
    return [[s.nodes[i].op_type for i in k.nodes if s.nodes[i].op_type != "Relu"] for s, k in kernels]


def pointwise(c: Chain) -> Chain:
    return c.conv(24 if c.value.shape[1] > 100 else 144)


def depthwise(c: Chain) -> Chain:
    return c.conv(0, 3, depthwise=True)


@pytest.mark.parametrize("second", [pointwise, depthwise])
@pytest.mark.parametrize("first", [pointwise, depthwise])
@pytest.mark.parametrize("is_one", [True, False])
def test_every_pair_is_fused_where_what_lies_between_is_large(
    first: Callable[[Chain], Chain], second: Callable[[Chain], Chain], is_one: bool
) -> None:
    chain = second(first(Chain(24 if first is pointwise else 144, (56, 56), batch=4)))
    chain.graph.outputs = [chain.value]
    problem = PartitionProblem(chain.graph)
    plain = as_one(chain.graph) if is_one else Layerwise().solve(problem, Budget())
    chosen = choose_forms(problem, plain, prices())
    assert check_partition(problem, chosen) == ()
    assert fused_operators(chosen) == [["Conv", "Conv"]]
    small = second(first(Chain(16 if first is pointwise else 64, (7, 7))))
    small.graph.outputs = [small.value]
    assert fused_operators(choose_forms(PartitionProblem(small.graph), as_one(small.graph), prices())) == []


def test_behind_a_depthwise_layer_channels_are_tiled_and_behind_products_rows() -> None:
    """Neither computes anything twice: no halos, and no weights of other channels."""
    for last, axis in ((depthwise, 1), (pointwise, 2)):
        chain = last(pointwise(Chain(24, (28, 28), batch=4)))
        chain.graph.outputs = [chain.value]
        (subgraph,) = choose_forms(PartitionProblem(chain.graph), as_one(chain.graph), prices()).subgraphs
        (kernel,) = subgraph.kernels
        assert kernel.blocking is not None
        shape = chain.value.shape
        cut = [
            a
            for a, (size, extent) in enumerate(zip(kernel.blocking.block, shape, strict=True))
            if size < extent
        ]
        assert cut == [0, axis]


@pytest.mark.parametrize(("is_input", "is_read_again"), [(False, False), (False, True), (True, False)])
def test_what_writes_over_its_operand_saves_no_write(is_input: bool, is_read_again: bool) -> None:
    """A gate times what it was made of stays apart from the layer behind it, if nothing else reads that."""
    chain = Chain(96, (112, 112)) if is_input else Chain(96, (224, 224)).pool()
    value = chain.value
    n, c, _, _ = value.shape
    mean, gate, gated = (
        chain.graph.value(name, value.dtype, shape)
        for name, shape in (("mean", (n, c, 1, 1)), ("gate", (n, c, 1, 1)), ("gated", value.shape))
    )
    chain.graph.append(Node("GlobalAveragePool", [value], [mean]))
    chain.graph.append(Node("Sigmoid", [mean], [gate]))
    chain.graph.append(Node("Mul", [value, gate], [gated]))
    chain.value = gated
    chain.conv(24)
    chain.graph.outputs = [chain.value]
    if is_read_again:
        chain.value = value
        chain.graph.outputs.append(chain.conv(8).value)
    problem = PartitionProblem(chain.graph)
    chosen = choose_forms(problem, Layerwise().solve(problem, Budget()), prices())
    assert (["Mul", "Conv"] in fused_operators(chosen)) == (is_input or is_read_again)


def test_branches_that_meet_share_a_kernel() -> None:
    """As those of a fire module do: no run holds both."""
    chain = Chain(64, (112, 112))
    chain.conv(16)
    squeezed = chain.value
    ends = [chain.conv(64).value]
    chain.value = squeezed
    ends.append(chain.conv(64).value)
    n, c, h, w = ends[0].shape
    out = chain.graph.value("joined", ends[0].dtype, (n, 2 * c, h, w))
    chain.graph.append(Node("Concat", ends, [out], {"axis": 1}))
    chain.value = out
    chain.conv(16)
    chain.graph.outputs = [chain.value]
    problem = PartitionProblem(chain.graph)
    for plain in (as_one(chain.graph), Layerwise().solve(problem, Budget())):
        chosen = choose_forms(problem, plain, prices())
        assert check_partition(problem, chosen) == ()
        assert ["Conv", "Conv", "Concat", "Conv"] in [ops[-4:] for ops in fused_operators(chosen)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["mobilenet_v2", "resnet18", "bert_tiny", "mobilevit_s"])
def test_clusters_are_cut_into_the_kernels_of_the_default(name: str) -> None:
    """Clusters are for the tuner: what their bound of weight cuts costs the untuned plan nothing."""
    graph = plan(load_onnx(zoo.build(name)), Options(target=TargetRef.parse("null"))).program.graph
    problem = PartitionProblem(graph)
    kernels: list[set[frozenset[str]]] = []
    for planner in (Layerwise(), Ago()):
        chosen = choose_forms(problem, planner.solve(problem, Budget()), prices())
        assert check_partition(problem, chosen) == ()
        kernels.append(
            {frozenset(s.nodes[i].name for i in k.nodes) for s in chosen.subgraphs for k in s.kernels}
        )
    assert kernels[0] == kernels[1]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["mobilenet_v2", "resnet18", "squeezenet1_1"])
def test_whatever_gains_is_promising(name: str) -> None:
    graph = plan(load_onnx(zoo.build(name)), Options(target=TargetRef.parse("null"))).program.graph
    known = prices()
    elements = Elements(as_one(graph)).all
    counts = {True: 0, False: 0}
    for first, last in pairwise(elements):
        bounds = [known.gain_bound_of(e.nodes, e.outputs) for e in (first, last)]
        promising = may_gain(bounds)
        counts[promising] += 1
        if not promising:
            assert known.of((*first.nodes, *last.nodes), last.outputs) is None
    assert all(counts.values())


def test_layers_that_weight_cut_are_whole_again() -> None:
    graph = plan(load_onnx(zoo.build("resnet18")), Options(target=TargetRef.parse("null"))).program.graph
    problem = PartitionProblem(graph)
    cut = Ago(threshold=100.0).solve(problem, Budget())
    joined = join_layers(problem, cut)
    assert check_partition(problem, joined) == ()
    layers = [set(layer) for layer in layerwise_clusters(graph)]

    def num_divided(partition: Partition) -> int:
        return sum(not any(layer <= set(s.nodes) for s in partition.subgraphs) for layer in layers)

    assert num_divided(cut) > 10
    assert num_divided(joined) == 0
    never = PARTITIONERS.get("none").solve(problem, Budget())
    assert not isinstance(never, Infeasible)
    assert join_layers(problem, never) is never


def test_a_value_that_others_read_too_stays_between_kernels() -> None:
    chain = pointwise(Chain(24, (56, 56), batch=4))
    inside: Value = chain.value
    depthwise(chain)
    chain.graph.outputs = [chain.value, inside]
    chosen = choose_forms(PartitionProblem(chain.graph), as_one(chain.graph), prices())
    assert fused_operators(chosen) == []
