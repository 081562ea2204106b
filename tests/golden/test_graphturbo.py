"""ResNet-50 at 16 images per cluster, as GraphTurbo's paper and the chip's vendor cut it."""

from functools import cache

import pytest

from tilewright import zoo
from tilewright.frontend.onnx import load_onnx
from tilewright.hardware.presets import load_preset
from tilewright.ir.graph import Graph
from tilewright.partition import PARTITIONERS, PartitionProblem, check_partition
from tilewright.partition.graphturbo import SplitPartition
from tilewright.partition.graphturbo.check import check_splits
from tilewright.passes import run_passes
from tilewright.planning import Budget


@cache
def resnet50() -> Graph:
    graph = load_onnx(zoo.build("resnet50", batch=16))
    run_passes(graph)
    return graph


@pytest.fixture(scope="module")
def partition() -> SplitPartition:
    problem = PartitionProblem(resnet50(), load_preset("stcp920"))
    found = PARTITIONERS.get("graphturbo").solve(problem, Budget())
    assert isinstance(found, SplitPartition)
    assert check_partition(problem, found) == ()
    return found


def test_four_subgraphs_run_as_8_4_2_and_1_instances(partition: SplitPartition) -> None:
    assert [str(s.split) for s in partition.splits] == ["axis 0 by 8", "axis 0 by 4", "axis 0 by 2", "whole"]
    shapes = [s.outputs[0].shape for s in partition.subgraphs]
    assert shapes == [(16, 512, 28, 28), (16, 1024, 14, 14), (16, 2048, 7, 7), (16, 1000)]
    assert check_splits(partition, recompute_limit=1.0) == ()
