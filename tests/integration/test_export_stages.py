"""Schedules for others: stages as JSON, and the partition that onnxruntime reads."""

# mypy: disable-error-code="name-defined"

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from tests.support.cli import tilewright

import tilewright as tw
from tilewright import zoo
from tilewright.api import export_stages
from tilewright.cli.schemas import violations

ort = pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("stages") / "net.onnx"
    found.write_bytes(zoo.build("ios_squeezenet", image=64).SerializeToString())
    return found


def session(path: Path, partition: Path | None) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.inter_op_num_threads = 2
    options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    options.log_severity_level = 4
    if partition is not None:
        options.add_session_config_entry("session.node_partition_config_file", str(partition))
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def test_onnxruntime_takes_the_partition_and_computes_the_same(path: Path, tmp_path: Path) -> None:
    written = tmp_path / "net.ort-partition.json"
    made = export_stages(
        path, written, "ort-partition", target="v100", partition="layerwise", schedule="greedy"
    )
    assert made.max_groups > 1
    document = json.loads(written.read_text())
    assert len(document["streams"]) == len(document["devices"]) == made.max_groups
    listed = [name for stream in document["streams"] for name in stream]
    assert sorted(listed) == sorted(node.name for node in onnx.load(path).graph.node)
    plain = session(path, None)
    (given,) = plain.get_inputs()
    feed = {given.name: np.random.default_rng(0).random(given.shape, np.float32)}
    np.testing.assert_array_equal(session(path, written).run(None, feed)[0], plain.run(None, feed)[0])


def test_onnxruntime_looks_at_the_file(path: Path, tmp_path: Path) -> None:
    """Else the test above would show nothing."""
    written = tmp_path / "net.ort-partition.json"
    export_stages(path, written, "ort-partition", target="v100", partition="layerwise", schedule="greedy")
    document = json.loads(written.read_text())
    document["streams"][0] = document["streams"][0][1:]
    written.write_text(json.dumps(document))
    with pytest.raises(Exception, match="node-stream map"):
        session(path, written)


def test_stages_hold_every_operator_once_in_an_order_that_runs(path: Path, tmp_path: Path) -> None:
    written = tmp_path / "stages.json"
    made = export_stages(path, written, target="v100", partition="layerwise", schedule="greedy")
    document = json.loads(written.read_text())
    assert document["cost"] == made.cost
    assert len(document["stages"]) == made.num_stages
    operators = [
        name
        for stage in document["stages"]
        for group in stage["groups"]
        for kernel in group["kernels"]
        for name in kernel["operators"]
    ]
    assert len(operators) == len(set(operators)) > made.num_operators


def test_the_verb_writes_both(path: Path, tmp_path: Path) -> None:
    arguments = ("-t", "v100", "--partition", "layerwise", "--schedule", "greedy", "-o", str(tmp_path))
    for to in ("stages", "ort-partition"):
        result = tilewright("export", str(path), "--to", to, *arguments, "--json")
        assert result.code == 0, result.err
        document = json.loads(result.out)
        assert violations(document) == []
        assert Path(document["path"]) == tmp_path / f"net.{to}.json"
        again = tilewright("export", str(path), "--to", to, *arguments)
        assert again.code == 2
        assert "--force" in again.err


def test_an_object_file_has_no_schedule_to_choose(path: Path) -> None:
    result = tilewright("export", str(path), "--schedule", "ios")
    assert result.code != 0
    assert "--schedule ios: an object file" in result.err


def test_nodes_without_names_are_refused(path: Path, tmp_path: Path) -> None:
    model = onnx.load(path)
    model.graph.node[2].name = ""
    with pytest.raises(tw.ModelRejected, match=r"node 2 \(\w+\) has no name"):
        export_stages(model, tmp_path / "x.json", "ort-partition", target="v100")
