"""GraphTurbo: layers, independent axes, peaks, SplitInfo and the grouping, on graphs that fit on a page."""

# mypy: disable-error-code="assignment, misc"

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from tests.support.graphs import GraphBuilder, random_graph
from tests.support.models import small_net
from tests.unit.partition.residual import convolution, residual

import tilewright as tw
from tilewright.errors import UsageError
from tilewright.hardware.presets import load_preset
from tilewright.ir.graph import Graph, Node
from tilewright.partition import PartitionProblem, Reason, check_partition
from tilewright.partition.base import Partition
from tilewright.partition.check_splits import check_splits
from tilewright.partition.graphturbo import GraphTurbo
from tilewright.partition.layers import canonical_order, cut_layers
from tilewright.partition.split import WHOLE, Split, WeighedSplits
from tilewright.planning import Budget, Status
from tilewright.schedule.check_instances import check_instances
from tilewright.schedule.instances import instance_graph

UNBOUNDED = 1 << 60


def weighed(partition: Partition) -> WeighedSplits:
    assert partition.weighed is not None
    return partition.weighed


def partition_of(graph: Graph, capacity_bytes: int, **options: Any) -> Partition:
    problem = PartitionProblem(graph)
    planner = GraphTurbo(capacity_bytes=capacity_bytes, element_bytes=4, **options)  # type: ignore[arg-type]
    partition = planner.solve(problem, Budget())
    assert check_partition(problem, partition) == ()
    assert check_splits(partition, recompute_limit=planner.recompute_limit) == ()
    return partition


def test_the_peak_counts_inputs_results_and_what_waits() -> None:
    """Stem [4,8,6,6] of 4608 bytes: the block holds the stem, one result and the next one at once."""
    _, graph = residual()
    tensor = graph.outputs[0].size_bytes
    partition = partition_of(graph, UNBOUNDED)
    assert partition.splits == (WHOLE,)
    assert weighed(partition).peak_bytes == (3 * tensor,)


def test_without_writing_in_place_a_sum_needs_a_third_tensor() -> None:
    b = GraphBuilder()
    x, y = b.input(4, 4), b.input(4, 4)
    graph = b.finish(b.op("Add", x, y))
    assert weighed(partition_of(graph, UNBOUNDED)).peak_bytes == (2 * x.size_bytes,)
    assert weighed(partition_of(graph, UNBOUNDED, in_place=False)).peak_bytes == (3 * x.size_bytes,)


