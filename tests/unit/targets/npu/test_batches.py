"""Batches for a cluster: which are worth planning, and runs of any number of samples."""

from __future__ import annotations

import random

import pytest

from tilewright import zoo
from tilewright.errors import InfeasibleMapping
from tilewright.frontend.onnx import load_onnx
from tilewright.hardware.presets import load_preset
from tilewright.partition import PartitionProblem
from tilewright.partition.graphturbo import GraphTurbo
from tilewright.passes import run_passes
from tilewright.planning import Budget
from tilewright.targets.npu.batches import buckets, candidates, runs, samples_of_instances, shown


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


@pytest.mark.parametrize(("name", "largest"), [("resnet50", 16), ("mobilenet_v2", 32)])
def test_batches_end_where_subgraphs_only_run_more_often(name: str, largest: int) -> None:
    """The paper runs ResNet-50 with 16 images for a cluster, MobileNet-v2 with 32."""
    graph = load_onnx(zoo.build(name, batch=64))
    run_passes(graph)
    partition = GraphTurbo().solve(PartitionProblem(graph, load_preset("stcp920")), Budget())
    assert candidates(partition, 64) == tuple(2**i for i in range(largest.bit_length()))
    held = samples_of_instances(partition)
    assert all(m * s.split.num_instances == 64 for m, s in zip(held, partition.splits, strict=True))


def test_equal_parts_are_shown_together() -> None:
    assert shown(buckets(20_000, 256)) == "78 x 256 + 32"
    assert shown(buckets(6, 4)) == "4 + 2"
