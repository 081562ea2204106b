"""`tw.diff`: what was decided otherwise, and nothing where nothing was."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.cli import tilewright
from tests.support.models import small_net

import tilewright as tw


@pytest.fixture(scope="module")
def fused() -> tw.CompiledModel:
    return tw.compile(small_net(), threads=1)


@pytest.fixture(scope="module")
def apart() -> tw.CompiledModel:
    return tw.compile(small_net(), threads=1, partition="none")


def test_a_model_and_its_artifact_do_not_differ(fused: tw.CompiledModel, tmp_path: Path) -> None:
    found = tw.diff(fused, fused.save(tmp_path / "m.tw"))
    assert found.is_same
    assert found.tables() == []
    assert found.lines() == ("nothing differs: same options, nodes and kernels",)


def test_kernels_are_compared_by_the_nodes_that_they_run(
    fused: tw.CompiledModel, apart: tw.CompiledModel
) -> None:
    found = tw.diff(fused, apart)
    assert not found.is_same
    assert [(fact.name, fact.a, fact.b) for fact in found.options] == [("--partition", '"auto"', '"none"')]
    first = next(change for change in found.kernels if "conv1" in change.nodes)
    assert first.nodes == ("conv1", "relu1")
    assert (len(first.a), len(first.b)) == (1, 2)
    assert all("pool" not in change.nodes for change in found.kernels), "the pool runs alike in both"
    assert found.only_a == found.only_b == ()
    figures = {fact.name: (fact.a, fact.b) for fact in found.figures}
    assert figures["kernels"] == (str(len(fused.kernels)), str(len(apart.kernels)))
    assert "model" not in figures


def test_nodes_of_one_alone_are_named(fused: tw.CompiledModel) -> None:
    other = small_net()
    other.graph.node[1].op_type = "Sigmoid"
    found = tw.diff(fused, tw.compile(other, threads=1))
    assert found.only_a == ("Relu relu1",)
    assert found.only_b == ("Sigmoid relu1",)
    assert "model" in {fact.name for fact in found.figures}


def test_the_command_line_compares_files(fused: tw.CompiledModel, tmp_path: Path) -> None:
    fused.save(tmp_path / "a.tw")
    tw.compile(small_net(), threads=1, partition="layerwise", schedule="greedy").save(tmp_path / "b.tw")
    told = tilewright("diff", tmp_path / "a.tw", tmp_path / "b.tw")
    assert told.code == 0
    assert "A: a.tw" in told.out
    assert "--schedule" in told.out
    assert tilewright("diff", tmp_path / "a.tw", tmp_path / "a.tw").out.startswith("nothing differs")