def test_a_group_whose_best_axis_needs_too_many_instances_is_refused() -> None:
    """Rows of a product in two halves, which leave the layer before whole, would do; by Eq. 1 the axis that
    splits both comes first, and that takes three instances where the product alone takes two."""
    b = GraphBuilder()
    x = b.input(3, 8, 1)
    graph = b.finish(b.op("MatMul", b.constant(3, 8, 8), b.op("Sigmoid", x), shape=x.shape))
    partition = partition_of(graph, x.size_bytes * 3 // 2, dims="any")
    assert partition.splits == (WHOLE, Split(1, 2))


@pytest.mark.parametrize(("share", "factor"), [(1, 1), (2, 2), (4, 4)])
def test_the_least_factor_that_fits_is_taken(share: int, factor: int) -> None:
    _, graph = residual()
    partition = partition_of(graph, 3 * graph.outputs[0].size_bytes // share)
    assert partition.splits == (Split(0, factor) if factor > 1 else WHOLE,)


def masked_blocks(num_blocks: int, *, has_mask: bool) -> Graph:
    """Blocks whose inner part needs two instances; all of them add a mask made of a second input."""
    b = GraphBuilder()
    x = b.op("Relu", b.input(2, 4, 8, 8))
    mask = b.op("Softmax", b.input(2, 1, 8, 8)) if has_mask else b.constant(2, 1, 8, 8)
    for _ in range(num_blocks):
        wide = b.op("Add", b.conv(x, 16), mask, shape=(2, 16, 8, 8))
        x = b.op("Add", b.conv(b.op("MaxPool", wide, kernel_shape=(1, 1)), 4), x)
    return b.finish(x)


def test_a_mask_that_all_blocks_read_does_not_keep_them_apart() -> None:
    """A diamond between an exit and its dominator stays one, whatever else comes from outside."""
    b_bytes = 2 * 4 * 8 * 8 * 4
    found = [
        partition_of(masked_blocks(3, has_mask=m), 5 * b_bytes, side_inputs=True).splits
        for m in (False, True)
    ]
    assert [[s.factor for s in splits] for splits in found] == [[2], [2]]
    apart = partition_of(masked_blocks(3, has_mask=True), 5 * b_bytes)
    assert len(apart.subgraphs) > 3


def test_what_fits_in_no_way_stays_a_layer_of_its_own() -> None:
    _, graph = residual()
    partition = partition_of(graph, 0)
    assert len(partition.subgraphs) == len(cut_layers(graph))
    assert set(partition.splits) == {WHOLE}
    assert not any(weighed(partition).options)
    assert {d.reason for d in partition.decisions if not d.reason.is_fused} <= {
        Reason.CAPACITY,
        Reason.ESCAPES,
    }


def test_one_image_is_split_along_its_rows_where_it_does_not_fit() -> None:
    b = GraphBuilder()
    graph = b.finish(convolution(b, b.input(1, 4, 32, 32), 4, 3))
    whole = 2 * graph.outputs[0].size_bytes
    assert not weighed(partition_of(graph, whole * 2 // 3, dims="batch")).is_feasible(0)
    partition = partition_of(graph, whole * 2 // 3)
    assert partition.splits == (Split(2, 2),)
    assert weighed(partition).peak_bytes == ((16 + 17) * 32 * 4 * 4,)


def test_where_one_image_of_several_does_not_fit_it_is_cut_again() -> None:
    """The batch first, down to one image, then the smallest cut of its rows."""
    b = GraphBuilder()
    x = b.input(3, 4, 16, 16)
    graph = b.finish(convolution(b, b.op("Relu", convolution(b, x, 4, 3)), 4, 3))
    image = x.size_bytes // 3
    (split,) = partition_of(graph, 3 * image).splits
    assert str(split) == "axis 0 by 3"
    partition = partition_of(graph, image * 3 // 2)
    assert [str(split) for split in partition.splits] == ["axis 0 by 3, axis 2 by 2"]
    recompute = weighed(partition).options[0][0].recompute
    assert 1 < recompute <= 1.25
    assert check_splits(partition, recompute_limit=recompute) == ()
    found = check_splits(partition, recompute_limit=recompute - 1e-6)
    assert [violation.rule for violation in found] == ["recompute"]
    assert not weighed(partition_of(graph, image * 3 // 2, dims="batch")).is_feasible(0)
    b = GraphBuilder()
    graph = b.finish(convolution(b, b.input(3, 4, 16, 16), 4, 3))
    found = [partition_of(graph, image * 3 // 2, dims=dims).splits[0] for dims in ("batch-first", "any")]
    assert [str(split) for split in found] == ["axis 0 by 3, axis 1 by 2", "axis 2 by 8"]


def test_one_axis_in_single_rows_is_cut_along_another_one() -> None:
    b = GraphBuilder()
    x = b.input(1, 1, 4, 4)
    graph = b.finish(b.op("MaxPool", x, kernel_shape=(1, 1)))
    splits = partition_of(graph, 4 * 4).splits
    assert [s.cuts for s in splits] == [((2, 4), (3, 2))], "two elements and their results"


def test_an_opaque_operator_stays_alone() -> None:
    b = GraphBuilder()
    graph = b.finish(b.op("Relu", b.op("NobodyKnowsThis", b.op("Relu", b.input(4, 4)))))
    assert [len(s.nodes) for s in partition_of(graph, UNBOUNDED).subgraphs] == [1, 1, 1]


def test_unlimited_buffers_leave_one_subgraph_without_a_cut() -> None:
    for seed in range(10):
        graph = random_graph(seed, 12)
        graph.outputs = graph.outputs[-1:]
        live = set(canonical_order(graph)[: _num_reaching(graph)])
        graph = graph.extract(lambda n, live=live: n in live)
        partition = partition_of(graph, UNBOUNDED)
        assert len(partition.subgraphs) == 1
        assert partition.splits[0] == WHOLE


def _num_reaching(graph: Graph) -> int:
    seen: set[Node] = set()
    stack = [v.producer for v in graph.outputs]
    while stack:
        node = stack.pop()
        if node is not None and node not in seen:
            seen.add(node)
            stack += [v.producer for v in node.operands()]
    return len(seen)


@pytest.mark.parametrize("options", [{"alpha": 0.0}, {"capacity_bytes": -1}, {"element_bytes": 0}])
def test_senseless_options_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="graphturbo"):
        GraphTurbo(**options)  # type: ignore[arg-type]


def stack(num_blocks: int) -> Graph:
    """Blocks of two convolutions beside their input, one after another."""
    b = GraphBuilder()
    x = b.input(4, 8, 6, 6)
    for _ in range(num_blocks):
        inner = b.op("Relu", convolution(b, x, 8, 3))
        x = b.op("Relu", b.op("Add", convolution(b, inner, 8, 3), x))
    return b.finish(x)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("share", [0.0, 1.0, 3.0, 1e6])
def test_work_grows_with_the_network_and_no_faster(share: float) -> None:
    """Counted in layers visited: each further block costs the same."""
    visits = []
    for num_blocks in (12, 24, 48, 96):
        graph = stack(num_blocks)
        partition = GraphTurbo(
            capacity_bytes=int(graph.outputs[0].size_bytes * share), element_bytes=4
        ).solve(PartitionProblem(graph), Budget())
        visits.append(int(partition.provenance.note.split()[0]))
    added = [many - few for few, many in pairwise(visits)]
    assert added == [added[0], 2 * added[0], 4 * added[0]]


def test_a_chain_of_thousands_is_no_recursion() -> None:
    b = GraphBuilder()
    x = b.input(4, 4)
    for _ in range(1500):
        x = b.op("Softmax", x)
    partition = partition_of(b.finish(x), 3 * x.size_bytes)
    assert [len(partition.layers_of(s)) for s in partition.subgraphs] == [1500]


@pytest.mark.parametrize("extent", [1, 3, 7, 197])
def test_odd_extents_have_a_valid_plan(extent: int) -> None:
    b = GraphBuilder()
    x = b.op("Relu", convolution(b, b.input(extent, 4, 5, 5), 4, 3))
    graph = b.finish(convolution(b, x, 4, 3))
    for share in (0.1, 0.5, 1.0, 2.0):
        partition_of(graph, int(x.size_bytes * share))


def test_an_operator_whose_result_nothing_reads_stays_alone() -> None:
    b = GraphBuilder()
    x = b.op("Relu", b.input(4, 4))
    b.op("Neg", x)
    assert len(partition_of(b.finish(b.op("Exp", x)), UNBOUNDED).subgraphs) >= 2


def enlarging() -> Graph:
    """A convolution of a small image, then one of an image four times as wide and as high."""
    b = GraphBuilder()
    small = convolution(b, b.input(4, 8, 4, 4), 8, 3)
    scales = b.graph.constant(np.array([1, 1, 4, 4], np.float32), "scales")
    empty = b.graph.constant(np.zeros(0, np.float32), "roi")
    settings = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    large = b.op("Resize", small, empty, scales, shape=(4, 8, 16, 16), **settings)
    return b.finish(convolution(b, large, 8, 3))


def test_a_small_image_is_not_cut_as_finely_as_the_one_made_of_it() -> None:
    graph = enlarging()
    capacity = graph.outputs[0].size_bytes // 2  # a quarter of the large image, twice
    (plain,) = partition_of(graph, capacity, upsampling=False).splits
    assert plain == Split(0, 4)
    partition = partition_of(graph, capacity)
    assert [str(s) for s in partition.splits] == ["whole", "axis 0 by 4"]
    instances = instance_graph(partition)
    assert check_instances(instances) == ()
    assert [instances.predecessors(i) for i in range(5)] == [(), (0,), (0,), (0,), (0,)]


def test_images_of_one_size_are_joined_whether_or_not_another_is_enlarged() -> None:
    partition = partition_of(enlarging(), UNBOUNDED)
    assert len(partition.subgraphs) == 1
    _, graph = residual()
    capacity = graph.outputs[0].size_bytes
    assert partition_of(graph, capacity).splits == partition_of(graph, capacity, upsampling=False).splits


def test_without_grouping_every_layer_is_split_on_its_own() -> None:
    _, graph = residual()
    partition = partition_of(graph, graph.outputs[0].size_bytes, group=False)
    assert len(partition.subgraphs) == len(cut_layers(graph))
    assert partition.splits == (Split(0, 2),) * 4


def test_the_machine_says_how_much_fits_and_how_large_an_element_is() -> None:
    _, graph = residual()
    problem = PartitionProblem(graph, load_preset("stcp920"))
    partition = GraphTurbo(alpha=0.5).solve(problem, Budget())
    assert weighed(partition).capacity_bytes == 8 * (1 << 20) // 2
    assert partition.bytes_of(graph.outputs[0], ((0, 1),) * 4) == 2
    assert weighed(partition).peak_bytes == (3 * graph.outputs[0].size_bytes // 2,)


def test_without_a_machine_the_error_says_what_to_give() -> None:
    _, graph = residual()
    with pytest.raises(UsageError, match=r"^graphturbo: no machine .*--target stcp920\), or capacity_bytes"):
        GraphTurbo().solve(PartitionProblem(graph), Budget())
    partition = GraphTurbo(capacity_bytes=1 << 20).solve(PartitionProblem(graph), Budget())
    assert partition.bytes_of(graph.outputs[0], ((0, 1),) * 4) == 4, "elements are as their types say"


def test_a_machine_without_local_buffers_runs_layer_by_layer() -> None:
    _, graph = residual()
    machine = load_preset("simba-cosa-repo")
    assert machine.local is None
    partition = GraphTurbo().solve(PartitionProblem(graph, machine), Budget())
    assert check_splits(partition) == ()
    assert not any(weighed(partition).options)


def test_a_deadline_leaves_a_valid_partition_that_says_so() -> None:
    graph = stack(20)
    problem = PartitionProblem(graph, load_preset("stcp920"))
    partition = GraphTurbo(element_bytes=4).solve(problem, Budget(deadline_s=1e-9))
    assert check_partition(problem, partition) == ()
    assert check_splits(partition) == ()
    assert partition.quality.status is Status.CUT_OFF


def test_a_stated_peak_that_is_wrong_is_found() -> None:
    _, graph = residual()
    partition = partition_of(graph, UNBOUNDED)
    stated = weighed(partition)
    for peak in (stated.peak_bytes[0] - 1, 10 * stated.peak_bytes[0]):
        options = (replace(stated.options[0][0], peak_bytes=peak),)
        damaged = replace(stated, peak_bytes=(peak,), options=(options,))
        rules = {v.rule for v in check_splits(replace(partition, weighed=damaged))}
        assert rules == {"peak"}


def test_a_sample_is_cut_into_no_more_instances_than_allowed() -> None:
    graph = tw.load(small_net(size=48)).graph
    counts = []
    for most in (1, 4, 16, 64):
        partitioner = GraphTurbo(capacity_bytes=16384, max_instances_per_sample=most)
        partition = partitioner.solve(PartitionProblem(graph), Budget())
        counts.append(max(split.num_instances for split in partition.splits))
        assert counts[-1] <= most
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]
    with pytest.raises(UsageError, match="0 instances of a sample are none; give 1 or more"):
        GraphTurbo(max_instances_per_sample=0)
