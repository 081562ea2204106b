"""Batches for a cluster: which are worth planning, and runs of any number of samples."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from tests.support.models import model as make_model

from tilewright import zoo
from tilewright.api.batches import buckets, runs, shown
from tilewright.errors import InfeasibleMapping, UsageError
from tilewright.frontend.onnx import load_onnx
from tilewright.hardware.presets import load_preset
from tilewright.partition import PartitionProblem
from tilewright.partition.analysis import Analysis
from tilewright.partition.axes import Axis, IndependentAxes
from tilewright.partition.base import Partition
from tilewright.partition.graphturbo import GraphTurbo
from tilewright.partition.split import WHOLE
from tilewright.passes import run_passes
from tilewright.planning import Budget
from tilewright.targets.npu.batches import candidates, samples_of_instances

pytestmark = pytest.mark.sampled(6)


def test_buckets_are_powers_of_two_that_sum_to_the_samples() -> None:
    for most in (1, 2, 4, 16, 64):
        for samples in range(1, 200):
            parts = buckets(samples, most)
            assert sum(parts) == samples
            assert all(part & (part - 1) == 0 and part <= most for part in parts)
            assert list(parts) == sorted(parts, reverse=True)
            smaller = [part for part in parts if part < most]
            assert len(set(smaller)) == len(smaller), "each at most once below the largest"


@pytest.mark.parametrize("seed", range(5))
def test_the_best_way_is_the_fastest_and_parts_add_up(seed: int) -> None:
    rng = random.Random(seed)
    times = {n: rng.uniform(0.5, 1.5) * n for n in range(1, 65)}
    for run in runs(range(1, 33), 8, times.__getitem__):
        padded = next(p for p in (1, 2, 4, 8, 16, 32) if p >= run.samples)
        assert run.direct_s == times[run.samples]
        assert run.padded_s == times[padded]
        assert run.in_buckets_s == pytest.approx(sum(times[part] for part in run.parts))
        assert run.best_s == min(run.direct_s, run.padded_s, run.in_buckets_s)
        assert run.ways[run.best] == run.best_s


def test_what_does_not_fit_is_run_in_parts_if_these_do() -> None:
    def seconds(samples: int) -> float:
        if samples > 4:
            raise InfeasibleMapping("too large")
        return float(samples)

    (run,) = runs([7], 4, seconds)
    assert (run.direct_s, run.padded_s, run.in_buckets_s, run.best) == (None, None, 7.0, "buckets")
    with pytest.raises(InfeasibleMapping, match="7 samples"):
        runs([7], 8, lambda samples: seconds(9))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("name", "largest"), [("resnet50", 16), ("mobilenet_v2", 32)])
def test_batches_end_where_subgraphs_only_run_more_often(name: str, largest: int) -> None:
    """The paper runs ResNet-50 with 16 images for a cluster, MobileNet-v2 with 32."""
    partition, axes, batched = partitioned(zoo.build(name, batch=64))
    assert candidates(partition, axes, batched, 64) == tuple(2**i for i in range(largest.bit_length()))
    held = samples_of_instances(partition, axes, batched, 64)
    counts = zip(held, partition.splits, strict=True)
    assert all(m is not None and m * s.num_instances == 64 for m, s in counts)


def partitioned(proto: onnx.ModelProto) -> tuple[Partition, IndependentAxes, list[Axis]]:
    """The partition of a network for as many samples as its first input has, and the class of their axis."""
    graph = load_onnx(proto)
    run_passes(graph)
    analysis = Analysis(graph)
    problem = PartitionProblem(graph, load_preset("stcp920"))
    partition = GraphTurbo().solve(replace(problem, known=analysis), Budget())
    return partition, analysis.axes, [analysis.axes.class_of(graph.inputs[0], 0)]


def small(nodes: list[onnx.NodeProto], x: list[int], y: list[int], w: list[int]) -> onnx.ModelProto:
    infos = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, s) for n, s in (("x", x), ("y", y))]
    weight = numpy_helper.from_array(np.ones(w, np.float32), "w")
    return make_model(nodes, infos[:1], infos[1:], [weight])


@pytest.mark.parametrize("wide", [32, 1 << 14, 1 << 16])
def test_samples_are_counted_where_they_stand(wide: int) -> None:
    """The second axis of the result counts them. Slices of its first one hold all of them."""
    nodes = [
        helper.make_node("Transpose", ["x"], ["turned"], perm=[1, 0, 2]),
        helper.make_node("MatMul", ["turned", "w"], ["y"]),
    ]
    partition, axes, batched = partitioned(small(nodes, [64, 4, wide], [4, 64, 8], [wide, 8]))
    (subgraph,), (split,) = partition.subgraphs, partition.splits
    assert [value.shape for value in subgraph.outputs] == [(4, 64, 8)]
    held = 64 // dict(split.cuts).get(1, 1)
    assert samples_of_instances(partition, axes, batched, 64) == (held,)
    assert candidates(partition, axes, batched, 64)[-1] == held
    assert (held < 64) == (wide == 1 << 16), "only there a slice of all samples is too large"


def test_subgraphs_without_samples_decide_nothing() -> None:
    """Where all of them are reduced at once, no batch beyond one is worth planning."""
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], axes=[0], keepdims=0),
        helper.make_node("MatMul", ["mean", "w"], ["y"]),
    ]
    partition, axes, batched = partitioned(small(nodes, [64, 8, 32], [8, 4], [32, 4]))
    assert set(samples_of_instances(partition, axes, batched, 64)) == {None}
    assert candidates(partition, axes, batched, 64) == (1,)


def test_where_not_one_sample_fits_no_more_are_planned() -> None:
    partition, axes, batched = partitioned(zoo.build("resnet50", batch=64))
    assert partition.weighed is not None
    nothing = replace(partition.weighed, options=((),) * len(partition.splits))
    partition = replace(partition, splits=(WHOLE,) * len(partition.splits), weighed=nothing)
    assert candidates(partition, axes, batched, 64) == (1,)


def test_equal_parts_are_shown_together() -> None:
    assert shown(buckets(20_000, 256)) == "78 x 256 + 32"
    assert shown(buckets(6, 4)) == "4 + 2"


def test_a_run_that_takes_too_long_is_none() -> None:
    times = {n: float(n) for n in (1, 2, 4, 8)} | {7: 9.0}
    (run,) = runs([7], 8, times.__getitem__, 7.5)
    assert (run.best, run.best_s) == ("buckets", 7.0)
    with pytest.raises(UsageError, match=r"^max-latency 6500: 7 samples take at least 7e"):
        runs([7], 8, times.__getitem__, 6.5)
