"""Tuning for a processor that this machine lacks: what a worker found there is in what is written for it."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.support.fake_board import MODULE, PROCESSOR

import tilewright as tw
from tilewright.errors import UsageError
from tilewright.tuning.runners import NoRunner

ROOT = str(Path(__file__).resolve().parents[2])


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two convolutions, and a cache of the test's own."""
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([ROOT, os.environ.get("PYTHONPATH", "")]))
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32) / 8, name)
        for name, shape in (("w1", (16, 8, 3, 3)), ("w2", (32, 16, 1, 1)))
    ]
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], name="a", pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["a", "w2"], ["y"], name="b", strides=[2, 2]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, 14, 14])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 32, 7, 7])
    graph = helper.make_graph(nodes, "small", [x], [y], weights)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(proto, tmp_path / "small.onnx")
    return tmp_path / "small.onnx"


def test_what_a_board_measured_is_in_artifacts_and_exports_for_it(model: Path, tmp_path: Path) -> None:
    def exported(folder: str) -> bytes:
        (tmp_path / folder).mkdir()
        return tw.export(model, tmp_path / folder, isa="aarch64").object_path.read_bytes()

    def compiled(name: str) -> bytes:
        return tw.compile(model, isa="host,aarch64", threads=1).save(tmp_path / name).read_bytes()

    before = exported("before"), compiled("before.tw")
    runner = shlex.join([sys.executable, "-m", MODULE, str(model)])
    tuned = tw.tune(
        model,
        isa="aarch64",
        threads=1,
        runners=[runner],
        budget="8trials",
        search="flat",
        output=tmp_path / "board.tw",
    )
    assert tuned.tuning.changes
    assert tuned.tuning.speedup > 1.05
    assert tuned.tuning.lines()[1:] == (f"measured on {PROCESSOR}",)
    with pytest.raises(UsageError, match="does not run here"):
        tuned.model.run(None, {"x": np.zeros((1, 8, 14, 14), np.float32)})
    after = exported("after"), compiled("after.tw")
    assert all(one != other for one, other in zip(before, after, strict=True))
    host_code = tw.compile(model, threads=1)
    assert host_code.tuning is None, "what a board measured says nothing of this machine"


def test_what_cannot_be_measured_elsewhere_is_told(model: Path) -> None:
    with pytest.raises(NoRunner, match="--isa neon: this machine does not run it; name one that does"):
        tw.tune(model, isa="aarch64", budget="1trials")
    with pytest.raises(UsageError, match="tune for one instruction set at a time"):
        tw.tune(model, isa="host,aarch64", budget="1trials")
    with pytest.raises(UsageError, match="give one"):
        tw.tune(model, workers="ray", runners=["true"])
